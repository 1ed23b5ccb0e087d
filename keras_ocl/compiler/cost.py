"""What fusion repeats, priced against storing it once.

A kernel evaluates a node once for every place at which its code reads it. `Places` finds these places before any code exists, by
following the indices from the kernel's results back to the node as the generator will: two reads at equal indices are one place, nine
shifted slices are nine, and each place counts as often as the loop around it runs. `repeated` adds up, over a node and what would be
inlined beneath it, the evaluations beyond one an element times their prices, and `storing` is what it costs to write the node once and
to load it at its places. Both are in cheap operations on one element of a vector.
"""

from keras_ocl.compiler.axes import ANY, PARTIAL_NAMES, reshape_map
from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import elementwise

VIEWS = {"broadcast", "reshape", "transpose", "slice", "reverse"}
FREE = {"constant", "iota"}

_LOAD = 1  # of an element that the kernel has just loaded for another place: it is in the cache
_GATHER = {"cpu": 8, "gpu": 0}  # of an element that the lanes of a vector read at distances
_BYTE = 4  # writing a byte to memory and reading it in another kernel
_LAUNCH = {"cpu": 50_000, "gpu": 1_000_000}  # of one more kernel
_LANES = 16  # of a vector, about
_MASK = 3  # two comparisons with the bounds of an axis, and joining them
_DIVISION = 3  # of an index by a constant
_OTHER = 4  # a pointwise primitive that is not listed
_RANDOM = {"random_bits": 60, "random_gamma": 500, "random_binomial": 1000}
_VISITS = 256  # nodes that one decision looks at: a bound for graphs where each repeats next to nothing

_NOWHERE = (None, 0, 0)  # the index on an axis of extent 1


class _Source:
    """What indices run along: a loop, or a number computed from loops.

    `count`: how often the kernel reaches the block that knows it. `lane`: whether it differs from lane to lane of a vector.
    `split`: whether it is a quotient or a remainder of what does.
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
        """The index of what a kernel computes for each point of its `space`."""
        lane = max((i for i, n in enumerate(space) if not is_one(n)), default=None)
        sources = [self._source((region, i), hint(product(space[: i + 1])), i == lane) for i in range(len(space))]
        return tuple(_NOWHERE if is_one(n) else (source, 1, 0) for n, source in zip(space, sources, strict=True))

    def operand(self, user, position, index):
        """The index at which `user`, evaluated at `index`, reads its operand; the first of them where a loop of its own reads several."""
        x, params, name = user.inputs[position], user.params, user.name
        if name in elementwise.OPS or name == "stop_gradient":
            return index
        if name == "broadcast":
            stretched = [is_one(n) and not is_one(user.shape[d]) for n, d in zip(x.shape, params["dims"], strict=True)]
            return tuple(_NOWHERE if s else index[d] for s, d in zip(stretched, params["dims"], strict=True))
        if name == "transpose":
            places = dict(zip(params["perm"], index, strict=True))
            return tuple(places[i] for i in range(len(index)))
        if name == "slice":
            return tuple(_moved(e, t, s) for e, t, s in zip(index, params["strides"], params["starts"], strict=True))
        if name == "reverse":
            return tuple(
                (e[0], -e[1], n - 1 - e[2]) if i in params["axes"] else e for i, (e, n) in enumerate(zip(index, x.shape, strict=True))
            )
        if name == "pad" and not any(params["interior"]) and position == 0:
            return tuple(_moved(e, 1, -low) for e, low in zip(index, params["low"], strict=True))
        if name == "concat":
            axis = params["axis"]
            start = sum(i.shape[axis] for i in user.inputs[:position])
            return tuple(_moved(e, 1, -start) if i == axis else e for i, e in enumerate(index))
        if name == "reshape":
            kept = reshape_map(user.shape, x.shape, index)
            lane = _in_lanes([e for e in index if e not in kept])
            shapes = (tuple(user.shape), tuple(x.shape))
            return tuple(
                _NOWHERE if e is None else self._computed((*shapes, i), index, 1, lane, lane) if e == ANY else e for i, e in enumerate(kept)
            )
        if name.startswith(("reduce_", "arg")) and name != "reduce_window" or name in PARTIAL_NAMES:
            axes = params["axes"] if "axes" in params else (params["axis"],)
            kept = iter(index[1:] if name in PARTIAL_NAMES else index)
            return tuple(self._computed((user, i), index, reduction_length(user)) if i in axes else next(kept) for i in range(len(x.shape)))
        if "window" in params:
            times = _taps(user)
            if position and name == "window_pick":
                return index
            return tuple(
                e if _alone(params, i) else self._computed((user, i), index, times, _in_lanes([e])) for i, e in enumerate(index)
            )
        times = reduction_length(user) if name == "dot_general" else 1
        return tuple(_NOWHERE if is_one(n) else self._computed((user, position, i), index, times) for i, n in enumerate(x.shape))

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
    """Whether a kernel that evaluates `node` at `places` has to compute without vectors.

    It has where an axis of `node` runs along quotients of the lanes' index: a reshape took them apart. Elementwise operations, whose
    operands lie like their result, need only the whole.
    """
    if node.name in elementwise.OPS or node.name == "reshape" or not node.inputs or not any(i.shape for i in node.inputs):
        return False
    return _split(places)


def _split(places):
    return any(source is not None and source.split for index in places for source, _, _ in index)


def strided(node, places):
    """Those of `places` where lanes read `node`, if it is in memory, at distances."""
    last = max((i for i, n in enumerate(node.shape) if not is_one(n)), default=0)
    return [index for index in places if _in_lanes(index) and not (_in_lanes(index[last:]) and index[last][1] == 1)]


def _moved(entry, stride, start):
    source, scale, offset = entry
    return source, scale * hint(stride), offset * hint(stride) + hint(start)


def _alone(params, i):
    """Whether windows along axis `i` are its single elements."""
    return is_one(params["window"][i]) and is_one(params["strides"][i]) and tuple(params["padding"][i]) == (0, 0)


def _taps(node):
    """Positions that a windowed primitive loops over for each of its results."""
    window, strides, dilation = (node.params[k] for k in ("window", "strides", "dilation"))
    if node.name != "window_gather_sum":
        return hint(product(window))
    return hint(product(w for w, s, d in zip(window, strides, dilation, strict=True) if (w - 1) * d + 1 > s))


def evaluations(indices):
    """How often a kernel evaluates a node at distinct `indices`: as often as the deepest loop runs that each depends on."""
    return sum(max((e[0].count for e in index if e[0] is not None), default=1) for index in indices)


def reduction_length(node):
    """Elements that one element of the result is made of."""
    if node.name == "dot_general":
        a = node.inputs[0]
        return hint(product(a.shape[i] for i in node.params["contract"][0]))
    if node.name.startswith("partial_"):
        x = node.inputs[0]
        per_part = min(node.params["chunk"], hint(x.shape[node.params["axis"]]))
        return per_part * hint(product(x.shape[a] for a in node.params["axes"] if a != node.params["axis"]))
    if "window" in node.params:
        return hint(product(node.params["window"]))
    inputs = max((hint(product(i.shape)) for i in node.inputs), default=1)
    return max(1, inputs // max(1, hint(product(node.shape))))


def reads(node):
    """Elements of an operand that one element of a pointwise node reads at most."""
    if "window" in node.params:
        return _taps(node)
    reduces = node.name.startswith(("reduce_", "arg", "partial_")) or node.name == "dot_general"
    return reduction_length(node) if reduces else 1


def price(node):
    """One evaluation of `node`, without its operands."""
    op = elementwise.OPS.get(node.name)
    if op is not None:
        return op.cost
    if node.name in VIEWS | FREE:
        return 0
    params = node.params
    if node.name == "pad":
        gaps = params["interior"]
        axes = [i for i, around in enumerate(zip(params["low"], params["high"], gaps, strict=True)) if any(around)]
        return 1 + sum(_mask(node, i) for i in axes) + _DIVISION * sum(1 for gap in gaps if gap)
    if node.name == "concat":
        return (1 + _mask(node, params["axis"])) * len(node.inputs)
    if "window" in params:
        divided = node.name == "window_gather_sum"
        axes = [i for i in range(len(params["window"])) if not _alone(params, i)]
        each = sum(_MASK + (_DIVISION if divided and not is_one(params["strides"][i]) else 0) for i in axes)
        return _taps(node) * (2 + each)
    if node.name.startswith(("reduce_", "arg", "partial_")) or node.name == "dot_general":
        return reduction_length(node)
    return _RANDOM.get(node.name, _OTHER)


def pads_lanes(node):
    """Whether `node` is a pad of the axis that lanes run along."""
    return node.name == "pad" and any(any(node.params[k][-1:]) for k in ("low", "high", "interior"))


def _mask(node, axis):
    """Telling where an element lies on an axis of `node`: that is known outside of the loop over what is within the axis."""
    return _MASK * min(1, _LANES / max(1, hint(product(node.shape[axis + 1 :]))))


def size(node):
    """Elements of a node's result, at least 1."""
    return max(1, hint(product(node.shape)))


