"""keras.ops.image: the backend's signatures, resizing, geometry, filters and colours against NumPy in float64."""

import colorsys
import inspect
import itertools
import math

import numpy as np
import pytest
from keras.src import ops as keras_ops

import keras_ocl
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.ops import image
from keras_ocl.ops.image.filters import blurred
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("name", [name for name, f in vars(image).items() if inspect.isfunction(f)])
def test_signatures_are_those_of_keras(name):
    if name == "compute_homography_matrix":  # Keras asks for it only inside its backends
        return
    assert inspect.signature(getattr(image, name)) == inspect.signature(getattr(keras_ops.image, name))


# ---- resizing


def lanczos(radius):
    def kernel(x):
        angle = math.pi * x
        return 1.0 if x < 1e-3 else 0.0 if x > radius else radius * math.sin(angle) * math.sin(angle / radius) / angle**2

    return kernel


def cubic(x):
    return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


KERNELS = {"bilinear": lambda x: max(0, 1 - x), "bicubic": cubic, "lanczos3": lanczos(3), "lanczos5": lanczos(5)}


def weights(source, target, method, antialias, scale=None, translation=0.0):
    w = np.zeros((target, source))
    scale = target / source if scale is None else scale
    spread = max(1 / scale, 1) if antialias else 1
    for o in range(target):
        at = (o + 0.5 - translation) / scale - 0.5
        if not -0.5 <= at <= source - 0.5:
            continue
        row = np.array([KERNELS[method](abs(at - i) / spread) for i in range(source)])
        w[o] = row / row.sum()
    return w


@pytest.mark.parametrize("method", KERNELS)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(9, 14), (3, 4), (7, 3), (14, 15)])
def test_resize(method, antialias, size):
    x = RNG.uniform(size=(2, 7, 5, 3)).astype("f4")
    expected = np.einsum("ph,qw,nhwc->npqc", weights(7, size[0], method, antialias), weights(5, size[1], method, antialias), x.astype("f8"))
    found = both(lambda x: image.resize(x, size, method, antialias, data_format="channels_last"), x)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    found = image.resize(from_numpy(first), size, method, antialias, data_format="channels_first")
    np.testing.assert_allclose(to_numpy(found), np.moveaxis(expected, -1, 1), atol=2e-5)


@pytest.mark.parametrize("size", [(14, 15), (7, 5), (3, 4), (9, 1)])
def test_nearest(size):
    x = RNG.integers(0, 255, (2, 7, 5, 3)).astype("u1")
    rows, columns = (np.floor((np.arange(m) + 0.5) * n / m).astype(int) for m, n in zip(size, (7, 5), strict=True))
    found = both(lambda x: image.resize(x, size, "nearest", data_format="channels_last"), x)
    np.testing.assert_array_equal(found, x[:, rows][:, :, columns])


def test_area():
    x = RNG.uniform(size=(6, 4, 1)).astype("f4")
    found = to_numpy(image.resize(from_numpy(x), (3, 2), "area", data_format="channels_last"))
    np.testing.assert_allclose(found, x.reshape(3, 2, 2, 2, 1).mean((1, 3)), rtol=1e-5)


def test_resize_keeps_the_aspect_ratio():
    x = RNG.uniform(size=(8, 4, 1)).astype("f4")
    found = image.resize(from_numpy(x), (4, 4), "nearest", crop_to_aspect_ratio=True, data_format="channels_last")
    np.testing.assert_array_equal(to_numpy(found), x[2:6])
    found = image.resize(from_numpy(x), (8, 8), "nearest", pad_to_aspect_ratio=True, fill_value=7, data_format="channels_last")
    np.testing.assert_array_equal(to_numpy(found), np.pad(x, ((0, 0), (2, 2), (0, 0)), constant_values=7))


def test_resize_dtypes():
    half = RNG.uniform(size=(1, 4, 4, 1)).astype("f2")
    assert image.resize(from_numpy(half), (6, 6), data_format="channels_last").dtype == "float16"
    assert image.resize(from_numpy(np.ones((4, 4, 1), "u1")), (6, 6), data_format="channels_last").dtype == "float32"


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos3"])
@pytest.mark.parametrize("antialias", [False, True])
def test_scale_and_translate(method, antialias):
    x = RNG.uniform(size=(6, 5, 2)).astype("f4")
    scale, translation = np.array([1.5, 0.6], "f4"), np.array([0.7, -0.4], "f4")
    found = both(lambda x, s, t: image.scale_and_translate(x, (8, 4, 2), s, t, (0, 1), method, antialias), x, scale, translation)
    matrices = [weights(n, m, method, antialias, s, t) for n, m, s, t in zip((6, 5), (8, 4), scale, translation, strict=True)]
    np.testing.assert_allclose(found, np.einsum("ph,qw,hwc->pqc", *matrices, x.astype("f8")), atol=3e-5)


