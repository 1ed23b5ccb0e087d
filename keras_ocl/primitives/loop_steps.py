"""What the bodies of loops are made of: a step's slices of stacked tensors, its number, and values held in memory of their own."""

from keras_ocl.core.access import same_place
from keras_ocl.core.factors import Factors
from keras_ocl.core.primitive import Kind, Primitive


def _at_step_batch(inputs, batched, size, *, shift):
    """Examples of a stacked tensor lie along its second axis: (length, size, ...)."""
    return at_step_p(*inputs, shift=shift)


def _at_step_factors(seen):
    labels = tuple(range(len(seen.shape)))
    return Factors(((None, *labels),), (labels,))


at_step_p = Primitive(
    "at_step",
    lambda x, *, shift: (tuple(x.shape[1:]), x.dtype),
    kind=Kind.STEP_SLICE,
    batch=_at_step_batch,
    factors=_at_step_factors,
)


def at_step(x, shift=0):
    """Slice (index + shift) of the stacked body input `x`."""
    return at_step_p(x, shift=shift)


def _index_pointwise(gen, node, index):
    return gen.number(gen.step(node.params["extent"]), "int32")


step_index_p = Primitive("step_index", lambda *, extent: ((), "int32"), None, _index_pointwise)  # no SOURCE: it differs from step to step

# Keeps a value in a buffer of its own; only the compiler makes it.
hold_p = Primitive(
    "hold",
    lambda x, *, number: (tuple(x.shape), x.dtype),
    kind=Kind.VIEW,
    cost=0,
    access=lambda node, position: same_place(len(node.shape)),
)
