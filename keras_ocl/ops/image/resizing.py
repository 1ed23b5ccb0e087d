"""keras.ops.image, resizing: nearest and bilinear by indexing, every other method as a product with a matrix of weights along each axis."""

import math

from keras.src.backend import config
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, key, maximum, minimum
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.gradients import custom_gradient
from keras_ocl.ops.image.color import check_rank
from keras_ocl.ops.promotion import scalar_like
from keras_ocl.ops.result_types import result_type

RESIZE_INTERPOLATIONS = ("bilinear", "nearest", "lanczos3", "lanczos5", "bicubic", "area")
_LARGEST_GATHERED = 8  # bilinear enlargement up to which the gradient gathers; beyond it a product is faster
SCALE_AND_TRANSLATE_METHODS = ("linear", "bilinear", "trilinear", "cubic", "bicubic", "tricubic", "lanczos3", "lanczos5")


# ---- interpolation kernels, functions of the distance x >= 0


def _triangle(x):
    return P.relu(P.sub(scalar_like(1, x), x))


def _cubic(x):
    """Keys (1981), a = -1/2."""

    def horner(*coefficients):
        total = scalar_like(coefficients[0], x)
        for c in coefficients[1:]:
            total = P.add(P.mul(total, x), scalar_like(c, x))
        return total

    near, far = horner(1.5, -2.5, 0, 1), horner(-0.5, 2.5, -4, 2)
    outer = P.select(P.lt(x, scalar_like(2, x)), far, scalar_like(0, x))
    return P.select(P.lt(x, scalar_like(1, x)), near, outer)


def _lanczos(radius):
    def kernel(x):
        angle = P.mul(x, scalar_like(math.pi, x))
        product = P.mul(P.sin(angle), P.sin(P.mul(angle, scalar_like(1 / radius, x))))
        far = P.gt(x, scalar_like(1e-3, x))
        safe = P.select(far, angle, scalar_like(1, x))
        value = P.select(far, P.div(P.mul(product, scalar_like(radius, x)), P.mul(safe, safe)), scalar_like(1, x))
        return P.select(P.gt(x, scalar_like(radius, x)), scalar_like(0, x), value)

    return kernel


_KERNELS = {
    **dict.fromkeys(("linear", "bilinear", "trilinear"), _triangle),
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), _cubic),
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _weights(source, target, inverse_scale, translation, kernel, antialias):
    """(source, target) matrix: output o samples the input at (o + 1/2 - translation) * inverse_scale - 1/2, both rank-0 tensors."""
    shape, dtype = (source, target), inverse_scale.dtype

    def spread(x):
        return P.broadcast(x, shape, ())

    at = P.add(P.iota(shape, 1, dtype), P.full(shape, 0.5, dtype))
    at = P.sub(P.mul(P.sub(at, spread(translation)), spread(inverse_scale)), P.full(shape, 0.5, dtype))
    distance = P.abs(P.sub(at, P.iota(shape, 0, dtype)))
    if antialias:
        distance = P.div(distance, spread(P.max(inverse_scale, P.constant(1, dtype))))
    weights = kernel(distance)
    total = P.broadcast(P.reduce_sum(weights, (0,)), shape, (1,))
    # Weights that cancel to nothing (a sample outside the image) are taken as zeros, not divided by rounding errors.
    usable = P.gt(P.abs(total), P.full(shape, 1000 * 2.0**-23, dtype))
    inside = P.and_(P.ge(at, P.full(shape, -0.5, dtype)), P.le(at, P.sub(P.full(shape, source, dtype), P.full(shape, 0.5, dtype))))
    usable = P.and_(usable, inside)
    return P.select(usable, P.div(weights, P.select(usable, total, P.full(shape, 1, dtype))), P.full(shape, 0, dtype))


def _area_weights(source, target, inverse_scale):
    """Each output is the mean over the part of the input it covers, [o, o + 1) * inverse_scale."""
    shape, dtype = (source, target), inverse_scale.dtype
    width = P.broadcast(inverse_scale, shape, ())
    low, pixel, one = P.mul(P.iota(shape, 1, dtype), width), P.iota(shape, 0, dtype), P.full(shape, 1, dtype)
    overlap = P.sub(P.min(P.add(low, width), P.add(pixel, one)), P.max(low, pixel))
    return P.div(P.relu(overlap), width)


def _along(x, axis, weights):
    """The product of an axis of `x` with a (source, target) matrix."""
    result = P.dot_general(x, weights, ((axis,), (0,)))
    order = [*range(axis), result.ndim - 1, *range(axis, result.ndim - 1)]
    return P.transpose(result, tuple(order))


