"""Host linear algebra: values by reconstruction, gradients by differences."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives import linalg
from tests.primitives.checking import check_gradient, need_float64, same

RNG = np.random.default_rng(6)
SQUARE = RNG.normal(size=(2, 4, 4)) + 3 * np.eye(4)
DEFINITE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(4)
TALL, WIDE = RNG.normal(size=(2, 5, 3)), RNG.normal(size=(2, 3, 5))


# Host operations compute in the dtype that they are given: float64 where the device has it.
WIDE_FLOAT = runtime.current_device().traits.fp64
CLOSE = 1e-12 if WIDE_FLOAT else 2e-4


def tensor(x):
    return from_numpy(x.astype("f8" if WIDE_FLOAT else "f4"))


def definite(x):
    return linalg._symmetric(x)


def test_declared_on_the_host():
    assert linalg.HOST and all(p.host is not None and Primitive.registry[name] is p for name, p in linalg.HOST.items())


def test_values():
    x = from_numpy(SQUARE.astype("f4"))
    same(P.inverse(x), np.linalg.inv(SQUARE), 1e-4)
    same(P.det(x), np.linalg.det(SQUARE), 1e-3)
    for result, expected in zip(P.slogdet(x), np.linalg.slogdet(SQUARE), strict=True):
        same(result, expected, 1e-4)
    same(P.cholesky(tensor(DEFINITE)), np.linalg.cholesky(DEFINITE), CLOSE)
    same(P.solve(tensor(SQUARE), tensor(SQUARE[..., :2])), np.linalg.solve(SQUARE, SQUARE[..., :2]), CLOSE)
    lower, b = np.tril(SQUARE), SQUARE[..., :3]
    same(P.triangular_solve(tensor(SQUARE), tensor(b)), np.linalg.solve(lower, b), CLOSE)
    same(P.triangular_solve(tensor(SQUARE), tensor(b), transposed=True), np.linalg.solve(lower.swapaxes(1, 2), b), CLOSE)
    same(P.triangular_solve(tensor(SQUARE), tensor(b), lower=False), np.linalg.solve(np.triu(SQUARE), b), CLOSE)
    for x in (SQUARE, TALL, WIDE):
        same(P.pinv(tensor(x), 1e-15 if WIDE_FLOAT else 1e-7), np.linalg.pinv(x), CLOSE)


@pytest.mark.parametrize("x", [SQUARE, TALL, WIDE], ids=["square", "tall", "wide"])
def test_decompositions(x):
    for complete in (False, True):
        q, r = map(to_numpy, P.qr(tensor(x), complete))
        np.testing.assert_allclose(q @ r, x, atol=CLOSE)
        u, s, vt = map(to_numpy, P.svd(tensor(x), complete))
        k = s.shape[-1]
        np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vt[..., :k, :], x, atol=CLOSE)
    packed, pivots, order = map(to_numpy, P.lu(tensor(x)))
    m, n = x.shape[-2:]
    k = min(m, n)
    lower = np.tril(packed[..., :k], -1) + np.eye(m, k)
    product = lower @ np.triu(packed[..., :k, :])
    np.testing.assert_allclose(product, np.take_along_axis(x, order[..., None], -2), atol=CLOSE)
    assert pivots.shape == (2, k) and np.abs(lower).max() <= 1


def test_eigen():
    w, v = map(to_numpy, P.eigh(tensor(DEFINITE)))
    np.testing.assert_allclose(v * w[..., None, :] @ v.swapaxes(-1, -2), DEFINITE, atol=CLOSE)
    w, v = map(to_numpy, P.eig(tensor(SQUARE)))
    assert w.dtype == ("c16" if WIDE_FLOAT else "c8")
    np.testing.assert_allclose(SQUARE @ v, v * w[..., None, :], atol=CLOSE)
    assert P.eig(from_numpy(SQUARE.astype("f4")))[0].dtype == "complex64"


def test_gradients():
    check_gradient(lambda x: P.cholesky(definite(x)), DEFINITE)
    check_gradient(P.inverse, SQUARE)
    check_gradient(P.det, SQUARE, tolerance=1e-5)
    check_gradient(lambda x: P.slogdet(x)[1], SQUARE)
    check_gradient(P.solve, SQUARE, TALL[..., :4, :2])
    for lower in (True, False):
        for transposed in (True, False):
            check_gradient(lambda a, b, lower=lower, t=transposed: P.triangular_solve(a, b, lower, t), SQUARE, TALL[..., :4, :2])
    check_gradient(lambda x: P.lu(x)[0], SQUARE)


def test_decomposition_gradients():
    for x in (SQUARE, TALL, WIDE):
        check_gradient(P.qr, x, second=False)
        check_gradient(lambda a: P.svd(a, False)[1], x)
        # Singular vectors have a sign of their own: what they project on does not.
        check_gradient(lambda a: tuple(P.mul(t, t) for t in P.svd(a, False)), x, second=False)
    check_gradient(lambda x: tuple(P.mul(t, t) for t in P.eigh(definite(x))), DEFINITE, second=False)
    check_gradient(lambda x: P.eigh(definite(x))[0], DEFINITE, tolerance=1e-5)


def test_errors():
    with pytest.raises(ValueError, match="inverse.*square"):
        P.inverse(tensor(TALL))
    with pytest.raises(ValueError, match="solve"):
        P.solve(tensor(SQUARE), tensor(TALL))
    with pytest.raises(ValueError, match="qr"):
        P.qr(from_numpy(np.zeros((3, 3), "i4")))
    with pytest.raises(np.linalg.LinAlgError):
        P.inverse(from_numpy(np.zeros((3, 3), "f4")))


def test_pseudo_inverse_gradients():
    for x in (SQUARE, TALL, WIDE, np.eye(3)):  # the identity has equal singular values
        check_gradient(lambda x: P.pinv(x, 1e-12), x, tolerance=1e-5)


def projector(basis):
    return linalg.matmul(basis, linalg.swapped(basis))


def test_complete_bases_have_gradients():
    """Of what does not depend on the choice of basis."""

    def tall_qr(x):
        q, r = P.qr(x, True)
        return projector(linalg._last_columns(q, 3, 5)), linalg._last_columns(q, 0, 3), r

    check_gradient(tall_qr, TALL, second=False)

    def full_svd(x):
        u, s, vt = P.svd(x, True)
        v = linalg.swapped(vt)
        return projector(linalg._last_columns(u, 2, u.shape[-1])), projector(linalg._last_columns(v, 2, v.shape[-1])), s

    for x in (TALL, WIDE):
        check_gradient(full_svd, x, second=False)


def test_eig_gradients():
    check_gradient(lambda x: (P.real(P.eig(x)[0]), P.imag(P.eig(x)[0])), SQUARE, second=False)
    check_gradient(lambda x: P.abs(P.eig(x)[1]), SQUARE, second=False)
    check_gradient(lambda x: P.abs(P.inverse(P.complex(x, P.mul(x, x)))), SQUARE, second=False)


def planar(function):
    """`function` of a complex matrix that two real ones make; its complex results as pairs of real ones."""

    def of_parts(x, y):
        results = function(P.complex(x, y))
        results = results if isinstance(results, tuple) else (results,)
        return tuple(part for r in results for part in ((P.real(r), P.imag(r)) if r.dtype == "complex128" else (r,)))

    return of_parts


def outer(v, a, w):
    """|v><v| and |w><w| of the columns, and of both together, which do not depend on a pair's phase; `a` goes with them."""
    n = v.shape[-1]
    columns = [linalg._last_columns(v, k, k + 1) for k in range(n)], [linalg._last_columns(w, k, k + 1) for k in range(n)]
    return (a, *[linalg.matmul(x, linalg.adjoint(y)) for x, y in zip(*columns, strict=True)])


