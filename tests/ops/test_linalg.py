"""keras.ops.linalg where LAPACK stops: singular and odd matrices, 16-bit and complex dtypes, nothing at all."""

import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.ops import linalg
from tests.ops.samples import same

SINGULAR = np.ones((2, 3, 3), "float32")
NEGATIVE = -np.eye(3, dtype="float32")
WITH_NAN = np.where(np.eye(3) > 0, np.nan, 1).astype("float32")
DEFINITE = np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]], "float32")
B = np.array([[1.0], [2.0], [4.0]], "float32")
HERMITIAN = (DEFINITE + 3 * np.eye(3) + 1j * np.array([[0, 1, -2], [-1, 0, 0.5], [2, -0.5, 0]])).astype("complex64")

REFUSED = [
    ("inv", (SINGULAR,), ["inv:", "singular", "(2, 3, 3)", "pinv"]),
    ("solve", (SINGULAR, SINGULAR), ["solve:", "singular", "(2, 3, 3)", "lstsq"]),
    ("cholesky", (NEGATIVE,), ["cholesky:", "positive definite", "(3, 3)", "eigh"]),
    ("cholesky", (WITH_NAN,), ["cholesky:", "positive definite", "(3, 3)", "eigh"]),
    ("inv", (ops.cast(SINGULAR, "float16"),), ["inv:", "float16"]),
    ("eig", (WITH_NAN,), ["eig:", "NaN", "(3, 3)"]),
    ("eigh", (WITH_NAN,), ["eigh:", "NaN", "(3, 3)"]),
    ("lstsq", (SINGULAR[0], B[:2]), ["lstsq:", "(3, 3)", "(2, 1)", "3 rows"]),
    ("lstsq", (SINGULAR[0], B[:2, 0]), ["lstsq:", "(3, 3)", "(2,)"]),
]


@pytest.mark.parametrize("name, args, words", REFUSED, ids=[f"{c[0]}-{i}" for i, c in enumerate(REFUSED)])
def test_what_has_no_result_is_refused(name, args, words):
    function = getattr(ops, name)
    for call in (function, keras_ocl.jit(function)):
        with pytest.raises(ValueError) as caught:
            call(*[ops.convert_to_tensor(a) for a in args])
        message = str(caught.value)
        assert all(word in message for word in words), message
        assert message.count("\n") == 0
    same(ops.inv(2 * np.eye(2, dtype="float32")), np.eye(2, dtype="float32") / 2)


