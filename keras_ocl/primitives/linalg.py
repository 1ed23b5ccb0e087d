"""Linear algebra on the host (LAPACK through NumPy, linalg_host.py), with gradients in terms of primitives.

HOST lists the operations that run on the host. Matrices, real or complex, are the last two axes; axes before them are a batch.
"""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import minimum
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives import linalg_host as lapack
from keras_ocl.primitives.batching import same_parameters

HOST = {}  # name -> Primitive


def host(name, function, shape, vjp=None, multiple_results=True):
    """Declare a host operation.

    Args:
        function: (*arrays, **params) -> an array, or a tuple of them if `multiple_results`.
        shape, vjp: as in Primitive.
    """
    HOST[name] = Primitive(
        name,
        shape,
        vjp,
        host=lambda arrays, targets, **params: function(*arrays, **params),
        multiple_results=multiple_results,
        batch=same_parameters(lambda: HOST[name]),
    )
    return HOST[name]


# ---- small algebra for the rules


def matmul(a, b):
    """Batched matrix product of tensors with equal batch axes."""
    rank = len(a.shape)
    batch = tuple(range(rank - 2))
    return P.dot_general(a, b, ((rank - 1,), (rank - 2,)), (batch, batch))


def swapped(x):
    """The transposed matrices."""
    rank = len(x.shape)
    return P.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def adjoint(x):
    """The transposed matrices, conjugated if complex."""
    return swapped(P.conj(x) if dtypes.is_complex(x.dtype) else x)


def triangle(x, k=0, lower=True):
    """Elements on and below (lower) or above diagonal `k`; zeros elsewhere."""
    rank = len(x.shape)
    row, column = P.iota(x.shape, rank - 2, "int32"), P.iota(x.shape, rank - 1, "int32")
    edge = P.add(row, P.full(x.shape, k, "int32"))
    return P.select(P.le(column, edge) if lower else P.ge(column, edge), x, P.zeros_like(x))


def _diagonal_mask(x):
    rank = len(x.shape)
    return P.eq(P.iota(x.shape, rank - 2, "int32"), P.iota(x.shape, rank - 1, "int32"))


def _rows(v, like):
    """Vectors repeated as the rows of matrices: result[..., i, j] = v[..., j]."""
    rank = len(like.shape)
    return P.broadcast(v, (*v.shape[:-1], like.shape[-2], v.shape[-1]), (*range(rank - 2), rank - 1))


def _columns(v, like):
    """result[..., i, j] = v[..., i]."""
    rank = len(like.shape)
    return P.broadcast(v, (*v.shape, like.shape[-1]), tuple(range(rank - 1)))


def _half(x):
    return P.mul(x, P.zeros_like(x, 0.5))


def _symmetric(x):
    """The symmetric part, of complex matrices the Hermitian one."""
    return _half(P.add(x, adjoint(x)))


def _differences(values, square):
    """1 / (value_j - value_i), and 0 where they are equal, as on TensorFlow: right for what depends only on their vectors' span."""
    rows, columns = _rows(values, square), _columns(values, square)
    gap = P.sub(rows, columns)
    zero = P.zeros_like(gap)
    same = P.eq(gap, zero)
    return P.select(same, zero, P.div(P.zeros_like(gap, 1), P.select(same, P.zeros_like(gap, 1), gap)))


def _zeros_for(ct, out):
    return P.zeros_like(out) if ct is None else ct


def _matrix(name, x, square=False):
    number = dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype)
    if len(x.shape) < 2 or not number or (square and x.shape[-1] != x.shape[-2]):
        what = "square matrices" if square else "matrices"
        raise ValueError(f"{name}: expected {what} of floats, got shape {tuple(x.shape)} and dtype {x.dtype}.")


# ---- cholesky, inverse, det, slogdet


def _square_shape(name):
    def rule(x):
        _matrix(name, x, True)
        return x.shape, x.dtype

    return rule


def _cholesky_vjp(ct, out, x):
    inside = triangle(matmul(adjoint(out), ct))
    inside = P.select(_diagonal_mask(inside), _half(inside), inside)
    left = P.triangular_solve(out, inside, lower=True, transposed=True)
    right = P.triangular_solve(out, adjoint(left), lower=True, transposed=True)
    return (_symmetric(right),)


def _inverse_vjp(ct, out, x):
    t = adjoint(out)
    return (P.neg(matmul(matmul(t, ct), t)),)


def _scaled(scale, x):
    return P.mul(P.broadcast(scale, x.shape, tuple(range(len(scale.shape)))), x)


