"""Batching: equations for many examples at once, which lie along a new first axis, and the rules that families share.

A rule is `batch(inputs, batched, size, **params)`, see core/primitive.py. After JAX's rules for vmap.
"""

from keras_ocl import primitives as P
from keras_ocl.core.origin import scope


class NoBatchingRule(Exception):
    """A primitive of these equations has no batching rule."""


def batch_equations(equations, values, size):
    """Evaluates equations for `size` examples.

    Args:
        values: dict from id of a Tensor of the equations to (value, whether it differs between examples), of what they start from; Tensors
            that are not in it stand for themselves. Results are added to it.

    Raises:
        NoBatchingRule: an operand differs between examples, and the equation's primitive has no rule.
    """
    for eq in equations:
        operands = [values.get(id(t), (t, False)) for t in eq.inputs]
        batched = tuple(differs for _, differs in operands)
        with scope(eq.origin):
            results = _evaluated(eq, [x for x, _ in operands], batched, size)
        outputs = results if eq.primitive.multiple_results else (results,)
        values.update((id(t), (y, any(batched))) for t, y in zip(eq.outputs, outputs, strict=True))


def _evaluated(eq, inputs, batched, size):
    if not any(batched):
        return eq.primitive(*inputs, **eq.params)
    if eq.primitive.batch is None:
        raise NoBatchingRule(eq.primitive.name)
    return eq.primitive.batch(inputs, batched, size, **eq.params)


def spread(x, is_batched, size):
    """`x`, repeated along a new first axis if it is the same for all examples."""
    return x if is_batched else P.broadcast(x, (size, *x.shape), tuple(range(1, len(x.shape) + 1)))


def all_spread(inputs, batched, size):
    """`inputs`, each with the axis of examples."""
    return [spread(x, is_batched, size) for x, is_batched in zip(inputs, batched, strict=True)]


def examples(size, shape):
    """int32 of (size, *shape): which example an element belongs to, an index along the first axis."""
    return P.iota((size, *shape), 0, "int32")


def same_parameters(primitive):
    """The rule of a primitive that takes a further leading axis with the same parameters; `primitive()` returns it."""
    return lambda inputs, batched, size, **params: primitive()(*all_spread(inputs, batched, size), **params)


def moved_axes(primitive, **moved):
    """The rule of a primitive with parameters that name axes: `moved` has a function (value, size) -> batched value for each."""

    def rule(inputs, batched, size, **params):
        changed = {name: how(params[name], size) for name, how in moved.items()}
        return primitive()(*all_spread(inputs, batched, size), **{**params, **changed})

    return rule


def next_axis(axis, size):
    """The number of an axis behind that of the examples."""
    return axis + 1


def next_axes(axes, size):
    """The numbers of axes behind that of the examples."""
    return tuple(a + 1 for a in axes)


def first(value):
    """For a parameter with an entry per axis: `value` is the entry of the axis of examples, None for its extent."""
    return lambda entries, size: (size if value is None else value, *entries)


def merged(x):
    """(size, n, ...) as (size * n, ...)."""
    return P.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def parted(x, size):
    """(size * n, ...) as (size, n, ...)."""
    return P.reshape(x, (size, x.shape[0] // size, *x.shape[1:]))


def to_front(x, axis):
    """`x` with `axis` moved to the front."""
    return P.transpose(x, (axis, *(i for i in range(len(x.shape)) if i != axis)))


def from_front(x, axis):
    """`x` with its first axis moved to `axis`."""
    rest = list(range(1, len(x.shape)))
    return P.transpose(x, (*rest[:axis], 0, *rest[axis:]))