def test_nan_passes_where_a_result_has_a_meaning():
    both = np.stack([WITH_NAN, DEFINITE])
    for result, expected in (
        (ops.pinv(both), np.linalg.inv(DEFINITE)),
        (ops.svd(both, compute_uv=False), np.linalg.svd(DEFINITE, compute_uv=False)),
        (ops.inv(both), np.linalg.inv(DEFINITE)),
    ):
        result = ops.convert_to_numpy(result)
        assert np.isnan(result[0]).all()
        np.testing.assert_allclose(result[1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_computed_in_float32(dtype):
    x, b = ops.cast(DEFINITE, dtype), ops.cast(B, dtype)
    q, r = ops.qr(x)
    u, s, vh = ops.svd(x)
    w, v = ops.eigh(x)
    packed, _ = ops.lu_factor(x)
    results = {
        "inv": (ops.inv(x), np.linalg.inv(DEFINITE)),
        "pinv": (ops.pinv(x), np.linalg.inv(DEFINITE)),
        "det": (ops.det(x), np.linalg.det(DEFINITE)),
        "logdet": (ops.logdet(x), np.linalg.slogdet(DEFINITE)[1]),
        "cholesky": (ops.cholesky(x), np.linalg.cholesky(DEFINITE)),
        "inverse of a factor": (ops.cholesky_inverse(ops.cholesky(x)), np.linalg.inv(DEFINITE)),
        "solve": (ops.solve(x, b), np.linalg.solve(DEFINITE, B)),
        "lstsq": (ops.lstsq(x, b), np.linalg.solve(DEFINITE, B)),
        "triangular": (ops.solve_triangular(x, b), np.linalg.solve(np.triu(DEFINITE), B)),
        "qr": (ops.matmul(q, r), DEFINITE),
        "svd": (ops.matmul(u * s, vh), DEFINITE),
        "eigh": (ops.matmul(v * w, ops.transpose(v)), DEFINITE),
        "spectral norm": (ops.norm(x, ord=2), np.linalg.norm(DEFINITE, 2)),
        "lu": (packed, [[4, 1, 0], [0.25, 2.75, 1], [0, 4 / 11, 2 - 4 / 11]]),
    }
    tolerance = 0.01 if dtype == "float16" else 0.05
    for name, (result, expected) in results.items():
        assert result.dtype == dtype, name
        np.testing.assert_allclose(ops.convert_to_numpy(result).astype("float32"), expected, rtol=tolerance, atol=tolerance, err_msg=name)
    assert ops.eig(x)[0].dtype == "complex64"
    assert int(ops.linalg.matrix_rank(x)) == 3


def close(ours, reference):
    np.testing.assert_allclose(ops.convert_to_numpy(ours), reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8, -1, -3])
def test_matrix_power(n):
    for x in (DEFINITE, HERMITIAN, np.stack([DEFINITE, 2 * DEFINITE]), np.zeros((0, 3, 3), "float32")):
        result = linalg.matrix_power(x, n)
        assert result.dtype == x.dtype
        np.testing.assert_allclose(ops.convert_to_numpy(result), np.linalg.matrix_power(x.astype("complex128"), n), rtol=1e-4, atol=1e-4)


def test_matrix_power_of_integers_and_of_what_is_not_square():
    x = np.array([[1, 1], [1, 0]])
    assert linalg.matrix_power(x, 20).tolist() == np.linalg.matrix_power(x, 20).tolist()
    with pytest.raises(ValueError, match="matrix_power: square matrices .*(2, 3)"):
        linalg.matrix_power(np.ones((2, 3)), 2)


def test_complex():
    z, b = HERMITIAN, B + 1j * B[::-1]
    b = b.astype("complex64")
    close(ops.det(z), np.linalg.det(z))
    close(ops.cholesky(z), np.linalg.cholesky(z))
    close(ops.cholesky(z, upper=True), np.linalg.cholesky(z).conj().T)
    close(ops.cholesky_inverse(np.linalg.cholesky(z)), np.linalg.inv(z))
    upper = np.linalg.cholesky(z).conj().T
    close(ops.cholesky_inverse(upper, upper=True), np.linalg.inv(z))
    close(ops.inv(z), np.linalg.inv(z))
    close(ops.pinv(z), np.linalg.pinv(z))
    close(ops.solve(z, b), np.linalg.solve(z, b))
    close(ops.lstsq(z, b), np.linalg.solve(z, b))
    close(ops.solve_triangular(z, b, lower=True), np.linalg.solve(np.tril(z), b))
    close(ops.logdet(z), np.linalg.slogdet(z)[1])
    close(ops.svd(z, compute_uv=False), np.linalg.svd(z, compute_uv=False))
    close(ops.eigh(z)[0], np.linalg.eigh(z)[0])
    close(ops.norm(z, ord="nuc"), np.linalg.norm(z, "nuc"))
    q, r = ops.qr(z)
    close(ops.matmul(q, r), z)
    assert int(ops.linalg.matrix_rank(z)) == 3


def test_nothing():
    none = np.zeros((0, 0), "float32")
    packed, pivots = ops.lu_factor(none)
    assert packed.shape == (0, 0) and pivots.shape == (0,)
    assert int(ops.linalg.matrix_rank(none)) == 0
    assert float(ops.norm(none, ord=2)) == 0
    assert float(ops.det(none)) == 1
    assert ops.inv(none).shape == (0, 0)