OTHER = RNG.normal(size=(2, 4, 4))
COMPLEX = {
    "inverse": P.inverse,
    "det": P.det,
    "slogdet": P.slogdet,
    "cholesky": lambda z: P.cholesky(linalg._symmetric(linalg.matmul(z, linalg.adjoint(z)))),
    "solve": lambda z: P.solve(z, linalg.adjoint(z)),
    "substitution": lambda z: P.triangular_solve(z, linalg.adjoint(z)),
    "adjoint substitution": lambda z: P.triangular_solve(z, z, lower=False, transposed=True),
    "pinv": lambda z: P.pinv(linalg._last_columns(z, 0, 3), 1e-15),
    "qr": P.qr,
    "tall qr": lambda z: P.qr(linalg._last_columns(z, 0, 3)),
    "wide qr": lambda z: P.qr(linalg.adjoint(linalg._last_columns(z, 0, 3))),
    "lu": lambda z: P.lu(z)[0],
    "svd": lambda z: (lambda u, s, v: outer(u, s, linalg.adjoint(v)))(*P.svd(z)),
    "tall svd": lambda z: (lambda u, s, v: outer(u, s, linalg.adjoint(v)))(*P.svd(linalg._last_columns(z, 0, 3), False)),
    "singular values": lambda z: P.svd(z, False)[1],
    "eigh": lambda z: (lambda w, v: outer(v, w, v))(*P.eigh(linalg._symmetric(z))),
    "eig": lambda z: (lambda w, v: (w, P.abs(v)))(*P.eig(z)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradients(name):
    check_gradient(planar(COMPLEX[name]), SQUARE, OTHER, second=name in ("det", "cholesky"), tolerance=1e-5)


def test_complex_values():
    need_float64()
    z = SQUARE + 1j * OTHER
    x = from_numpy(z)
    same(P.det(x), np.linalg.det(z), 1e-10)
    sign, logarithm = P.slogdet(x)
    assert (sign.dtype, logarithm.dtype) == ("complex128", "float64")
    same(sign, np.linalg.slogdet(z)[0], 1e-12)
    same(logarithm, np.linalg.slogdet(z)[1], 1e-12)
    positive = z @ z.conj().swapaxes(-1, -2)
    same(P.cholesky(from_numpy(positive)), np.linalg.cholesky(positive), 1e-12)
    same(P.triangular_solve(x, x), np.linalg.solve(np.tril(z), z), 1e-12)
    same(P.triangular_solve(x, x, transposed=True), np.linalg.solve(np.tril(z).conj().swapaxes(-1, -2), z), 1e-12)
    u, s, vh = map(to_numpy, P.svd(x))
    np.testing.assert_allclose(u * s[..., None, :] @ vh, z, atol=1e-12)
    assert s.dtype == "f8"
    w, v = map(to_numpy, P.eigh(from_numpy(positive)))
    np.testing.assert_allclose(v * w[..., None, :] @ v.conj().swapaxes(-1, -2), positive, atol=1e-10)
    assert w.dtype == "f8"
    w, v = map(to_numpy, P.eig(x))
    np.testing.assert_allclose(z @ v, v * w[..., None, :], atol=1e-12)
    packed, _, order = map(to_numpy, P.lu(x))
    lower = np.tril(packed, -1) + np.eye(4)
    np.testing.assert_allclose(lower @ np.triu(packed), np.take_along_axis(z, order[..., None], -2), atol=1e-12)


def test_determinants_of_singular_matrices_have_gradients():
    check_gradient(P.det, np.array([[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]], np.ones((3, 3))]), second=False)


def test_spaces_of_equal_values_have_gradients():
    """The space that the vectors of equal values span does not depend on their choice."""

    def spaces(x):
        _, v = P.eigh(definite(x))
        u, _, vt = P.svd(x, False)
        return [projector(linalg._last_columns(t, 0, 2)) for t in (v, u, linalg.swapped(vt))]

    check_gradient(lambda x: tuple(spaces(x))[:1], np.diag([2.0, 2.0, 5.0]), second=False)
    check_gradient(lambda x: tuple(spaces(x))[1:], np.diag([5.0, 5.0, 2.0]), second=False)
