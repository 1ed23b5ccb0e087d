"""Reductions over sliding windows (pooling) and their gradients, in gather form.

`window`, `strides`, `padding` ((low, high) pairs) and `dilation` have one entry for each axis of x. Output o
covers positions o * stride + k * dilation - low for 0 <= k < window; what lies in the padding does not count.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.access import Along, Tap, same_place
from keras_ocl.core.dim import maximum, size_hint
from keras_ocl.core.factors import Factors, sized
from keras_ocl.core.index import is_one, linear
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.primitives.batching import first, moved_axes
from keras_ocl.primitives.prices import DIVISION, MASK


def window_output_shape(shape, window, strides, padding, dilation):
    """Shape of a windowed reduction of `shape`."""
    return tuple(
        maximum(0, (n + low + high - ((w - 1) * d + 1)) // s + 1)
        for n, w, s, (low, high), d in zip(shape, window, strides, padding, dilation, strict=True)
    )


def _number(name, x):
    if not (dtypes.is_float(x.dtype) or dtypes.is_integer(x.dtype)):
        raise TypeError(f"{name}: dtype {x.dtype} is not supported; convert the tensor first.")


def _geometry(params):
    return {k: params[k] for k in ("window", "strides", "padding", "dilation")}


def _positions(gen, x, params, index, inside):
    """(mask or None, index of x) of the window's position `inside` for the output at `index`."""
    mask, places = None, []
    for o, k, n, s, (low, _), d in zip(index, inside, x.shape, params["strides"], params["padding"], params["dilation"], strict=True):
        place = o * s + k * d - low
        within = gen.inside(place, 0, n)
        places.append(gen.safe(place, within, n))
        mask = gen.both(mask, within)
    return mask, tuple(places)


def _element(gen, x, params, index, inside, dtype, missing):
    if any(n == 0 for n in x.shape):
        return gen.constant(missing, dtype)
    mask, place = _positions(gen, x, params, index, inside)
    register = gen.value(x, place)
    if register.dtype != dtype:
        register = gen.op("convert", dtype, register)
    return register if mask is None else gen.select(mask, register, gen.constant(missing, dtype))


# ---- what passes of the compiler ask


def _alone(params, i):
    """Whether each window covers one element along axis `i`, at its own place."""
    return is_one(params["window"][i]) and is_one(params["strides"][i]) and tuple(params["padding"][i]) == (0, 0)


def _access(node, position):
    return tuple(Along(i) if _alone(node.params, i) else Tap(i) for i in range(len(node.shape)))


def _positions_in_window(node):
    return size_hint(node.params["window"])


def _overlapping(node):
    """In gather form: how many windows may cover a position, counting the axes along which windows overlap."""
    window, strides, dilation = (node.params[k] for k in ("window", "strides", "dilation"))
    return size_hint(w for w, s, d in zip(window, strides, dilation, strict=True) if (w - 1) * d + 1 > s)


def _cost(terms, divided):
    """Rule for `terms` loads with their masks; `divided`: indices are divided by the strides."""

    def rule(node):
        axes = [i for i in range(len(node.params["window"])) if not _alone(node.params, i)]
        each = sum(MASK + (DIVISION if divided and not is_one(node.params["strides"][i]) else 0) for i in axes)
        return terms(node) * (2 + each)

    return rule


def _factors(*resized):
    """Rule: axes with windows of one element fall into parts; the parameters `resized` are the result's shape."""

    def rule(seen):
        labels = tuple(i if _alone(seen.params, i) else None for i in range(len(seen.shape)))
        return Factors((labels,) * len(seen.inputs), (labels,), resized=sized(*resized))

    return rule


_EACH = {"window": first(1), "strides": first(1), "padding": first((0, 0)), "dilation": first(1)}  # entries of the axis of examples


def _primitive(name, shape, vjp, pointwise, terms=_positions_in_window, divided=False, access=_access, batch=_EACH, resized=(), **rules):
    rules |= {"factors": _factors(*resized)}
    rules |= {"access": access, "terms": terms, "cost": _cost(terms, divided), "batch": moved_axes(lambda: primitive, **batch)}
    primitive = Primitive(name, shape, vjp, pointwise, kind=Kind.WINDOW, **rules)
    return primitive


