"""Reductions along axes, and positions of extremes.

Floats of 16 and 8 bits and integers below 32 bits are summed and multiplied in 32 bits.
"""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Primitive


def _kept(rank, axes):
    return tuple(i for i in range(rank) if i not in axes)


def _reduce_shape(name, allowed):
    def rule(x, *, axes):
        if not allowed(x.dtype):
            raise TypeError(f"{name}: dtype {x.dtype} is not supported; convert the tensor first.")
        return tuple(x.shape[i] for i in _kept(len(x.shape), axes)), x.dtype

    return rule


def merged(x, axes, kept, inside):
    """Index of `x` from the indices of its kept axes and of the reduced ones."""
    kept, inside = iter(kept), iter(inside)
    return tuple(next(inside) if i in axes else next(kept) for i in range(len(x.shape)))


def _reduce_pointwise(kind):
    def rule(gen, node, index):
        x, axes = node.inputs[0], tuple(sorted(node.params["axes"]))
        dtype = dtypes.accumulator(node.dtype) if kind in ("sum", "prod") else node.dtype

        def body(inside):
            register = gen.value(x, merged(x, axes, index, inside))
            return register if register.dtype == dtype else gen.op("convert", dtype, register)

        if dtypes.is_complex(dtype):
            raise TypeError(f"reduce_{kind}: complex numbers reduce by their parts.")
        total = gen.reduce(node, kind, dtype, [x.shape[a] for a in axes], body)
        return total if dtype == node.dtype else gen.op("convert", node.dtype, total)

    return rule


def _spread(ct, x, axes):
    return P.broadcast(ct, x.shape, _kept(len(x.shape), axes))


def _sum_vjp(ct, out, x, *, axes):
    return (_spread(ct, x, axes),)


def _extreme_vjp(ct, out, x, *, axes):
    """Ties share the gradient equally."""
    mask = P.eq(x, _spread(out, x, axes))
    wide = dtypes.accumulator(ct.dtype)
    count = P.reduce_sum(P.convert(mask, wide), axes)
    share = P.convert(P.div(P.convert(ct, wide), count), ct.dtype)
    return (P.select(mask, _spread(share, x, axes), P.zeros_like(x)),)


def _prod_vjp(ct, out, x, *, axes):
    """ct times the product of the others, which stays right where elements are 0."""
    kept = _kept(len(x.shape), axes)
    perm = (*kept, *axes)
    rows = P.transpose(x, perm)
    flat = P.reshape(rows, (*(x.shape[i] for i in kept), product(x.shape[a] for a in axes)))
    axis = len(kept)
    before = P.shifted(P.cumprod(flat, axis), axis, 1)
    after = P.shifted(P.cumprod(flat, axis, reverse=True), axis, 1, reverse=True)
    others = P.transpose(P.reshape(P.mul(before, after), rows.shape), P.inverse_permutation(perm))
    return (P.mul(_spread(ct, x, axes), others),)


def _declare(kind, vjp, allowed, text):
    name = f"reduce_{kind}"
    primitive = Primitive(name, _reduce_shape(name, allowed), vjp, _reduce_pointwise(kind))

    def function(x, axes):
        axes = tuple(sorted(axes))
        if any(not 0 <= a < len(x.shape) for a in axes) or len(set(axes)) != len(axes):
            raise ValueError(f"{name}: axes {axes} are not distinct axes of shape {tuple(x.shape)}.")
        if not axes:
            return x
        if dtypes.is_complex(x.dtype) and kind == "sum":
            return P.complex(function(P.real(x), axes), function(P.imag(x), axes))
        return primitive(x, axes=axes)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{text} along `axes`, which the result lacks."
    return function


def _is_number(dtype):
    return dtypes.is_float(dtype) or dtypes.is_integer(dtype)


def _is_ordered(dtype):
    return _is_number(dtype) or dtype == "bool"


reduce_sum = _declare("sum", _sum_vjp, _is_number, "Sum")
reduce_prod = _declare("prod", _prod_vjp, _is_number, "Product")
reduce_max = _declare("max", _extreme_vjp, _is_ordered, "Greatest element (NaN if there is one)")
reduce_min = _declare("min", _extreme_vjp, _is_ordered, "Least element (NaN if there is one)")
reduce_and = _declare("and", None, lambda dtype: dtype == "bool", "Whether all hold")
reduce_or = _declare("or", None, lambda dtype: dtype == "bool", "Whether any holds")


# ---- positions of extremes


def _arg_shape(name):
    def rule(x, *, axis, dtype):
        if not _is_ordered(x.dtype):
            raise TypeError(f"{name}: dtype {x.dtype} has no order.")
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        if x.shape[axis] == 0 and all(n != 0 for n in shape):
            raise ValueError(f"{name}: axis {axis} of shape {tuple(x.shape)} has no elements, so none is the extreme.")
        return shape, dtype

    return rule


def _arg_pointwise(kind):
    """The extreme first, then the least position that holds it: two passes that run in lanes."""

    def rule(gen, node, index):
        (x,), axis = node.inputs, node.params["axis"]
        n = x.shape[axis]

        def element(inside):
            return gen.value(x, merged(x, (axis,), index, inside))

        def place(inside):
            value = element(inside)
            hit = gen.op("eq", "bool", value, extreme)
            if dtypes.is_float(x.dtype):
                hit = gen.op("or", "bool", hit, gen.op("ne", "bool", value, value))  # a NaN is the extreme where there is one
            return gen.select(hit, gen.number(inside[0], "int32"), gen.constant(2**31 - 1, "int32"))

        extreme = gen.reduce(node, kind, x.dtype, [n], element)
        position = gen.reduce(node, "min", "int32", [n], place)
        return position if node.dtype == "int32" else gen.op("convert", node.dtype, position)

    return rule


_argmax = Primitive("argmax", _arg_shape("argmax"), None, _arg_pointwise("max"))
_argmin = Primitive("argmin", _arg_shape("argmin"), None, _arg_pointwise("min"))


def _argument(primitive, x, axis, dtype):
    if not 0 <= axis < len(x.shape):
        raise ValueError(f"{primitive}: axis {axis} is out of range for shape {tuple(x.shape)}.")
    if x.dtype == "bool":
        x = P.convert(x, "int32")
    return primitive(x, axis=axis, dtype=dtypes.canonical(dtype))


def argmax(x, axis, dtype="int32"):
    """Position of the first greatest element along `axis`; the first NaN wins."""
    return _argument(_argmax, x, axis, dtype)


def argmin(x, axis, dtype="int32"):
    """Position of the first least element along `axis`; the first NaN wins."""
    return _argument(_argmin, x, axis, dtype)
