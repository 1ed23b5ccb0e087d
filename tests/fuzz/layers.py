"""What random models are made of: layers of Keras, and how their arguments are drawn for the shapes at hand."""

import math

from hypothesis import strategies as st

LAYERS = {}  # name -> (number of operands, draw)
MOST = 2048  # elements of a result per sample
SHARED = ("Dense", "Conv1D", "Conv2D", "LayerNormalization", "BatchNormalization", "LSTM", "GRU", "MultiHeadAttention")
_UNITS = st.sampled_from([1, 2, 3, 5, 8, 17])
_ACTIVATIONS = st.sampled_from(["linear", "relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus", "softmax", "leaky_relu"])
_PADDINGS = st.sampled_from(["valid", "same"])


def layer(*names, arity=1):
    """
    Adds layers whose arguments a function draws: (draw, name, shapes of an operand, ...) -> arguments, or None where it does not apply.

    Shapes of an operand are those that it has in one call of the model after the other, without the batch.
    """

    def add(function):
        LAYERS.update((name, (arity, function)) for name in names)
        return function

    return add


def varying(shapes):
    """Which axes have several extents."""
    return [len(set(extents)) > 1 for extents in zip(*shapes, strict=True)]


@layer("Activation")
def _activation(draw, name, shapes):
    # A linear one returns its operand itself: an attention layer that takes the mask of one takes the other's too, on every backend.
    return {"activation": draw(_ACTIVATIONS.filter(lambda name: name != "linear"))}


@layer("Dense")
def _dense(draw, name, shapes):
    return {"units": draw(_UNITS), "activation": draw(_ACTIVATIONS), "use_bias": draw(st.booleans())}


@layer("LayerNormalization", "BatchNormalization")
def _normalization(draw, name, shapes):
    return {"epsilon": 0.01, "center": draw(st.booleans()), "scale": draw(st.booleans())}


@layer("RMSNormalization")
def _root_mean_square(draw, name, shapes):
    return {"epsilon": 0.01}


@layer("UnitNormalization")
def _unit(draw, name, shapes):
    return {"axis": -1}


@layer("GroupNormalization")
def _groups(draw, name, shapes):
    channels = shapes[0][-1]
    return {"groups": draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0])), "epsilon": 0.01}


@layer("Flatten")
def _flatten(draw, name, shapes):
    return None if any(varying(shapes)) else {}


