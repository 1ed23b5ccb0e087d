"""keras.ops.math and linalg against NumPy."""

import numpy as np
import pytest
from keras import ops

RNG = np.random.default_rng(1)
M = RNG.normal(size=(2, 4, 4)).astype("float32")
SPD = (M @ M.swapaxes(1, 2) + 4 * np.eye(4)).astype("float32")
TALL = RNG.normal(size=(5, 3)).astype("float32")


def value(x):
    return np.asarray(ops.convert_to_numpy(x))


def close(ours, reference, tolerance=2e-4):
    assert value(ours).shape == np.shape(reference)
    np.testing.assert_allclose(value(ours), reference, rtol=tolerance, atol=tolerance)


def test_segments():
    data, ids = np.arange(8.0).reshape(4, 2), np.array([0, 2, 0, -1])
    close(ops.segment_sum(data, ids, 3), [[4, 6], [0, 0], [2, 3]])
    close(ops.segment_max(data[:, 0], ids, 3), [4, -np.inf, 2])
    close(ops.segment_sum(data[:3], ids[:3]), [[4, 6], [0, 0], [2, 3]])


def test_top_k():
    values, indices = ops.top_k(np.array([[1.0, 5.0, 3.0], [9.0, 9.0, 2.0]]), 2)
    close(values, [[5, 3], [9, 9]])
    np.testing.assert_array_equal(value(indices), [[1, 2], [0, 1]])
    np.testing.assert_array_equal(value(ops.in_top_k(np.array([2, 2]), np.array([[1.0, 5.0, 3.0], [9.0, 9.0, 2.0]]), 2)), [True, False])


def test_functions():
    x = RNG.normal(size=(3, 4)).astype("float32")
    close(ops.logsumexp(x, 1), np.log(np.exp(x).sum(1)))
    close(ops.rsqrt(np.abs(x) + 1), 1 / np.sqrt(np.abs(x) + 1))
    close(ops.erfinv(ops.erf(x)), x, 1e-3)
    close(ops.logsumexp(np.array([-np.inf, -np.inf], "float32")), -np.inf)
    difference = x[:, None] - x[None]
    close(ops.cdist(x, x), np.sqrt((difference**2).sum(-1)))


def test_linalg():
    close(ops.cholesky(SPD), np.linalg.cholesky(SPD))
    close(ops.cholesky(SPD, upper=True), np.linalg.cholesky(SPD).swapaxes(1, 2))
    close(ops.inv(SPD), np.linalg.inv(SPD))
    close(ops.det(M), np.linalg.det(M), 1e-3)
    close(ops.solve(SPD, M), np.linalg.solve(SPD, M))
    close(ops.solve(SPD[0], M[0, 0]), np.linalg.solve(SPD[0], M[0, 0]))
    q, r = ops.qr(TALL)
    close(ops.matmul(q, r), TALL)
    u, s, v = ops.svd(TALL, full_matrices=False)
    close(ops.matmul(u * s, v), TALL)
    close(ops.svd(TALL, compute_uv=False), np.linalg.svd(TALL, compute_uv=False))
    close(ops.eigh(SPD)[0], np.linalg.eigvalsh(SPD), 1e-3)
    close(ops.linalg.pinv(TALL), np.linalg.pinv(TALL))
    close(ops.lstsq(TALL, TALL[:, 0]), np.linalg.lstsq(TALL, TALL[:, 0], rcond=None)[0])
    assert int(ops.linalg.matrix_rank(np.ones((3, 3), "float32"))) == 1
    lower = np.tril(SPD)
    close(ops.solve_triangular(lower, M, lower=True), np.linalg.solve(lower, M))
    with pytest.raises(ValueError, match="Cholesky"):
        ops.cholesky(-np.eye(3, dtype="float32"))


@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(ord):
    close(ops.norm(TALL, ord=ord), np.linalg.norm(TALL, ord=ord))
    close(ops.norm(M, ord=ord, axis=(1, 2), keepdims=True), np.linalg.norm(M, ord=ord, axis=(1, 2), keepdims=True))


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, np.inf, -np.inf])
def test_vector_norms(ord):
    close(ops.norm(TALL, ord=ord, axis=0), np.linalg.norm(TALL, ord=ord, axis=0))