# ---- reduce_window


def _reduce_shape(x, *, kind, window, strides, padding, dilation):
    _number("reduce_window", x)
    return window_output_shape(x.shape, window, strides, padding, dilation), x.dtype


def _reduce_vjp(ct, out, x, *, kind, **params):
    index = None if kind == "sum" else _window_argmax(x, kind=kind, **params)
    return (window_gather_sum(ct, index, x.shape, **params),)


def _reduce_pointwise(gen, node, index):
    (x,), params = node.inputs, node.params
    kind = params["kind"]
    dtype = dtypes.accumulator(node.dtype) if kind == "sum" else node.dtype
    missing = dtypes.neutral(kind, dtype)
    result = gen.reduce(node, kind, dtype, params["window"], lambda inside: _element(gen, x, params, index, inside, dtype, missing))
    return result if dtype == node.dtype else gen.op("convert", node.dtype, result)


_reduce_window = _primitive("reduce_window", _reduce_shape, _reduce_vjp, _reduce_pointwise)


def reduce_window(x, kind, window, strides, padding, dilation):
    """Maximum, minimum or sum ("max", "min", "sum") over sliding windows; the gradient of an extreme goes to its first occurrence."""
    if kind not in ("max", "min", "sum"):
        raise ValueError(f"reduce_window: kind {kind!r} is not 'max', 'min' or 'sum'.")
    return _reduce_window(x, kind=kind, **_checked("reduce_window", x.shape, window, strides, padding, dilation))


def _checked(name, shape, window, strides, padding, dilation):
    if not len(shape) == len(window) == len(strides) == len(padding) == len(dilation):
        raise ValueError(
            f"{name}: window {tuple(window)}, strides {tuple(strides)}, padding {tuple(padding)} and dilation {tuple(dilation)}"
            f" need one entry for each axis of shape {tuple(shape)}."
        )
    return {
        "window": tuple(window),
        "strides": tuple(strides),
        "padding": tuple(tuple(p) for p in padding),
        "dilation": tuple(dilation),
    }


# ---- window_argmax


def _argmax_shape(x, *, kind, window, strides, padding, dilation):
    _number("window_argmax", x)
    return window_output_shape(x.shape, window, strides, padding, dilation), "int32"


def _argmax_pointwise(gen, node, index):
    (x,), params = node.inputs, node.params
    missing = dtypes.neutral(params["kind"], x.dtype)

    def body(inside):
        return _element(gen, x, params, index, inside, x.dtype, missing)

    return gen.reduce_arg(node, params["kind"], x.dtype, params["window"], body)[1]


_window_argmax = _primitive("window_argmax", _argmax_shape, None, _argmax_pointwise)


def window_argmax(x, window, strides, padding, dilation):
    """Row-major position inside each window of its first maximum, int32."""
    return _window_argmax(x, kind="max", **_checked("window_argmax", x.shape, window, strides, padding, dilation))


# ---- window_gather_sum: the transpose of summing a window, or of picking one position of it


def _gather_shape(dy, *index, input_shape, window, strides, padding, dilation):
    wanted = window_output_shape(input_shape, window, strides, padding, dilation)
    if any(tuple(t.shape) != wanted for t in (dy, *index)):
        raise ValueError(f"window_gather_sum: gradient of shape {tuple(dy.shape)}; windows over {tuple(input_shape)} give {wanted}.")
    return input_shape, dy.dtype


def _gather_vjp(ct, out, dy, *index, input_shape, **params):
    if index:
        return window_pick(ct, index[0], **params), None
    return (reduce_window(ct, "sum", **params),)


