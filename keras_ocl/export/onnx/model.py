"""Converts a Python function on tensors to an ONNX model: traces it, simplifies the graph, and writes each primitive by its rule."""

import itertools
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

import keras_ocl
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.trace import ir
from keras_ocl.compiler.trace.equations import expanded
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, key, noting, present, same
from keras_ocl.core.facts import Facts
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.export.onnx.graph import OnnxGraph, onnx_type
from keras_ocl.export.onnx.rules import attention, collective, elementwise, indexing, loops, movement, products, reduce

_FAMILIES = (
    attention,
    collective,
    elementwise,
    indexing,
    loops,
    movement,
    products,
    reduce,
)
RULES = {name: rule for family in _FAMILIES for name, rule in family.RULES.items()}
REFUSED = {name: why for family in _FAMILIES for name, why in getattr(family, "REFUSED", {}).items()}

OLDEST_OPSET, DEFAULT_OPSET = 17, 18

# Values for unknown extents, in the first trace and in the one that checks it: divisible by common divisors of shapes, and larger than
# common windows. Hints leave the remainder 1 and probes the remainder -1, so that no remainder looks like a constant.
_STAND_INS = (6720, 13440)
_OTHERS = {*range(2, 10), *(2**k + i for k in range(4, 18) for i in (-1, 0, 1))}  # extents at which comparisons may have other results
_HINT, _PROBE, _STEP = 6721, 6720 * 1299709 - 1, 6720 * 104729


class Input(NamedTuple):
    """An argument. `shape` has ints and names of unknown extents; equal names mean equal extents."""

    name: str
    shape: tuple
    dtype: str


def onnx_model(function, inputs, name="model", opset=None):
    """Make the ONNX model that computes `function`.

    Args:
        function: takes one Tensor for each of `inputs`, returns a list of Tensors; may read Keras variables, which become initializers.
        inputs: list of Input.
        name: the graph's name.
        opset: version of ONNX's operators, from 17 on; None for 18.

    Returns:
        `onnx.ModelProto`; its outputs are named output_0, output_1, ...

    Raises:
        ValueError: for an opset that is not supported; or when the function computes with the value of an unknown extent, or computes
            something else for some of its values (0 and 1 are not tried).
        NotImplementedError: for a primitive without operators in ONNX; names the layer.
    """
    opset = DEFAULT_OPSET if opset is None else opset
    newest = onnx.defs.onnx_opset_version()
    if not isinstance(opset, int) or not OLDEST_OPSET <= opset <= newest:
        raise ValueError(f"ONNX export: `opset_version` must lie between {OLDEST_OPSET} and {newest}. Received: {opset}")
    names = list(dict.fromkeys(n for i in inputs for n in i.shape if isinstance(n, str)))
    graph, trace, facts = _traced(function, inputs, dict.fromkeys(names, _STAND_INS[0]))
    if names:
        _check_independence(graph, _traced(function, inputs, dict.fromkeys(names, _STAND_INS[1]))[0])
        _check_branches(graph, facts, function, inputs, names)
    unknowns = {}
    for i, t in zip(inputs, trace.inputs, strict=True):
        for axis, n in enumerate(t.shape):
            if isinstance(n, Dim):
                unknowns.setdefault(key(n), (i.name, axis))
    g = OnnxGraph(opset, unknowns, RULES, REFUSED)
    _enter(g, graph, trace, inputs)
    for node in graph.live():
        g.write(node)
    return _finished(g, graph, trace, inputs, name)


def _traced(function, inputs, values):
    """(simplified graph, trace, facts) of the function; `values` is a dict from names of unknown extents to values for them."""
    unknown = {n: Dim(value, _HINT, _PROBE + _STEP * k) for k, (n, value) in enumerate(values.items())}
    trace, facts = Trace(), Facts(unknown.values())
    arguments = [trace.input(tuple(unknown.get(n, n) for n in i.shape), i.dtype) for i in inputs]
    token = active_tapes.set(())
    try:
        with noting(facts), tracing(trace):
            outputs = function(*arguments)
    finally:
        active_tapes.reset(token)
    return ir.build(expanded(trace.equations), outputs), trace, facts


# ---- whether the graph is valid for every value of the unknown extents


def _check_independence(graph, other):
    different = _first_difference(graph, other)
    if different is not None:
        raise ValueError(
            f"ONNX export: {f'layer {different}' if different else 'the model'} computes with the number behind an extent that is unknown;"
            " give `input_signature` a fixed shape there."
        )


