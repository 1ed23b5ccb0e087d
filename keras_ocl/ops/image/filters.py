"""keras.ops.image, filters: Gaussian blur and Sobel edges."""

from keras.src.backend import config

from keras_ocl import primitives as P
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.image.color import check_rank
from keras_ocl.ops.nn.convolution import depthwise_conv, to_channels_first, to_channels_last
from keras_ocl.ops.numpy.padding import pad
from keras_ocl.ops.promotion import floating, scalar_like


def gaussian_blur(images, kernel_size=(3, 3), sigma=(1.0, 1.0), data_format=None):
    """Convolution with a Gaussian, zeros around the image; a batch of images or one, in either data format.

    kernel_size and sigma (numbers or a tensor) are pairs: the first of the width, the second of the height.
    """
    data_format = config.standardize_data_format(data_format)
    images = floating(images)
    check_rank(images)
    if len(kernel_size) != 2 or min(kernel_size) < 1:
        raise ValueError(f"gaussian_blur: `kernel_size` must be two positive numbers, got {kernel_size}.")
    single = images.ndim == 3
    x = P.reshape(images, (1, *images.shape)) if single else images
    if data_format == "channels_first":
        x = to_channels_last(x)
    sigma = convert_to_tensor(sigma, x.dtype)
    if tuple(sigma.shape) != (2,):
        raise ValueError(f"gaussian_blur: `sigma` must be two numbers, got shape {tuple(sigma.shape)}.")
    channels = x.shape[3]
    for size, shape, which in ((kernel_size[1], (-1, 1), 1), (kernel_size[0], (1, -1), 0)):
        profile = _gaussian(size, P.reshape(P.slice(sigma, (which,), (which + 1,)), ()))
        window = tuple(size if n == -1 else n for n in shape)
        kernel = P.broadcast(profile, (*window, channels, 1), (window.index(size),))
        x = depthwise_conv(x, kernel, padding="same", data_format="channels_last")
    if data_format == "channels_first":
        x = to_channels_first(x)
    return P.reshape(x, images.shape) if single else x


def _gaussian(size, sigma):
    """Samples of a Gaussian about the middle, adding up to 1."""
    x = P.iota((size,), 0, sigma.dtype)
    x = P.div(P.sub(x, scalar_like((size - 1) / 2, x)), P.broadcast(sigma, x.shape, ()))
    e = P.exp(P.mul(P.mul(x, x), scalar_like(-0.5, x)))
    return P.div(e, P.broadcast(P.reduce_sum(e, (0,)), e.shape, ()))


_SUMMED = 4096  # samples of a Gaussian that are added up at most: those of a sigma of 1,365


def blurred(x, sigma):
    """`x` along its last two axes convolved with a Gaussian, zeros around; it ends at int(6 sigma) // 2 from its middle.

    `sigma`, a 0-d tensor, may be known only when compiled code runs: so the window lies in matrices, whose sizes are x's.
    """
    sigma = P.max(sigma, scalar_like(1e-30, sigma))  # of 0 too, the middle's weight is 1
    half = scalar_like(0.5, sigma)
    radius = P.floor(P.mul(P.floor(P.mul(sigma, scalar_like(6, sigma))), half))

    def weights(distance):
        def spread(number):
            return P.broadcast(number, distance.shape, ())

        scaled = P.div(distance, spread(sigma))
        weight = P.exp(P.mul(P.mul(scaled, scaled), scalar_like(-0.5, scaled)))
        return P.select(P.le(P.abs(distance), spread(radius)), weight, scalar_like(0, weight))

    place = P.iota((_SUMMED,), 0, sigma.dtype)
    one_side = P.add(place, scalar_like(1, place))
    total = P.add(scalar_like(1, sigma), P.mul(scalar_like(2, sigma), P.reduce_sum(weights(one_side), (0,))))
    for _ in range(2):  # along the last axis, which becomes the last but one
        shape = (x.shape[-1], x.shape[-1])
        matrix = weights(P.sub(P.iota(shape, 0, sigma.dtype), P.iota(shape, 1, sigma.dtype)))
        matrix = P.div(matrix, P.broadcast(total, shape, ()))
        order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        x = P.transpose(P.dot_general(x, matrix, ((x.ndim - 1,), (0,))), order)
    return x


def sobel_edges(images, data_format=None):
    """Vertical and horizontal Sobel derivatives, (..., 2) = (dy, dx), of a batch of images mirrored at the borders."""
    data_format = config.standardize_data_format(data_format)
    images = floating(images)
    if images.ndim != 4:
        raise ValueError(f"sobel_edges: expected a batch of images of rank 4. Received: images.shape={tuple(images.shape)}")
    rows, columns = (1, 2) if data_format == "channels_last" else (2, 3)
    width = [(1, 1) if a in (rows, columns) else (0, 0) for a in range(4)]
    x = pad(images, width, mode="reflect")

    def smooth(x, axis):
        low, middle, high = _neighbours(x, axis)
        return P.add(P.add(low, high), P.mul(middle, scalar_like(2, middle)))

    def difference(x, axis):
        low, _, high = _neighbours(x, axis)
        return P.sub(high, low)

    edges = [difference(smooth(x, columns), rows), difference(smooth(x, rows), columns)]
    return P.concat([P.reshape(e, (*e.shape, 1)) for e in edges], 4)


def _neighbours(x, axis):
    """The elements before, at and after each inner position of an axis."""
    n, parts = x.shape[axis] - 2, []
    for k in range(3):
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[axis], limits[axis] = k, k + n
        parts.append(P.slice(x, tuple(starts), tuple(limits)))
    return parts
