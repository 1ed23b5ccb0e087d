"""Convolutions on channels-last data: forward, input gradient and filter gradient, closed under differentiation.

x (N, *spatial, C), w (*window, C / groups, C_out), y (N, *spatial', C_out), with 1 to 3 spatial dimensions.
"""

from dataclasses import replace

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, maximum, product
from keras_ocl.core.factors import Factors, sized
from keras_ocl.core.precision import of_operands
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import conv as templates
from keras_ocl.kernels.conv import Geometry, Problem
from keras_ocl.primitives.batching import all_spread, from_front, merged, parted, to_front


def _check(name, x, w, params):
    rank = len(x) - 2
    if not 1 <= rank <= 3 or len(w) != rank + 2:
        raise ValueError(f"{name}: input of shape {tuple(x)} and filter of shape {tuple(w)}; expected 1 to 3 spatial dimensions in both.")
    for what in ("strides", "padding", "dilation", "input_dilation"):
        if len(params[what]) != rank:
            raise ValueError(f"{name}: {what} {params[what]} must have one entry for each of {rank} spatial dimensions.")
    groups = params["groups"]
    if w[-2] * groups != x[-1] or w[-1] % groups:
        raise ValueError(
            f"{name}: filter of shape {tuple(w)} with groups={groups} does not fit input of shape {tuple(x)}; the filter needs"
            " input channels / groups, and output channels divisible by groups."
        )