def _computing(images):
    """`images` in the dtype that weights are applied in: 16-bit floats and integers in float32."""
    return convert_to_tensor(images, result_type(images.dtype, "float32"))


# ---- resize


def resize(
    images,
    size,
    interpolation="bilinear",
    antialias=False,
    crop_to_aspect_ratio=False,
    pad_to_aspect_ratio=False,
    fill_mode="constant",
    fill_value=0.0,
    data_format=None,
):
    """Images of another height and width. Integer images give float32 ones, but for interpolation="nearest"."""
    data_format = config.standardize_data_format(data_format)
    if interpolation not in RESIZE_INTERPOLATIONS:
        raise ValueError(
            f"Invalid value for argument `interpolation`. Expected of one {RESIZE_INTERPOLATIONS}. Received: interpolation={interpolation}"
        )
    if fill_mode != "constant":
        raise ValueError(f"Invalid value for argument `fill_mode`. Only `'constant'` is supported. Received: fill_mode={fill_mode}")
    if pad_to_aspect_ratio and crop_to_aspect_ratio:
        raise ValueError("Only one of `pad_to_aspect_ratio` & `crop_to_aspect_ratio` can be `True`.")
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"Argument `size` must be a tuple of two positive elements (height, width). Received: size={size}")
    images = convert_to_tensor(images)
    check_rank(images)
    rows = images.ndim - (3 if data_format == "channels_last" else 2)
    if crop_to_aspect_ratio:
        images = _cropped(images, rows, size)
    elif pad_to_aspect_ratio:
        images = _padded(images, rows, size, fill_value)
    if interpolation == "nearest":
        return _nearest(_nearest(images, rows, size[0]), rows + 1, size[1])
    dtype = images.dtype if dtypes.is_float(images.dtype) else "float32"
    x = _computing(images)
    for axis, target in ((rows, size[0]), (rows + 1, size[1])):
        source = x.shape[axis]
        if key(source) == key(target):
            continue
        plain = not isinstance(source, Dim) and not isinstance(target, Dim) and 0 < target <= _LARGEST_GATHERED * source
        if interpolation == "bilinear" and plain and not (antialias and target < source):
            x = _bilinear(x, axis, target)
            continue
        inverse_scale = P.div(P.constant(source, x.dtype), P.constant(target, x.dtype))
        if interpolation == "area":
            weights = _area_weights(source, target, inverse_scale)
        else:
            weights = _weights(source, target, inverse_scale, P.constant(0, x.dtype), _KERNELS[interpolation], antialias)
        x = _along(x, axis, weights)
    return convert_to_tensor(x, dtype)


def _bilinear(x, axis, target):
    """Linear interpolation along an axis, two loads per element; the gradient gathers too, from the outputs that a pixel has a part in."""
    source = x.shape[axis]

    def position(o):
        at = P.sub(P.mul(P.add(o, scalar_like(0.5, o)), scalar_like(source / target, o)), scalar_like(0.5, o))
        return P.min(P.max(at, scalar_like(0, at)), scalar_like(source - 1, at))

    def interpolated(x):
        at = position(P.iota((target,), 0, x.dtype))
        low = P.floor(at)
        upper = P.sub(at, low)
        index = P.convert(low, "int32")
        first = _weighted(x, axis, index, P.sub(scalar_like(1, upper), upper))
        return P.add(first, _weighted(x, axis, P.add(index, scalar_like(1, index)), upper))

    def spread(dy):
        pixel = P.iota((source,), 0, dy.dtype)
        scale = target / source
        start = P.floor(P.mul(P.sub(pixel, scalar_like(0.5, pixel)), scalar_like(scale, pixel)))
        total = None
        for k in range(-1, math.ceil(2 * scale) + 1):
            o = P.add(start, scalar_like(k, start))
            weight = P.relu(P.sub(scalar_like(1, o), P.abs(P.sub(position(o), pixel))))
            inside = P.and_(P.ge(o, scalar_like(0, o)), P.lt(o, scalar_like(target, o)))
            part = _weighted(dy, axis, P.convert(o, "int32"), P.select(inside, weight, scalar_like(0, o)))
            total = part if total is None else P.add(total, part)
        return total

    return custom_gradient(lambda x: (interpolated(x), spread))(x)


def _weighted(x, axis, index, weight):
    """x at the positions `index` of an axis (moved into range), times `weight`."""
    found = P.gather(x, (index,), (axis,))
    found = P.mul(found, P.broadcast(weight, found.shape, (0,)))
    return P.transpose(found, (*range(1, axis + 1), 0, *range(axis + 1, found.ndim)))


