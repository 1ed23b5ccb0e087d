"""The price of rematerialisation: evaluating a node wherever it is read, against storing it once.

A kernel evaluates a node once for every place (index) at which its code reads it. `Places` finds these places before any code exists, by
following the indices from the kernel's results back to the node as the generator will: two reads at equal indices are one place, nine
shifted slices are nine, and each place counts as often as the loop around it runs. `repeated` adds up, over a node and what would be
inlined beneath it, the evaluations beyond one per element times their prices, and `storing` is the cost of writing the node once and
loading it at its places. All costs and prices are in cheap operations on one element of a vector.
"""

from keras_ocl.compiler.fuse.axes import ANY, reshape_map
from keras_ocl.core import dtypes
from keras_ocl.core.access import ANYWHERE, ONLY, REGROUPED, Along, Inner
from keras_ocl.core.dim import hint, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind

_LOAD = 1  # cost of loading an element that the kernel has just loaded for another place: it is in the cache
_VISITS = 256  # most nodes that one decision looks at: a bound for graphs in which each node repeats next to nothing

NOWHERE = (None, 0, 0)  # the index on an axis of extent 1


class _Source:
    """What an index runs along: a loop variable, or a number computed from loop variables.

    `count`: how often the kernel runs the block in which it is defined. `lane`: whether it differs between the lanes of a vector.
    `split`: whether it is a quotient or a remainder of an index that does.
    """

    __slots__ = ("count", "lane", "split")

    def __init__(self, count, lane=False, split=False):
        self.count, self.lane, self.split = count, lane, split


class Places:
    """Indices of nodes inside kernels.

    An index has an entry (source, scale, offset) for each axis: scale * source + offset, or the offset alone where the source is None.
    """

    def __init__(self):
        self._sources = {}

    def results(self, region, space):
        """The index of the element that a kernel computes at each point of its `space`."""
        lane = max((i for i, n in enumerate(space) if not is_one(n)), default=None)
        sources = [self._source((region, i), size_hint(space[: i + 1]), i == lane) for i in range(len(space))]
        return tuple(NOWHERE if is_one(n) else (source, 1, 0) for n, source in zip(space, sources, strict=True))

    def operand(self, user, position, index):
        """The index at which `user`, evaluated at `index`, reads its operand; one for all elements that a loop of its own reads."""
        if user.kind is Kind.ELEMENTWISE:
            return index
        x, access = user.inputs[position], user.primitive.access(user, position)
        if REGROUPED in access:
            return self._regrouped(user, x, index)
        return tuple(self._entry(user, position, i, entry, index) for i, entry in enumerate(access))

    def _entry(self, user, position, i, entry, index):
        """The index along axis `i` of an operand, given the `entry` of its access map."""
        if type(entry) is Along:
            return _moved(index[entry.axis], entry.stride, entry.start)
        if entry is ONLY or entry is ANYWHERE and is_one(user.inputs[position].shape[i]):
            return NOWHERE
        times = terms(user)
        if entry is ANYWHERE:
            return self._computed((user, position, i), index, times)
        if type(entry) is Inner:
            return self._computed((user, i), index, times)
        return self._computed((user, i), index, times, _in_lanes([index[entry.axis]]))

    def _regrouped(self, user, x, index):
        kept = reshape_map(user.shape, x.shape, index)
        lane = _in_lanes([e for e in index if e not in kept])
        shapes = (tuple(user.shape), tuple(x.shape))
        return tuple(
            NOWHERE if e is None else self._computed((*shapes, i), index, 1, lane, lane) if e == ANY else e for i, e in enumerate(kept)
        )

    def _computed(self, key, index, times=1, lane=False, split=False):
        return self._source((key, index), evaluations([index]) * times, lane, split), 1, 0

    def _source(self, key, *properties):
        found = self._sources.get(key)
        if found is None:
            found = self._sources[key] = _Source(*properties)
        return found


def _in_lanes(entries):
    return any(source is not None and source.lane for source, _, _ in entries)


