"""Operands of any kind made alike: promoted to a common dtype, broadcast to a common shape."""

from keras.src.backend import config
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import key
from keras_ocl.core.index import is_one
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor, scalar
from keras_ocl.ops.result_types import dtype_of, result_type


def operand(x):
    """`x` ready for `dtype_of` and `convert_to_tensor`: Python numbers stay weak, all else becomes a Tensor."""
    return x if isinstance(x, (Tensor, bool, int, float, complex)) else convert_to_tensor(x)


def promote(*xs, extra=()):
    """Operands as Tensors of their common dtype (`extra`: further kinds that take part). Shapes stay as they are."""
    xs = [operand(x) for x in xs]
    dtype = result_type(*[dtype_of(x) for x in xs], *extra)
    return [convert_to_tensor(x, dtype) for x in xs]


def floating(x):
    """`x` as a Tensor of a floating (or complex) dtype: integers and bool become `floatx()`."""
    x = convert_to_tensor(x)
    if dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype):
        return x
    return convert_to_tensor(x, config.floatx())


def as_bool(x):
    """Whether each element differs from zero (of a floating 0.5, true)."""
    x = convert_to_tensor(x)
    return x if x.dtype == "bool" else P.ne(x, scalar_like(0, x))


def broadcast_shapes(op, *shapes):
    """NumPy's common shape; ValueError naming `op` when there is none. Unknown extents only match their like or 1."""
    rank = max(len(s) for s in shapes)
    result = []
    for axis in range(rank):
        extent = 1
        for s in shapes:
            i = axis - rank + len(s)
            if i < 0 or is_one(s[i]):
                continue
            if is_one(extent) or key(extent) != key(s[i]) and extent == 1:
                extent = s[i]
            elif key(extent) != key(s[i]) and s[i] != extent and s[i] != 1:
                raise ValueError(f"{op}: shapes {', '.join(str(tuple(s)) for s in shapes)} cannot be broadcast together.")
        result.append(extent)
    return tuple(result)


def broadcast_to(x, shape):
    """A Tensor broadcast to `shape` by NumPy's rules (the caller has checked that it can be)."""
    offset = len(shape) - len(x.shape)
    if _agree(x.shape, shape):
        return x
    plain = tuple(n if is_one(n) or key(n) == key(m) or n != 1 or m == 1 else 1 for n, m in zip(x.shape, shape[offset:], strict=True))
    if any(is_one(p) and not is_one(n) for p, n in zip(plain, x.shape, strict=True)):
        x = P.reshape(x, plain)  # an unknown extent that is 1 here
    return P.broadcast(x, tuple(shape), tuple(range(offset, len(shape))))


def _agree(a, b):
    """Whether two shapes are equal; values are only compared where they decide (a comparison is a fact of the trace)."""
    if len(a) != len(b) or any(is_one(m) != is_one(n) for m, n in zip(a, b, strict=True)):
        return False
    return all(key(m) == key(n) or m == n for m, n in zip(a, b, strict=True))


def broadcast(op, *xs):
    """Tensors broadcast to their common shape."""
    if all(_agree(x.shape, xs[0].shape) for x in xs):
        return xs
    common = broadcast_shapes(op, *[x.shape for x in xs])
    return tuple(broadcast_to(x, common) for x in xs)


def scalar_like(value, x):
    """A Python number (or Dim) as a Tensor of `x`'s shape and dtype."""
    one = scalar(value, x.dtype)
    return P.broadcast(one, x.shape, ()) if x.shape else one


def axes_of(axis, rank):
    """`axis` (None: all, int, or a sequence) as a sorted tuple of non-negative ints. ValueError when out of range or repeated."""
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, (list, tuple)):
        axis = (axis,)
    axes = tuple(sorted(canonicalize_axis(a, rank) for a in axis))
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis {axis} names an axis of a tensor of rank {rank} twice; name each once.")
    return axes


def keep(shape, axes):
    """`shape` with 1 in place of the reduced `axes`."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def spread(reduced, x, axes):
    """A reduction of `x` along `axes`, repeated along them: of x's shape again."""
    return broadcast_to(P.reshape(reduced, keep(x.shape, axes)), x.shape)