# ---- geometry


def fixed(i, n, mode):
    """The position inside the axis that stands for position i; None outside."""
    if mode == "constant":
        return i if 0 <= i < n else None
    if mode == "nearest":
        return min(max(i, 0), n - 1)
    if mode == "wrap":
        return i % n
    if mode == "mirror":
        return 0 if n == 1 else n - 1 - abs(i % (2 * n - 2) - (n - 1))
    i %= 2 * n
    return i if i < n else 2 * n - 1 - i


def sampled(x, coordinates, order, mode, fill=0.0):
    """x at `coordinates` (rank, *S), element by element."""
    result = np.zeros(coordinates.shape[1:])
    for place in np.ndindex(*result.shape):
        at = coordinates[(slice(None), *place)]
        if order == 0:
            taps = [[(int(math.copysign(math.floor(abs(c) + 0.5), c)), 1.0)] for c in at]
        else:
            taps = [[(math.floor(c), 1 - (c - math.floor(c))), (math.floor(c) + 1, c - math.floor(c))] for c in at]
        for tap in itertools.product(*taps):
            position = tuple(fixed(i, n, mode) for (i, _), n in zip(tap, x.shape, strict=True))
            value = fill if None in position else x[position]
            result[place] += value * np.prod([w for _, w in tap])
    return result


@pytest.mark.parametrize("mode", ["constant", "nearest", "wrap", "mirror", "reflect"])
@pytest.mark.parametrize("order", [0, 1])
def test_map_coordinates(mode, order):
    x = RNG.uniform(size=(4, 5)).astype("f4")
    coordinates = RNG.uniform(-7, 12, size=(2, 3, 20)).astype("f4")
    found = both(lambda x, c: image.map_coordinates(x, c, order, mode, 0.5), x, coordinates)
    np.testing.assert_allclose(found, sampled(x, coordinates, order, mode, 0.5), atol=1e-5)


def test_map_coordinates_elsewhere():
    x = np.arange(5, dtype="i4") * 10
    found = image.map_coordinates(from_numpy(x), from_numpy(np.array([[0.26, 3.9, -1.0]], "f4")), 1, "nearest")
    assert to_numpy(found).tolist() == [3, 39, 0] and found.dtype == "int32"
    one = from_numpy(np.array([7.0], "f4"))
    for mode in ("wrap", "mirror", "reflect", "nearest"):
        found = image.map_coordinates(one, from_numpy(np.array([[-3.0, 0.0, 2.0]], "f4")), 0, mode)
        assert to_numpy(found).tolist() == [7, 7, 7]
    x, coordinates = RNG.uniform(size=(3, 4)), RNG.uniform(-2, 5, (2, 6))
    check_gradient(lambda x, c: image.map_coordinates(x, c, 1, "reflect"), x, coordinates, second=False)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_affine_transform(interpolation, mode):
    x = RNG.uniform(size=(2, 5, 6, 2)).astype("f4")
    transform = np.array([[1.1, 0.2, -0.7, -0.1, 0.9, 0.6, 0, 0], [0.8, -0.3, 1.3, 0.4, 1.2, -1.1, 0, 0]], "f4")
    found = both(lambda x, t: image.affine_transform(x, t, interpolation, mode, 0.3, "channels_last"), x, transform)
    row, column = np.mgrid[:5, :6].astype("f4")
    for n, (a0, a1, a2, b0, b1, b2, _, _) in enumerate(transform):
        coordinates = np.stack([b0 * column + b1 * row + b2, a0 * column + a1 * row + a2])
        for c in range(2):
            expected = sampled(x[n, :, :, c], coordinates, int(interpolation == "bilinear"), mode, 0.3)
            np.testing.assert_allclose(found[n, :, :, c], expected, atol=1e-5)
    first = from_numpy(np.moveaxis(x[0], -1, 0).copy())
    single = image.affine_transform(first, from_numpy(transform[0]), interpolation, mode, 0.3, "channels_first")
    np.testing.assert_allclose(np.moveaxis(to_numpy(single), 0, -1), found[0], atol=1e-5)


