"""Prologue fusion ("fetch"): a kernel template computes an operand while loading it, such as dequantised weights, and reads less memory."""

import heapq

from keras_ocl.compiler.codegen import Analysis
from keras_ocl.compiler.codegen.nests import analyse
from keras_ocl.compiler.fuse import cost
from keras_ocl.core.index import Affine
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.pointwise.packed import aligned, multiple
from keras_ocl.kernels.schedule import schedule_of


class _Except:
    """The set of all nodes but those `inside`: all others are in memory."""

    def __init__(self, inside):
        self.inside = inside

    def __contains__(self, node):
        return node not in self.inside


def fetched(node, users, free, traits, most):
    """The operand that the template of `node` computes while loading it, if its rule `fetches` allows that and it halves the bytes read.

    Args:
        users: dict from a node to the nodes that read it.
        free: function of a node: whether, as far as is decided, it need not be stored.
        most: the highest price (cost.price) of computing one element of the operand.
    Returns:
        (operand, frozenset of the nodes that the prologue computes, set of the nodes that it reads from memory), or None.
    """
    schedule = schedule_of(traits)
    if node.primitive.fetches is None or (found := node.primitive.fetches(node, schedule)) is None:
        return None
    position, extents = found
    operand = node.inputs[position]
    if node.inputs.count(operand) > 1:
        return None
    inside, leaves, waiting = {node}, set(), [(-operand.order, id(operand), operand)]
    while waiting:  # users before their operands
        *_, n = heapq.heappop(waiting)
        if n in inside or n in leaves:
            continue
        if free(n) and _elementwise(n, operand) and inside.issuperset(users[n]):
            inside.add(n)
            for i in n.inputs:
                heapq.heappush(waiting, (-i.order, id(i), i))
        else:
            leaves.add(n)
    inside.remove(node)
    if not inside or 2 * sum(map(_bytes, leaves)) > _bytes(operand) or sum(map(cost.price, inside)) > most:
        return None
    return (operand, frozenset(inside), leaves) if runs_in_lanes(operand, extents, _Except(inside)) else None


def repeated(base, users, there, free, by_template, traits, most):
    """How the templates of all nodes that read `base` recompute it for every load, where their rules `repeats` allow it and that pays.

    What others than templates compute of it, they may compute or load.

    Args:
        base: an elementwise node.
        users: dict from a node to the nodes that read it.
        there: function of a node: whether it is in memory, or computed by a template, which can store it.
        free: function of a node: whether it may be computed in a template's prologue.
        by_template: function of a node: whether a template computes it.
        most: the highest price (cost.price) of computing one element of the operand.
    Returns:
        (set of the nodes that a prologue computes, set of the nodes that it reads from memory), or None.
    """
    if base.kind is not Kind.ELEMENTWISE or not free(base):
        return None
    pointwise = (Kind.ELEMENTWISE, Kind.VIEW, Kind.SOURCE)
    inside, leaves = _split(base, lambda n: n.kind in pointwise and free(n) and not there(n))
    price, uses, waiting = sum(map(cost.price, inside)), [], [(base, frozenset())]
    if price > most or base not in inside or not all(map(there, leaves)):
        return None
    while waiting:
        operand, views = waiting.pop()
        for user in dict.fromkeys(users[operand]):
            if by_template(user):
                found = [] if user.primitive.repeats is None else user.primitive.repeats(user, traits)
                found = [use for position, *use in found if user.inputs[position] is operand]
                lanes = all(runs_in_lanes(operand, extents, _Except(inside | views)) for extents, *_ in found)
                if len(found) != 1 or user.inputs.count(operand) > 1 or not lanes:
                    return None
                uses += found
            elif user.kind is Kind.VIEW and user.primitive.flat:
                waiting.append((user, views | {user}))
    read = sum(map(cost.itemsize, leaves)) - cost.itemsize(base)
    return (inside, leaves) if schedule_of(traits).repeats_pay(traits, uses, price, read) else None


