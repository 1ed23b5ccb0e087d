"""keras.ops.numpy, products: matmul, dot, tensordot, einsum, outer, kron, cross, correlation, slogdet."""

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.numpy.indexing import diagonal
from keras_ocl.ops.numpy.shapes import moveaxis, stack
from keras_ocl.ops.promotion import broadcast, broadcast_shapes, broadcast_to, floating, operand, promote, scalar_like
from keras_ocl.ops.result_types import dtype_of
from keras_ocl.ops.slicing import unstacked


def _factors(x1, x2):
    """Operands of a product and its dtype: int8 times int8 adds up in int32, bool by counting."""
    x1, x2 = operand(x1), operand(x2)
    small = dtype_of(x1) == dtype_of(x2) == "int8"
    x1, x2 = promote(x1, x2)
    dtype = "int32" if small else x1.dtype
    if dtype == "bool":
        x1, x2 = P.convert(x1, "int32"), P.convert(x2, "int32")
    return x1, x2, dtype


def _dot(x1, x2, dtype, contract, batch=((), ())):
    """dot_general into `dtype`."""
    if dtype == "bool":
        result = P.dot_general(x1, x2, contract, batch)
        return P.ne(result, scalar_like(0, result))
    return P.dot_general(x1, x2, contract, batch, None if x1.dtype == dtype else dtype)


def matmul(x1, x2):
    """Matrix product over the last two axes, leading axes broadcast; vectors as in NumPy."""
    x1, x2, dtype = _factors(x1, x2)
    if x1.ndim == 0 or x2.ndim == 0:
        raise ValueError(f"matmul: operands of shapes {tuple(x1.shape)} and {tuple(x2.shape)}; scalars need multiply.")
    inner2 = 0 if x2.ndim == 1 else x2.ndim - 2
    if x1.shape[-1] != x2.shape[inner2]:
        raise ValueError(f"matmul: shapes {tuple(x1.shape)} and {tuple(x2.shape)} do not match on {x1.shape[-1]} and {x2.shape[inner2]}.")
    if x2.ndim <= 2:
        return _dot(x1, x2, dtype, ((x1.ndim - 1,), (inner2,)))
    if x1.ndim <= 2:
        # Batch axes only on the right: exchange the operands, then put the rows before the columns.
        result = _dot(x2, x1, dtype, ((inner2,), (x1.ndim - 1,)))
        return result if x1.ndim == 1 else P.transpose(result, (*range(result.ndim - 2), result.ndim - 1, result.ndim - 2))
    batch = broadcast_shapes("matmul", x1.shape[:-2], x2.shape[:-2])
    x1, x2 = broadcast_to(x1, batch + x1.shape[-2:]), broadcast_to(x2, batch + x2.shape[-2:])
    axes = tuple(range(len(batch)))
    return _dot(x1, x2, dtype, ((x1.ndim - 1,), (x2.ndim - 2,)), (axes, axes))


def dot(x1, x2):
    """Sum product over the last axis of x1 and the second to last of x2; a product with a scalar."""
    x1, x2, dtype = _factors(x1, x2)
    if x1.ndim == 0 or x2.ndim == 0:
        return _times(x1, x2, dtype)
    other = 0 if x2.ndim == 1 else x2.ndim - 2
    if x1.shape[-1] != x2.shape[other]:
        raise ValueError(f"dot: shapes {tuple(x1.shape)} and {tuple(x2.shape)} do not match on {x1.shape[-1]} and {x2.shape[other]}.")
    return _dot(x1, x2, _own(x1, dtype), ((x1.ndim - 1,), (other,)))


def _own(x, dtype):
    """Only matmul and einsum widen int8."""
    return x.dtype if dtype != "bool" else dtype


def _times(x1, x2, dtype):
    result = P.mul(*broadcast("product", x1, x2))
    return P.ne(result, scalar_like(0, result)) if dtype == "bool" else result


def inner(x1, x2):
    """Sum product over the last axes; a product with a scalar."""
    x1, x2, dtype = _factors(x1, x2)
    if x1.ndim == 0 or x2.ndim == 0:
        return _times(x1, x2, dtype)
    if x1.shape[-1] != x2.shape[-1]:
        raise ValueError(f"inner: shapes {tuple(x1.shape)} and {tuple(x2.shape)} differ in their last extents.")
    return _dot(x1, x2, _own(x1, dtype), ((x1.ndim - 1,), (x2.ndim - 1,)))


def outer(x1, x2):
    """Every product of an element of x1 (flattened) and one of x2."""
    x1, x2, dtype = _factors(x1, x2)
    return _times(P.reshape(x1, (x1.size, 1)), P.reshape(x2, (1, x2.size)), dtype)


def vdot(x1, x2):
    """Sum product of the flattened operands, the first conjugated."""
    x1, x2, dtype = _factors(x1, x2)
    if x1.size != x2.size:
        shapes = f"{tuple(x1.shape)} and {tuple(x2.shape)}"
        raise ValueError(f"vdot: shapes {shapes} have {x1.size} and {x2.size} elements; both must have as many.")
    if dtypes.is_complex(dtype):
        x1 = P.conj(x1)
    return _dot(P.reshape(x1, (x1.size,)), P.reshape(x2, (x2.size,)), _own(x1, dtype), ((0,), (0,)))