def test_homography_and_perspective():
    start = np.array([[[0, 0], [7, 1], [1, 5], [6, 6]], [[0, 0], [300, 0], [0, 200], [300, 200]]], "f4")
    end = np.array([[[1, 1], [6, 0], [0, 6], [7, 5]], [[20, 10], [280, 5], [-10, 190], [310, 215]]], "f4")
    h = both(image.compute_homography_matrix, start, end, tolerance=1e-3)
    for k in range(2):
        x, y = end[k].astype("f8").T
        scale = h[k, 6] * x + h[k, 7] * y + 1
        mapped = np.stack([(h[k, 0] * x + h[k, 1] * y + h[k, 2]) / scale, (h[k, 3] * x + h[k, 4] * y + h[k, 5]) / scale], -1)
        np.testing.assert_allclose(mapped, start[k], atol=2e-3)
    images = RNG.uniform(size=(2, 6, 7, 1)).astype("f4")
    corners = np.array([[0, 0], [6, 0], [0, 5], [6, 5]], "f4")
    same = image.perspective_transform(from_numpy(images), from_numpy(corners), from_numpy(corners), data_format="channels_last")
    np.testing.assert_allclose(to_numpy(same), images, atol=1e-4)
    moved = image.perspective_transform(
        from_numpy(images), from_numpy(corners), from_numpy(corners + np.float32([1, 0])), "nearest", 9, "channels_last"
    )
    np.testing.assert_allclose(to_numpy(moved)[:, :, 1:], images[:, :, :-1], atol=1e-5)
    assert np.all(to_numpy(moved)[:, :, 0] == 9)


