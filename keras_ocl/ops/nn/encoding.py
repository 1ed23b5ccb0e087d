"""keras.ops.nn, encodings and rearrangements: one-hot, multi-hot, patches, depth and space."""

from keras.src.backend import config
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor


def one_hot(x, num_classes, axis=-1, dtype=None, sparse=False):
    """1 where the new axis (of extent `num_classes`, at `axis` of the result) counts the integer in `x`, else 0.

    Integers out of range give zeros. ValueError for sparse=True.
    """
    _dense("one_hot", sparse)
    x = _labels(x)
    if num_classes < 0:
        raise ValueError(f"one_hot: num_classes must not be negative, got {num_classes}.")
    dtype = config.floatx() if dtype is None else dtype
    check_indices("one_hot", x, num_classes, wraps=False)
    axis = canonicalize_axis(axis, x.ndim + 1)
    shape = (*x.shape[:axis], num_classes, *x.shape[axis:])
    others = tuple(a for a in range(len(shape)) if a != axis)
    return convert_to_tensor(P.eq(P.iota(shape, axis, x.dtype), P.broadcast(x, shape, others)), dtype)


def multi_hot(x, num_classes, axis=-1, dtype=None, sparse=False):
    """The union of the one-hot vectors of a sample's integers (the second axis of `x`, or its only one)."""
    _dense("multi_hot", sparse)
    x = convert_to_tensor(x)
    encoded = one_hot(convert_to_tensor(x, "int32"), num_classes, axis=axis, dtype="bool")
    return convert_to_tensor(P.reduce_or(encoded, (1 if x.ndim > 1 else 0,)), config.floatx() if dtype is None else dtype)


def _dense(op, sparse):
    if sparse:
        raise ValueError(f"Unsupported value `sparse=True` with the ocl backend: {op} makes dense tensors.")