def packed(node, users, border, there, free, by_template, traits):
    """The operand that the template of `node` computes where it packs it, such as an activation that a gradient of weights reads.

    It is computed once here, so neither stored nor loaded. Other kernels may compute it all the same.

    Args:
        users: dict from a node to the nodes that read it.
        border: graph.border. What the forward part computes is in memory where the backward part reads it (kept.py).
        there: function of a node: whether it is in memory.
        free: function of a node: whether it may be computed in the template's prologue.
        by_template: function of a node: whether a template computes it.
    Returns:
        (operand, frozenset of the nodes that the prologue computes, set of the nodes that it reads from memory), or None.
    """
    if (found := _packed(node, traits)) is None:
        return None
    position, extents = found
    operand = node.inputs[position]
    if operand.kind is not Kind.ELEMENTWISE or operand.order < border or there(operand):
        return None
    for other in users[operand]:  # does another template read it from memory?
        if by_template(other) and ((also := _packed(other, traits)) is None or other.inputs[also[0]] is not operand):
            return None

    def computes(n):
        return n.kind in (Kind.VIEW, Kind.SOURCE) or n.kind is Kind.ELEMENTWISE and n.order >= border and free(n) and not there(n)

    inside, leaves = _split(operand, computes)
    # What a template of the backward part computes is stored in its epilogue, as the operand just as well.
    if operand not in inside or any(n.order >= border and by_template(n) for n in leaves):
        return None
    limits, size = schedule_of(traits).fusion, _bytes(operand)
    most = limits.packed_far if size > limits.far else limits.packed
    if sum(map(_bytes, leaves)) > 2 * size or sum(map(cost.price, inside)) > most:
        return None
    return (operand, frozenset(inside), leaves) if runs_in_lanes(operand, extents, _Except(inside)) else None


def _split(operand, computes):
    """(set of the nodes that a prologue computes for `operand`, by `computes(node)`, set of the nodes that it reads from memory)."""
    inside, leaves, waiting = set(), set(), [operand]
    while waiting:
        n = waiting.pop()
        if n in inside or n in leaves:
            continue
        if computes(n):
            inside.add(n)
            waiting += n.inputs
        else:
            leaves.add(n)
    return inside, leaves


def _packed(node, traits):
    """What the rule `packs` of `node` gives, if it has one and the operand is there once."""
    found = None if node.primitive.packs is None else node.primitive.packs(node, traits)
    return found if found is not None and node.inputs.count(node.inputs[found[0]]) == 1 else None


def _elementwise(node, operand):
    """Whether `node` can be computed for each element of `operand` as it is loaded; a smaller node is better computed beforehand."""
    pointwise = node.kind in (Kind.ELEMENTWISE, Kind.VIEW, Kind.INDEXED) and node.primitive.pointwise is not None
    return pointwise and cost.size(node) == cost.size(operand)


def _bytes(node):
    return cost.size(node) * cost.itemsize(node)


def runs_in_lanes(operand, extents, materialised):
    """Whether rows of `operand`, a matrix of these extents, can be computed in vectors from adjacent elements in memory."""
    nests = _nests(operand, extents, materialised)
    return nests["root"].vectorisable and not nests["root"].strided and len(nests) == 1


def begins_whole(operand, extents, materialised, width):
    """Whether vectors of so many elements of `operand`, at multiples of `width`, are computed from vectors in memory at such multiples."""
    nest = _nests(operand, extents, materialised)["root"]
    return multiple(extents[1], width) and all(aligned(place, nest, nest.groups[-1], width) for place in nest.places)


def _nests(operand, extents, materialised):
    """The analysed nests of the code that computes the elements of `operand`, a matrix of these extents."""
    analysis = Analysis(materialised)
    nest = analysis.nest("root", extents)
    k, c = (Affine.of(analysis.open_loop(nest, i)) for i in range(2))
    analysis.value_flat(operand, k * extents[1] + c)
    analyse(analysis.nests)
    return analysis.nests
