"""keras.ops.linalg: decompositions and solvers (declared host operations, LAPACK) and what is built on them; norms and jvp."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops import naming
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import linear as products
from keras_ocl.ops.numpy import reduction as reductions
from keras_ocl.ops.numpy import shapes
from keras_ocl.ops.numpy.creation import eye
from keras_ocl.ops.numpy.linear import matrices as _matrices
from keras_ocl.ops.promotion import broadcast_to, floating, promote, scalar_like
from keras_ocl.ops.result_types import result_type


def _transposed(x):
    """The adjoint matrices: transposed, and conjugated if complex."""
    x = shapes.swapaxes(x, -1, -2)
    return P.conj(x) if dtypes.is_complex(x.dtype) else x


def _epsilon(x):
    """The relative rounding error of what is computed: of float32 where the elements have 16 bits."""
    return float(np.finfo(dtypes.numpy_dtype(result_type(x.dtype, "float32"))).eps)


def cholesky(a, upper=False):
    """The triangular L with L @ L^H = a (or U with U^H @ U = a). LinAlgError, a ValueError, if `a` is not positive definite."""
    lower = P.cholesky(_matrices("cholesky", a, square=True))
    return _transposed(lower) if upper else lower


def cholesky_inverse(a, upper=False):
    """The inverse of the matrix whose Cholesky factor is `a`."""
    a = _matrices("cholesky_inverse", a, square=True)
    identity = broadcast_to(eye(a.shape[-1], dtype=a.dtype), a.shape)
    inverse = solve_triangular(a, identity, lower=not upper)
    left, right = (inverse, _transposed(inverse)) if upper else (_transposed(inverse), inverse)
    return products.matmul(left, right)


def det(a):
    """Determinants of square matrices."""
    return P.det(_matrices("det", a, square=True))


def eig(x):
    """Eigenvalues and right eigenvectors (complex) of square matrices."""
    return P.eig(_matrices("eig", x, square=True))


def eigh(x):
    """Eigenvalues, increasing, and eigenvectors of symmetric matrices."""
    return P.eigh(_matrices("eigh", x, square=True))


def inv(a):
    """Inverses of square matrices."""
    return P.inverse(_matrices("inv", a, square=True))


def lu_factor(x):
    """LU decompositions with row exchanges: both triangles in one matrix, and the int32 pivots."""
    return P.lu(_matrices("lu_factor", x))[:2]


def qr(x, mode="reduced"):
    """QR decompositions, "reduced" or "complete"."""
    if mode not in {"reduced", "complete"}:
        raise ValueError(f"`mode` argument value not supported. Expected one of {{'reduced', 'complete'}}. Received: mode={mode}")
    return P.qr(_matrices("qr", x), mode == "complete")


def solve(a, b):
    """x with a @ x = b; b may be a vector or matrices."""
    a, b = promote(a, b, extra=(float,))
    a = _matrices("solve", a, square=True)
    return _with_columns(P.solve, a, b)


def solve_triangular(a, b, lower=False):
    """x with a @ x = b for triangular a."""
    a, b = promote(a, b, extra=(float,))
    a = _matrices("solve_triangular", a, square=True)
    return _with_columns(lambda a, b: P.triangular_solve(a, b, lower), a, b)


def _with_columns(solver, a, b):
    """Call `solver` with right-hand sides as matrices, batch axes equal."""
    vector = b.ndim == a.ndim - 1
    if vector:
        b = shapes.expand_dims(b, -1)
    if b.shape[-2] != a.shape[-1]:
        raise ValueError(f"solve: shapes {tuple(a.shape)} and {tuple(b.shape)} do not match.")
    if a.shape[:-2] != b.shape[:-2]:
        batch = shapes.broadcast_shapes("solve", a.shape[:-2], b.shape[:-2])
        a, b = broadcast_to(a, batch + a.shape[-2:]), broadcast_to(b, batch + b.shape[-2:])
    x = solver(a, b)
    return shapes.squeeze(x, -1) if vector else x


def svd(x, full_matrices=True, compute_uv=True):
    """Singular value decompositions u, s, v^H, or with compute_uv=False s alone."""
    x = _matrices("svd", x)
    if compute_uv:
        return P.svd(x, full_matrices)
    return P.svd(x, False)[1]


def lstsq(a, b, rcond=None):
    """The least-squares solution of a @ x = b of least norm."""
    a, b = promote(a, b, extra=(float,))
    a = _matrices("lstsq", a)
    if b.ndim < 1 or a.shape[-2] != b.shape[-1 if b.ndim == 1 else -2]:
        raise ValueError(
            f"lstsq: right-hand sides of shape {tuple(b.shape)} do not fit matrices of shape {tuple(a.shape)};"
            f" they need {a.shape[-2]} rows."
        )
    rcond = _epsilon(a) * max(int(a.shape[-2]), int(a.shape[-1])) if rcond is None else rcond
    return products.matmul(P.pinv(a, rcond), b)


def pinv(x, rcond=None):
    """Moore-Penrose pseudo-inverses; singular values below rcond times the greatest count as zero."""
    x = _matrices("pinv", x)
    if rcond is None:
        rcond = 10.0 * max(int(x.shape[-2]), int(x.shape[-1])) * _epsilon(x)
    return P.pinv(x, rcond)


def matrix_power(x, n):
    """Square matrices to the power of an integer, by repeated squaring; of the inverses where `n` is negative. Of Keras behind 3.15."""
    x = products.check_matrices("matrix_power", convert_to_tensor(x), square=True)
    if n == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
    base, result = inv(x) if n < 0 else x, None
    bits = f"{abs(n):b}"[::-1]
    for k, bit in enumerate(bits):
        if k:
            base = products.matmul(base, base)
        if bit == "1":
            result = base if result is None else products.matmul(result, base)
    return result


def matrix_rank(x, tol=None):
    """Number of singular values above `tol`, int32."""
    x = _matrices("matrix_rank", x)
    s = P.svd(x, False)[1]
    if tol is None:
        greatest = reductions.max(s, -1, keepdims=True, initial=0)
        bound = P.mul(greatest, scalar_like(_epsilon(x) * max(int(x.shape[-2]), int(x.shape[-1])), greatest))
    else:
        bound = convert_to_tensor(tol, s.dtype)
        bound = shapes.expand_dims(bound, -1) if bound.ndim else bound
    return P.reduce_sum(P.convert(P.gt(s, broadcast_to(bound, s.shape)), "int32"), (s.ndim - 1,))


def norm(x, ord=None, axis=None, keepdims=False):
    """Vector norms (one axis) or matrix norms (two), as numpy.linalg.norm. ValueError for an order it does not know."""
    x = floating(x)
    if axis is None:
        if ord is None or (ord == 2 and x.ndim == 1):
            return _euclidean(x, tuple(range(x.ndim)), keepdims)
        if x.ndim not in (1, 2):
            raise ValueError(f"norm: with ord={ord!r} and no axis, a vector or a matrix is needed, got shape {tuple(x.shape)}.")
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, (list, tuple)) else (axis,)
    axes = tuple(canonicalize_axis(a, x.ndim) for a in axes)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    raise ValueError(f"Improper number of dimensions to norm: axis must name one or two axes. Received: axis={axis}")


def _euclidean(x, axes, keepdims):
    if dtypes.is_complex(x.dtype):
        x = P.abs(x)
    return P.sqrt(reductions.sum(P.mul(x, x), axes, keepdims))


def _vector_norm(x, ord, axis, keepdims):
    if ord is None or ord == 2:
        return _euclidean(x, axis, keepdims)
    if isinstance(ord, str):
        raise ValueError(f"Invalid `ord` argument for vector norm. Received: ord={ord}")
    x = P.abs(x)
    if ord == float("inf"):
        return reductions.max(x, axis, keepdims)
    if ord == float("-inf"):
        return reductions.min(x, axis, keepdims)
    if ord == 0:
        return reductions.sum(P.convert(P.ne(x, scalar_like(0, x)), x.dtype), axis, keepdims)
    if ord == 1:
        return reductions.sum(x, axis, keepdims)
    total = reductions.sum(P.pow(x, scalar_like(float(ord), x)), axis, keepdims)
    return P.pow(total, scalar_like(1.0 / ord, total))


def _matrix_norm(x, ord, axes, keepdims):
    if ord is None or ord == "fro":
        return _euclidean(x, axes, keepdims)
    if ord in (1, -1, float("inf"), float("-inf")):
        summed, searched = axes if ord in (1, -1) else (axes[1], axes[0])
        totals = reductions.sum(P.abs(x), summed, keepdims=True)
        result = (reductions.max if ord > 0 else reductions.min)(totals, searched, keepdims=True)
    elif ord in (2, -2, "nuc"):
        s = P.svd(shapes.moveaxis(x, axes, (-2, -1)), False)[1]
        reduced = reductions.max(s, -1, initial=0) if ord == 2 else (reductions.min if ord == -2 else reductions.sum)(s, -1)
        result = shapes.expand_dims(reduced, tuple(sorted(axes)))
    else:
        raise ValueError(f"Invalid `ord` argument for matrix norm. Received: ord={ord}")
    return result if keepdims else shapes.squeeze(result, axes)


def jvp(fun, primals, tangents, has_aux=False):
    """fun(*primals) and its derivative along `tangents`, by differentiating the reverse mode again."""
    primals = [convert_to_tensor(x) for x in primals]
    tangents = [convert_to_tensor(t) for t in tangents]
    if len(primals) != len(tangents):
        raise ValueError(f"jvp: {len(primals)} primals but {len(tangents)} tangents.")
    for x, t in zip(primals, tangents, strict=True):
        if x.shape != t.shape or x.dtype != t.dtype:
            raise TypeError(f"jvp: primal {tuple(x.shape)} {x.dtype} and tangent {tuple(t.shape)} {t.dtype} differ.")
    with GradientTape() as outer:
        with GradientTape() as inner:
            inner.watch(primals)
            result = fun(*primals)
        outputs, aux = result if has_aux else (result, None)
        single = isinstance(outputs, Tensor)
        flat = [outputs] if single else list(outputs)
        # The reverse mode is linear in these; its derivative with respect to them is the forward mode.
        seeds = [P.full(y.shape, 0, y.dtype) for y in flat]
        outer.watch(seeds)
        gradients = inner.gradient(flat, primals, seeds, unconnected_gradients="zero")
    forward = outer.gradient(gradients, seeds, tangents, unconnected_gradients="zero")
    forward = forward[0] if single else type(outputs)(forward)
    return (outputs, forward, aux) if has_aux else (outputs, forward)


globals().update(naming.named_operations(globals()))
