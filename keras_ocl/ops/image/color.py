"""keras.ops.image, colours: conversions between RGB, HSV and grey, of (H, W, C) or (N, H, W, C) images in either data format."""

from keras.src.backend import config

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.promotion import scalar_like
from keras_ocl.ops.result_types import result_type


def check_rank(images):
    """ValueError unless `images` is one image or a batch."""
    if len(images.shape) not in (3, 4):
        raise ValueError(
            "Invalid images rank: expected rank 3 (single image) or rank 4 (batch of images). "
            f"Received input with shape: images.shape={tuple(images.shape)}"
        )


def _channel_axis(images, data_format):
    check_rank(images)
    return images.ndim - (1 if config.standardize_data_format(data_format) == "channels_last" else 3)


def _planes(images, axis):
    """The three channels, each with extent 1 along `axis`."""
    if images.shape[axis] != 3:
        raise ValueError(f"Invalid channel size: expected 3. Received input with shape: images.shape={tuple(images.shape)}")
    planes = []
    for c in range(3):
        starts, limits = [0] * images.ndim, list(images.shape)
        starts[axis], limits[axis] = c, c + 1
        planes.append(P.slice(images, tuple(starts), tuple(limits)))
    return planes


def _check_float(images):
    if not dtypes.is_float(images.dtype):
        raise ValueError(f"Invalid images dtype: expected float dtype. Received: images.dtype={images.dtype}")


def rgb_to_grayscale(images, data_format=None):
    """Luminance (ITU-R BT.601) as one channel, in the dtype of `images`; grey images are returned as they are."""
    images = convert_to_tensor(images)
    axis = _channel_axis(images, data_format)
    if images.shape[axis] not in (1, 3):
        raise ValueError(
            f"Invalid channel size: expected 3 (RGB) or 1 (Grayscale). Received input with shape: images.shape={tuple(images.shape)}"
        )
    if images.shape[axis] == 1:
        return images
    compute = result_type(images.dtype, float)
    red, green, blue = (P.convert(plane, compute) for plane in _planes(images, axis))
    grey = P.add(P.mul(red, scalar_like(0.2989, red)), P.mul(green, scalar_like(0.5870, green)))
    return P.convert(P.add(grey, P.mul(blue, scalar_like(0.1140, blue))), images.dtype)


def rgb_to_hsv(images, data_format=None):
    """Hue, saturation and value, each in [0, 1], of RGB in [0, 1]. ValueError unless floating."""
    images = convert_to_tensor(images)
    axis = _channel_axis(images, data_format)
    _check_float(images)
    r, g, b = _planes(images, axis)
    zero, one = scalar_like(0, r), scalar_like(1, r)
    value = P.max(P.max(r, g), b)
    span = P.sub(value, P.min(P.min(r, g), b))
    coloured = P.gt(span, zero)
    norm = P.div(scalar_like(1 / 6, r), P.select(coloured, span, one))

    def sector(a, c, offset):
        return P.add(P.mul(norm, P.sub(a, c)), scalar_like(offset, r))

    hue = P.select(P.eq(value, g), sector(b, r, 2 / 6), sector(r, g, 4 / 6))
    hue = P.select(P.eq(value, r), sector(g, b, 0), hue)
    hue = P.select(coloured, hue, zero)
    hue = P.select(P.lt(hue, zero), P.add(hue, one), hue)
    lit = P.gt(value, zero)
    saturation = P.select(lit, P.div(span, P.select(lit, value, one)), zero)
    return P.concat([hue, saturation, value], axis)


def hsv_to_rgb(images, data_format=None):
    """RGB in [0, 1] of hue, saturation and value in [0, 1]. ValueError unless floating."""
    images = convert_to_tensor(images)
    axis = _channel_axis(images, data_format)
    _check_float(images)
    hue, saturation, value = _planes(images, axis)
    zero, one, two = scalar_like(0, hue), scalar_like(1, hue), scalar_like(2, hue)
    sector = P.mul(P.mod(hue, one), scalar_like(6, hue))

    def plane(weight):
        weight = P.min(P.max(weight, zero), one)
        return P.mul(value, P.add(P.sub(one, saturation), P.mul(saturation, weight)))

    def distance(centre):
        return P.abs(P.sub(sector, scalar_like(centre, hue)))

    return P.concat([plane(P.sub(distance(3), one)), plane(P.sub(two, distance(2))), plane(P.sub(two, distance(4)))], axis)
