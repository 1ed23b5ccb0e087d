"""Convolutions as Keras's layers ask for them, on the channels-last convolution primitives."""

from keras.src.backend import config
from keras.src.backend.common.backend_utils import (
    check_conv_input_channels,
    check_conv_transpose_input_channels,
    compute_conv_transpose_padding_args_for_jax,
)

from keras_ocl import primitives as P
from keras_ocl.core.dim import ceil_div, maximum
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.promotion import promote


def spatial(value, rank, name):
    """An int or a sequence of `rank` ints as a tuple."""
    if isinstance(value, int):
        return _positive((value,) * rank, name)
    value = tuple(value) * rank if len(value) == 1 else tuple(value)
    if len(value) != rank:
        raise ValueError(f"`{name}` must be an int or have {rank} entries, one per spatial dimension. Received: {value}")
    return _positive(value, name)


def _positive(value, name):
    if any(v < 1 for v in value):
        raise ValueError(f"`{name}` must be positive. Received: {value}")
    return value


def check_rank(op, inputs):
    """The number of spatial dimensions; ValueError unless there are 1 to 3."""
    rank = len(inputs.shape) - 2
    if not 1 <= rank <= 3:
        raise ValueError(
            f"{op}: inputs need a batch axis, a channel axis and 1 to 3 spatial dimensions. Received: inputs.shape={tuple(inputs.shape)}"
        )
    return rank


def _same_rank(op, inputs, kernel):
    """The number of spatial dimensions, which inputs and kernel have in common."""
    rank = check_rank(op, inputs)
    if len(kernel.shape) != rank + 2:
        raise ValueError(
            f"{op}: a kernel of rank {len(kernel.shape)} does not fit inputs of rank {len(inputs.shape)};"
            f" shapes {tuple(inputs.shape)} and {tuple(kernel.shape)}."
        )
    return rank


def to_channels_last(x):
    rank = len(x.shape)
    return P.transpose(x, (0, *range(2, rank), 1))


def to_channels_first(x):
    rank = len(x.shape)
    return P.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def same_padding(extents, window, strides, dilation):
    """TensorFlow's "same": as even as possible, the odd element at the end."""
    pads = []
    for n, k, s, d in zip(extents, window, strides, dilation, strict=True):
        total = maximum((ceil_div(n, s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def _explicit_padding(op, padding, extents, window, strides, dilation):
    padding = padding.lower() if isinstance(padding, str) else padding
    if padding == "valid":
        return ((0, 0),) * len(window)
    if padding == "same":
        return same_padding(extents, window, strides, dilation)
    raise ValueError(f'{op}: `padding` must be "valid" or "same". Received: {padding}')


def conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    """Convolution of rank 1, 2 or 3. inputs (N, *spatial, C) or channels first; kernel (*window, C / groups, filters)."""
    return _conv(convert_to_tensor(inputs), convert_to_tensor(kernel), strides, padding, data_format, dilation_rate, None)


def _conv(inputs, kernel, strides, padding, data_format, dilation_rate, groups):
    data_format = config.standardize_data_format(data_format)
    rank = _same_rank("conv", inputs, kernel)
    strides = spatial(strides, rank, "strides")
    dilation = spatial(dilation_rate, rank, "dilation_rate")
    inputs, kernel = promote(inputs, kernel)
    x = to_channels_last(inputs) if data_format == "channels_first" else inputs
    channels, per_group = x.shape[-1], kernel.shape[-2]
    if per_group == 0 or channels % per_group:
        raise ValueError(
            "The number of input channels must be evenly divisible by kernel's in_channels. "
            f"Received input channels {channels} and kernel in_channels {per_group}. "
        )
    groups = channels // per_group if groups is None else groups
    if kernel.shape[-1] % groups:
        raise ValueError(f"conv: {kernel.shape[-1]} filters cannot be divided among {groups} groups of input channels.")
    window, extents = kernel.shape[:-2], x.shape[1:-1]
    pads = _explicit_padding("conv", padding, extents, window, strides, dilation)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    if any(n + lo + hi < r for n, (lo, hi), r in zip(extents, pads, reach, strict=True)):
        raise ValueError(
            "The convolution operation resulted in an empty output. This can happen if the input is too small for the given kernel size, "
            "strides, dilation rate, and padding mode. Please check the input shape and convolution parameters. "
            f"Received: inputs.shape={tuple(inputs.shape)}, kernel.shape={tuple(kernel.shape)}"
        )
    y = P.conv(x, kernel, strides, pads, dilation, (1,) * rank, groups)
    return to_channels_first(y) if data_format == "channels_first" else y


def depthwise_conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    """Each channel with filters of its own. kernel (*window, C, multiplier); output channels C * multiplier."""
    data_format = config.standardize_data_format(data_format)
    inputs, kernel = convert_to_tensor(inputs), convert_to_tensor(kernel)
    _same_rank("depthwise_conv", inputs, kernel)
    check_conv_input_channels(inputs, kernel, data_format)
    channels = kernel.shape[-2]
    kernel = P.reshape(kernel, (*kernel.shape[:-2], 1, channels * kernel.shape[-1]))
    return _conv(inputs, kernel, strides, padding, data_format, dilation_rate, channels)


def separable_conv(inputs, depthwise_kernel, pointwise_kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    """Depthwise convolution, then a 1x1 convolution."""
    data_format = config.standardize_data_format(data_format)
    depthwise_kernel, pointwise_kernel = convert_to_tensor(depthwise_kernel), convert_to_tensor(pointwise_kernel)
    if pointwise_kernel.shape[-2] != depthwise_kernel.shape[-2] * depthwise_kernel.shape[-1]:
        raise ValueError(
            f"separable_conv: the depthwise kernel of shape {tuple(depthwise_kernel.shape)} gives other channels than the pointwise one of"
            f" shape {tuple(pointwise_kernel.shape)} takes."
        )
    y = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv(y, pointwise_kernel, 1, "valid", data_format, 1)


def conv_transpose(inputs, kernel, strides=1, padding="valid", output_padding=None, data_format=None, dilation_rate=1):
    """Transposed convolution: the input gradient of a convolution. kernel (*window, filters, C)."""
    data_format = config.standardize_data_format(data_format)
    inputs, kernel = promote(inputs, kernel)
    rank = _same_rank("conv_transpose", inputs, kernel)
    check_conv_transpose_input_channels(inputs, kernel, data_format)
    strides = spatial(strides, rank, "strides")
    dilation = spatial(dilation_rate, rank, "dilation_rate")
    pads = compute_conv_transpose_padding_args_for_jax(
        input_shape=inputs.shape,
        kernel_shape=kernel.shape,
        strides=strides,
        padding=padding,
        output_padding=output_padding,
        dilation_rate=dilation_rate,
    )
    x = to_channels_last(inputs) if data_format == "channels_first" else inputs
    # `pads` surround the input spread by the strides; they tell the output's extent and the convolution's own padding.
    extents, own = [], []
    for n, k, s, d, (lo, hi) in zip(x.shape[1:-1], kernel.shape[:-2], strides, dilation, pads, strict=True):
        reach = (k - 1) * d
        extents.append((n - 1) * s + 1 + lo + hi - reach)
        own.append((reach - lo, reach - hi))
    y = P.conv_input_grad(x, kernel, (x.shape[0], *extents, kernel.shape[-2]), strides, tuple(own), dilation, (1,) * rank, 1)
    return to_channels_first(y) if data_format == "channels_first" else y
