"""keras.ops.image, geometry: sampling at computed coordinates, and the transformations made of it."""

import itertools

from keras.src.backend import config

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops import random
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.image.color import check_rank
from keras_ocl.ops.image.filters import blurred
from keras_ocl.ops.nn.convolution import to_channels_first, to_channels_last
from keras_ocl.ops.promotion import scalar_like
from keras_ocl.ops.result_types import result_type

AFFINE_TRANSFORM_INTERPOLATIONS = {"nearest": 0, "bilinear": 1}
AFFINE_TRANSFORM_FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
MAP_COORDINATES_FILL_MODES = AFFINE_TRANSFORM_FILL_MODES


# ---- sampling


def _inside(at, extent, mode):
    """Integer coordinates moved into [0, extent) as `mode` says. ("constant" and "nearest" leave that to gather, which clips.)"""
    n = scalar_like(extent, at)
    one, two = scalar_like(1, at), scalar_like(2, at)

    def mirrored(at, last):
        # A zigzag of period 2 * last; an axis of extent 1 has the period 0.
        period = P.max(P.mul(last, two), one)
        return P.abs(P.sub(P.mod(P.add(at, last), period), last))

    if mode == "wrap":
        return P.mod(at, n)
    if mode == "mirror":
        return mirrored(at, P.sub(n, one))
    if mode == "reflect":
        return P.floor_div(P.sub(mirrored(P.add(P.mul(at, two), one), P.mul(n, two)), one), two)
    return at


def _taps(coordinate, extent, order, mode):
    """[(integer position, weight or None, whether inside or None)] along an axis."""
    if order == 0:
        away = P.add(P.abs(coordinate), scalar_like(0.5, coordinate))
        positions = [(P.mul(P.sign(coordinate), P.floor(away)), None)]
    else:
        low = P.floor(coordinate)
        upper = P.sub(coordinate, low)
        one = scalar_like(1, coordinate)
        positions = [(low, P.sub(one, upper)), (P.add(low, one), upper)]
    taps = []
    for position, weight in positions:
        at = P.convert(position, "int32")
        valid = None
        if mode == "constant":
            valid = P.and_(P.ge(at, scalar_like(0, at)), P.lt(at, scalar_like(extent, at)))
        taps.append((_inside(at, extent, mode), weight, valid))
    return taps


def _sample(x, leading, coordinates, order, mode, fill_value):
    """x at leading + coordinates, along its first axes; all are tensors of one shape S. Returns S + the axes left of x, in x's dtype."""
    dtype = x.dtype
    x = convert_to_tensor(x, coordinates[0].dtype)
    first = len(leading)
    shape = coordinates[0].shape
    axes = tuple(range(first + len(coordinates)))
    own = tuple(range(len(shape)))
    extents = x.shape[first : first + len(coordinates)]
    total = None
    for taps in itertools.product(*[_taps(c, n, order, mode) for c, n in zip(coordinates, extents, strict=True)]):
        value = P.gather(x, (*leading, *[at for at, _, _ in taps]), axes)
        weight = valid = None
        for _, w, inside in taps:
            weight = w if weight is None else P.mul(weight, w)
            valid = inside if valid is None else P.and_(valid, inside)
        if valid is not None:
            fill = convert_to_tensor(fill_value, x.dtype)
            value = P.select(P.broadcast(valid, value.shape, own), value, P.broadcast(fill, value.shape, ()))
        if weight is not None:
            value = P.mul(value, P.broadcast(weight, value.shape, own))
        total = value if total is None else P.add(total, value)
    if not dtypes.is_float(dtype):
        half = scalar_like(0.5, total)
        total = P.mul(P.sign(total), P.floor(P.add(P.abs(total), half)))
    return convert_to_tensor(total, dtype)


def _coordinate_dtype(*kinds):
    return result_type(*[k for k in kinds if dtypes.is_float(k)], "float32")


def map_coordinates(inputs, coordinates, order, fill_mode="constant", fill_value=0.0):
    """`inputs` at `coordinates` (rank of inputs, *S): the nearest element (order 0), or linear interpolation (order 1). Shape S."""
    inputs = convert_to_tensor(inputs)
    coordinates = convert_to_tensor(coordinates)
    if coordinates.ndim < 1 or coordinates.shape[0] != inputs.ndim:
        raise ValueError(
            "First dim of `coordinates` must be the same as the rank of `inputs`. "
            f"Received inputs with shape: {tuple(inputs.shape)} and coordinates of shape {tuple(coordinates.shape)}"
        )
    if coordinates.ndim < 2:
        raise ValueError(f"Invalid coordinates rank: expected at least rank 2. Received input with shape: {tuple(coordinates.shape)}")
    _check_mode(fill_mode, MAP_COORDINATES_FILL_MODES)
    if order not in range(2):
        raise ValueError(f"Invalid value for argument `order`. Expected one of [0, 1]. Received: order={order}")
    coordinates = convert_to_tensor(coordinates, _coordinate_dtype(inputs.dtype, coordinates.dtype))
    each = [_part(coordinates, (i,)) for i in range(inputs.ndim)]
    return _sample(inputs, (), each, order, fill_mode, fill_value)


