"""keras.ops.numpy, creation: constants, ranges, grids, triangles, windows."""

import math

import numpy as np
from keras.src.backend import config
from keras.src.backend.common.variables import standardize_dtype

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, maximum
from keras_ocl.ops.conversion import convert_to_tensor, from_host
from keras_ocl.ops.integer_arguments import extents_of, number
from keras_ocl.ops.numpy.elementwise import absolute, exp, log, multiply, power, sign
from keras_ocl.ops.numpy.shapes import expand_dims, moveaxis
from keras_ocl.ops.promotion import broadcast, broadcast_to, floating, operand, promote, scalar_like
from keras_ocl.ops.result_types import dtype_of, result_type


def _dtype(dtype):
    return dtypes.canonical(standardize_dtype(dtype or config.floatx()))


def full(shape, fill_value, dtype=None):
    """A tensor of `shape` filled with `fill_value` (a number, or a tensor to broadcast)."""
    dtype = _dtype(dtype)
    shape = extents_of(shape)
    if isinstance(fill_value, (bool, int, float)) and not isinstance(fill_value, np.generic):
        return P.full(shape, fill_value, dtype)
    return broadcast_to(convert_to_tensor(fill_value, dtype), shape)


def zeros(shape, dtype=None):
    """Zeros of `shape`."""
    return P.full(extents_of(shape), 0, _dtype(dtype))


def ones(shape, dtype=None):
    """Ones of `shape`."""
    return P.full(extents_of(shape), 1, _dtype(dtype))


def empty(shape, dtype=None):
    """Zeros of `shape`: memory is never handed out uninitialised."""
    return zeros(shape, dtype)


def full_like(x, fill_value, dtype=None):
    """`fill_value` in the shape, and unless given the dtype, of `x`."""
    x = convert_to_tensor(x)
    return full(x.shape, fill_value, dtype or x.dtype)


def zeros_like(x, dtype=None):
    """Zeros in the shape and dtype of `x`."""
    return full_like(x, 0, dtype)


def ones_like(x, dtype=None):
    """Ones in the shape and dtype of `x`."""
    return full_like(x, 1, dtype)


def empty_like(x, dtype=None):
    """Zeros in the shape and dtype of `x`."""
    return zeros_like(x, dtype)


def array(x, dtype=None):
    """`x` as a tensor."""
    return convert_to_tensor(x, dtype=dtype)


def arange(start, stop=None, step=None, dtype=None):
    """Evenly spaced values from `start` (0 when only one bound is given) up to, not including, `stop`."""
    given = [dtype_of(v) for v in (start, stop, step) if v is not None]
    dtype = dtypes.canonical(standardize_dtype(dtype)) if dtype is not None else result_type(*given)
    if stop is None:
        start, stop = 0, start
    start, stop = number(start, "arange", "start"), number(stop, "arange", "stop")
    step = 1 if step is None else number(step, "arange", "step")
    if step == 0:
        raise ValueError("arange: step must not be zero.")
    if not all(isinstance(v, int) for v in (start, stop, step)):
        return from_host(np.arange(start, stop, step, dtype=np.float64), dtype)
    length = ceil_div(stop - start, step) if step > 0 else ceil_div(start - stop, -step)
    length = maximum(length, 0)
    far = not all(-(2**31) <= v < 2**31 for v in (start, stop, step))
    count = dtype if dtype in ("int64", "uint64") else "int64" if far else "int32"
    values = P.iota((length,), 0, count)
    if step != 1:
        values = P.mul(values, scalar_like(step % 2**64 if count == "uint64" else step, values))
    if isinstance(start, Dim) or start != 0:
        values = P.add(values, scalar_like(start, values))
    return P.convert(values, dtype) if dtype != count else values


def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0):
    """`num` evenly spaced values from `start` to `stop` (tensors give a new axis)."""
    if dtype is None:
        dtype = result_type(dtype_of(operand(start)), dtype_of(operand(stop)), float)
    dtype = _dtype(dtype)
    divisions = num - 1 if endpoint else num
    if all(isinstance(v, (int, float)) for v in (start, stop)) and not isinstance(num, Dim):
        values, step = np.linspace(start, stop, num, endpoint, retstep=True, axis=axis)
        values = from_host(np.floor(values) if dtypes.is_integer(dtype) else values, dtype)
        return (values, convert_to_tensor(float(step), dtype)) if retstep else values
    compute = _computing(dtype)
    start, stop = convert_to_tensor(start, compute), convert_to_tensor(stop, compute)
    values, step = _spaced(start, stop, num, divisions, axis)
    if dtypes.is_integer(dtype):
        values = P.floor(values)
    values = convert_to_tensor(values, dtype)
    return (values, convert_to_tensor(step, dtype)) if retstep else values


def _computing(dtype):
    """What spaced values of `dtype` are computed in."""
    return dtype if dtypes.is_complex(dtype) or dtype == "float64" else "float32"


def _spaced(start, stop, num, divisions, axis):
    start, stop = broadcast("linspace", start, stop)
    step = P.div(P.sub(stop, start), scalar_like(divisions, start)) if divisions > 0 else scalar_like(math.nan, start)
    shape = (num, *start.shape)
    position = P.iota(shape, 0, dtypes.part(start.dtype))
    fraction = P.convert(P.div(position, scalar_like(max(divisions, 1), position)), start.dtype)
    # start (1 - t) + stop t is exact at both ends.
    left = P.mul(broadcast_to(start, shape), P.sub(scalar_like(1, fraction), fraction))
    values = P.add(left, P.mul(broadcast_to(stop, shape), fraction))
    return (moveaxis(values, 0, axis) if axis else values), step