def tensordot(x1, x2, axes=2):
    """Sum product over the given axes: a count (last of x1 with first of x2) or a pair of axis lists."""
    x1, x2, dtype = _factors(x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot: axes={axes} is not between 0 and the ranks of shapes {tuple(x1.shape)} and {tuple(x2.shape)}.")
        left, right = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        left, right = ((a,) if isinstance(a, int) else tuple(a) for a in axes)
        left = tuple(canonicalize_axis(a, x1.ndim) for a in left)
        right = tuple(canonicalize_axis(a, x2.ndim) for a in right)
    if len(left) != len(right) or any(x1.shape[a] != x2.shape[b] for a, b in zip(left, right, strict=True)):
        raise ValueError(f"tensordot: shapes {tuple(x1.shape)} and {tuple(x2.shape)} do not match on axes {left} and {right}.")
    if not left:
        return _times(P.reshape(x1, x1.shape + (1,) * x2.ndim), P.reshape(x2, (1,) * x1.ndim + x2.shape), dtype)
    return _dot(x1, x2, _own(x1, dtype), (left, right))


def kron(x1, x2):
    """The Kronecker product."""
    x1, x2, dtype = _factors(x1, x2)
    rank = max(x1.ndim, x2.ndim)
    s1, s2 = (1,) * (rank - x1.ndim) + x1.shape, (1,) * (rank - x2.ndim) + x2.shape
    x1 = P.reshape(x1, tuple(e for n in s1 for e in (n, 1)))
    x2 = P.reshape(x2, tuple(e for n in s2 for e in (1, n)))
    return P.reshape(_times(x1, x2, dtype), tuple(m * n for m, n in zip(s1, s2, strict=True)))


def cross(x1, x2, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """Cross products of the 2- or 3-vectors along an axis."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x1, x2 = promote(x1, x2)
    x1, x2 = moveaxis(x1, axisa, -1), moveaxis(x2, axisb, -1)
    if x1.shape[-1] not in (2, 3) or x2.shape[-1] not in (2, 3):
        raise ValueError(f"cross: vectors of 2 or 3 elements are needed, got {x1.shape[-1]} and {x2.shape[-1]}.")
    a, b = unstacked(x1, -1), unstacked(x2, -1)

    def determinant(i, j):
        ai, bj, aj, bi = broadcast("cross", a[i], b[j], a[j], b[i])
        return P.sub(P.mul(ai, bj), P.mul(aj, bi))

    if len(a) == 2 and len(b) == 2:
        return determinant(0, 1)
    for v in (a, b):
        if len(v) == 2:
            v.append(scalar_like(0, v[0]))
    return moveaxis(stack([determinant(1, 2), determinant(2, 0), determinant(0, 1)], -1), -1, axisc)


def correlate(x1, x2, mode="valid"):
    """Cross-correlation of two vectors; mode valid, same or full."""
    x1, x2 = promote(x1, x2)
    x1, x2 = floating(x1), floating(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"correlate: two vectors are needed, got shapes {tuple(x1.shape)} and {tuple(x2.shape)}.")
    if mode not in ("valid", "same", "full"):
        raise ValueError(f'correlate: mode must be "valid", "same" or "full", got {mode!r}.')
    n, m = x1.shape[0], x2.shape[0]
    swapped = m > n
    if swapped:
        x1, x2, n, m = x2, x1, m, n
    low = {"valid": 0, "same": m // 2, "full": m - 1}[mode]
    high = {"valid": 0, "same": m - 1 - low, "full": m - 1}[mode]
    padded = P.pad(x1, P.constant(0, x1.dtype), (low,), (high,))
    count = n + low + high - m + 1
    rows, columns = P.iota((count, m), 0, "int32"), P.iota((count, m), 1, "int32")
    windows = P.gather(padded, (P.add(rows, columns),), (0,))
    result = P.dot_general(windows, x2, ((1,), (0,)), ((), ()))
    return P.reverse(result, (0,)) if swapped else result


def einsum(subscripts, *operands, **kwargs):
    """Einstein summation, operands contracted from left to right."""
    operands = [operand(x) for x in operands]
    small = all(dtype_of(x) == "int8" for x in operands)
    operands = promote(*operands)
    dtype = "int32" if small else operands[0].dtype
    if dtype == "bool":
        operands = [P.convert(x, "int32") for x in operands]
    elif dtype != operands[0].dtype and len(operands) != 2:
        operands = [P.convert(x, dtype) for x in operands]
    terms, output = _parse(subscripts, operands)
    work = [_diagonalised(labels, x) for labels, x in zip(terms, operands, strict=True)]
    labels, x = work[0]
    for i, (other, y) in enumerate(work[1:], 1):
        later = set(output).union(*(set(labels_) for labels_, _ in work[i + 1 :]))
        labels, x = _contract(labels, x, other, y, later, dtype)
    extra = tuple(i for i, label in enumerate(labels) if label not in output)
    if extra:
        x = P.reduce_sum(x, extra)
        labels = [label for label in labels if label in output]
    order = tuple(labels.index(label) for label in output)
    x = x if order == tuple(range(len(order))) else P.transpose(x, order)
    return P.ne(x, scalar_like(0, x)) if dtype == "bool" else x


def _parse(subscripts, operands):
    """Labels of each operand and of the result; an ellipsis becomes labels of its own, counted from the right."""
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum: the subscripts must be a string such as 'ij,jk->ik', got {subscripts!r:.60}.")
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ValueError(f"einsum: {subscripts!r} names {len(parts)} operands, {len(operands)} were given.")
    terms, widest = [], 0
    for part, x in zip(parts, operands, strict=True):
        head, dots, tail = part.partition("...")
        rest = x.ndim - len(head) - len(tail)
        if rest < 0 or (rest > 0 and not dots):
            raise ValueError(f"einsum: {part!r} in {subscripts!r} does not fit a tensor of shape {tuple(x.shape)}.")
        widest = max(widest, rest)
        terms.append([*head, *[-i for i in range(rest, 0, -1)], *tail])
    spread = [-i for i in range(widest, 0, -1)]
    if arrow:
        head, dots, tail = right.partition("...")
        output = [*head, *(spread if dots else []), *tail]
    else:
        letters = [c for term in terms for c in term if isinstance(c, str)]
        output = spread + sorted(c for c in set(letters) if letters.count(c) == 1)
    known = {c for term in terms for c in term}
    if len(set(output)) != len(output) or any(c not in known for c in output):
        raise ValueError(f"einsum: the result of {subscripts!r} repeats a label or names one that no operand has.")
    return terms, output


def _diagonalised(labels, x):
    """A label repeated within an operand takes its diagonal."""
    labels = list(labels)
    for label in set(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            x = diagonal(x, 0, a, b)
            labels = [c for i, c in enumerate(labels) if i not in (a, b)] + [label]
    return labels, x


def _contract(labels, x, other, y, later, dtype):
    """The product of two operands, summed over the labels that nothing later needs."""
    labels, x = _sum_out(labels, x, set(other) | later)
    other, y = _sum_out(other, y, set(labels) | later)
    labels, x = _drop_ones(labels, x, other, y)
    other, y = _drop_ones(other, y, labels, x)
    shared = [c for c in labels if c in other]
    for c in shared:
        if x.shape[labels.index(c)] != y.shape[other.index(c)]:
            raise ValueError(f"einsum: label {c!r} has extents {x.shape[labels.index(c)]} and {y.shape[other.index(c)]}.")
    batch = [c for c in shared if c in later]
    contracted = [c for c in shared if c not in later]
    result = batch + [c for c in labels if c not in shared] + [c for c in other if c not in shared]

    def at(where, names):
        return tuple(where.index(c) for c in names)

    if not contracted:
        missing = [c for c in result if c not in labels], [c for c in result if c not in other]
        x = P.transpose(x, at(labels, [c for c in result if c in labels]))
        y = P.transpose(y, at(other, [c for c in result if c in other]))
        x = P.reshape(x, _with_ones(x.shape, result, missing[0]))
        y = P.reshape(y, _with_ones(y.shape, result, missing[1]))
        if x.dtype != dtype and dtype != "bool":
            x, y = P.convert(x, dtype), P.convert(y, dtype)
        return result, P.mul(*broadcast("einsum", x, y))
    pairs = (at(labels, contracted), at(other, contracted)), (at(labels, batch), at(other, batch))
    return result, P.dot_general(x, y, *pairs, None if x.dtype == dtype or dtype == "bool" else dtype)


def _with_ones(shape, labels, missing):
    extents = iter(shape)
    return tuple(1 if c in missing else next(extents) for c in labels)


def _sum_out(labels, x, needed):
    axes = tuple(i for i, c in enumerate(labels) if c not in needed)
    if not axes:
        return labels, x
    return [c for c in labels if c in needed], P.reduce_sum(x, axes)


def _drop_ones(labels, x, other, y):
    """A label of extent 1 that the other operand has with a greater extent broadcasts: drop it here."""
    axes = [i for i, c in enumerate(labels) if c in other and x.shape[i] == 1 and y.shape[other.index(c)] != 1]
    if not axes:
        return labels, x
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return [c for i, c in enumerate(labels) if i not in axes], P.reshape(x, shape)


def slogdet(x):
    """Signs and logarithms of the absolute values of determinants."""
    return P.slogdet(matrices("slogdet", x, square=True))


def matrices(op, x, square=False):
    """`x` as a floating tensor of rank 2 or more, its last two axes equal if `square`."""
    return check_matrices(op, floating(x), square)


def check_matrices(op, x, square=False):
    """The tensor `x`; ValueError unless its rank is 2 or more, and its last two axes are equal if `square`."""
    if x.ndim < 2:
        raise ValueError(f"{op}: Expected input to have rank >= 2. Received input with shape {tuple(x.shape)}.")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{op}: square matrices are needed, got shape {tuple(x.shape)}.")
    return x