def conv_output_shape(input_shape, filter_shape, *, strides, padding, dilation, input_dilation, groups):
    """Shape of a convolution's result; ValueError when the arguments do not fit together."""
    params = {"strides": strides, "padding": padding, "dilation": dilation, "input_dilation": input_dilation, "groups": groups}
    _check("conv", input_shape, filter_shape, params)
    spatial = []
    for n, k, s, (low, high), d, e in zip(input_shape[1:-1], filter_shape[:-2], strides, padding, dilation, input_dilation, strict=True):
        extent = (n if e == 1 else maximum(0, (n - 1) * e + 1)) + low + high
        spatial.append((extent - ((k - 1) * d + 1)) // s + 1)
    if any(n < 0 for n in spatial):
        spatial = [maximum(0, n) for n in spatial]
    return (input_shape[0], *spatial, filter_shape[-1])


def _floating(name, *operands):
    given = {x.dtype for x in operands}
    if len(given) != 1 or not all(dtypes.is_float(d) for d in given):
        raise TypeError(f"{name}: operands have dtypes {', '.join(x.dtype for x in operands)}; convert them to one float dtype first.")
    return operands[0].dtype


def _forward_shape(x, w, *, precision, **params):
    return conv_output_shape(x.shape, w.shape, **params), _floating("conv", x, w)


def _input_grad_shape(dy, w, *, input_shape, precision, **params):
    _expect("conv_input_grad", dy.shape, conv_output_shape(input_shape, w.shape, **params))
    return input_shape, _floating("conv_input_grad", dy, w)


def _filter_grad_shape(x, dy, *, filter_shape, precision, **params):
    _expect("conv_filter_grad", dy.shape, conv_output_shape(x.shape, filter_shape, **params))
    return filter_shape, _floating("conv_filter_grad", x, dy)


def _expect(name, given, wanted):
    if tuple(given) != tuple(wanted):
        raise ValueError(f"{name}: the output's gradient has shape {tuple(given)}; the convolution's output has {tuple(wanted)}.")


def _forward_vjp(ct, out, x, w, **params):
    return conv_input_grad(ct, w, x.shape, **params), conv_filter_grad(x, ct, w.shape, **params)


def _input_grad_vjp(ct, out, dy, w, *, input_shape, **params):
    return conv(ct, w, **params), conv_filter_grad(ct, dy, w.shape, **params)


def _filter_grad_vjp(ct, out, x, dy, *, filter_shape, **params):
    return conv_input_grad(dy, ct, x.shape, **params), conv(x, ct, **params)


def _problem(traits, node, sink, shapes, all_arguments=False, **operands):
    """The kernels' Problem; shapes: those of x, w and y."""
    names = ("strides", "padding", "dilation", "input_dilation", "groups")
    geometry = Geometry(*map(tuple, shapes), *(node.params[name] for name in names))
    return Problem(traits, geometry, node.dtype, sink, all_arguments=all_arguments, precision=node.params["precision"], **operands)


def _forward_kernels(builder, node, sink):
    return templates.forward(_with_operands(builder, node, sink))


def _input_grad_kernels(builder, node, sink):
    return templates.input_grad(_with_operands(builder, node, sink))


def _filter_grad_kernels(builder, node, sink):
    return templates.filter_grad(_with_operands(builder, node, sink))


# Names of the operands of x, w and y (or its gradient), in their order; the third is the result.
_OPERANDS = {"conv": ("x", "w"), "conv_input_grad": ("dy", "w"), "conv_filter_grad": ("x", "dy")}


def _shapes(node):
    """Shapes of x, w and y."""
    by_name = dict(zip(_OPERANDS[node.primitive.name], (i.shape for i in node.inputs), strict=True))
    return tuple(by_name.get(name, node.shape) for name in ("x", "w", "dy"))


def _with_operands(builder, node, sink):
    names = _OPERANDS[node.primitive.name]
    sources = {name: builder.sources[position] for position, name in enumerate(names) if position in builder.sources}
    operands = dict(zip(names, node.inputs, strict=True))
    return _problem(builder.traits, node, sink, _shapes(node), builder.all_arguments, sources=sources, **operands)


def _repeats(node, traits):
    """Both operands, as rows of all elements."""
    transposed, gradient = node.primitive is _conv_input_grad, node.primitive is _conv_filter_grad
    problem = _problem(traits, node, None, _shapes(node))
    if transposed:
        problem = replace(problem, geometry=problem.geometry.transposed(), transposed=True)
    if 0 in problem.geometry.filter or problem.geometry.empty or not (served := problem.schedule.served(problem, gradient)):
        return []
    x, w, y = _shapes(node)
    outputs, taps, pixels = w[-1], product(w[:-2]), product(y[:-1])
    if transposed:
        outputs, pixels = w[-2], product(x[:-1])
    # An input is loaded for each tap and block of output channels, a filter for each block of pixels, a gradient for each block of rows.
    loads = [(outputs, taps), (product(w[:-1]), 1) if gradient else (pixels, 1)]
    if served == 1:
        loads = [(1, times * again) for times, again in loads]
    return [(k, (1, product(x.shape)), *load) for k, (x, load) in enumerate(zip(node.inputs, loads, strict=True))]


def _filter_grad_packs(node, traits):
    """The input, where the kernel packs it."""
    x, dy = node.inputs
    if any(isinstance(n, Dim) for n in (x.shape[-1], *node.shape)) or 0 in x.shape or x.dtype not in ("float32", "float64"):
        return None
    problem = _problem(traits, node, None, (x.shape, node.shape, dy.shape))
    return (0, (product(x.shape[:-1]), x.shape[-1])) if problem.schedule.packs_input(problem) else None


# ---- batching: examples with one filter join the batch, examples with filters of their own are groups of one convolution


def _split_last(x, parts):
    """(..., n) as (..., parts, n / parts)."""
    return P.reshape(x, (*x.shape[:-1], parts, x.shape[-1] // parts))


def _into_groups(x, groups):
    """(size, ..., groups * n) as (..., groups * size * n): the examples' channels side by side within each group."""
    x = from_front(_split_last(x, groups), len(x.shape) - 1)
    return P.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2] * x.shape[-1]))


