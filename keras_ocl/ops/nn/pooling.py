"""Pooling on the window primitives, in either data format."""

from keras.src.backend import config

from keras_ocl import primitives as P
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import is_one
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.nn.convolution import check_rank, same_padding, spatial
from keras_ocl.ops.promotion import floating


def _windows(op, x, pool_size, strides, padding, data_format):
    """(window, strides, padding) over all axes of x."""
    data_format = config.standardize_data_format(data_format)
    rank = check_rank(op, x)
    first = 2 if data_format == "channels_first" else 1
    size = spatial(pool_size, rank, "pool_size")
    step = size if strides is None else spatial(strides, rank, "strides")
    extents = x.shape[first : first + rank]
    if padding == "same":
        pads = same_padding(extents, size, step, (1,) * rank)
    elif padding == "valid":
        pads = ((0, 0),) * rank
        if any(n < k for n, k in zip(extents, size, strict=True)):
            raise ValueError(
                f"{op}: pool_size {size} is larger than the input's spatial shape {tuple(extents)}; use padding='same' or a smaller window."
            )
    else:
        raise ValueError(f'{op}: `padding` must be "valid" or "same". Received: {padding}')

    def full(values, other):
        return (other,) * first + tuple(values) + (other,) * (len(x.shape) - first - rank)

    return full(size, 1), full(step, 1), full(pads, (0, 0))


def max_pool(inputs, pool_size, strides=None, padding="valid", data_format=None):
    """Maximum over windows; padding never wins."""
    x = convert_to_tensor(inputs)
    window, step, pads = _windows("max_pool", x, pool_size, strides, padding, data_format)
    return P.reduce_window(x, "max", window, step, pads, (1,) * len(x.shape))


def average_pool(inputs, pool_size, strides=None, padding="valid", data_format=None):
    """Mean over windows; padding does not count."""
    x = floating(inputs)
    window, step, pads = _windows("average_pool", x, pool_size, strides, padding, data_format)
    ones = (1,) * len(x.shape)
    total = P.reduce_window(x, "sum", window, step, pads, ones)
    if all(lo == hi == 0 and not isinstance(lo, Dim) for lo, hi in pads):
        count = 1
        for k in window:
            count *= k
        return P.mul(total, P.full(total.shape, 1.0 / count, total.dtype))
    # How many elements a window has inside depends on the position along each padded axis only.
    counts = None
    for axis, (k, s, (lo, _)) in enumerate(zip(window, step, pads, strict=True)):
        if k == 1:
            continue
        shape = tuple(total.shape[axis] if i == axis else 1 for i in range(len(total.shape)))
        start = P.sub(P.mul(P.iota(shape, axis, "int32"), P.full(shape, s, "int32")), P.full(shape, lo, "int32"))
        stop = P.min(P.add(start, P.full(shape, k, "int32")), P.full(shape, x.shape[axis], "int32"))
        inside = P.sub(stop, P.max(start, P.full(shape, 0, "int32")))
        inside = P.broadcast(P.convert(inside, total.dtype), total.shape, tuple(range(len(shape))))
        counts = inside if counts is None else P.mul(counts, inside)
    return total if counts is None else P.div(total, counts)


def _adaptive(op, inputs, output_size, data_format, reduce):
    """Windows from floor(i * n / m) to ceil((i + 1) * n / m) along each spatial axis, one axis after another."""
    data_format = config.standardize_data_format(data_format)
    x = floating(inputs)
    rank = check_rank(op, x)
    first = 2 if data_format == "channels_first" else 1
    for k, m in enumerate(spatial(output_size, rank, "output_size")):
        x = _adaptive_axis(x, first + k, m, reduce)
    return x


def _adaptive_axis(x, axis, m, reduce):
    n = x.shape[axis]
    longest = max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) if not is_one(m) else n
    shape = (m, longest)
    row, column = P.iota(shape, 0, "int32"), P.iota(shape, 1, "int32")

    def const(value):
        return P.full(shape, value, "int32")

    start = P.floor_div(P.mul(row, const(n)), const(m))
    stop = P.floor_div(P.add(P.mul(P.add(row, const(1)), const(n)), const(m - 1)), const(m))
    at = P.add(start, column)
    inside = P.lt(at, stop)
    order = (axis, *(i for i in range(len(x.shape)) if i != axis))
    gathered = P.gather(P.transpose(x, order), (P.min(at, const(n - 1)),), (0,))
    mask = P.broadcast(inside, gathered.shape, (0, 1))
    if reduce == "max":
        pooled = P.reduce_max(P.select(mask, gathered, P.full(gathered.shape, float("-inf"), x.dtype)), (1,))
    else:
        pooled = P.reduce_sum(P.select(mask, gathered, P.full(gathered.shape, 0, x.dtype)), (1,))
        length = P.reshape(P.slice(P.sub(stop, start), (0, 0), (m, 1)), (m,))
        pooled = P.div(pooled, P.broadcast(P.convert(length, x.dtype), pooled.shape, (0,)))
    back = [order.index(i) for i in range(len(order))]
    return P.transpose(pooled, tuple(back))


def adaptive_average_pool(inputs, output_size, data_format=None):
    """Mean over `output_size` windows that cover each spatial axis."""
    return _adaptive("adaptive_average_pool", inputs, output_size, data_format, "mean")


def adaptive_max_pool(inputs, output_size, data_format=None):
    """Maximum over `output_size` windows that cover each spatial axis."""
    return _adaptive("adaptive_max_pool", inputs, output_size, data_format, "max")
