"""vectorized_map: a function is traced for one example, and its equations are evaluated for all by their batching rules."""

from keras.src import tree
from keras.src.backend.common.stateless_scope import get_stateless_scope

from keras_ocl.core.body import Draft, needed
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.bounds import note
from keras_ocl.ops.control_flow import map
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.primitives.batching import NoBatchingRule, batch_equations, spread


def vectorized_map(function, elements):
    """`function` of each slice of the nest `elements` along the first axis, results stacked.

    The function is traced once, for one slice, and each of its operations then runs once for all of them, gradients included. A
    function that assigns Variables (state, or a seed generator's next seed) is applied to one slice after the other, as
    `keras.ops.map` does, and so is one with a custom_op.

    Args:
        elements: a nest of tensors of one first extent.

    Returns:
        The nest that `function` returns, of tensors with that first extent.

    Raises:
        ValueError: the tensors have no first axis, or not of one extent.
        RuntimeError: the function asks for a value; `keras.ops.map` gives it one outside of compiled functions.
    """
    elements = tree.map_structure(convert_to_tensor, elements)
    leaves = tree.flatten(elements)
    if not leaves or any(not x.shape or x.shape[0] != leaves[0].shape[0] for x in leaves):
        shapes = ", ".join(str(tuple(x.shape)) for x in leaves)
        raise ValueError(f"vectorized_map: tensors of shapes {shapes or '(none)'}; they must have a first axis, of one extent.")
    try:
        results, structure = vectorized(lambda *xs: function(tree.pack_sequence_as(elements, xs)), leaves, (True,) * len(leaves))
    except (_Assigns, NoBatchingRule):
        return map(function, elements)
    return tree.pack_sequence_as(structure, results)


def vectorized(function, inputs, batched, plain=False):
    """(results, nest): `function(*inputs)` for all examples, a list of Tensors with the axis of examples, and the nest it returned for one.

    `batched` says which of the inputs have that axis. `plain`: without the gradients that parts of the function define for themselves.
    """
    size = next(x.shape[0] for x, differs in zip(inputs, batched, strict=True) if differs)
    scope = get_stateless_scope()
    before = {} if scope is None else dict(scope.state_mapping)
    with Draft() as draft:
        inner = [draft.input(x.shape[1:] if differs else x.shape, x.dtype) for x, differs in zip(inputs, batched, strict=True)]
        result = tree.map_structure(lambda y: y if y is None else convert_to_tensor(y), function(*inner))
    if draft.assigned() or scope is not None and _changed(before, scope):
        raise _Assigns
    noted = draft.trace.checks
    outputs = [*(y for y in tree.flatten(result) if isinstance(y, Tensor)), *(c.found for c in noted)]
    values = {id(t): (x, False) for t, x in draft.captured(outputs)}
    values |= {id(t): (x, differs) for t, x, differs in zip(inner, inputs, batched, strict=True)}
    batch_equations(needed(draft.equations if plain else draft.recorded, outputs), values, size)
    results = [spread(*values.get(id(y), (y, False)), size) for y in outputs]
    for check in reversed(noted):
        note(check._replace(found=results.pop()))
    return results, result


class _Assigns(Exception):
    """The function assigns Variables."""


def _changed(before, scope):
    """Whether a stateless scope holds other values than `before`, which it then holds again."""
    after = dict(scope.state_mapping)
    scope.state_mapping.clear()
    scope.state_mapping.update(before)
    return after.keys() != before.keys() or any(after[k] is not before[k] for k in after)


def mapped_over(function, in_axes):
    """`function` mapped over the first axis of the arguments whose `in_axes` is 0; the others (None) are passed whole."""

    def mapped(*args):
        moving = [a for a, axis in zip(args, in_axes, strict=True) if axis == 0]

        def one(slices):
            slices = iter(slices)
            return function(*[next(slices) if axis == 0 else a for a, axis in zip(args, in_axes, strict=True)])

        return vectorized_map(one, moving)

    return mapped