def _gather_pointwise(gen, node, index):
    dy, params = node.inputs[0], node.params
    if any(n == 0 for n in dy.shape):
        return gen.constant(0, node.dtype)
    chosen = node.inputs[1] if len(node.inputs) > 1 else None
    window, strides, padding, dilation = (params[k] for k in ("window", "strides", "padding", "dilation"))
    total = dtypes.accumulator(node.dtype)
    # Along an axis whose windows do not overlap there is one candidate; only the others are looped over.
    looped = [i for i, (w, s, d) in enumerate(zip(window, strides, dilation, strict=True)) if (w - 1) * d + 1 > s]
    found, common = {}, None
    for i in range(len(window)):
        if i in looped:
            continue
        place = index[i] + padding[i][0]
        within = gen.inside(place, 0, dy.shape[i] * strides[i])
        output, tap = gen.divmod(gen.safe(place, within, dy.shape[i]), strides[i])
        tap, aligned = _divided(gen, tap, dilation[i])
        hit = gen.inside(tap, 0, window[i])
        common = gen.both(gen.both(gen.both(common, within), aligned), hit)
        found[i] = (output, tap)

    def body(inside):
        mask, taps = common, dict(zip(looped, inside, strict=True))
        outputs = []
        for i in range(len(window)):
            if i in found:
                output, taps[i] = found[i]
            else:
                place = index[i] + padding[i][0] - taps[i] * dilation[i]
                within = gen.inside(place, 0, (dy.shape[i] - 1) * strides[i] + 1)
                output, aligned = _divided(gen, gen.safe(place, within, dy.shape[i]), strides[i])
                mask = gen.both(gen.both(mask, within), aligned)
            outputs.append(output)
        outputs = tuple(outputs)
        if chosen is not None:
            position = gen.number(linear([taps[i] for i in range(len(window))], window), "int32")
            mask = gen.both(mask, gen.op("eq", "bool", gen.value(chosen, outputs), position))
        value = gen.value(dy, outputs)
        value = value if value.dtype == total else gen.op("convert", total, value)
        return value if mask is None else gen.select(mask, value, gen.constant(0, total))

    result = gen.reduce(node, "sum", total, [window[i] for i in looped], body) if looped else body(())
    return result if total == node.dtype else gen.op("convert", node.dtype, result)


def _divided(gen, index, n):
    """(index // n, mask of whether n divides it)."""
    quotient, rest = gen.divmod(index, n)
    return quotient, gen.inside(rest, 0, 1)


_window_gather_sum = _primitive(
    "window_gather_sum",
    _gather_shape,
    _gather_vjp,
    _gather_pointwise,
    _overlapping,
    divided=True,
    dynamic_extents=("input_shape",),
    resized=("input_shape",),
    batch={**_EACH, "input_shape": first(None)},
)


def window_gather_sum(dy, index, input_shape, window, strides, padding, dilation):
    """For each position of `input_shape`, the sum of `dy` over the windows that cover it (`index` None) or whose `index` names it."""
    params = _checked("window_gather_sum", input_shape, window, strides, padding, dilation)
    operands = (dy,) if index is None else (dy, index)
    return _window_gather_sum(*operands, input_shape=tuple(input_shape), **params)


# ---- window_pick


def _pick_shape(x, index, *, window, strides, padding, dilation):
    wanted = window_output_shape(x.shape, window, strides, padding, dilation)
    if tuple(index.shape) != wanted:
        raise ValueError(f"window_pick: positions of shape {tuple(index.shape)}; windows over {tuple(x.shape)} give {wanted}.")
    return wanted, x.dtype


def _pick_vjp(ct, out, x, index, **params):
    return window_gather_sum(ct, index, x.shape, **params), None


def _pick_pointwise(gen, node, index):
    (x, chosen), params = node.inputs, node.params
    position = gen.value(chosen, index)

    def body(inside):
        here = gen.op("eq", "bool", position, gen.number(linear(inside, params["window"]), "int32"))
        return gen.select(here, _element(gen, x, params, index, inside, node.dtype, 0), gen.constant(0, node.dtype))

    return gen.reduce(node, "sum", node.dtype, params["window"], body)


def _pick_access(node, position):
    return same_place(len(node.shape)) if position else _access(node, position)


_window_pick = _primitive("window_pick", _pick_shape, _pick_vjp, _pick_pointwise, access=_pick_access)


def window_pick(x, index, window, strides, padding, dilation):
    """The element at the row-major position `index` of each window; 0 where that lies in the padding."""
    return _window_pick(x, index, **_checked("window_pick", x.shape, window, strides, padding, dilation))