def _labels(x):
    x = convert_to_tensor(x)
    if not dtypes.is_integer(x.dtype) or dtypes.itemsize(x.dtype) < 4:
        x = P.convert(x, "int32")
    return x


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _check_windows(op, sizes, steps, pads, dilations):
    if any(len(v) != 2 for v in (sizes, steps, pads, dilations)) or min(*sizes, *steps, *dilations) < 1 or min(pads) < 0:
        raise ValueError(
            f"{op}: kernel_size {sizes}, stride {steps} and dilation {dilations} must be positive numbers or pairs, padding {pads} not"
            " negative."
        )


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Patches of an (N, C, H, W) tensor as columns: (N, C * kH * kW, number of patches)."""
    x = convert_to_tensor(input)
    if x.ndim != 4:
        raise ValueError(f"unfold: expected an input of shape (N, C, H, W). Received: {tuple(x.shape)}")
    sizes, steps, pads = _pair(kernel_size), _pair(stride), _pair(padding)
    dilations = _pair(dilation)
    _check_windows("unfold", sizes, steps, pads, dilations)
    for n, k, p, d in zip(x.shape[2:], sizes, pads, dilations, strict=True):
        if n + 2 * p < (k - 1) * d + 1:
            raise ValueError(f"unfold: a kernel of extent {k} (dilation {d}) is larger than the padded extent {n + 2 * p}.")
    x = P.pad(x, P.constant(0, x.dtype), (0, 0, *pads), (0, 0, *pads))
    # One axis after the other, the last first: (N, C, H, W) -> (N, C, H, kW, oW) -> (N, C, kH, oH, kW, oW).
    x = _windows(x, 3, sizes[1], dilations[1], steps[1])
    x = _windows(x, 2, sizes[0], dilations[0], steps[0])
    n, c, kh, oh, kw, ow = x.shape
    return P.reshape(P.transpose(x, (0, 1, 2, 4, 3, 5)), (n, c * kh * kw, oh * ow))


def _windows(x, axis, size, dilation, step):
    """Replace an axis by (position in the window, window)."""
    count = (x.shape[axis] - (size - 1) * dilation - 1) // step + 1
    parts = []
    for k in range(size):
        starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
        starts[axis], strides[axis] = k * dilation, step
        limits[axis] = k * dilation + (count - 1) * step + 1
        part = P.slice(x, tuple(starts), tuple(limits), tuple(strides))
        parts.append(P.reshape(part, (*part.shape[:axis], 1, *part.shape[axis:])))
    return P.concat(parts, axis)


def fold(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """The sum of patches put back in place, the adjoint of `unfold`: (N, C * kH * kW, L) to (N, C, oH, oW)."""
    x = convert_to_tensor(x)
    sizes, steps, pads, dilations, extents = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation), _pair(output_size)
    _check_windows("fold", sizes, steps, pads, dilations)
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(extents, pads, dilations, sizes, steps, strict=True))
    if x.ndim != 3 or x.shape[1] % (sizes[0] * sizes[1]) or x.shape[2] != counts[0] * counts[1]:
        raise ValueError(
            f"fold: input of shape {tuple(x.shape)} does not fit output_size {extents}, kernel_size {sizes}; expected (N, C * {sizes[0]} *"
            f" {sizes[1]}, {counts[0] * counts[1]})."
        )
    x = P.reshape(x, (x.shape[0], x.shape[1] // (sizes[0] * sizes[1]), *sizes, *counts))
    x = P.transpose(x, (0, 1, 2, 4, 3, 5))
    x = _overlapped(x, 4, extents[1], pads[1], dilations[1], steps[1])
    return _overlapped(x, 2, extents[0], pads[0], dilations[0], steps[0])


def _overlapped(x, axis, extent, padding, dilation, step):
    """Replace (position in the window, window) at `axis` by an axis of `extent` that adds up the windows."""
    size, count = x.shape[axis], x.shape[axis + 1]
    zero, total = P.constant(0, x.dtype), None
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    for k in range(size):
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[axis], limits[axis] = k, k + 1
        part = P.reshape(P.slice(x, tuple(starts), tuple(limits)), shape)
        low, high, interior = [0] * part.ndim, [0] * part.ndim, [0] * part.ndim
        low[axis], interior[axis] = k * dilation - padding, step - 1
        high[axis] = extent - (k * dilation - padding) - ((count - 1) * step + 1)
        part = P.pad(part, zero, tuple(low), tuple(high), tuple(interior))
        total = part if total is None else P.add(total, part)
    return total


def _blocks(op, x, block_size, data_format, fits):
    """`x` as a tensor of rank 4 whose extents fit the block size."""
    x = convert_to_tensor(x)
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f'{op}: `data_format` must be "channels_last" or "channels_first". Received: {data_format}')
    h, w, c = (1, 1, 1) if x.ndim != 4 else x.shape[1:] if data_format == "channels_last" else (*x.shape[2:], x.shape[1])
    if x.ndim != 4 or block_size < 1 or not fits(h, w, c, block_size):
        raise ValueError(f"{op}: a tensor of shape {tuple(x.shape)} ({data_format}) has no blocks of extent {block_size}.")
    return x


def depth_to_space(x, block_size, data_format="channels_last"):
    """Blocks of `block_size`² channels spread out as squares of pixels."""
    x = _blocks("depth_to_space", x, block_size, data_format, lambda h, w, c, b: c % (b * b) == 0)
    b = block_size
    if data_format == "channels_last":
        n, h, w, c = x.shape
        x = P.reshape(x, (n, h, w, b, b, c // (b * b)))
        return P.reshape(P.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, c // (b * b)))
    n, c, h, w = x.shape
    x = P.reshape(x, (n, c // (b * b), b, b, h, w))
    return P.reshape(P.transpose(x, (0, 1, 4, 2, 5, 3)), (n, c // (b * b), h * b, w * b))


def space_to_depth(x, block_size, data_format="channels_last"):
    """Squares of `block_size`² pixels stacked as channels, the inverse of `depth_to_space`."""
    x = _blocks("space_to_depth", x, block_size, data_format, lambda h, w, c, b: h % b == 0 and w % b == 0)
    b = block_size
    if data_format == "channels_last":
        n, h, w, c = x.shape
        x = P.reshape(x, (n, h // b, b, w // b, b, c))
        return P.reshape(P.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h // b, w // b, c * b * b))
    n, c, h, w = x.shape
    x = P.reshape(x, (n, c, h // b, b, w // b, b))
    return P.reshape(P.transpose(x, (0, 1, 3, 5, 2, 4)), (n, c * b * b, h // b, w // b))
