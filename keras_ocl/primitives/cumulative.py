"""Running sums, products and extremes along an axis, and the linear recurrence that their gradients need."""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.factors import all_but
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import cumulative
from keras_ocl.primitives.batching import moved_axes, next_axis


def _shape(name):
    def rule(*operands, axis, reverse):
        x = operands[0]
        ordered = dtypes.is_float(x.dtype) or dtypes.is_integer(x.dtype)
        if not (ordered or (dtypes.is_complex(x.dtype) and name not in ("cummax", "cummin"))):
            raise TypeError(f"{name}: dtype {x.dtype} is not supported; convert the tensor first.")
        if any(o.shape != x.shape or o.dtype != x.dtype for o in operands):
            raise ValueError(f"{name}: operands of shapes {[tuple(o.shape) for o in operands]} must have one shape and dtype.")
        return x.shape, x.dtype

    return rule


def _kernels(kind):
    def rule(builder, node, sink):
        axis, reverse = node.params["axis"], node.params["reverse"]
        return cumulative.plan(
            builder.traits,
            kind=kind,
            shape=node.shape,
            axis=axis,
            reverse=reverse,
            handles=node.inputs,
            dtype=node.dtype,
            sink=sink,
            all_arguments=builder.all_arguments,
        )

    return rule


def _declare(name, vjp):
    rules = {"batch": moved_axes(lambda: primitive, axis=next_axis), "factors": all_but(lambda seen: seen.params["axis"])}
    primitive = Primitive(name, _shape(name), vjp, kernels=_kernels(name), **rules)
    return primitive


def _apply(primitive, operands, axis, reverse):
    if not 0 <= axis < len(operands[0].shape):
        raise ValueError(f"{primitive}: axis {axis} is out of range for shape {tuple(operands[0].shape)}.")
    return primitive(*operands, axis=axis, reverse=bool(reverse))


def shifted(x, axis, fill, reverse=False):
    """`x` moved by one towards the end (the front if `reverse`) along `axis`, with the number `fill` coming in."""
    low = [0] * len(x.shape)
    low[axis] = -1 if reverse else 1
    return P.pad(x, P.constant(fill, x.dtype), low, [-n for n in low])


def _conj(x):
    return P.conj(x) if dtypes.is_complex(x.dtype) else x


def _cumsum_vjp(ct, out, x, *, axis, reverse):
    return (cumsum(ct, axis, not reverse),)


def _cumprod_vjp(ct, out, x, *, axis, reverse):
    """For each element: the product before it, times the sum over what follows of cotangent times the product of what lies between."""
    before = _conj(shifted(out, axis, 1, reverse))
    following = linear_recurrence(_conj(shifted(x, axis, 0, not reverse)), ct, axis, not reverse)
    return (P.mul(before, following),)


def _extreme_vjp(ct, out, x, *, axis, reverse):
    """Each cotangent goes to the element that the running extreme last came from: its first occurrence."""
    n = x.shape[axis]
    previous = shifted(out, axis, 0, reverse)
    place = P.iota(x.shape, axis, "int32")
    first = P.eq(place, P.full(x.shape, n - 1 if reverse else 0, "int32"))
    record = P.or_(first, P.and_(P.ne(out, previous), P.eq(x, out)))
    if reverse:
        at = cummin(P.select(record, place, P.full(x.shape, n, "int32")), axis, True)
    else:
        at = cummax(P.select(record, place, P.zeros_like(place)), axis)
    indices = tuple(at if i == axis else P.iota(x.shape, i, "int32") for i in range(len(x.shape)))
    return (P.scatter_new(x.shape, indices, ct, tuple(range(len(x.shape)))),)


def _recurrence_vjp(ct, out, a, b, *, axis, reverse):
    db = linear_recurrence(_conj(shifted(a, axis, 0, not reverse)), ct, axis, not reverse)
    return P.mul(db, _conj(shifted(out, axis, 0, reverse))), db


_cumsum = _declare("cumsum", _cumsum_vjp)
_cumprod = _declare("cumprod", _cumprod_vjp)
_cummax = _declare("cummax", _extreme_vjp)
_cummin = _declare("cummin", _extreme_vjp)
_linear_recurrence = _declare("linear_recurrence", _recurrence_vjp)


def cumsum(x, axis, reverse=False):
    """Running sums along `axis`, from its end if `reverse`."""
    return _apply(_cumsum, (x,), axis, reverse)


def cumprod(x, axis, reverse=False):
    """Running products along `axis`, from its end if `reverse`."""
    return _apply(_cumprod, (x,), axis, reverse)


def cummax(x, axis, reverse=False):
    """Running maximum along `axis`, from its end if `reverse`."""
    return _apply(_cummax, (x,), axis, reverse)


def cummin(x, axis, reverse=False):
    """Running minimum along `axis`, from its end if `reverse`."""
    return _apply(_cummin, (x,), axis, reverse)


def linear_recurrence(a, b, axis, reverse=False):
    """s[i] = a[i] * s[i - 1] + b[i] along `axis` with s[-1] = 0, from its end if `reverse`."""
    return _apply(_linear_recurrence, (a, b), axis, reverse)