def logspace(start, stop, num=50, endpoint=True, base=10, dtype=None, axis=0):
    """`num` values from base**start to base**stop, evenly spaced on a log scale."""
    if dtype is None:
        dtype = result_type(dtype_of(operand(start)), dtype_of(operand(stop)), float)
    dtype = _dtype(dtype)
    if all(isinstance(v, (int, float)) for v in (start, stop, base)) and not isinstance(num, Dim):
        return from_host(np.logspace(start, stop, num, endpoint, base, axis=axis), dtype)
    exponents = linspace(start, stop, num, endpoint, dtype=_computing(dtype), axis=axis)
    return convert_to_tensor(power(convert_to_tensor(base, exponents.dtype), exponents), dtype)


def geomspace(start, stop, num=50, endpoint=True, dtype=None, axis=0):
    """`num` values from `start` to `stop` with a constant ratio."""
    if dtype is None:
        dtype = result_type(dtype_of(operand(start)), dtype_of(operand(stop)), float)
    dtype = _dtype(dtype)
    if all(isinstance(v, (int, float)) for v in (start, stop)) and not isinstance(num, Dim):
        return from_host(np.geomspace(start, stop, num, endpoint, axis=axis), dtype)
    start, stop = promote(start, stop, extra=(float,))
    steps = exp(linspace(log(absolute(start)), log(absolute(stop)), num, endpoint, axis=axis))
    signs = sign(start)
    return convert_to_tensor(multiply(steps, expand_dims(signs, axis) if signs.ndim else signs), dtype)


def eye(N, M=None, k=0, dtype=None):
    """Ones on the k-th diagonal of an N x M matrix of zeros."""
    rows, columns = _grid(N, M)
    return P.convert(P.eq(P.sub(columns, rows), scalar_like(k, rows)), _dtype(dtype))


def identity(n, dtype=None):
    """The n x n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N, M=None, k=0, dtype=None):
    """Ones on and below the k-th diagonal of an N x M matrix of zeros."""
    rows, columns = _grid(N, M)
    return P.convert(P.le(P.sub(columns, rows), scalar_like(k, rows)), _dtype(dtype))


def _grid(n, m):
    m = n if m is None else m
    return P.iota((n, m), 0, "int32"), P.iota((n, m), 1, "int32")


def _triangle(x, k, compare):
    x = convert_to_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"tril/triu: a tensor of rank 2 or more is needed, got shape {tuple(x.shape)}.")
    rows, columns = P.iota(x.shape, x.ndim - 2, "int32"), P.iota(x.shape, x.ndim - 1, "int32")
    k = P.full(x.shape, k, "int32") if isinstance(k, int) else broadcast_to(convert_to_tensor(k, "int32"), x.shape)
    return P.select(compare(P.sub(columns, rows), k), x, scalar_like(0, x))


def tril(x, k=0):
    """The lower triangle of the last two axes; zero above the k-th diagonal."""
    return _triangle(x, k, P.le)


def triu(x, k=0):
    """The upper triangle of the last two axes; zero below the k-th diagonal."""
    return _triangle(x, k, P.ge)


def meshgrid(*x, indexing="xy"):
    """Coordinate matrices of 1-D coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing must be "xy" or "ij", got {indexing!r}.')
    vectors = [convert_to_tensor(v) for v in x]
    vectors = [P.reshape(v, (v.size,)) for v in vectors]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[0], order[1] = 1, 0
    shape = [None] * len(order)
    for axis, v in zip(order, vectors, strict=True):
        shape[axis] = v.shape[0]
    return [P.broadcast(v, tuple(shape), (axis,)) for axis, v in zip(order, vectors, strict=True)]


def vander(x, N=None, increasing=False):
    """The Vandermonde matrix of a vector."""
    x = convert_to_tensor(x)
    if x.ndim != 1:
        raise ValueError(f"vander: a one-dimensional tensor is needed, got shape {tuple(x.shape)}.")
    columns = x.shape[0] if N is None else N
    powers = P.iota((x.shape[0], columns), 1, "int32")
    if not increasing:
        powers = P.sub(scalar_like(columns - 1, powers), powers)
    base = P.broadcast(floating(x), powers.shape, (0,))
    # x**n of a negative x is exact for a whole n, and 0**0 is 1.
    return P.convert(P.pow(base, P.convert(powers, base.dtype)), x.dtype)


def _window(function):
    def window(x):
        return from_host(getattr(np, function)(int(number(x, function, "x"))), config.floatx())

    window.__name__ = window.__qualname__ = function
    window.__doc__ = f"The {function} window of `x` points."
    return window


bartlett = _window("bartlett")
blackman = _window("blackman")
hamming = _window("hamming")
hanning = _window("hanning")


def kaiser(x, beta):
    """The Kaiser window of `x` points with shape parameter `beta`."""
    return from_host(np.kaiser(int(number(x, "kaiser", "x")), number(beta, "kaiser", "beta")), config.floatx())
