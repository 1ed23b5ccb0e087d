"""keras.ops.core for this backend: conversion, slicing, scattering, control flow, gradients, shape inference, scopes."""

# ruff: noqa: F401, F811
import numpy as np
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.name_scope import name_scope as _keras_name_scope

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import maximum, minimum
from keras_ocl.core.origin import Origin, current_origin, scope
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import origins_kept
from keras_ocl.ops.associative_scan import associative_scan
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.control_flow import cond, fori_loop, map, scan, switch, unstack, while_loop
from keras_ocl.ops.conversion import cast, convert_to_numpy, convert_to_tensor, is_tensor, shape
from keras_ocl.ops.gradients import custom_gradient, remat, stop_gradient
from keras_ocl.ops.integer_arguments import extents_of, with_integers
from keras_ocl.ops.promotion import broadcast_to
from keras_ocl.ops.slicing import index_dtype, unstacked, wrapped
from keras_ocl.ops.symbolic import compute_output_spec
from keras_ocl.ops.vectorization import vectorized_map

SUPPORTS_SPARSE_TENSORS = False
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_COMPLEX_DTYPES = True
IS_THREAD_SAFE = True


def _scattered(op, indices, values, shape):
    """The last axis of `indices` taken apart, one index tensor for each leading axis of `shape`; and `values` in the shape they need."""
    indices = convert_to_tensor(indices)
    if indices.ndim < 1 or not 1 <= indices.shape[-1] <= len(shape):
        raise ValueError(
            f"{op}: indices of shape {tuple(indices.shape)} do not fit a tensor of shape {tuple(shape)}; their last axis holds coordinates,"
            f" 1 to {len(shape)} of them."
        )
    if not dtypes.is_integer(indices.dtype):
        raise TypeError(f"{op}: indices have dtype {indices.dtype}; they must be integers.")
    wanted = (*indices.shape[:-1], *shape[indices.shape[-1] :])
    if len(values.shape) > len(wanted) or any(m not in (1, n) for m, n in zip(reversed(values.shape), reversed(wanted), strict=False)):
        raise ValueError(
            f"{op}: values of shape {tuple(values.shape)} do not fit indices of shape {tuple(indices.shape)} and a tensor of shape"
            f" {tuple(shape)}; they need shape {tuple(wanted)}."
        )
    places = list(zip(unstacked(indices, -1), shape, strict=False))
    for i, n in places:
        check_indices(op, i, n)
    return tuple(wrapped(i, n) for i, n in places), broadcast_to(values, wanted)


@with_integers
def scatter(indices, values, shape):
    """Zeros of `shape` with `values` added at `indices` (their last axis holds coordinates).

    Negative indices count from the end; values at indices out of range are dropped, as on TensorFlow's GPUs and in JAX.
    """
    values = convert_to_tensor(values)
    if values.dtype == "bool":
        raise TypeError("scatter: bool values cannot be added; cast them to an integer dtype first.")
    shape = extents_of(shape)
    where, values = _scattered("scatter", indices, values, shape)
    return P.scatter_new(shape, where, values, tuple(range(len(where))))


def scatter_update(inputs, indices, updates, reduction=None):
    """`inputs` with `updates` put at `indices`, or combined there: reduction None, add, max, min or mul. Indices are those of `scatter`."""
    if reduction not in (None, "add", "max", "min", "mul"):
        raise ValueError(f"Unsupported reduction: {reduction}")
    inputs = convert_to_tensor(inputs)
    if inputs.dtype == "bool" and reduction in ("add", "mul"):
        raise TypeError(f"scatter_update: bool inputs have no reduction {reduction!r}; cast them to an integer dtype first.")
    where, updates = _scattered("scatter_update", indices, convert_to_tensor(updates, inputs.dtype), inputs.shape)
    return P.scatter(inputs, where, updates, tuple(range(len(where))), reduction or "set")


def _starts(start_indices):
    """Slice starts as Python ints where they are known, else as 0-d tensors."""
    if isinstance(start_indices, Tensor):
        start_indices = start_indices.tolist() if not start_indices.is_symbolic() else unstacked(start_indices)
    return [s if isinstance(s, (int, Tensor)) else int(s) if isinstance(s, np.generic) else convert_to_tensor(s) for s in start_indices]


@with_integers
def slice(inputs, start_indices, shape):
    """The part of `shape` (-1: up to the end) that begins at `start_indices`; starts are moved so that it fits."""
    inputs = convert_to_tensor(inputs)
    starts, extents = _starts(start_indices), extents_of(shape)
    if not len(starts) == len(extents) == inputs.ndim:
        raise ValueError(
            "Length of `start_indices` and `shape` must match the rank of `inputs`. "
            f"Received: {len(starts)} starts, shape={extents}, inputs.shape={tuple(inputs.shape)}"
        )
    extents = tuple(n - int(s) if e == -1 else e for e, s, n in zip(extents, starts, inputs.shape, strict=True))
    if any(e > n for e, n in zip(extents, inputs.shape, strict=True)):
        raise ValueError(f"slice: a part of shape {extents} does not fit in shape {tuple(inputs.shape)}.")
    for s, e, n in zip(starts, extents, inputs.shape, strict=True):
        check_indices("slice", s, n - e + 1, wraps=False)
    if all(isinstance(s, int) for s in starts):
        lows = tuple(maximum(minimum(s, n - e), 0) for s, e, n in zip(starts, extents, inputs.shape, strict=True))
        return P.slice(inputs, lows, tuple(low + e for low, e in zip(lows, extents, strict=True)))
    return P.dynamic_slice(inputs, _dynamic(starts, inputs.shape), extents)


def _dynamic(starts, shape):
    return tuple(convert_to_tensor(s, index_dtype(*shape)) for s in starts)


def slice_update(inputs, start_indices, updates):
    """`inputs` with the part that begins at `start_indices` replaced by `updates`."""
    inputs = convert_to_tensor(inputs)
    updates = convert_to_tensor(updates, inputs.dtype)
    if updates.ndim != inputs.ndim:
        raise ValueError(f"slice_update: updates of shape {tuple(updates.shape)} must have the rank of {tuple(inputs.shape)}.")
    starts = _starts(start_indices)
    for s, e, n in zip(starts, updates.shape, inputs.shape, strict=False):
        check_indices("slice_update", s, n - e + 1, wraps=False)
    return P.dynamic_update_slice(inputs, updates, _dynamic(starts, inputs.shape))


def random_seed_dtype():
    """The dtype of random seeds."""
    return "uint32"


def device_scope(device_name):
    """Context in which tensors are made on the named device ("cpu:0", "gpu:0", ...)."""
    if not isinstance(device_name, str):
        raise ValueError(f"Invalid value for argument `device_name`. Expected a string like 'gpu:0'. Received: device_name='{device_name}'")
    return runtime.device_scope(device_name)


class name_scope(_keras_name_scope):
    """Keras's name scope; while origins are kept, what is recorded inside is marked with its path."""

    def __enter__(self):
        super().__enter__()
        self._origin = None
        if origins_kept():
            around = current_origin.get()
            named = getattr(self.caller, "_ocl_operation", None)  # layers and optimizers have one
            self._origin = scope(Origin(current_path(), around.operation if named is None else named, around.gradient))
            self._origin.__enter__()
        return self

    def __exit__(self, *args, **kwargs):
        if self._origin is not None:
            self._origin.__exit__(None, None, None)
        super().__exit__(*args, **kwargs)