def _check_branches(graph, facts, function, inputs, names):
    """Raises ValueError where Python code that compares an unknown extent would have computed something else for another value."""
    before = dict.fromkeys(names, _STAND_INS[0])
    compared = {present(n) for _, *pair, _ in facts for n in pair if not isinstance(n, Dim)}
    tried = set()
    for name, value in itertools.product(names, sorted(_OTHERS | {n for n in compared if n > 1})):
        broken = facts.broken(tuple({**before, name: value}.values()))
        if not broken or (name, broken) in tried:
            continue
        tried.add((name, broken))
        try:
            other, _, _ = _traced(function, inputs, {**before, name: value})
        except (ValueError, IndexError):
            continue  # the model does not accept such an input
        different = _first_difference(graph, other)
        if different is not None:
            raise ValueError(
                f"ONNX export: {f'layer {different}' if different else 'the model'} computes something else where the unknown extent"
                f" {name!r} is {value}; give `input_signature` a fixed shape there."
            )


def _first_difference(graph, other):
    """The layer of the first nodes in which two graphs differ ("" if it has none); None if the graphs are equal."""
    nodes, others = graph.live(), other.live()
    for a, b in zip(nodes, others, strict=False):
        layer = a.origin.layer or b.origin.layer
        if a.name != b.name or _keyed(a.params) != _keyed(b.params) or [i.order for i in a.inputs] != [i.order for i in b.inputs]:
            return layer
        if not same(a.shape, b.shape) or (a.primitive is None and not _equal(a.tensor, b.tensor)):
            return layer
        if "body" in a.params:
            inside = _first_difference(*(loops.body_graph(n) for n in (a, b)))
            if inside is not None:
                return inside
    return None if len(nodes) == len(others) else ""


def _equal(a, b):
    """Whether two inputs of graphs are both arguments or variables, or equal constants."""
    if a.storage is None or b.storage is None:
        return a.storage is b.storage
    return a is b or np.array_equal(to_numpy(a), to_numpy(b), equal_nan=dtypes.is_float(a.dtype))


def _keyed(x):
    """`x` with its Dims replaced by their keys."""
    if isinstance(x, dict):
        return {k: _keyed(v) for k, v in x.items() if k != "body"}
    if isinstance(x, (tuple, list)):
        return [_keyed(v) for v in x]
    return x.key if isinstance(x, Dim) else x


# ---- nodes


def _enter(g, graph, trace, inputs):
    """Name the graph's inputs: arguments, variables and constants."""
    arguments = {id(t): g.fresh(i.name) for t, i in zip(trace.inputs, inputs, strict=True)}
    variables = {id(s.entry): s.variable for s in trace.states.values()}
    for node in graph.live():
        if node.primitive is not None:
            continue
        tensor = node.tensor
        if id(tensor) in arguments:
            g.set(node, arguments[id(tensor)])
        elif id(tensor) in variables:
            variable = variables[id(tensor)]
            g.set(node, g.initializer(variable.path, to_numpy(variable._value)))
        elif tensor.storage is not None:
            g.set(node, g.initializer("constant", to_numpy(tensor)))
        else:
            raise RuntimeError(f"ONNX export: a tensor of another trace (shape {tuple(tensor.shape)}) is used in this one.")


def _finished(g, graph, trace, inputs, name):
    g.layer = ""
    extents = [pair for i, t in zip(inputs, trace.inputs, strict=True) for pair in zip(t.shape, i.shape, strict=True)]
    names = {key(n): given for n, given in extents if isinstance(n, Dim)}
    outputs, infos = [], []
    for k, node in enumerate(graph.outputs):
        output = g.fresh(f"output_{k}")
        g.nodes.append(helper.make_node("Identity", [g.value(node)], [output], name=output))
        outputs.append(output)
        shape = [names.setdefault(key(n), f"{output}_axis_{a}") if isinstance(n, Dim) else int(n) for a, n in enumerate(node.shape)]
        infos.append(helper.make_tensor_value_info(output, onnx_type(node.dtype), shape))
    initializers = g.finished_initializers(outputs)
    body = helper.make_graph(
        g.nodes,
        name,
        [helper.make_tensor_value_info(i.name, onnx_type(i.dtype), i.shape) for i in inputs],
        infos,
        [numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), n) for n, array in initializers.items()],
    )
    imports = [helper.make_opsetid("", g.opset)]
    return helper.make_model(
        body, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports), producer_name="keras_ocl",
        producer_version=keras_ocl.__version__,
    )  # fmt: skip