def _part(x, index):
    """x[index] for leading integers."""
    starts = (*index, *(0 for _ in x.shape[len(index) :]))
    limits = (*(i + 1 for i in index), *x.shape[len(index) :])
    return P.reshape(P.slice(x, starts, limits), x.shape[len(index) :])


def _check_mode(fill_mode, modes):
    if fill_mode not in modes:
        raise ValueError(f"Invalid value for argument `fill_mode`. Expected of one {set(modes)}. Received: fill_mode={fill_mode}")


def _order(interpolation):
    if interpolation not in AFFINE_TRANSFORM_INTERPOLATIONS:
        raise ValueError(
            f"Invalid value for argument `interpolation`. Expected of one {set(AFFINE_TRANSFORM_INTERPOLATIONS)}. Received:"
            f" interpolation={interpolation}"
        )
    return AFFINE_TRANSFORM_INTERPOLATIONS[interpolation]


class _Batch:
    """Images as a channels-last batch, and results back in the form they came in."""

    def __init__(self, images, data_format):
        self.images = convert_to_tensor(images)
        check_rank(self.images)
        self.first = config.standardize_data_format(data_format) == "channels_first"
        self.single = self.images.ndim == 3
        x = P.reshape(self.images, (1, *self.images.shape)) if self.single else self.images
        self.x = to_channels_last(x) if self.first else x

    def sampled(self, y, x, order, mode, fill_value):
        """The batch at rows `y` and columns `x`, each (N, H, W)."""
        sample = P.iota(y.shape, 0, "int32")
        result = _sample(self.x, (sample,), [y, x], order, mode, fill_value)
        if self.first:
            result = to_channels_first(result)
        return P.reshape(result, result.shape[1:]) if self.single else result

    def grid(self, dtype):
        """Rows and columns of every pixel, (N, H, W)."""
        shape = self.x.shape[:3]
        return P.iota(shape, 1, dtype), P.iota(shape, 2, dtype)


def _per_image(parameters, columns, batch, what):
    """The columns of an (N, k) or (1, k) tensor, each spread over (N, H, W)."""
    shape = batch.x.shape[:3]
    n = parameters.shape[0]
    if n != 1 and n != shape[0]:
        raise ValueError(f"{what}: {n} transforms for a batch of {shape[0]} images; give one, or one per image.")
    result = []
    for c in columns:
        column = P.reshape(P.slice(parameters, (0, c), (n, c + 1)), (n,))
        if n == 1:
            result.append(P.broadcast(P.reshape(column, ()), shape, ()))
        else:
            result.append(P.broadcast(column, shape, (0,)))
    return result


# ---- transformations


def affine_transform(images, transform, interpolation="bilinear", fill_mode="constant", fill_value=0, data_format=None):
    """Output pixel (x, y) is the input at (a0 x + a1 y + a2, b0 x + b1 y + b2), transform = (a0, a1, a2, b0, b1, b2, c0, c1).

    c0 and c1 are taken as 0. One transform, or one per image.
    """
    order = _order(interpolation)
    _check_mode(fill_mode, AFFINE_TRANSFORM_FILL_MODES)
    transform = convert_to_tensor(transform)
    batch = _Batch(images, data_format)
    if transform.ndim not in (1, 2):
        raise ValueError(
            "Invalid transform rank: expected rank 1 (single transform) or rank 2 (batch of transforms). "
            f"Received input with shape: transform.shape={tuple(transform.shape)}"
        )
    if transform.shape[-1] != 8:
        raise ValueError(f"affine_transform: a transform has 8 elements. Received: transform.shape={tuple(transform.shape)}")
    if transform.ndim == 1:
        transform = P.reshape(transform, (1, *transform.shape))
    transform = convert_to_tensor(transform, _coordinate_dtype(batch.x.dtype, transform.dtype))
    a0, a1, a2, b0, b1, b2 = _per_image(transform, range(6), batch, "affine_transform")
    row, column = batch.grid(transform.dtype)
    x = P.add(P.add(P.mul(a0, column), P.mul(a1, row)), a2)
    y = P.add(P.add(P.mul(b0, column), P.mul(b1, row)), b2)
    return batch.sampled(y, x, order, fill_mode, fill_value)


