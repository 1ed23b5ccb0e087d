"""What linear algebra computes on the host: LAPACK through NumPy, for batches of matrices, real and complex.

16-bit floats are computed in float32. What LAPACK cannot do raises a LinAlgError (a ValueError) that names the op of Keras, the shape and
the remedy; matrices with NaN or infinities give NaN where the result has a meaning without them, as on TensorFlow and JAX.
"""

from functools import wraps

import numpy as np

_REMEDIES = {
    "cholesky": ("a matrix is not positive definite", "check that it is symmetric, add a small multiple of the identity, or use `eigh`"),
    "inv": ("a matrix is singular", "add a small multiple of the identity, or use `pinv`"),
    "solve": ("a matrix is singular", "add a small multiple of the identity, or use `lstsq`"),
    "det": ("the iteration for the singular values (of its gradient) did not converge", "scale the matrices, or use float64"),
    "svd": ("the iteration for the singular values did not converge", "scale the matrices, or use float64"),
    "pinv": ("the iteration for the singular values did not converge", "scale the matrices, or use float64"),
    "eigh": ("the iteration for the eigenvalues did not converge", "scale the matrices, or use float64"),
    "eig": ("the iteration for the eigenvalues did not converge", "scale the matrices, or use float64"),
}


def _error(op, what, x, remedy):
    return np.linalg.LinAlgError(f"{op}: {what}, in the input of shape {x.shape} and dtype {x.dtype}; {remedy}.")


def on_host(op):
    """Decorator: 16-bit arrays arrive as float32, and LAPACK's errors leave as those of Keras's `op`."""

    def decorate(function):
        @wraps(function)
        def call(*arrays, **params):
            try:
                return function(*[a.astype(np.float32) if a.dtype.itemsize < 4 else a for a in arrays], **params)
            except np.linalg.LinAlgError as error:
                if op not in _REMEDIES or str(error).startswith(f"{op}:"):
                    raise
                what, remedy = _REMEDIES[op]
                raise _error(op, what, arrays[0], remedy) from None

        return call

    return decorate


def _adjoint(x):
    return np.swapaxes(x, -1, -2).conj()


def _finite(x):
    """Which matrices are finite, and `x` with zeros in place of the others: LAPACK may not return from infinities."""
    finite = np.isfinite(x).all(axis=(-2, -1))
    return finite, np.where(finite[..., None, None], x, 0)


def _nan_unless(finite, result):
    return np.where(finite.reshape(finite.shape + (1,) * (result.ndim - finite.ndim)), result, np.nan)


def _require_finite(op, x):
    if not np.isfinite(x).all():
        raise _error(op, "an element is NaN or infinite", x, "matrices must be finite, look for where it came from")


@on_host("cholesky")
def cholesky(x):
    """Lower factors."""
    lower = np.linalg.cholesky(x)
    if not np.isfinite(lower).all():
        raise np.linalg.LinAlgError  # NumPy lets NaN pass
    return lower


inverse = on_host("inv")(np.linalg.inv)
solve = on_host("solve")(np.linalg.solve)
det = on_host("det")(np.linalg.det)
slogdet = on_host("slogdet")(np.linalg.slogdet)


@on_host("det")
def cofactor(x):
    """Conjugated cofactors, conj(det x) x^-H: from products of all singular values but one, so of singular matrices too."""
    finite, x = _finite(x)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    others = np.where(np.eye(x.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    turn = (np.linalg.det(u) * np.linalg.det(v)).conj()
    return _nan_unless(finite, turn[..., None, None] * ((u * others[..., None, :]) @ v))


@on_host("solve_triangular")
def triangular_solve(a, b, lower, transposed):
    """Substitution, a row at a time for the whole batch."""
    if transposed:
        a, lower = _adjoint(a), not lower
    x, n = np.array(b), a.shape[-1]
    for i in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= np.einsum("...k,...kj->...j", a[..., i, known], x[..., known, :])
        x[..., i, :] /= a[..., i, i, None]
    return x


@on_host("pinv")
def pinv(x, rcond):
    """Pseudo-inverses; NaN for matrices that are not finite."""
    finite, x = _finite(x)
    return _nan_unless(finite, np.linalg.pinv(x, rcond))


@on_host("qr")
def qr(x, complete):
    """Orthonormal and triangular factors."""
    return tuple(np.linalg.qr(x, mode="complete" if complete else "reduced"))


@on_host("svd")
def svd(x, full):
    """Singular values and vectors; NaN for matrices that are not finite."""
    finite, x = _finite(x)
    return tuple(_nan_unless(finite, part) for part in np.linalg.svd(x, full_matrices=full))


@on_host("eigh")
def eigh(x):
    """Eigenvalues and eigenvectors of Hermitian matrices."""
    _require_finite("eigh", x)
    return tuple(np.linalg.eigh(x))


@on_host("eig")
def eig(x):
    """Eigenvalues and eigenvectors."""
    _require_finite("eig", x)
    return tuple(np.linalg.eig(x))


@on_host("lu_factor")
def lu(x):
    """Gaussian elimination with partial pivoting, a column at a time for the whole batch."""
    *batch, m, n = x.shape
    flat = np.array(x).reshape(int(np.prod(batch)), m, n)
    rows_of = np.arange(len(flat))
    pivots = np.zeros((len(flat), min(m, n)), np.int32)
    order = np.tile(np.arange(m, dtype=np.int32), (len(flat), 1))
    for k in range(min(m, n)):
        p = k + np.argmax(np.abs(flat[:, k:, k]), axis=1)
        pivots[:, k] = p
        for rows in (flat, order):
            rows[rows_of, p], rows[rows_of, k] = rows[rows_of, k].copy(), rows[rows_of, p].copy()
        pivot = flat[:, k, k]
        flat[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)[:, None]
        flat[:, k + 1 :, k + 1 :] -= flat[:, k + 1 :, k, None] * flat[:, k, None, k + 1 :]
    return flat.reshape(x.shape), pivots.reshape(*batch, min(m, n)), order.reshape(*batch, m)
