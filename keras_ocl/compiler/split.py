"""Splitting long reductions with few results into partial reductions that run side by side.

The number of parts is a function of the extents alone, so the order of summation, and with it the
result, does not depend on the run.
"""

from keras_ocl.compiler import simplify
from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.core.index import Affine
from keras_ocl.core.origin import NOWHERE
from keras_ocl.core.primitive import Primitive

_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")
_LONG = 2048  # elements a result from which splitting pays
_FEW = 4096  # results up to which rows alone give too few work-items
_PART = 16384  # elements a part
_ROWS = 32  # rows a part of a sum along columns: streams of memory that a CPU's prefetcher follows at once
_WIDE = 2**19  # elements beyond a second-level cache, where that pays; more where the columns are shorter than
_TALL = 512


def _partial_shape(x, *, axes, axis, chunk):
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return (ceil_div(x.shape[axis], chunk), *kept), x.dtype


def _partial_rule(name):
    def pointwise(gen, node, index):
        axis, chunk, axes = node.params["axis"], node.params["chunk"], node.params["axes"]
        extent = node.inputs[0].shape[axis]
        part = Affine.of(index[0])
        block = [v.block for v in part.terms]
        start = gen.define("int32", 1, f"({gen.text(part)}) * {gen.int(chunk)}", block, gen.ctype)
        stop = gen.define("int32", 1, f"min({start.text} + {gen.int(chunk)}, ({gen.ctype}){gen.int(extent)})", [start.block], gen.ctype)
        gen.bounds[node] = (sorted(axes).index(axis), start.text, stop.text)
        reduction = Primitive.registry[name]
        # The part's own index keeps the reduction's loop in the block that knows which part it is.
        return reduction.pointwise(gen, node, tuple(index[1:]))

    return pointwise


PARTIAL = {name: Primitive(f"partial_{name}", shape=_partial_shape, pointwise=_partial_rule(name)) for name in _REDUCTIONS}


def reduction(graph, primitive, inputs, params, origin):
    """The node of a reduction, as a reduction of parts where it is long and has few results, or reads rows that lie far apart."""
    (x,) = inputs
    axes = params["axes"]
    count = hint(product(x.shape[a] for a in axes))
    results = hint(product(x.shape)) // max(1, count)
    longest = max(axes, key=lambda a: hint(x.shape[a]), default=None)
    far = len(x.shape) - 1 not in axes and count >= 2 * _ROWS and count * results >= _WIDE * max(1, _TALL // max(1, count))
    few = count >= _LONG and results <= _FEW
    if not (far or few) or hint(x.shape[longest]) < 8:
        return None
    parts = min(64, count * results // _PART) if few else count // _ROWS
    parts = max(2, min(parts, hint(x.shape[longest])))
    chunk = -(-hint(x.shape[longest]) // parts)
    partial = graph.add(PARTIAL[primitive.name], inputs, {"axes": tuple(axes), "axis": longest, "chunk": chunk}, origin)
    return graph.add(primitive, (partial,), {"axes": (0,)}, origin)


def add_node(graph, prim, inputs, params, origin=NOWHERE):
    """simplify.add, with long reductions split."""
    if prim.name.startswith("reduce_") and "axes" in params:
        found = reduction(graph, prim, inputs, params, origin)
        if found is not None:
            return found
    return simplify.add(graph, prim, inputs, params, origin)