def perspective_transform(images, start_points, end_points, interpolation="bilinear", fill_value=0, data_format=None):
    """Images warped so that the four `start_points` (x, y) come to lie on `end_points`; (4, 2), or (N, 4, 2) for a batch."""
    order = _order(interpolation)
    batch = _Batch(images, data_format)
    start_points, end_points = convert_to_tensor(start_points), convert_to_tensor(end_points)
    for name, points in (("start_points", start_points), ("end_points", end_points)):
        if points.ndim not in (2, 3) or tuple(points.shape[-2:]) != (4, 2):
            raise ValueError(
                f"Invalid {name} shape: expected (4,2) for a single image or (N,4,2) for a batch. Received shape: {tuple(points.shape)}"
            )
    if start_points.shape != end_points.shape:
        raise ValueError(
            "start_points and end_points must have the same shape."
            f" Received start_points.shape={tuple(start_points.shape)}, end_points.shape={tuple(end_points.shape)}"
        )
    if start_points.ndim == 2:
        start_points, end_points = (P.reshape(p, (1, 4, 2)) for p in (start_points, end_points))
    matrix = compute_homography_matrix(start_points, end_points)
    matrix = convert_to_tensor(matrix, _coordinate_dtype(batch.x.dtype, matrix.dtype))
    a = _per_image(matrix, range(8), batch, "perspective_transform")
    row, column = batch.grid(matrix.dtype)

    def line(i):
        return P.add(P.mul(a[i], column), P.mul(a[i + 1], row))

    scale = P.add(line(6), scalar_like(1, row))
    x, y = P.div(P.add(line(0), a[2]), scale), P.div(P.add(line(3), a[5]), scale)
    return batch.sampled(y, x, order, "constant", fill_value)


def compute_homography_matrix(start_points, end_points):
    """The projective maps, (N, 8), that take `end_points` to `start_points`, each (N, 4, 2).

    Composed of the maps from the unit square to either quadrilateral, which have a closed form (Heckbert, "Fundamentals of Texture Mapping
    and Image Warping", 1989, section 2.2.3).
    """
    start_points, end_points = convert_to_tensor(start_points), convert_to_tensor(end_points)
    dtype = result_type(start_points.dtype, end_points.dtype, "float32")
    to_start = _from_square(convert_to_tensor(start_points, dtype))
    to_end = _from_square(convert_to_tensor(end_points, dtype))
    inverse = _adjugate(to_end)

    def entry(i, j):
        terms = [P.mul(to_start[i][k], inverse[k][j]) for k in range(3)]
        return P.add(P.add(terms[0], terms[1]), terms[2])

    last = entry(2, 2)
    entries = [P.div(entry(i, j), last) for i in range(3) for j in range(3) if (i, j) != (2, 2)]
    return P.concat([P.reshape(e, (*e.shape, 1)) for e in entries], 1)


def _from_square(points):
    """Entries of the matrices that map (0, 0), (1, 0), (1, 1), (0, 1) to the four points."""
    n = points.shape[0]

    def coordinate(k, c):
        return P.reshape(P.slice(points, (0, k, c), (n, k + 1, c + 1)), (n,))

    x, y = ([coordinate(k, c) for k in range(4)] for c in range(2))

    def parts(v):
        return P.sub(v[1], v[2]), P.sub(v[3], v[2]), P.add(P.sub(v[0], v[1]), P.sub(v[2], v[3]))

    (dx1, dx2, sx), (dy1, dy2, sy) = parts(x), parts(y)
    area = P.sub(P.mul(dx1, dy2), P.mul(dx2, dy1))
    g = P.div(P.sub(P.mul(sx, dy2), P.mul(dx2, sy)), area)
    h = P.div(P.sub(P.mul(dx1, sy), P.mul(sx, dy1)), area)

    def row(v):
        return [P.add(P.sub(v[1], v[0]), P.mul(g, v[1])), P.add(P.sub(v[3], v[0]), P.mul(h, v[3])), v[0]]

    return [row(x), row(y), [g, h, scalar_like(1, g)]]


def _adjugate(m):
    def minor(i, j):
        (a, b), (c, d) = ([m[r][s] for s in range(3) if s != j] for r in range(3) if r != i)
        value = P.sub(P.mul(a, d), P.mul(b, c))
        return value if (i + j) % 2 == 0 else P.neg(value)

    return [[minor(j, i) for j in range(3)] for i in range(3)]


def elastic_transform(
    images, alpha=20.0, sigma=5.0, interpolation="bilinear", fill_mode="reflect", fill_value=0.0, seed=None, data_format=None
):
    """Images displaced by a random field of standard deviation sigma, blurred by a Gaussian of sigma, times alpha.

    Simard, Steinkraus & Platt, "Best Practices for Convolutional Neural Networks" (2003). `alpha` and `sigma` are numbers or 0-d tensors.
    """
    order = _order(interpolation)
    _check_mode(fill_mode, AFFINE_TRANSFORM_FILL_MODES)
    batch = _Batch(images, data_format)
    dtype = _coordinate_dtype(batch.x.dtype)
    alpha, sigma = convert_to_tensor(alpha, dtype), convert_to_tensor(sigma, dtype)
    n, rows, columns = batch.x.shape[:3]
    field = random.normal((n, 2, rows, columns), dtype=dtype, seed=seed)
    field = P.mul(blurred(field, sigma), P.broadcast(P.mul(alpha, sigma), field.shape, ()))
    dx, dy = (P.reshape(P.slice(field, (0, c, 0, 0), (n, c + 1, rows, columns)), (n, rows, columns)) for c in range(2))
    row, column = batch.grid(dtype)
    return batch.sampled(P.add(row, dy), P.add(column, dx), order, fill_mode, fill_value)
