"""Graphs without a device: traced from functions of primitives, printed, and evaluated with NumPy."""

import numpy as np

from keras_ocl.compiler.trace import ir
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import Kind
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.primitives.algebra import constant_value


def trace_of(function, *specs):
    """(Trace, results) of `function` on inputs of these (shape, dtype)."""
    trace = Trace()
    with tracing(trace):
        results = function(*[trace.input(*spec) for spec in specs])
    return trace, list(results) if isinstance(results, tuple) else [results]


def graph_of(function, *specs):
    """(Graph, input nodes) of `function` on inputs of these (shape, dtype); None stands for an input that the graph does not read."""
    trace, results = trace_of(function, *specs)
    graph = ir.build(trace.equations, results)
    nodes = {id(n.tensor): n for n in graph.nodes if n.tensor is not None}
    return graph, [nodes.get(id(t)) for t in trace.inputs]


def text_of(function, *specs):
    """The graph of a function of one result as text: inputs are x0, x1, ..., constants and what is broadcast of them are numbers."""
    graph, inputs = graph_of(function, *specs)

    def text(node):
        if node in inputs:
            return f"x{inputs.index(node)}"
        value = constant_value(node)
        if value is not None:
            return f"Dim({value})" if isinstance(value, Dim) else repr(value)
        params = [f"{k}={v}" for k, v in node.params.items()]
        return f"{node.name}({', '.join([*map(text, node.inputs), *params])})"

    (result,) = graph.outputs
    return text(result)


# ---- evaluation with NumPy


def _pad(x, value, low, high, interior):
    for axis, (lo, hi, gap) in enumerate(zip(low, high, interior, strict=True)):
        x = np.moveaxis(x, axis, 0)
        if gap and len(x):
            spread = np.full(((len(x) - 1) * (gap + 1) + 1, *x.shape[1:]), value, x.dtype)
            spread[:: gap + 1] = x
            x = spread
        around = [np.full((max(0, n), *x.shape[1:]), value, x.dtype) for n in (lo, hi)]
        x = np.concatenate([around[0], x[max(0, -lo) : len(x) - max(0, -hi)], around[1]])
        x = np.moveaxis(x, 0, axis)
    return x


def _product(a, b, contract, batch, dtype, precision):
    (ac, bc), (ab, bb) = contract, batch
    left, right = list(range(a.ndim)), list(range(100, 100 + b.ndim))
    for i, j in zip((*ac, *ab), (*bc, *bb), strict=True):
        right[j] = left[i]
    free = [i for k, i in enumerate(left) if k not in (*ac, *ab)] + [i for k, i in enumerate(right) if k not in (*bc, *bb)]
    used = {i: k for k, i in enumerate(dict.fromkeys([*left, *right]))}
    order = [[used[i] for i in axes] for axes in (left, right, [left[i] for i in ab] + free)]
    return np.einsum(a, order[0], b, order[1], order[2]).astype(dtypes.numpy_dtype(dtype))


def _broadcast(x, shape, dims):
    return np.broadcast_to(np.expand_dims(x, [i for i in range(len(shape)) if i not in dims]), shape)


def _iota(shape, axis, dtype):
    along = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(along, shape).astype(dtypes.numpy_dtype(dtype))


EVALUATE = {
    **{name: getattr(np, name) for name in ("sqrt", "abs", "exp", "tanh")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "pow": lambda x, e: np.power(x, np.array(e)),  # a copy: for a number NumPy takes a root, which differs at -0.0 and -inf
    "eq": np.equal,
    "ne": np.not_equal,
    "select": np.where,
    "convert": lambda x, dtype: x.astype(dtypes.numpy_dtype(dtype)),
    "constant": lambda value, dtype: np.asarray(value, dtypes.numpy_dtype(dtype)),
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": np.reshape,
    "transpose": lambda x, perm: x.transpose(perm),
    "reverse": lambda x, axes: np.flip(x, axes),
    "slice": lambda x, starts, limits, strides: x[tuple(map(slice, starts, limits, strides))],
    "pad": _pad,
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "reduce_sum": lambda x, axes: x.sum(axes, dtype=x.dtype),
    "reduce_max": lambda x, axes: x.max(axes),
    "stop_gradient": lambda x: x,
    "dot_general": _product,
}


def evaluate_trace(function, *arrays):
    """The results of a function of primitives, each computed by NumPy as it was recorded."""
    trace, results = trace_of(function, *[(a.shape, dtypes.canonical(a.dtype)) for a in arrays])
    values = {id(t): a for t, a in zip(trace.inputs, arrays, strict=True)}
    with np.errstate(all="ignore"):
        for eq in trace.equations:
            values[id(eq.outputs[0])] = EVALUATE[eq.primitive.name](*[values[id(i)] for i in eq.inputs], **eq.params)
    return [values[id(t)] for t in results]


def evaluate_graph(function, *arrays):
    """The results of a function of primitives, computed by NumPy from the graph, in which nodes are simplified."""
    graph, inputs = graph_of(function, *[(a.shape, dtypes.canonical(a.dtype)) for a in arrays])
    values = dict(zip(inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        for node in graph.live():
            if node.kind is not Kind.INPUT:
                values[node] = np.asarray(EVALUATE[node.name](*[values[i] for i in node.inputs], **node.params))
                assert values[node].shape == tuple(node.shape) and dtypes.canonical(values[node].dtype) == node.dtype, node
    return [values[n] for n in graph.outputs]