def _out_of_groups(y, groups, size):
    """The reverse of _into_groups."""
    y = P.reshape(y, (*y.shape[:-1], groups, size, y.shape[-1] // (groups * size)))
    y = to_front(y, len(y.shape) - 2)
    return P.reshape(y, (*y.shape[:-2], y.shape[-2] * y.shape[-1]))


def _conv_batch(inputs, batched, size, *, groups, **params):
    x, w = inputs
    if not batched[1]:
        return parted(_conv(merged(x), w, groups=groups, **params), size)
    x, w = all_spread(inputs, batched, size)
    return _out_of_groups(_conv(_into_groups(x, groups), _into_groups(w, groups), groups=groups * size, **params), groups, size)


def _input_grad_batch(inputs, batched, size, *, input_shape, groups, **params):
    dy, w = inputs
    if not batched[1]:
        shape = (size * input_shape[0], *input_shape[1:])
        return parted(_conv_input_grad(merged(dy), w, input_shape=shape, groups=groups, **params), size)
    dy, w = all_spread(inputs, batched, size)
    shape = (*input_shape[:-1], size * input_shape[-1])
    dx = _conv_input_grad(_into_groups(dy, groups), _into_groups(w, groups), input_shape=shape, groups=groups * size, **params)
    return _out_of_groups(dx, groups, size)


def _filter_grad_batch(inputs, batched, size, *, filter_shape, groups, **params):
    x, dy = all_spread(inputs, batched, size)
    shape = (*filter_shape[:-1], size * filter_shape[-1])
    dw = _conv_filter_grad(_into_groups(x, groups), _into_groups(dy, groups), filter_shape=shape, groups=groups * size, **params)
    return _out_of_groups(dw, groups, size)


# ---- parts: of the batch and, without groups, of the channels


def _labels(seen, rank):
    """Labels of the axes of x, w and y."""
    inner, outer = ("in", "out") if seen.params["groups"] == 1 else (None, None)
    middle = (None,) * (rank - 2)
    return ("batch", *middle, inner), (*middle, inner, outer), ("batch", *middle, outer)


def _forward_factors(seen):
    x, w, y = _labels(seen, len(seen.shape))
    return Factors((x, w), (y,), {"in": "sum"})


def _input_grad_factors(seen):
    x, w, y = _labels(seen, len(seen.shape))
    return Factors((y, w), (x,), {"out": "sum"}, sized("input_shape"))


def _filter_grad_factors(seen):
    x, w, y = _labels(seen, len(seen.shape))
    return Factors((x, y), (w,), {"batch": "sum"}, sized("filter_shape"))


_conv = Primitive(
    "conv",
    _forward_shape,
    _forward_vjp,
    kernels=_forward_kernels,
    batch=_conv_batch,
    repeats=_repeats,
    factors=_forward_factors,
    operations=lambda node: 2 * product(node.shape) * product(node.inputs[1].shape[:-1]),
)
_conv_input_grad = Primitive(
    "conv_input_grad",
    _input_grad_shape,
    _input_grad_vjp,
    kernels=_input_grad_kernels,
    batch=_input_grad_batch,
    repeats=_repeats,
    factors=_input_grad_factors,
    dynamic_extents=("input_shape",),
    operations=lambda node: 2 * product(node.inputs[0].shape) * product(node.inputs[1].shape[:-1]),
)
_conv_filter_grad = Primitive(
    "conv_filter_grad",
    _filter_grad_shape,
    _filter_grad_vjp,
    kernels=_filter_grad_kernels,
    batch=_filter_grad_batch,
    repeats=_repeats,
    packs=_filter_grad_packs,
    factors=_filter_grad_factors,
    dynamic_extents=("filter_shape",),
    operations=lambda node: 2 * product(node.inputs[1].shape) * product(node.shape[:-1]),
)


def _params(operand, strides, padding, dilation, input_dilation, groups, precision):
    return {
        "strides": tuple(strides),
        "padding": tuple(tuple(p) for p in padding),
        "dilation": tuple(dilation),
        "input_dilation": tuple(input_dilation),
        "groups": groups,
        "precision": of_operands(precision, operand.dtype),
    }


def conv(x, w, strides, padding, dilation, input_dilation, groups, precision=None):
    """Convolution (cross-correlation).

    Output position o reads, for tap k, position o * stride + k * dilation - low of the input spread by
    `input_dilation`; `padding` is a (low, high) pair for each spatial dimension, negative to crop. `precision`: as for dot_general().
    """
    return _conv(x, w, **_params(x, strides, padding, dilation, input_dilation, groups, precision))


def conv_input_grad(dy, w, input_shape, strides, padding, dilation, input_dilation, groups, precision=None):
    """Gradient of conv(x, w, ...) with respect to x of `input_shape`; the transposed convolution."""
    params = _params(dy, strides, padding, dilation, input_dilation, groups, precision)
    return _conv_input_grad(dy, w, input_shape=tuple(input_shape), **params)


def conv_filter_grad(x, dy, filter_shape, strides, padding, dilation, input_dilation, groups, precision=None):
    """Gradient of conv(x, w, ...) with respect to w of `filter_shape`."""
    params = _params(x, strides, padding, dilation, input_dilation, groups, precision)
    return _conv_filter_grad(x, dy, filter_shape=tuple(filter_shape), **params)