def _cofactor_vjp(ct, out, x):
    t = adjoint(inverse(x))
    rank = len(x.shape)
    product = P.mul(P.conj(ct) if dtypes.is_complex(x.dtype) else ct, out)
    product = _scaled(P.reduce_sum(product, (rank - 2, rank - 1)), t)
    return (P.sub(product, matmul(matmul(out, adjoint(ct)), t)),)


def _det_shape(x):
    _matrix("det", x, True)
    return tuple(x.shape[:-2]), x.dtype


def _slogdet_shape(x):
    _matrix("slogdet", x, True)
    batch = tuple(x.shape[:-2])
    return [(batch, x.dtype), (batch, dtypes.part(x.dtype))]


def _slogdet_vjp(cts, outs, x):
    """The logarithm moves with the real part of trace(x^-1 dx), a complex sign turns with the imaginary one."""
    dsign, dlog = cts
    if not dtypes.is_complex(x.dtype):
        return (None if dlog is None else _scaled(dlog, adjoint(inverse(x))),)
    sign = outs[0]
    length = _zeros_for(dlog, outs[1])
    turn = P.neg(P.imag(P.mul(P.conj(_zeros_for(dsign, sign)), sign)))
    return (_scaled(P.complex(length, turn), adjoint(inverse(x))),)


_cholesky = host("cholesky", lapack.cholesky, _square_shape("cholesky"), _cholesky_vjp, multiple_results=False)
_inverse = host("inverse", lapack.inverse, _square_shape("inverse"), _inverse_vjp, multiple_results=False)
_cofactor = host("cofactor", lapack.cofactor, _square_shape("cofactor"), _cofactor_vjp, multiple_results=False)
_det = host("det", lapack.det, _det_shape, lambda ct, out, x: (_scaled(ct, _cofactor(x)),), multiple_results=False)
_slogdet = host("slogdet", lapack.slogdet, _slogdet_shape, _slogdet_vjp)


def cholesky(x):
    """Lower triangular L with L L^H = x, for Hermitian positive definite matrices. LinAlgError if they are not definite."""
    return _cholesky(x)


def inverse(x):
    """Inverse matrices. LinAlgError if one is singular."""
    return _inverse(x)


def det(x):
    """Determinants."""
    return _det(x)


def slogdet(x):
    """(sign, logarithm of the absolute value) of determinants."""
    return _slogdet(x)


# ---- solve


def _solve_shape(name):
    def rule(a, b, **params):
        _matrix(name, a, True)
        if len(b.shape) != len(a.shape) or tuple(b.shape[:-1]) != tuple(a.shape[:-1]) or a.dtype != b.dtype:
            raise ValueError(
                f"{name}: matrices {tuple(a.shape)} {a.dtype} and right-hand sides {tuple(b.shape)} {b.dtype} do not fit;"
                " expected (..., n, n) and (..., n, k) of one dtype."
            )
        return b.shape, b.dtype

    return rule


def _solve_vjp(ct, out, a, b):
    db = solve(adjoint(a), ct)
    return P.neg(matmul(db, adjoint(out))), db


def _triangular_vjp(ct, out, a, b, *, lower, transposed):
    db = triangular_solve(a, ct, lower, not transposed)
    da = matmul(out, adjoint(db)) if transposed else matmul(db, adjoint(out))
    return triangle(P.neg(da), lower=lower), db


_solve = host("solve", lapack.solve, _solve_shape("solve"), _solve_vjp, multiple_results=False)
_triangular = host("triangular_solve", lapack.triangular_solve, _solve_shape("triangular_solve"), _triangular_vjp, multiple_results=False)


def solve(a, b):
    """x with a x = b, for a (..., n, n) and b (..., n, k). LinAlgError if a is singular."""
    return _solve(a, b)


def triangular_solve(a, b, lower=True, transposed=False):
    """x with a x = b (a^H x = b if `transposed`), reading only the lower or upper triangle of a."""
    return _triangular(a, b, lower=bool(lower), transposed=bool(transposed))


