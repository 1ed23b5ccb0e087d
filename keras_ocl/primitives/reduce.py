"""Reductions along axes, and positions of extremes.

Floats of 16 and 8 bits and integers below 32 bits are summed and multiplied in 32 bits.
"""

import itertools

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.access import Along, Inner, same_place
from keras_ocl.core.dim import ceil_div, hint, product, size_hint
from keras_ocl.core.index import Affine
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.primitives import moments
from keras_ocl.primitives.batching import moved_axes, next_axes, next_axis
from keras_ocl.primitives.movement import check_positions


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


def _access(axes_of, first=0):
    """Access maps where `axes_of(params)` are reduced and the others run along the result's axes from `first` on."""

    def rule(node, position):
        axes, kept = axes_of(node.params), itertools.count(first)
        return tuple(Inner(i) if i in axes else Along(next(kept)) for i in range(len(node.inputs[0].shape)))

    return rule


def _terms(node):
    return max(1, size_hint(node.inputs[0].shape) // max(1, size_hint(node.shape)))


def _reduction(name, shape, vjp, pointwise, **rules):
    return Primitive(name, shape, vjp, pointwise, kind=Kind.REDUCTION, **{"cost": _terms, "terms": _terms, **rules})


# ---- reductions of parts of an axis, whose results are reduced again: the compiler splits long ones so (compiler/trace/split.py)


def _partial_shape(x, *, axes, axis, chunk):
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return (ceil_div(x.shape[axis], chunk), *kept), x.dtype


def _partial_terms(node):
    x, axis = node.inputs[0], node.params["axis"]
    per_part = min(node.params["chunk"], hint(x.shape[axis]))
    return per_part * size_hint(x.shape[a] for a in node.params["axes"] if a != axis)


def _partial(name, whole):
    """The primitive that reduces chunks of `axis` (and all of the other `axes`); `whole` is the reduction's pointwise rule."""

    def pointwise(gen, node, index):
        _reduce_part(gen, node, index)
        return whole(gen, node, tuple(index[1:]))

    return _partial_reduction(f"partial_{name}", _partial_shape, pointwise, _access(lambda params: params["axes"], 1))


def _reduce_part(gen, node, index):
    """Let the reduction of a partial reduction run through its part; the part's own index keeps the loop in the block that knows it."""
    axis = node.params["axis"]
    extent = node.inputs[0].shape[axis]
    gen.reduce_part(node, sorted(node.params["axes"]).index(axis), Affine.of(index[0]), node.params["chunk"], extent)


def _partial_reduction(name, shape, pointwise, access):
    return _reduction(name, shape, None, pointwise, access=access, stored=True, terms=_partial_terms, cost=_partial_terms)


def _declare_deviations(name, power):
    """Declare the sum of (x - mean)**power over chunks of an axis, each about a mean of its own; power is 1 or 2 (see moments.py)."""

    def pointwise(gen, node, index):
        (x, means), axes = node.inputs, tuple(sorted(node.params["axes"]))
        mean = gen.value(means, index)
        _reduce_part(gen, node, index)

        def body(inside):
            deviation = gen.op("sub", x.dtype, gen.value(x, merged(x, axes, index[1:], inside)), mean)
            return deviation if power == 1 else gen.op("mul", x.dtype, deviation, deviation)

        return gen.reduce(node, "sum", x.dtype, [x.shape[a] for a in axes], body)

    def access(node, position):
        return same_place(len(node.shape)) if position else _access(lambda params: params["axes"], 1)(node, position)

    _partial_reduction(name, lambda x, means, *, axes, axis, chunk: (means.shape, x.dtype), pointwise, access)


_declare_deviations("partial_deviations", 1)
_declare_deviations("partial_squares", 2)


def _sum_total(summed, stacked, inputs, params, number):
    """One sum over the steps and the axes."""
    inner = stacked(inputs[0])
    return None if inner is None else lambda: reduce_sum(inner(), (0, *(a + 1 for a in params["axes"])))


def _declare(kind, vjp, allowed, text):
    name, pointwise = f"reduce_{kind}", _reduce_pointwise(kind)
    primitive = _reduction(
        name,
        _reduce_shape(name, allowed),
        vjp,
        pointwise,
        access=_access(lambda params: params["axes"]),
        partial=_partial(name, pointwise),
        batch=moved_axes(lambda: primitive, axes=next_axes),
        total=_sum_total if kind == "sum" else None,
        combines=kind,
        from_parts=moments.squares if kind == "sum" else None,
    )

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
        check_positions(name, x.shape[axis], dtype)
        return shape, dtype

    return rule


def _arg_pointwise(kind):
    """The extreme first, then the least position that holds it: two passes that run in lanes."""

    def rule(gen, node, index):
        (x,), axis = node.inputs, node.params["axis"]
        n = x.shape[axis]
        counted = "int64" if hint(n) > 2**31 else "int32"

        def element(inside):
            return gen.value(x, merged(x, (axis,), index, inside))

        def place(inside):
            value = element(inside)
            hit = gen.op("eq", "bool", value, extreme)
            if dtypes.is_float(x.dtype):
                hit = gen.op("or", "bool", hit, gen.op("ne", "bool", value, value))  # a NaN is the extreme where there is one
            return gen.select(hit, gen.number(inside[0], counted), gen.constant(dtypes.greatest(counted), counted))

        extreme = gen.reduce(node, kind, x.dtype, [n], element)
        position = gen.reduce(node, "min", counted, [n], place)
        return position if node.dtype == counted else gen.op("convert", node.dtype, position)

    return rule


_arg_access = _access(lambda params: (params["axis"],))
_argmax = _reduction(
    "argmax",
    _arg_shape("argmax"),
    None,
    _arg_pointwise("max"),
    access=_arg_access,
    batch=moved_axes(lambda: _argmax, axis=next_axis),
)
_argmin = _reduction(
    "argmin",
    _arg_shape("argmin"),
    None,
    _arg_pointwise("min"),
    access=_arg_access,
    batch=moved_axes(lambda: _argmin, axis=next_axis),
)


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