@layer("Reshape")
def _reshape(draw, name, shapes):
    if any(varying(shapes)):
        return None
    total = math.prod(shapes[0])
    first = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    if draw(st.booleans()):
        return {"target_shape": draw(st.sampled_from([(first, total // first), (first, -1), (-1, total // first)]))}
    second = draw(st.sampled_from([d for d in range(1, total // first + 1) if (total // first) % d == 0]))
    return {"target_shape": (first, second, total // first // second)}


@layer("Permute")
def _permute(draw, name, shapes):
    varies = varying(shapes)
    order = tuple(draw(st.permutations(range(1, len(varies) + 1))))
    return None if varies[order[-1] - 1] else {"dims": order}


@layer("RepeatVector")
def _repeat(draw, name, shapes):
    return {"n": draw(st.integers(1, 5))} if len(shapes[0]) == 1 else None


def _spatial(name, shapes):
    """How many axes a layer called ...1D or ...2D slides along, or None where the operand has another number."""
    axes = 1 if "1D" in name else 2
    return axes if len(shapes[0]) == axes + 1 else None


def _several(draw, axes, most):
    return tuple(draw(st.integers(1, most)) for _ in range(axes))


@layer("Conv1D", "Conv2D", "SeparableConv1D", "SeparableConv2D", "DepthwiseConv1D", "DepthwiseConv2D", "Conv1DTranspose", "Conv2DTranspose")
def _conv(draw, name, shapes):
    axes = _spatial(name, shapes)
    if not axes:
        return None
    channels, transposed = shapes[0][-1], "Transpose" in name
    made = {"kernel_size": _several(draw, axes, 4), "activation": draw(_ACTIVATIONS), "use_bias": draw(st.booleans())}
    made["padding"] = draw(st.sampled_from(["valid", "same", "causal"] if name == "Conv1D" else ["valid", "same"]))
    if draw(st.booleans()):
        strides = _several(draw, axes, 3)
        made["strides"] = (max(strides),) * axes if name.startswith(("Sep", "Dep")) else strides  # as TensorFlow has them
    elif not transposed and draw(st.booleans()):
        made["dilation_rate"] = (draw(st.integers(1, 3)),) * axes
    reach = [(k - 1) * d + 1 for k, d in zip(made["kernel_size"], made.get("dilation_rate", (1,) * axes), strict=True)]
    if made["padding"] == "valid" and not transposed and any(r > n for s in shapes for r, n in zip(reach, s[:-1], strict=True)):
        return None
    if name.startswith(("Sep", "Dep")):
        made["depth_multiplier"] = draw(st.integers(1, 2))
    if not name.startswith("Dep"):
        made["filters"] = draw(_UNITS)
    if name in ("Conv1D", "Conv2D") and draw(st.booleans()):
        made["groups"] = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        made["filters"] = made["groups"] * draw(st.integers(1, 3))
    return made


@layer("MaxPooling1D", "MaxPooling2D", "AveragePooling1D", "AveragePooling2D")
def _pooling(draw, name, shapes):
    axes = _spatial(name, shapes)
    if not axes:
        return None
    made = {"pool_size": _several(draw, axes, 4), "strides": _several(draw, axes, 3), "padding": draw(_PADDINGS)}
    fits = made["padding"] == "same" or all(p <= n for s in shapes for p, n in zip(made["pool_size"], s[:-1], strict=True))
    return made if fits else None


@layer("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D")
def _global_pooling(draw, name, shapes):
    return {"keepdims": draw(st.booleans())} if _spatial(name, shapes) else None


@layer("UpSampling1D", "UpSampling2D")
def _up(draw, name, shapes):
    axes = _spatial(name, shapes)
    if not axes or max(map(math.prod, shapes)) * 9 > MOST:
        return None
    if axes == 1:
        return {"size": draw(st.integers(1, 3))}
    return {"size": _several(draw, axes, 3), "interpolation": draw(st.sampled_from(["nearest", "bilinear"]))}


@layer("ZeroPadding1D", "ZeroPadding2D", "Cropping1D", "Cropping2D")
def _borders(draw, name, shapes):
    axes = _spatial(name, shapes)
    if not axes:
        return None
    widths = [(draw(st.integers(0, 3)), draw(st.integers(0, 2))) for _ in range(axes)]
    if name.startswith("Cropping") and any(a + b >= n for s in shapes for (a, b), n in zip(widths, s[:-1], strict=True)):
        return None
    key = "cropping" if name.startswith("Cropping") else "padding"
    return {key: widths[0] if axes == 1 else tuple(widths)}


def _recurrence(draw, name):
    made = {"units": draw(st.sampled_from([1, 2, 3, 5, 8])), "return_sequences": draw(st.booleans()), "use_bias": draw(st.booleans())}
    if name == "GRU":
        made["reset_after"] = draw(st.booleans())
    if draw(st.booleans()):
        made["activation"] = draw(st.sampled_from(["tanh", "relu", "softplus"]))
    return made


@layer("LSTM", "GRU", "SimpleRNN")
def _recurrent(draw, name, shapes):
    if len(shapes[0]) != 2:
        return None
    more = {"go_backwards": draw(st.booleans()), "zero_output_for_mask": draw(st.booleans())}
    return _recurrence(draw, name) | more


@layer("Bidirectional")
def _bidirectional(draw, name, shapes):
    if len(shapes[0]) != 2:
        return None
    inner = draw(st.sampled_from(["LSTM", "GRU", "SimpleRNN"]))
    merge = draw(st.sampled_from(["concat", "sum", "mul", "ave"]))
    return {"layer": (inner, _recurrence(draw, inner)), "merge_mode": merge}


@layer("TimeDistributed")
def _distributed(draw, name, shapes):
    return {"layer": ("Dense", _dense(draw, name, shapes))} if len(shapes[0]) == 2 else None


@layer("Masking")
def _masking(draw, name, shapes):
    return {"mask_value": 0.0} if len(shapes[0]) == 2 else None


@layer("MultiHeadAttention", arity=2)
def _attention(draw, name, queries, values):
    if len(queries[0]) != 2 or len(values[0]) != 2:
        return None
    made = {"num_heads": draw(st.integers(1, 3)), "key_dim": draw(st.integers(1, 8)), "use_bias": draw(st.booleans())}
    return made | {"value_dim": draw(st.sampled_from([None, 3]))}


@layer("Add", "Multiply", "Maximum", "Minimum", "Average", "Subtract", arity=2)
def _merge(draw, name, a, b):
    return {} if a == b else None


@layer("Concatenate", arity=2)
def _concatenate(draw, name, a, b):
    fits = len(a[0]) == len(b[0]) and all(s[:-1] == t[:-1] for s, t in zip(a, b, strict=True))
    return {"axis": -1} if fits else None