def _cropped(images, rows, size):
    """The largest part in the middle that has the target's aspect ratio."""
    height, width = images.shape[rows], images.shape[rows + 1]
    extents = (
        maximum(minimum(height, width * size[0] // size[1]), 1),
        maximum(minimum(width, height * size[1] // size[0]), 1),
    )
    starts, limits = [0] * images.ndim, list(images.shape)
    for axis, extent in zip((rows, rows + 1), extents, strict=True):
        starts[axis] = (images.shape[axis] - extent) // 2
        limits[axis] = starts[axis] + extent
    return P.slice(images, tuple(starts), tuple(limits))


def _padded(images, rows, size, fill_value):
    """The image in the middle of `fill_value`, padded to the target's aspect ratio."""
    height, width = images.shape[rows], images.shape[rows + 1]
    extents = maximum(height, width * size[0] // size[1]), maximum(width, height * size[1] // size[0])
    pads = [0] * images.ndim
    for axis, extent in zip((rows, rows + 1), extents, strict=True):
        pads[axis] = (extent - images.shape[axis]) // 2
    return P.pad(images, convert_to_tensor(fill_value, images.dtype), tuple(pads), tuple(pads))


def _nearest(x, axis, target):
    """Sample floor((o + 1/2) * source / target); whole factors need no indexing and differentiate into sums."""
    source = x.shape[axis]
    if key(source) == key(target):
        return x
    if target % source == 0:
        factor = target // source
        wide = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
        x = P.broadcast(x, wide, tuple(a for a in range(len(wide)) if a != axis + 1))
        return P.reshape(x, (*wide[:axis], target, *wide[axis + 2 :]))
    if source % target == 0:
        factor = source // target
        starts, strides = [0] * x.ndim, [1] * x.ndim
        starts[axis], strides[axis] = factor // 2, factor
        return P.slice(x, tuple(starts), x.shape, tuple(strides))
    odd = P.add(P.mul(P.iota((target,), 0, "int32"), P.full((target,), 2, "int32")), P.full((target,), 1, "int32"))
    at = P.floor_div(P.mul(odd, P.full((target,), source, "int32")), P.full((target,), target * 2, "int32"))
    result = P.gather(x, (at,), (axis,))
    return P.transpose(result, (*range(1, axis + 1), 0, *range(axis + 1, result.ndim)))


# ---- scale_and_translate


def scale_and_translate(images, output_shape, scale, translation, spatial_dims, method, antialias=True):
    """Images of `output_shape`, scaled and then translated along `spatial_dims`; integer images are rounded back to their dtype."""
    if method not in SCALE_AND_TRANSLATE_METHODS:
        raise ValueError(f"Invalid value for argument `method`. Expected of one {SCALE_AND_TRANSLATE_METHODS}. Received: method={method}")
    images = convert_to_tensor(images)
    if len(output_shape) != images.ndim:
        raise ValueError(f"scale_and_translate: output_shape {tuple(output_shape)} must have the rank of shape {tuple(images.shape)}.")
    x = _computing(images)
    scale, translation = convert_to_tensor(scale, x.dtype), convert_to_tensor(translation, x.dtype)
    if scale.shape != (len(spatial_dims),) or translation.shape != scale.shape:
        raise ValueError(
            f"scale_and_translate: scale and translation must have one element for each of spatial_dims {tuple(spatial_dims)};"
            f" their shapes are {tuple(scale.shape)} and {tuple(translation.shape)}."
        )
    inverse = P.div(scalar_like(1, scale), scale)
    for i, d in enumerate(spatial_dims):
        axis = canonicalize_axis(d, images.ndim)
        own = [P.reshape(P.slice(v, (i,), (i + 1,)), ()) for v in (inverse, translation)]
        x = _along(x, axis, _weights(x.shape[axis], output_shape[axis], *own, _KERNELS[method], antialias))
    if x.shape != tuple(output_shape):
        raise ValueError(f"scale_and_translate: only spatial_dims may change; output_shape {tuple(output_shape)} differs elsewhere.")
    if dtypes.is_float(images.dtype):
        return convert_to_tensor(x, images.dtype)
    axes = tuple(range(images.ndim))
    low, high = (convert_to_tensor(reduce(images, axes), x.dtype) for reduce in (P.reduce_min, P.reduce_max))
    x = P.min(P.max(P.round(x), P.broadcast(low, x.shape, ())), P.broadcast(high, x.shape, ()))
    return convert_to_tensor(x, images.dtype)
