"""Matrix products: all layouts, batched, with few rows or columns, with fused operations before and after."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import floats, integers, normal, wide

_SIZES = ((65, 130, 257), (129, 67, 40), (17, 33, 9), (256, 128, 64))
_FEW = ((1, 300, 700), (2, 515, 129), (5, 130, 1031), (8, 64, 256), (300, 1, 700), (300, 3, 257))


def cases(traits, short):
    """The cases of products of many rows and columns."""
    found = [case for size in (_SIZES[:1] if short else _SIZES) for case in _layouts("float32", *size)]
    for dtype in floats(traits, short)[1:]:
        found += _layouts(dtype, 65, 130, 257)
    found += [_batched("float32", 3, 33, 35, 70), _fused(67, 131, 190)]
    if not short:
        found += [_batched("float16", 2, 70, 64, 96), _long(48, 40, 20011), _integers(65, 66, 67), *_layouts("bfloat16", 65, 130, 257)]
    return found


def few_rows(traits, short):
    """The cases of products of few rows or columns."""
    sizes = _FEW[::2] if short else _FEW
    return [case for size in sizes for case in _layouts("float32", *size)] + [_batched("float32", 5, 2, 130, 257)]


def of_units(traits, short):
    """The cases of products whose operands matrix units take."""
    sizes = _SIZES[:1] if short else (_SIZES[0], _SIZES[3])
    found = [case for dtype in ("float16", "bfloat16") for size in sizes for case in _layouts(dtype, *size)]
    return [*found, _batched("float16", 2, 70, 64, 96), _integers(65, 66, 67), _integers(128, 256, 128)]


def _product(name, function, a, b, steps, result, magnitudes=None):
    """A Case of products that sum `steps` terms; result(a, b) and magnitudes(a, b): of the wide operands."""
    a64, b64 = wide(a), wide(b)
    scales = magnitudes or result
    return Case(name, function, (a, b), lambda: [result(a64, b64)], 4 + steps**0.5, lambda: [scales(abs(a64), abs(b64))])


def _layouts(dtype, m, n, k):
    """A product with both operands as they are and transposed, all in one function."""
    a, b = normal("left", m, k, dtype=dtype), normal("right", k, n, dtype=dtype)
    turned = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)

    def function(a, b, at, bt):
        return [P.dot_general(x, y, ((i,), (j,))) for x, i in ((a, 1), (at, 0)) for y, j in ((b, 0), (bt, 1))]

    def wanted():
        return [wide(a) @ wide(b)] * 4

    names = ("a b", "a bT", "aT b", "aT bT")
    scales = lambda: [abs(wide(a)) @ abs(wide(b))] * 4  # noqa: E731
    yield Case(f"products of {dtype} {m} x {k} by {k} x {n}", function, (a, b, *turned), wanted, 4 + k**0.5, scales, names)


def _batched(dtype, count, m, n, k):
    a, b = normal("left", count, m, k, dtype=dtype), normal("right", count, n, k, dtype=dtype)

    def function(a, b):
        return P.dot_general(a, b, ((2,), (2,)), ((0,), (0,)))

    name = f"{count} products of {dtype} {m} x {k} by {k} x {n}"
    return _product(name, function, a, b, k, lambda a, b: a @ b.transpose(0, 2, 1))


def _fused(m, n, k):
    """A part of a larger array as left operand, and a bias and relu behind."""
    a, b, bias = normal("left", m + 2, k + 3), normal("right", k, n), normal("bias", n)

    def function(a, b, bias):
        product = P.dot_general(P.slice(a, (2, 3), (m + 2, k + 3)), b, ((1,), (0,)))
        return P.relu(P.add(product, P.broadcast(bias, (m, n), (1,))))

    def wanted():
        return [np.maximum(wide(a)[2:, 3:] @ wide(b) + wide(bias), 0)]

    def scales():
        return [abs(wide(a)[2:, 3:]) @ abs(wide(b)) + abs(wide(bias))]

    return Case(f"product of a part with bias and relu {m} x {k} by {k} x {n}", function, (a, b, bias), wanted, 4 + k**0.5, scales)


def _long(m, n, k):
    a, b = normal("left", k, m), normal("right", k, n)
    name = f"product with a long sum {m} x {k} by {k} x {n}"
    return _product(name, lambda a, b: P.dot_general(a, b, ((0,), (0,))), a, b, k, lambda a, b: a.T @ b)


def _integers(m, n, k):
    a, b = integers("left", -128, 128, m, k, dtype="int8"), integers("right", -128, 128, k, n, dtype="int8")
    wanted = lambda: [a.astype(np.int32) @ b.astype(np.int32)]  # noqa: E731
    return Case(f"product of int8 {m} x {k} by {k} x {n}", lambda a, b: P.dot_general(a, b, ((1,), (0,)), dtype="int32"), (a, b), wanted)
