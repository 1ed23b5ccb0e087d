"""The data of the frameworks study: loaders with and without files, preprocessing and descriptors against known values."""

import gzip
import math
import struct

import numpy as np
import pytest
from scipy.io import savemat
from scipy.linalg import fractional_matrix_power

from comparisons.data import cifar10, descriptors, imdb, mnist, norb, preprocess, rain, sources, svhn


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(sources, "download", lambda load: (None, "no network"))


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_images(path, shape, classes, examples=12, test_examples=6):
    """Write an .npz file of random images; return its arrays."""
    arrays = {}
    for seed, (part, count) in enumerate((("train", examples), ("test", test_examples))):
        arrays[f"x_{part}"] = noise(count, *shape, seed=seed)
        arrays[f"y_{part}"] = np.arange(count) % classes
    np.savez(path, **arrays)
    return arrays


# ---- loaders -----------------------------------------------------------------------------------------------------------------------------


def test_mnist_of_a_file(tmp_path):
    arrays = save_images(tmp_path / "mnist_few.npz", (28, 28), 10)
    data = mnist.load(tmp_path)
    assert data.real and not data.notice
    assert data.x.shape == (12, 28, 28, 1) and data.x.dtype == np.float32
    assert np.allclose(data.x[..., 0] * 255, arrays["x_train"], atol=1e-4)
    assert np.array_equal(data.y.argmax(1), arrays["y_train"]) and data.y.shape == (12, 10)
    flat = mnist.load(tmp_path, flat=True, one_hot=False, scaled=False, examples=5, test_examples=2)
    assert flat.x.shape == (5, 784) and flat.x.dtype == np.uint8 and flat.x_test.shape == (2, 784)
    assert np.array_equal(flat.y, arrays["y_train"][:5]) and flat.y.dtype == np.int32
    assert mnist.load(tmp_path, width=20).x.shape == (12, 28, 20, 1)


def test_mnist_without_a_file_is_a_stand_in_and_says_so(tmp_path):
    data = mnist.load(tmp_path, flat=True)
    assert not data.real and "stand-in" in data.notice and "mnist*.npz" in data.notice and "no network" in data.notice
    assert (data.x.shape, data.y.shape, data.x_test.shape) == ((60_000, 784), (60_000, 10), (10_000, 784))
    assert np.array_equal(data.x[:50], mnist.load(None, flat=True, examples=50).x)


def test_stand_ins_can_be_learnt():
    (x, y), (x_test, y_test) = sources.images((8, 8, 3), 5, 400, 100)
    means = np.array([x[y == label].mean(0).ravel() for label in range(5)])
    nearest = ((x_test.reshape(100, 1, -1) - means) ** 2).sum(-1).argmin(1)
    assert (nearest == y_test).mean() > 0.95