def _pinv_shape(x, *, rcond):
    _matrix("pinv", x)
    return (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype


def _without(x, projected):
    """projected - x projected."""
    return P.sub(projected, matmul(x, projected))


def _pinv_vjp(ct, out, x, *, rcond):
    """Where the rank is constant (Golub and Pereyra, "The differentiation of pseudo-inverses", 1973)."""
    t, back = adjoint(out), adjoint(ct)
    inside = matmul(matmul(t, ct), t)
    left = _without(matmul(x, out), matmul(matmul(back, out), t))
    right = adjoint(_without(adjoint(matmul(out, x)), matmul(ct, matmul(t, out))))
    return (P.sub(P.add(left, right), inside),)


_pinv = host("pinv", lapack.pinv, _pinv_shape, _pinv_vjp, multiple_results=False)


def pinv(x, rcond):
    """Moore-Penrose inverses (..., n, m) of (..., m, n); singular values up to `rcond` times the greatest count as 0."""
    return _pinv(x, rcond=float(rcond))


# ---- qr


def _qr_shape(x, *, complete):
    _matrix("qr", x)
    *batch, m, n = x.shape
    k = m if complete else minimum(m, n)
    return [((*batch, m, k), x.dtype), ((*batch, k, n), x.dtype)]


def _tall_qr_vjp(dq, dr, q, r):
    m = P.sub(matmul(r, adjoint(dr)), matmul(adjoint(dq), q))
    below = triangle(m, -1)
    # The triangular factor's diagonal is real.
    copied = P.select(_diagonal_mask(m), _symmetric(m), P.add(below, adjoint(below)))
    inside = P.add(dq, matmul(q, copied))
    return adjoint(P.triangular_solve(r, adjoint(inside), lower=False))


def _last_columns(x, start, stop):
    starts = (0,) * (len(x.shape) - 1) + (start,)
    return P.slice(x, starts, (*x.shape[:-1], stop))


def _completed(basis, cotangent, n):
    """(the first n columns of an orthonormal basis, their cotangent): the others only turn so as to stay orthogonal to these.

    How they turn among themselves is arbitrary, and so is a function's dependence on that.
    """
    first, dfirst = _last_columns(basis, 0, n), _last_columns(cotangent, 0, n)
    others, dothers = (_last_columns(t, n, t.shape[-1]) for t in (basis, cotangent))
    return first, P.sub(dfirst, matmul(others, matmul(adjoint(dothers), first)))


def _qr_vjp(cts, outs, x, *, complete):
    q, r = outs
    dq, dr = (_zeros_for(ct, out) for ct, out in zip(cts, outs, strict=True))
    m, n = x.shape[-2:]
    if m >= n:
        if complete and m != n:
            q, dq = _completed(q, dq, n)
            r, dr = (swapped(_last_columns(swapped(t), 0, n)) for t in (r, dr))
        return (_tall_qr_vjp(dq, dr, q, r),)
    right, dright = _last_columns(x, m, n), _last_columns(dr, m, n)
    dq = P.add(dq, matmul(right, adjoint(dright)))
    left = _tall_qr_vjp(dq, _last_columns(dr, 0, m), q, _last_columns(r, 0, m))
    return (P.concat((left, matmul(q, dright)), len(x.shape) - 1),)


_qr = host("qr", lapack.qr, _qr_shape, _qr_vjp)


def qr(x, complete=False):
    """(q, r) with q r = x, q having orthonormal columns (m of them if `complete`) and r upper triangular."""
    return _qr(x, complete=bool(complete))


# ---- svd, eigh, eig


def _svd_shape(x, *, full):
    _matrix("svd", x)
    *batch, m, n = x.shape
    k = minimum(m, n)
    return [((*batch, m, m if full else k), x.dtype), ((*batch, k), dtypes.part(x.dtype)), ((*batch, n if full else k, n), x.dtype)]


def _svd_vjp(cts, outs, x, *, full):
    u, s, vt = outs
    du, ds, dvt = cts
    s, ds = P.convert(s, x.dtype), None if ds is None else P.convert(ds, x.dtype)
    m, n = x.shape[-2:]
    if full and m > n:
        u, du = (_last_columns(u, 0, n), None) if du is None else _completed(u, du, n)
    elif full and m < n:
        v, dv = adjoint(vt), None if dvt is None else adjoint(dvt)
        v, dv = (_last_columns(v, 0, m), None) if dv is None else _completed(v, dv, m)
        vt, dvt = adjoint(v), None if dv is None else adjoint(dv)
    ut = adjoint(u)
    middle = P.select(_diagonal_mask(_rows(s, ut)), _rows(_zeros_for(ds, s), ut), P.zeros_like(_rows(s, ut))) if ds is not None else None
    if middle is None or du is not None or dvt is not None:
        du, dvt = _zeros_for(du, u), _zeros_for(dvt, vt)
        dv, v = adjoint(dvt), adjoint(vt)
        square = matmul(ut, u)
        gaps = _differences(P.mul(s, s), square)
        rows, columns = _rows(s, square), _columns(s, square)
        left, right = matmul(ut, du), matmul(vt, dv)
        turn = P.sub(left, adjoint(left))
        inside = P.mul(P.mul(gaps, turn), rows)
        inside = P.add(inside, P.mul(columns, P.mul(gaps, P.sub(right, adjoint(right)))))
        if dtypes.is_complex(x.dtype):
            # Each pair of vectors has an arbitrary common phase; a rotation of one against the other is counted as the left one's.
            inside = P.add(inside, P.select(_diagonal_mask(square), _half(P.div(turn, rows)), P.zeros_like(square)))
        middle = inside if middle is None else P.add(middle, inside)
        outside_u = P.div(P.sub(du, matmul(u, left)), _rows(s, u))
        outside_v = P.div(P.sub(dv, matmul(v, right)), _rows(s, v))
        extra = P.add(matmul(outside_u, vt), matmul(u, adjoint(outside_v)))
        return (P.add(matmul(matmul(u, middle), vt), extra),)
    return (matmul(matmul(u, middle), vt),)


_svd = host("svd", lapack.svd, _svd_shape, _svd_vjp)


def svd(x, full_matrices=True):
    """(u, s, v^H) with u diag(s) v^H = x, singular values real and descending."""
    return _svd(x, full=bool(full_matrices))


def _eigh_shape(x):
    _matrix("eigh", x, True)
    return [(tuple(x.shape[:-1]), dtypes.part(x.dtype)), (x.shape, x.dtype)]


def _eigh_vjp(cts, outs, x):
    (dw, dv), (w, v) = cts, outs
    w, dw = P.convert(w, x.dtype), None if dw is None else P.convert(dw, x.dtype)
    vt = adjoint(v)
    zero = P.zeros_like(v)
    middle = zero if dw is None else P.select(_diagonal_mask(v), _rows(dw, v), zero)
    if dv is not None:
        middle = P.add(middle, P.mul(_differences(w, v), matmul(vt, dv)))
    return (_symmetric(matmul(matmul(v, middle), vt)),)


_eigh = host("eigh", lapack.eigh, _eigh_shape, _eigh_vjp)


def eigh(x):
    """(real eigenvalues ascending, eigenvectors in columns) of symmetric or Hermitian matrices; reads the lower triangle."""
    return _eigh(x)


def _eig_shape(x):
    _matrix("eig", x, True)
    dtype = "complex128" if dtypes.part(x.dtype) == "float64" else "complex64"
    return [(tuple(x.shape[:-1]), dtype), (x.shape, dtype)]


def _eig_vjp(cts, outs, x):
    """As in Boeddeker et al., "On the computation of complex-valued gradients" (2017): vectors have norm 1, their phase is arbitrary."""
    (dw, dv), (w, v) = cts, outs
    vh = adjoint(v)
    zero = P.zeros_like(v)
    middle = zero if dw is None else P.select(_diagonal_mask(v), _rows(dw, v), zero)
    if dv is not None:
        turned = matmul(vh, dv)
        length = P.real(turned)
        length = P.select(_diagonal_mask(v), P.complex(length, P.zeros_like(length)), zero)
        turned = P.sub(turned, matmul(matmul(vh, v), length))
        middle = P.add(middle, P.mul(P.conj(_differences(w, v)), turned))
    return (P.convert(solve(vh, matmul(middle, vh)), x.dtype),)


_eig = host("eig", lapack.eig, _eig_shape, _eig_vjp)


def eig(x):
    """(eigenvalues, eigenvectors in columns) of square matrices, complex64 (complex128 for 64-bit floats)."""
    return _eig(x)


# ---- lu


def _lu_shape(x):
    _matrix("lu", x)
    *batch, m, n = x.shape
    return [(x.shape, x.dtype), ((*batch, minimum(m, n)), "int32"), ((*batch, m), "int32")]


def _lu_vjp(cts, outs, x):
    """x = P L U: the gradient of the packed factors, moved back to x's rows."""
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"lu: only square matrices have a gradient, got shape {tuple(x.shape)}.")
    ct, (packed, _, order) = cts[0], outs
    if ct is None:
        return (None,)
    lower = P.select(_diagonal_mask(packed), P.zeros_like(packed, 1), triangle(packed, -1))
    inside = P.add(
        triangle(matmul(adjoint(lower), triangle(ct, -1)), -1),
        triangle(matmul(triangle(ct, lower=False), adjoint(triangle(packed, lower=False))), lower=False),
    )
    left = P.triangular_solve(lower, inside, lower=True, transposed=True)
    right = adjoint(P.triangular_solve(packed, adjoint(left), lower=False))
    rank = len(x.shape)
    rows = P.broadcast(order, x.shape, tuple(range(rank - 1)))
    indices = tuple(rows if i == rank - 2 else P.iota(x.shape, i, "int32") for i in range(rank))
    return (P.scatter_new(x.shape, indices, right, tuple(range(rank))),)


_lu = host("lu", lapack.lu, _lu_shape, _lu_vjp)


def lu(x):
    """(packed factors, pivots, permutation): unit lower L and upper U in one matrix, LAPACK's row exchanges (from 0), and the rows' order:
    x[permutation] = L U."""
    return _lu(x)