def ends_lanes(node, places):
    """Whether a kernel that evaluates `node` at `places` cannot be vectorised.

    It cannot where an axis of `node` runs along quotients or remainders of the lanes' index, which come from a reshape. Elementwise
    operations, whose operands are laid out like their result, need only the flat index.
    """
    if node.kind is Kind.ELEMENTWISE or not any(i.shape for i in node.inputs) or node.primitive.flat:
        return False
    return _split(places)


def _split(places):
    return any(source is not None and source.split for index in places for source, _, _ in index)


def strided(node, places):
    """Those of `places` at which the lanes of a vector read elements of `node`, if it is in memory, that are not adjacent."""
    last = max((i for i, n in enumerate(node.shape) if not is_one(n)), default=0)
    return [index for index in places if _in_lanes(index) and not (_in_lanes(index[last:]) and index[last][1] == 1)]


def _moved(entry, stride, start):
    source, scale, offset = entry
    return source, scale * hint(stride), offset * hint(stride) + hint(start)


def evaluations(indices):
    """Number of evaluations of a node at distinct `indices`: for each, as many as the deepest loop that it depends on has steps in all."""
    return sum(max((e[0].count for e in index if e[0] is not None), default=1) for index in indices)


def terms(node):
    """Number of elements of an operand that one element of a reduction, window or contraction combines; 1 for other nodes."""
    return 1 if node.primitive.terms is None else node.primitive.terms(node)


def price(node):
    """Cost of one evaluation of `node`, without its operands."""
    cost = node.primitive.cost
    return cost(node) if callable(cost) else cost


def pads_lanes(node):
    """Whether `node`, such as a pad, masks an operand along the last axis, along which lanes run."""
    return node.kind is Kind.MASKED and len(node.shape) - 1 in node.primitive.masks(node)


def size(node):
    """Number of elements of a node's result, at least 1."""
    return max(1, size_hint(node.shape))


def storing(node, places, schedule):
    """Cost of writing `node` once, and loading it at `places`, a list of indices."""
    return schedule.launch + size(node) * schedule.byte * itemsize(node) + loading(node, places, schedule)


def loading(node, places, schedule, factor=1):
    """Cost of loading `node` at `places` beyond once per element, and of gathers by lanes (none if `factor` is not 1: no lanes)."""
    gathered = evaluations(strided(node, places)) if factor == 1 else 0
    return _LOAD * max(0, factor * evaluations(places) - size(node)) + schedule.gather * gathered


def itemsize(node):
    """Bytes of an element in memory."""
    return dtypes.itemsize(node.dtype)


def repeated(node, places, schedule, indices, stored, limit, factor=1, whole=False):
    """Cost of evaluating `node` at `places`, beyond that of evaluating it, and what is inlined beneath it, once per element in vectors.

    Args:
        places: list of indices of `node`, in one kernel or several.
        indices: the Places that they come from.
        stored: function of a node: whether it is in memory whatever happens to `node`.
        limit: a cost above which the exact sum does not matter.
        factor: how many times as much operations cost in the kernels that evaluate it: above 1 where they are not vectorised.
        whole: whether nothing beneath `node` may be stored instead.

    Beneath `node` the cheaper of repeating and storing counts, because the same rule will decide there, unless `whole`.
    """
    visits, lanes = _VISITS, factor == 1 and schedule.gather > 0

    def excess(n, places, limit):
        nonlocal visits
        more = max(0, factor * evaluations(places) - size(n))
        visits -= 1
        split = lanes and _split(places)
        if visits < 0 or not (more or split or lanes and strided(n, places)):
            return 0
        if stored(n):
            return loading(n, places, schedule, factor)
        if split and ends_lanes(n, places):
            return limit if whole else min(limit, storing(n, places, schedule))
        total = price(n) * more
        for position, i in enumerate(n.inputs):
            if total >= limit:
                break
            if i in n.inputs[:position]:
                continue
            beneath = list(dict.fromkeys(indices.operand(n, k, at) for k, x in enumerate(n.inputs) if x is i for at in places))
            most = limit - total
            total += excess(i, beneath, most if whole else min(most, storing(i, beneath, schedule)))
        return min(total, limit)

    return excess(node, places, limit)