def test_a_folder_that_is_none_and_a_file_that_lacks_an_array(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is no folder: give --data a folder with mnist\*.npz"):
        mnist.load(tmp_path / "nowhere")
    np.savez(tmp_path / "mnist.npz", x_train=noise(1, 28, 28))
    with pytest.raises(KeyError, match="mnist.npz holds no y_train, x_test, y_test"):
        mnist.load(tmp_path)


def test_cifar10_of_a_file(tmp_path):
    arrays = save_images(tmp_path / "cifar10_few.npz", (32, 32, 3), 10)
    raw = cifar10.load(tmp_path, scaled=False, one_hot=False)
    assert raw.real and np.array_equal(raw.x, arrays["x_train"]) and np.array_equal(raw.y, arrays["y_train"])
    assert cifar10.load(tmp_path, size=40, scaled=False).x.shape == (12, 40, 40, 3)
    centered = cifar10.load(tmp_path, centered=True)
    assert np.allclose(centered.x.mean(0), 0, atol=1e-6)
    assert np.allclose(centered.x_test - centered.x_test[0], (arrays["x_test"] - arrays["x_test"][0].astype(float)) / 255, atol=1e-6)
    gist = cifar10.load(tmp_path, gist=True, examples=6, test_examples=2)
    assert gist.x.shape == (6, 960) and gist.x_test.shape == (2, 960)
    assert cifar10.load(tmp_path, whitened=True).x.shape == (12, 32, 32, 3)
    with pytest.raises(ValueError, match="scaled must be True"):
        cifar10.load(tmp_path, whitened=True, scaled=False)


def test_cifar10_without_a_file():
    data = cifar10.load(examples=20, test_examples=5)
    assert not data.real and data.x.shape == (20, 32, 32, 3) and "cifar10*.npz" in data.notice


def test_imdb_of_a_file(tmp_path):
    arrays = {}
    for part in ("train", "test"):
        arrays |= {
            f"tokens_{part}": np.arange(1, 13, dtype="uint16"),
            f"lengths_{part}": [2, 7, 3],
            f"y_{part}": np.array([0, 1, 1], "uint8"),
        }
    np.savez(tmp_path / "imdb_few.npz", **arrays)
    data = imdb.load(tmp_path, length=5)
    assert data.x.tolist() == [[0, 0, 0, 1, 2], [5, 6, 7, 8, 9], [0, 0, 10, 11, 12]]
    assert data.y.tolist() == [0, 1, 1] and data.real
    assert imdb.load(tmp_path, length=5, examples=2).x.tolist() == data.x[:2].tolist()
    with pytest.raises(ValueError, match="add up to 12, but there are 11 words"):
        imdb.rows(np.arange(11), [2, 7, 3], 5)


def test_imdb_without_a_file():
    data = imdb.load(examples=30, test_examples=10)
    assert not data.real and data.x.shape == (30, 500) and data.x.max() < imdb.WORDS and set(data.y) == {0.0, 1.0}


def test_svhn_of_its_own_files(tmp_path):
    images = {part: noise(count, 32, 32, 3) for part, count in (("train", 4), ("test", 3))}
    for part, x in images.items():
        savemat(tmp_path / f"{part}_32x32.mat", {"X": np.moveaxis(x, 0, -1), "y": np.array([[10], [1], [9], [2]])[: len(x)]})
    data = svhn.load(tmp_path, scaled=False, one_hot=False)
    assert data.real and np.array_equal(data.x, images["train"]) and np.array_equal(data.x_test, images["test"])
    assert data.y.tolist() == [0, 1, 9, 2]


def test_svhn_without_a_file():
    pytest.importorskip("skimage", reason="pip install scikit-image")
    data = svhn.load(hog_hue=True, examples=30, test_examples=10)
    assert not data.real and data.x.shape == (30, 154) and data.y.shape == (30, 10)
    assert np.allclose(data.x.mean(0), 0, atol=1e-5)


def norb_file(path, kind, array):
    axes = [*array.shape, *[1] * (3 - array.ndim)]
    content = struct.pack(f"<{2 + len(axes)}i", kind, array.ndim, *axes) + array.tobytes()
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_norb_of_its_own_files(tmp_path, suffix):
    for number, part in ((1, "training"), (2, "training"), (1, "testing")):
        name = f"norb-5x46789x9x18x6x2x108x108-{part}-{number:02d}"
        norb_file(tmp_path / f"{name}-dat.mat{suffix}", 0x1E3D4C55, noise(3, 2, 108, 108, seed=number))
        norb_file(tmp_path / f"{name}-cat.mat{suffix}", 0x1E3D4C54, np.array([5, 0, number], "<i4"))
    data = norb.load(tmp_path, size=108, scaled=False)
    assert data.real and data.x.shape == (6, 108, 108, 2) and data.x_test.shape == (3, 108, 108, 2)
    assert np.array_equal(data.x[3], np.moveaxis(noise(3, 2, 108, 108, seed=2)[0], 0, -1))
    assert data.y.argmax(1).tolist() == [5, 0, 1, 5, 0, 2]
    assert norb.load(tmp_path, examples=4).x.shape == (4, 48, 48, 2)


def test_norb_refuses_another_kind_of_file(tmp_path):
    (tmp_path / "norb-training-01-dat.mat").write_bytes(b"no matrix at all")
    with pytest.raises(ValueError, match="is no NORB matrix"):
        norb.load(tmp_path)


def test_norb_without_a_file():
    data = norb.load(examples=7, test_examples=3)
    assert not data.real and data.x.shape == (7, 48, 48, 2) and data.y.shape == (7, 6)


def write_hours(path, hours):
    """Write hours, each a list of readings by column name, with as many mm of rain as the hour's number."""
    lines = [",".join(["Id", *rain.FEATURES, "Expected"])]
    for number, readings in enumerate(hours, 1):
        lines += [",".join([str(number), *(str(reading.get(name, "")) for name in rain.FEATURES), f"{number}.5"]) for reading in readings]
    path.write_text("\n".join(lines) + "\n")


def test_rain_of_a_file(tmp_path):
    reading = {"minutes_past": 3, "radardist_km": 10, "Ref": 10 * math.log10(200), "Zdr": 10}
    write_hours(tmp_path / "train.csv", [[reading, {"minutes_past": 9}], *[[reading]] * 6])
    data = rain.load(tmp_path)
    assert data.real and data.x.shape == (6, 19, 24) and data.y.ravel().tolist() == [1.5, 2.5, 3.5, 4.5, 6.5, 7.5]
    assert data.y_test.ravel().tolist() == [5.5]
    first = dict(zip([*rain.FEATURES, "readings", "mean"], data.x[0, 0].tolist(), strict=True))
    known = {"minutes_past": 3, "radardist_km": 10, "Ref": 1, "Zdr": 10, "readings": 2, "mean": 0.5, "Kdp": 0, "RefComposite": 0}
    assert {name: first[name] for name in known} == pytest.approx(known)
    assert data.x[0, 1, 0] == 9 and not data.x[0, 2:].any()
    assert rain.load(tmp_path, examples=2, test_examples=1).x.shape == (2, 19, 24)
    (tmp_path / "train.csv").write_text("Id,Ref\n1,2\n")
    with pytest.raises(ValueError, match="has no column minutes_past"):
        rain.load(tmp_path)


def test_rain_without_a_file():
    data = rain.load(examples=200, test_examples=10)
    assert not data.real and data.x.shape == (200, 19, 24) and data.y.shape == (200, 1) and data.y.min() >= 0
    present = data.x.any(-1)
    estimate = np.array([row[here].mean() for row, here in zip(data.x, present, strict=True)])
    assert np.corrcoef(estimate, data.y[:, 0])[0, 1] > 0.8


# ---- preprocessing -----------------------------------------------------------------------------------------------------------------------


def test_contrast_normalisation():
    x = np.random.default_rng(0).uniform(0, 1, (3, 5, 4, 2)).astype("float32")
    x[2] = 0.25
    y = preprocess.normalize_contrast(x)
    assert y.dtype == np.float32 and np.allclose(y.mean((1, 2, 3)), 0, atol=1e-6)
    assert np.allclose(y.std((1, 2, 3)), [1, 1, 0], atol=1e-5)


@pytest.mark.parametrize("examples", [9, 200])
def test_whitening_is_the_inverse_root_of_the_covariance(examples):
    generator = np.random.default_rng(0)
    x, other = (generator.normal(size=(n, 3, 4, 2)) @ np.array([[1, 0.8], [0, 0.5]]) + 2 for n in (examples, 5))
    flat = x.reshape(examples, -1)
    matrix = fractional_matrix_power(np.cov(flat.T, bias=True) + 0.1 * np.eye(24), -0.5).real
    for ours, theirs in zip(preprocess.whiten(x, other, bias=0.1), (x, other), strict=True):
        assert ours.shape == theirs.shape
        assert np.allclose(ours.reshape(len(ours), -1), (theirs.reshape(len(ours), -1) - flat.mean(0)) @ matrix, atol=1e-6)


def test_standardised_features():
    x = np.array([[1.0, 5.0], [3.0, 5.0]], "float32")
    ours, other = preprocess.standardize(x, np.array([[4.0, 6.0]], "float32"))
    assert ours.tolist() == [[-1, 0], [1, 0]] and other.tolist() == [[2, 1]]


def test_resizing_is_linear_between_pixel_centres():
    x = np.array([[0, 8], [8, 16]], "uint8").reshape(1, 2, 2, 1)
    wanted = [[0, 2, 6, 8], [2, 4, 8, 10], [6, 8, 12, 14], [8, 10, 14, 16]]
    ours = preprocess.resize(x, 4)
    assert ours.dtype == np.uint8 and ours[0, ..., 0].tolist() == wanted
    assert preprocess.resize(x, 2) is x


def test_digits_are_stretched_to_a_width():
    x = np.zeros((2, 2, 6, 1), "float32")
    x[0, 0, 2:4, 0] = [1, 3]
    x[1, 1, :, 0] = 5
    ours = preprocess.normalize_width(x, 4)
    assert ours[0, :, :, 0].tolist() == [[1, 1.5, 2.5, 3], [0, 0, 0, 0]]
    assert ours[1, :, :, 0].tolist() == [[0, 0, 0, 0], [5, 5, 5, 5]]


# ---- descriptors -------------------------------------------------------------------------------------------------------------------------


def test_gabor_filters_are_gaussians_around_a_frequency():
    filters = descriptors.gabor_filters(48)
    assert filters.shape == (20, 48, 48)
    assert filters[0, 0, 14] == pytest.approx(math.exp(-3.5 * (14 / 48 / 0.3 - 1) ** 2))
    assert filters[0, 14, 14] == pytest.approx(
        math.exp(-3.5 * (14 * 2**0.5 / 48 / 0.3 - 1) ** 2 - 2 * math.pi * (math.pi / 4) ** 2), rel=1e-4
    )
    assert filters[8, 0, 8] == pytest.approx(math.exp(-3.5 * (8 / 48 / (0.3 / 1.85) - 1) ** 2), rel=1e-4)


@pytest.mark.parametrize(("across", "down", "strongest"), [(0.3, 0, 0), (0, 0.3, 4), (0.3 / 1.85, 0, 8), (0.3 / 1.85**2, 0, 16)])
def test_gist_finds_scale_and_orientation_of_a_grating(across, down, strongest):
    row, column = np.mgrid[:32, :32]
    x = 128 + 60 * np.sin(2 * np.pi * (across * column + down * row))
    features = descriptors.gist(np.repeat(x[None, ..., None], 3, -1)).reshape(3, 20, 4, 4)
    assert (features.mean((2, 3)).argmax(1) == strongest).all()


def test_gist_of_an_even_image_is_zero_and_of_an_odd_shape_refused():
    assert np.abs(descriptors.gist(np.full((2, 32, 32, 3), 77, "uint8"))).max() < 1e-4
    with pytest.raises(ValueError, match=r"have shape \(30, 32, 3\)"):
        descriptors.gist(np.zeros((1, 30, 32, 3)))


def test_gist_is_the_same_in_any_chunk(monkeypatch):
    x = noise(5, 32, 32, 3)
    whole = descriptors.gist(x)
    monkeypatch.setattr(descriptors, "CHUNK", 2)
    assert np.allclose(descriptors.gist(x), whole, atol=1e-6)


def test_hog_and_hue_of_known_images():
    pytest.importorskip("skimage", reason="pip install scikit-image")
    red = np.zeros((32, 32, 3), "uint8")
    red[..., 0] = 200
    edge = np.zeros((32, 32, 3), "uint8")
    edge[:, 12:] = 255  # in the second column of cells, light to the right
    features = descriptors.hog_hue(np.array([red, edge]))
    assert features.shape == (2, 154) and features.dtype == np.float32
    assert not features[0, :144].any() and features[0, 144:].tolist() == [1] + [0] * 9
    gradients = features[1, :144].reshape(4, 4, 9)
    assert (gradients[:, 1, 0] > 0.9).all() and not gradients[:, [0, 2, 3]].any()
