"""Row-sparse tensors: all rows are 0 but for some, as in the gradient of an embedding's table (in other frameworks IndexedSlices).

In a graph such a tensor is a pair of nodes: `rows`, int32 (N,), has the numbers of distinct rows, -1 in a slot that stands for none, and
`values` (N, ...) has their elements, 0 in such a slot. N is the number of indices, so neither depends on the number of the tensor's rows.
Only compiled graphs hold the two primitives of this file; compiler/trace/row_sparse.py puts them there.
"""

from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import row_sparse as template


def _distinct_shape(indices, *, extent, clip):
    return [(tuple(indices.shape), "int32"), ((product(indices.shape),), "int32")]


def _distinct_kernels(builder, node, sinks):
    (indices,) = node.inputs
    return template.distinct(
        builder.traits,
        extent=node.params["extent"],
        count=product(indices.shape),
        clip=node.params["clip"],
        indices=(indices, indices.dtype),
        slots=sinks[0].handle,
        rows=sinks[1].handle,
        all_arguments=builder.all_arguments,
    )


_distinct_rows = Primitive(
    "distinct_rows",
    _distinct_shape,
    kernels=_distinct_kernels,
    multiple_results=True,
    operations=lambda node: 16 * product(node.inputs[0].shape),
)


def _distinct(graph, indices, extent, clip, origin):
    """(slots, rows): for each of `indices` into an axis of `extent` its slot, of their shape, -1 if it is out of range; each slot's row.

    Equal indices have the same slot. `clip`: clip indices into range.
    """
    node = graph.add(_distinct_rows, (indices,), {"extent": extent, "clip": clip}, origin)
    return graph.project(node, 0), graph.project(node, 1)


def _put_shape(x, rows, values):
    return [(tuple(x.shape), x.dtype)]


def _put_kernels(builder, node, sinks):
    x, rows, values = node.inputs
    return template.put(
        builder.traits,
        shape=x.shape,
        count=rows.shape[0],
        x=None if sinks[0].handle in builder.overwriting else x,
        rows=rows,
        values=values,
        dtype=x.dtype,
        result=sinks[0].handle,
        all_arguments=builder.all_arguments,
    )


_put_rows = Primitive(
    "put_rows",
    _put_shape,
    kernels=_put_kernels,
    multiple_results=True,
    overwrites=0,
    operations=lambda node: product(node.inputs[2].shape),
)


def put_rows(graph, x, rows, values, origin):
    """`x` with `values` as its rows `rows`, which are distinct; -1 stands for none."""
    return graph.project(graph.add(_put_rows, (x, rows, values), {}, origin), 0)


def gathered(graph, x, rows, origin):
    """The rows `rows` of the node `x`; any row where the number is -1."""
    return graph.add(Primitive.registry["gather"], (x, rows), {"axes": (0,)}, origin)


def of_scatter(graph, inputs, params, origin):
    """The rule `row_sparse` of scatter_new (core/primitive.py)."""
    *indices, updates = inputs
    if params["mode"] != "add" or len(indices) > 1:
        return None
    slots, rows = _distinct(graph, indices[0], params["shape"][0], params["clip"], origin)
    return rows, _summed(graph, slots, updates, rows, origin)


def united(graph, tensors, extent, origin):
    """Row-sparse tensors of `extent` rows, pairs (rows, values), in terms of the same rows, which are those of any of them."""
    sizes = [rows.shape[0] for rows, _ in tensors]
    concat, part = Primitive.registry["concat"], Primitive.registry["slice"]
    together = graph.add(concat, tuple(rows for rows, _ in tensors), {"axis": 0}, origin)
    slots, rows = _distinct(graph, together, extent, False, origin)
    found, start = [], 0
    for (_, values), size in zip(tensors, sizes, strict=True):
        own = graph.add(part, (slots,), {"starts": (start,), "limits": (start + size,), "strides": (1,)}, origin)
        found.append((rows, _summed(graph, own, values, rows, origin)))
        start = start + size
    return found


def _summed(graph, slots, updates, rows, origin):
    """The sums of those updates that have the same slot."""
    shape = (*rows.shape, *updates.shape[len(slots.shape) :])
    node = graph.add(Primitive.registry["scatter_new"], (slots, updates), {"shape": shape, "mode": "add", "clip": False}, origin)
    return graph.project(node, 0)