def test_elastic_transform():
    x = RNG.uniform(size=(2, 9, 8, 3)).astype("f4")
    found = [to_numpy(image.elastic_transform(from_numpy(x), 3.0, 1.5, seed=5, data_format="channels_last")) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert found[0].shape == x.shape and not np.allclose(found[0], x)
    assert found[0].min() >= x.min() - 1e-6 and found[0].max() <= x.max() + 1e-6
    still = image.elastic_transform(from_numpy(x), 0.0, 1.5, seed=5, data_format="channels_last")
    np.testing.assert_allclose(to_numpy(still), x, atol=1e-6)


def test_elastic_transform_with_computed_numbers():
    x = from_numpy(RNG.uniform(size=(2, 9, 8, 3)).astype("f4"))

    def moved(alpha, sigma):
        return image.elastic_transform(x, alpha, sigma, seed=5, data_format="channels_last")

    for sigma in (0.0, 0.4, 1.5, 5.0):
        numbers = [from_numpy(np.float32(v)) for v in (3.0, sigma)]
        np.testing.assert_allclose(to_numpy(keras_ocl.jit(moved)(*numbers)), to_numpy(moved(3.0, sigma)), atol=1e-5)


# ---- filters


def test_blurred():
    """As gaussian_blur with the window of Keras's elastic_transform."""
    field = RNG.normal(size=(2, 2, 9, 7)).astype("f4")
    for sigma in (0.1, 0.8, 1.5, 5.0):
        width = int(6 * sigma) | 1
        expected = to_numpy(image.gaussian_blur(from_numpy(field), (width, width), (sigma, sigma), "channels_first"))
        found = both(blurred, field, np.float32(sigma))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gaussian_blur():
    x = RNG.uniform(size=(2, 7, 6, 3)).astype("f4")
    profiles = [np.exp(-0.5 * ((np.arange(n) - (n - 1) / 2) / s) ** 2) for n, s in ((3, 0.8), (5, 1.7))]
    across, down = (p / p.sum() for p in profiles)
    wide = np.pad(x.astype("f8"), ((0, 0), (2, 2), (1, 1), (0, 0)))
    expected = sum(down[i] * across[j] * wide[:, i : i + 7, j : j + 6] for i in range(5) for j in range(3))
    found = both(lambda x: image.gaussian_blur(x, (3, 5), (0.8, 1.7), "channels_last"), x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    first = image.gaussian_blur(from_numpy(np.moveaxis(x[0], -1, 0).copy()), (3, 5), np.array([0.8, 1.7], "f4"), "channels_first")
    np.testing.assert_allclose(np.moveaxis(to_numpy(first), 0, -1), expected[0], atol=1e-5)


def test_sobel_edges():
    x = RNG.uniform(size=(2, 6, 5, 3)).astype("f4")
    found = both(lambda x: image.sobel_edges(x, "channels_last"), x)
    wide = np.pad(x.astype("f8"), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    smooth, slope = np.array([1, 2, 1]), np.array([-1, 0, 1])
    for k, (down, across) in enumerate(((slope, smooth), (smooth, slope))):
        expected = sum(down[i] * across[j] * wide[:, i : i + 6, j : j + 5] for i in range(3) for j in range(3))
        np.testing.assert_allclose(found[..., k], expected, atol=1e-5)
    first = image.sobel_edges(from_numpy(np.moveaxis(x, -1, 1).copy()), "channels_first")
    np.testing.assert_allclose(to_numpy(first), np.moveaxis(found, 3, 1), atol=1e-6)


# ---- colours


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_colours(data_format):
    rgb = RNG.uniform(size=(4, 5, 3)).astype("f4")
    rgb[0, 0], rgb[0, 1], rgb[0, 2], rgb[1, 0] = 0, 1, 0.5, [1, 0, 0]

    def arranged(x):
        return x if data_format == "channels_last" else np.ascontiguousarray(np.moveaxis(x, -1, 0))

    hsv = np.apply_along_axis(lambda p: colorsys.rgb_to_hsv(*p), -1, rgb.astype("f8"))
    np.testing.assert_allclose(both(lambda x: image.rgb_to_hsv(x, data_format), arranged(rgb)), arranged(hsv), atol=1e-5)
    np.testing.assert_allclose(both(lambda x: image.hsv_to_rgb(x, data_format), arranged(hsv.astype("f4"))), arranged(rgb), atol=1e-5)
    grey = (rgb @ [0.2989, 0.5870, 0.1140])[..., None]
    np.testing.assert_allclose(both(lambda x: image.rgb_to_grayscale(x, data_format), arranged(rgb)), arranged(grey), atol=1e-5)
    found = image.rgb_to_grayscale(from_numpy(arranged((rgb * 255).astype("u1"))), data_format)
    assert found.dtype == "uint8"


def test_gradients():
    x = RNG.uniform(0.1, 1, size=(1, 4, 3, 3))
    for method in ("bilinear", "nearest", "bicubic"):
        check_gradient(lambda x, m=method: image.resize(x, (8, 6), m, data_format="channels_last"), x, second=False)
    check_gradient(lambda x: image.gaussian_blur(x, (3, 3), (1.0, 1.0), "channels_last"), x, second=False)
    check_gradient(lambda x: image.rgb_to_hsv(x, "channels_last"), x, second=False)
    transform = np.array([1.103, 0.217, -0.7, -0.104, 0.913, 0.6, 0, 0])  # no sample at the middle of a pixel, where there is a kink
    check_gradient(lambda x, t: image.affine_transform(x, t, data_format="channels_last"), x, transform, second=False)


def test_errors():
    x = from_numpy(np.ones((4, 4, 3), "f4"))
    with pytest.raises(ValueError, match="argument `interpolation`"):
        image.resize(x, (2, 2), "sharp")
    with pytest.raises(ValueError, match="Only one of"):
        image.resize(x, (2, 2), crop_to_aspect_ratio=True, pad_to_aspect_ratio=True)
    with pytest.raises(ValueError, match="Invalid images rank"):
        image.resize(from_numpy(np.ones((2, 2), "f4")), (2, 2))
    with pytest.raises(ValueError, match="argument `fill_mode`"):
        image.affine_transform(x, np.ones(8, "f4"), fill_mode="black")
    with pytest.raises(ValueError, match="give one, or one per image"):
        image.affine_transform(from_numpy(np.ones((3, 4, 4, 3), "f4")), np.ones((2, 8), "f4"))
    with pytest.raises(ValueError, match="Invalid start_points shape"):
        image.perspective_transform(x, np.ones((3, 2), "f4"), np.ones((4, 2), "f4"))
    with pytest.raises(ValueError, match="First dim of `coordinates`"):
        image.map_coordinates(x, np.ones((2, 5), "f4"), 1)
    with pytest.raises(ValueError, match="expected float dtype"):
        image.rgb_to_hsv(from_numpy(np.ones((4, 4, 3), "u1")))
    with pytest.raises(ValueError, match="argument `method`"):
        image.scale_and_translate(x, (4, 4, 3), np.ones(2, "f4"), np.ones(2, "f4"), (0, 1), "nearest")
