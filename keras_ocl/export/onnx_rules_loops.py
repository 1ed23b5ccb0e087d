"""Loops: ONNX's Scan, whose body is a graph of its own."""

from onnx import helper

from keras_ocl.compiler import ir, simplify
from keras_ocl.export.onnx_graph import onnx_type

REFUSED = {"while": "its number of steps depends on values; use ops.scan, ops.fori_loop with Python numbers, or maximum_iterations"}


def body_graph(body):
    """(the simplified graph of a loop's body, its input nodes in the body's order; None where one is not read)."""
    graph = ir.build(body.equations, body.outputs, simplify.add)
    nodes = {id(n.tensor): n for n in graph.nodes if n.primitive is None}
    return graph, [nodes.get(id(t)) for t in body.inputs]


def scan(g, node, write):
    """The names of a scan's results. `write(g, node)` adds a node of the body."""
    p = node.params
    consts, carries, reverse = p["consts"], p["carries"], int(p["reverse"])
    graph, inputs = body_graph(p["body"])
    states = [g.value(x) for x in node.inputs[consts : consts + carries]]
    stacked = [g.value(x) for x in node.inputs[consts + carries :]]
    constants = [g.value(x) for x in node.inputs[:consts]]
    last = g.scalar(p["length"] - 1, "int32") if reverse else g.scalar(0, "int32")  # the first step's index
    counts = any(n.name == "step_index" for n in graph.live())

    with g.inside() as nodes:
        for n, name in zip(inputs, constants, strict=False):
            if n is not None:
                g.set(n, name)
        given = [(g.fresh("state"), x.dtype) for x in node.inputs[consts : consts + carries]]
        for n, (name, _) in zip(inputs[consts:], given, strict=False):
            if n is not None:
                g.set(n, name)
        elements = [(g.fresh("element"), x.dtype) for x in node.inputs[consts + carries :]]
        slices = {n: name for n, (name, _) in zip(inputs[consts + carries :], elements, strict=True)}
        index = (g.fresh("index"), "int32")
        for n in graph.live():
            if n.name == "at_step":
                g.set(n, slices[n.inputs[0]])
            elif n.name == "step_index":
                g.set(n, index[0])
            elif n.primitive is not None:
                write(g, n)
        results = [(g.add("Identity", g.value(n)), n.dtype) for n in graph.outputs]
        if counts:
            following = (g.add("Sub" if reverse else "Add", index[0], g.scalar(1, "int32")), "int32")
            given, results, states = [index, *given], [following, *results], [last, *states]

    def infos(values):
        return [helper.make_tensor_value_info(name, onnx_type(dtype), None) for name, dtype in values]

    body = helper.make_graph(nodes, g.fresh("step"), infos([*given, *elements]), infos(results))
    count, ys = len(stacked), len(results) - len(states)
    if not count:  # ONNX takes the number of steps from what it scans
        stacked = [g.add("Range", g.scalar(0, "int64"), g.scalar(p["length"], "int64"), g.scalar(1, "int64"))]
        body.input.extend(infos([(g.fresh("element"), "int64")]))
    directions = {"scan_input_directions": [reverse] * len(stacked), **({"scan_output_directions": [reverse] * ys} if ys else {})}
    found = g.add("Scan", *states, *stacked, count=len(results), body=body, num_scan_inputs=len(stacked), **directions)
    return found[1:] if counts else found
