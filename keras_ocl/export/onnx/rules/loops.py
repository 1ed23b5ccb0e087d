"""ONNX for loops: a scan becomes a Scan, a while a Loop. Their bodies are separate graphs that can use the values around them."""

from onnx import helper

from keras_ocl.compiler.trace import ir
from keras_ocl.compiler.trace.equations import expanded
from keras_ocl.export.onnx.graph import onnx_type


def body_graph(node):
    """The simplified graph of a loop's body."""
    body = node.params["body"]
    return ir.build(expanded(body.equations), body.outputs)


def _info(name, dtype, shape=None):
    return helper.make_tensor_value_info(name, onnx_type(dtype), shape)


class _Inside:
    """Writes the body of `node`: `bind` names its inputs, `graph` writes its nodes."""

    def __init__(self, g, node):
        self.g, self.node, self.body, self.source = g.inner(), node, node.params["body"], body_graph(node)
        self.nodes = {id(n.tensor): n for n in self.source.nodes if n.primitive is None}
        for t, outer in zip(self.body.inputs, node.inputs[: node.params["consts"]], strict=False):
            self.bind(t, g.value(outer))

    def bind(self, tensor, name):
        """Make `name` the value of an input of the body, if it is used."""
        if id(tensor) in self.nodes:
            self.g.set(self.nodes[id(tensor)], name)

    def fresh(self, tensor, name):
        """Give an input of the body a new name; returns its ONNX type information."""
        name = self.g.fresh(name)
        self.bind(tensor, name)
        return _info(name, tensor.dtype)

    def graph(self, inputs):
        """The finished body, with the same outputs as the loop's body."""
        for n in self.source.live():
            self.g.write(n)
        self.g.layer = self.node.origin.layer
        outputs = [self.g.add("Identity", self.g.value(n)) for n in self.source.outputs]
        infos = [_info(name, n.dtype) for name, n in zip(outputs, self.source.outputs, strict=True)]
        return helper.make_graph(self.g.nodes, self.g.fresh("step"), inputs, infos)


def _scan(g, node):
    p = node.params
    if p["histories"]:
        raise NotImplementedError(f"ONNX export: `scan` of {g.where()} keeps values for its gradient, which is not exported.")
    inside, consts, carries = _Inside(g, node), p["consts"], p["carries"]
    carried, stacked = inside.body.inputs[consts : consts + carries], inside.body.inputs[consts + carries :]
    infos = [inside.fresh(t, "carried") for t in carried] + [inside.fresh(t, "slice") for t in stacked]
    operands = [g.value(n) for n in node.inputs[consts:]]
    # ONNX counts the steps with a stacked input: the step's index, which our bodies may use.
    operands.append(g.counted(p["length"], "int32"))
    inside.g.index = inside.g.fresh("index")
    infos.append(_info(inside.g.index, "int32"))
    count, ys = len(stacked) + 1, len(node.results) - carries
    directions = {"scan_input_directions": [1] * count, "scan_output_directions": [1] * ys} if p["reverse"] else {}
    directions = {name: each for name, each in directions.items() if each}
    return g.add("Scan", *operands, count=len(node.results), body=inside.graph(infos), num_scan_inputs=count, **directions)


def _while(g, node):
    inside, consts = _Inside(g, node), node.params["consts"]
    flag, *variables = inside.body.inputs[consts:]
    infos = [_info(inside.g.fresh("step"), "int64", ()), inside.fresh(flag, "going")]
    infos += [inside.fresh(t, "variable") for t in variables]
    going, *first = (g.value(n) for n in node.inputs[consts:])
    results = g.add("Loop", "", going, *first, count=len(first), body=inside.graph(infos))
    return [g.scalar(False, "bool"), *results]


def _at_step(g, node):
    """Inside a body, a stacked input's value is the present step's slice."""
    if node.params["shift"]:
        raise NotImplementedError(f"ONNX export: a loop of {g.where()} belongs to a gradient, which is not exported.")
    return g.value(node.inputs[0])


RULES = {
    "scan": _scan,
    "while": _while,
    "at_step": _at_step,
    "step_index": lambda g, node: g.index,
    "hold": lambda g, node: g.value(node.inputs[0]),
}
REFUSED = {"cond": "both branches and a select are exported instead"}