def storing(node, places, schedule):
    """Writing `node` once, and loading it at `places`, a list of indices."""
    return _LAUNCH[schedule] + size(node) * _BYTE * itemsize(node) + loading(node, places, schedule)


def loading(node, places, schedule, factor=1):
    """Loading `node` at `places` beyond once an element; all that lanes gather, unless `factor` tells that there are none."""
    gathered = evaluations(strided(node, places)) if factor == 1 else 0
    return _LOAD * max(0, factor * evaluations(places) - size(node)) + _GATHER[schedule] * gathered


def without_lanes(traits):
    """How many times as much operations cost in a kernel that has to compute without vectors."""
    return max(1, traits.vector_width // 2) if traits.schedule == "cpu" else 1


def itemsize(node):
    """Bytes of an element in memory."""
    return dtypes.itemsize(node.dtype)


def repeated(node, places, schedule, indices, stored, limit, factor=1):
    """What evaluating `node` at `places` costs more than evaluating it, and what is inlined beneath it, once an element in vectors.

    Args:
        places: list of indices of `node`, in one kernel or several.
        indices: the Places that they come from.
        stored: function of a node: whether it is in memory whatever happens to `node`.
        limit: costs from which the exact sum does not matter.
        factor: how many times as much operations cost in the kernels that evaluate it.

    Beneath `node` the cheaper of repeating and storing counts, because the same rule will decide there.
    """
    visits, lanes = _VISITS, factor == 1 and _GATHER[schedule] > 0

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
            return min(limit, storing(n, places, schedule))
        total = price(n) * more
        for position, i in enumerate(n.inputs):
            if total >= limit:
                break
            if i in n.inputs[:position]:
                continue
            beneath = list(dict.fromkeys(indices.operand(n, k, at) for k, x in enumerate(n.inputs) if x is i for at in places))
            total += excess(i, beneath, min(limit - total, storing(i, beneath, schedule)))
        return min(total, limit)

    return excess(node, places, limit)
