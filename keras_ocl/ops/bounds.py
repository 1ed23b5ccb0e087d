"""Where checks are on (core/checks.py): looking for indices out of range, and in eager code for NaNs and infinities."""

from contextvars import ContextVar

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.compiler.trace import checking
from keras_ocl.core import checks, dtypes, tree
from keras_ocl.core.origin import Origin, current_origin, scope
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.variable import is_variable
from keras_ocl.ops.conversion import convert_to_tensor, read

_NONE = 2**62  # where there is no bad index


def check_indices(op, indices, extent, wraps=True):
    """Where checks are on, IndexError if one of `indices` is not in range: at once in eager code, else when the compiled function has run.

    Args:
        op: for the error. indices: integers of any shape. extent: of the axis they count along.
        wraps: whether negative indices count from its end.
    """
    if checks.active():
        _check(op, convert_to_tensor(indices), extent, wraps)


def _check(op, indices, extent, wraps):
    if not dtypes.is_integer(indices.dtype) or any(n == 0 for n in indices.shape):
        return
    wraps = wraps and dtypes.is_signed(indices.dtype)
    flat = P.reshape(P.convert(indices, "int64"), (indices.size,))
    below = P.lt(flat, P.full(flat.shape, 0 - extent if wraps else 0, "int64"))
    bad = P.or_(below, P.ge(flat, P.full(flat.shape, extent, "int64")))
    place = P.reduce_min(P.select(bad, P.iota(flat.shape, 0, "int64"), P.full(flat.shape, _NONE, "int64")), (0,))
    place = P.reshape(P.select(P.eq(place, P.constant(_NONE, "int64")), P.constant(-1, "int64"), place), (1,))
    numbers = [P.full((1,), n, "int64") for n in (extent, *indices.shape)]
    found = P.concat((place, P.gather(flat, (place,), (0,)), *numbers), 0)
    note(checks.IndexCheck(op, current_origin.get().layer, wraps, found))


def note(check):
    """Hand an IndexCheck to the trace that is being recorded; in eager code raise what it found."""
    trace = current_trace.get()
    if trace is not None:
        trace.checks.append(check)
    else:
        checking.judge_indices(check.op, check.layer, check.wraps, check.found)


_WITH_INFINITIES = {"SegmentMax", "SegmentMin", "CtcDecode"}  # operations that give them for what is empty
_within = ContextVar("keras_ocl_checked_operation", default=False)  # whether this is a part of an operation that is looked at


def check_numbers(function, operation, args, kwargs):
    """function(*args, **kwargs), eagerly. FloatingPointError if a NaN is in its result, or an infinity that no argument has."""
    if _within.get():
        return function(*args, **kwargs)
    token, around = _within.set(True), current_origin.get()
    try:
        with scope(Origin(around.layer, around.operation or operation, around.gradient)):
            result = function(*args, **kwargs)
        worst = _worst(result)
        given = _worst((args, kwargs)) if worst else 0
    finally:
        _within.reset(token)
    subject = f"{operation} in {around.layer}" if around.layer else operation
    if worst == checking.NAN:
        raise FloatingPointError(f"{subject} gave a NaN; {'it was given one' if given == worst else 'what it was given has none'}.")
    if worst and not given and operation not in _WITH_INFINITIES:
        raise FloatingPointError(f"{subject} gave an infinity; what it was given is finite.")
    return result


def _worst(nest):
    """0 where all numbers in a nest are finite, INFINITE or NAN."""
    token = active_tapes.set(())
    try:
        return max(map(_code, tree.flatten(nest)[0]), default=0)
    finally:
        active_tapes.reset(token)


def _code(x):
    if isinstance(x, float):
        return checking.NAN if x != x else checking.INFINITE if x - x != 0 else 0
    if is_variable(x) or isinstance(x, np.ndarray):
        x = convert_to_tensor(x)
    if type(x) is not Tensor or x.is_symbolic() or not checking.looked_at(x):
        return 0
    return int(read(checking.flag(x)))
