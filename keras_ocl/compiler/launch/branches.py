"""Lowering of conditions: both branches are launched, and the kernels of the one that is not taken return at once.

The device decides, so the host need not know the condition. The branches write the same results; what lives within a branch has memory of
its own. A loop in a branch has as many launches as steps, and copies: the host reads the condition and leaves it out.
"""

from dataclasses import replace

from keras_ocl.compiler.trace import ir
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Arg, KernelSpec
from keras_ocl.primitives.cond import branches_of, nested, sets
from keras_ocl.primitives.loop_steps import hold_p


def loops(node):
    """Whether a branch of a condition's node has a loop in it."""
    return any(eq.primitive.loops for body in (node.params["on_false"], node.params["on_true"]) for eq in nested(body.equations))


def lower_cond(builder, node, projections, alias, lower_graph):
    """The launches of a condition's node.

    Args:
        projections: dict from the number of a result to its PROJECTION node.
        alias: the surrounding graph's Lowered.alias, to which the branches' are added.
        lower_graph: the function of this name.
    """
    flag, launches = node.inputs[0].buffer, []
    for taken, (body, operands) in enumerate(branches_of(node.params, node.inputs)):
        wanted = [k for k, known in enumerate(sets(body)) if known and k in projections]
        graph = _graph(builder, body, operands, [projections[k].buffer for k in wanted], [body.outputs[k] for k in wanted])
        together = {} if builder.repeated else None
        lowered = lower_graph(graph, (), builder.traits, builder.all_arguments, builder.lower_loop, together)
        outside = {n: operands[k] for n, k in _inputs(graph, body)}
        for view, owner in lowered.alias.items():
            owner = outside.get(owner, owner)
            alias[view] = alias.get(owner, owner)
        launches += [guarded(launch, flag, bool(taken)) for launch in lowered.launches]
    return launches


def _graph(builder, body, operands, buffers, outputs):
    """The graph of a branch, whose operands and results lie in the memory of those around it."""
    plain = builder.repeated or builder.all_arguments
    graph = ir.build(body.equations, outputs, None if plain else schedule_of(builder.traits).splitting)
    for n, k in _inputs(graph, body):
        n.buffer = operands[k].buffer
    readers, placed = graph.readers(), []
    for n, buffer in zip(graph.outputs, buffers, strict=True):
        n = ir.stored(n, readers)
        if n in placed or n.kind in (Kind.INPUT, Kind.STEP_SLICE) or n.kind is Kind.PROJECTION and n.inputs[0].primitive.loops:
            n = graph.add(hold_p, (n,), {"number": len(placed)}, n.origin)
        n.buffer = buffer
        placed.append(n)
    graph.outputs = placed
    return graph


def _inputs(graph, body):
    """(node, position among the branch's inputs) of each input of its graph."""
    places = {id(t): k for k, t in enumerate(body.inputs)}
    return [(n, places[id(n.tensor)]) for n in graph.nodes if n.primitive is None]


def guarded(launch, flag, taken):
    """A launch, such that it does nothing where the bool in the Buffer `flag` is not `taken`."""
    label = f"{launch.name}, if {str(taken).lower()}"
    if isinstance(launch, KernelSpec):
        name = f"p{sum(a.is_pointer for a in launch.args)}"
        guards = (f"{'!' if taken else ''}{name}[0]", *launch.guards)
        return replace(launch, name=label, args=(*launch.args, Arg(name, "in", "bool", flag)), guards=guards)
    launch.guards.insert(0, (flag, taken))
    launch.held.append(flag)
    launch.name = label
    return launch
