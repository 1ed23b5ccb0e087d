"""keras.ops.numpy against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.ops.numpy import shapes
from tests.ops.samples import BINARY, COUNTS, HOLES, INTS, MASK, UNARY, VECTOR, A, B, C, same


@pytest.mark.parametrize("name", sorted(UNARY))
def test_of_one(name):
    same(getattr(ops, name)(UNARY[name]), getattr(np, name)(UNARY[name]))


@pytest.mark.parametrize("name", sorted(BINARY))
def test_of_two(name):
    same(getattr(ops, name)(*BINARY[name]), getattr(np, name)(*BINARY[name]))


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "less", "divide"])
def test_broadcasting(name):
    for left, right in [(C, A[0]), (A[:, :1], A[:1]), (2.0, A), (A, 3), (C, A)]:
        same(getattr(ops, name)(left, right), getattr(np, name)(left, right))


REDUCTIONS = ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "median", "argmax", "argmin", "nansum", "nanmean"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axis, keepdims):
    if isinstance(axis, tuple) and name.startswith("arg"):
        pytest.skip("one axis only")
    same(getattr(ops, name)(C, axis=axis, keepdims=keepdims), getattr(np, name)(C, axis=axis, keepdims=keepdims))


CASES = [
    (lambda k: k.concatenate([A, B], 1)),
    (lambda k: k.stack([A, B], 1)),
    (lambda k: k.hstack([A, B])),
    (lambda k: k.vstack([VECTOR, VECTOR])),
    (lambda k: k.dstack([A, B])),
    (lambda k: k.split(A, 2, 1)),
    (lambda k: k.split(A, [1, 3], 1)),
    (lambda k: k.array_split(VECTOR, 3)),
    (lambda k: k.tile(A, (2, 1, 2))),
    (lambda k: k.repeat(A, 2, 1)),
    (lambda k: k.repeat(A, [1, 2, 0], 0)),
    (lambda k: k.roll(A, 2, 1)),
    (lambda k: k.roll(A, -1)),
    (lambda k: k.roll(A, (1, 2), (1,))),
    (lambda k: k.roll(A, np.array([1, 2]), np.array([0, 1]))),
    (lambda k: k.moveaxis(C, 0, -1)),
    (lambda k: k.swapaxes(C, 0, 2)),
    (lambda k: k.expand_dims(A, (0, 2))),
    (lambda k: k.pad(A, ((1, 2), (0, 3)))),
    (lambda k: k.pad(A, ((1, 2), (2, 3)), mode="reflect")),
    (lambda k: k.pad(A, ((4, 2), (2, 5)), mode="symmetric")),
    (lambda k: k.pad(A, ((1, 2), (2, 0)), mode="edge")),
    (lambda k: k.pad(A, ((1, 2), (2, 6)), mode="wrap")),
    *[(lambda k, m=m: k.pad(A, ((1, 2), (0, 3)), mode=m)) for m in ("linear_ramp", "maximum", "minimum", "mean", "median")],
    *[(lambda k, m=m: k.pad(INTS, 2, mode=m)) for m in ("linear_ramp", "maximum", "mean")],
    (lambda k: k.take(A, INTS % 3, 0)),
    (lambda k: k.take(C, [-1, 0], 1)),
    (lambda k: k.take_along_axis(A, INTS % 3, 0)),
    (lambda k: k.where(MASK, A, 0.0)),
    (lambda k: k.select([A > 1, A > 0], [A, B], 5.0)),
    (lambda k: k.tensordot(C, C, 1) if False else k.tensordot(C, A, [[1, 2], [0, 1]])),
    (lambda k: k.tensordot(A, B, 0)),
    (lambda k: k.matmul(C, C.swapaxes(1, 2))),
    (lambda k: k.matmul(A, C.swapaxes(1, 2))),
    (lambda k: k.matmul(C, A[0])),
    (lambda k: k.matmul(A[0], C.swapaxes(1, 2))),
    (lambda k: k.einsum("bij,kj->bik", C, A)),
    (lambda k: k.einsum("bij,bkj->bik", C, C)),
    (lambda k: k.einsum("...ij->...ji", C)),
    (lambda k: k.einsum("ii->i", A[:, :3])),
    (lambda k: k.einsum("ij,ij->", A, B)),
    (lambda k: k.einsum("i,j->ij", VECTOR, A[0])),
    (lambda k: k.einsum("bij,ij,kj->bk", C, A, B)),
    (lambda k: k.linspace(0.0, 1.0, 7)),
    (lambda k: k.linspace(A[0], B[0], 5, axis=1)),
    (lambda k: k.logspace(0.0, 2.0, 5)),
    (lambda k: k.geomspace(1.0, 100.0, 5)),
    (lambda k: k.arange(2, 20, 3)),
    (lambda k: k.arange(5, 0, -1)),
    (lambda k: k.arange(0.0, 1.0, 0.3)),
    (lambda k: k.eye(3, 4, 1)),
    (lambda k: k.tri(3, 4, -1)),
    (lambda k: k.tril(C, 1)),
    (lambda k: k.diag(VECTOR, -2)),
    (lambda k: k.diagflat(A, 1)),
    (lambda k: k.diagonal(C, 1, 1, 2)),
    (lambda k: k.meshgrid(VECTOR, A[0])),
    (lambda k: k.meshgrid(VECTOR, A[0], indexing="ij")),
    (lambda k: k.quantile(C, 0.3, axis=(0, 2))),
    (lambda k: k.quantile(A, [0.1, 0.9], axis=1, keepdims=True)),
    (lambda k: k.quantile(A, 0.3, axis=0, method="nearest")),
    (lambda k: k.percentile(A, 40.0, axis=0)),
    (lambda k: k.nanquantile(HOLES, 0.5, axis=0)),
    (lambda k: k.histogram(VECTOR, 4)),
    (lambda k: k.cumsum(C, axis=1)),
    (lambda k: k.diff(A, 2, 0)),
    (lambda k: k.unravel_index(COUNTS, (4, 5))),
    (lambda k: k.argpartition(VECTOR, 2) if k is ops else np.argsort(VECTOR, kind="stable")),
    (lambda k: k.unique(INTS, return_inverse=True, return_counts=True, return_index=True)),
    (lambda k: k.unique(INTS % 2, axis=0)),
    (lambda k: k.clip(A, -0.5, 0.5)),
    (lambda k: k.round(A, 2)),
    (lambda k: k.average(A, axis=1, weights=COUNTS[0])),
    (lambda k: k.average(A, axis=(1,), weights=COUNTS[0])),
    (lambda k: k.broadcast_to(A[:1], (3, 4))),
    (lambda k: k.rot90(A, 3)),
    (lambda k: k.correlate(VECTOR, VECTOR[:4], "full")),
    (lambda k: k.correlate(VECTOR, VECTOR[:4], "same")),
    (lambda k: k.correlate(VECTOR[:4], VECTOR, "same")),
    (lambda k: k.kaiser(5, 3.0)),
    (lambda k: k.isclose(HOLES, HOLES, equal_nan=True)),
    (lambda k: k.allclose(A, A + 1e-9)),
    (lambda k: k.view(INTS, dtype="uint32") if k is ops else INTS.view("uint32")),
]


@pytest.mark.parametrize("name", ["linspace", "logspace", "geomspace"])
@pytest.mark.parametrize("ends", [(1.0, 3.0), (np.float32([1, 2]), np.float32([3, 5]))])
def test_the_number_of_spaced_values_may_be_a_tensor(name, ends):
    for num in (np.array(4), ops.array(4), ops.array([4]), keras.Variable(4, dtype="int32")):
        same(getattr(ops, name)(*ends, num), getattr(np, name)(*ends, 4))
    spaced = keras.layers.Lambda(lambda x: getattr(ops, name)(*ends, x[0]))(keras.Input((), dtype="int32"))
    assert spaced.shape == (None, *np.shape(ends[0]))
    with pytest.raises(RuntimeError, match="`num` must be known where the function is traced"):
        keras_ocl.jit(lambda n: getattr(ops, name)(*ends, n))(ops.array(4))
    same(keras_ocl.jit(lambda x: getattr(ops, name)(*ends, x.shape[0]), dynamic=True)(ops.zeros(5)), getattr(np, name)(*ends, 5))


def test_column_stack():
    for columns in ([VECTOR, VECTOR + 1], [A, B], [A, A[:, 0]], [np.float32(1), np.float32(2)], [VECTOR[:0], VECTOR[:0]]):
        same(shapes.column_stack(columns), np.column_stack(columns))
    with pytest.raises(ValueError, match="column_stack"):
        shapes.column_stack([])


@pytest.mark.parametrize("i", range(len(CASES)))
def test_cases(i):
    same(CASES[i](ops), CASES[i](np))


def test_cross_of_vectors_in_a_plane():
    """The component across it; NumPy takes vectors of three only from 2.5 on."""
    same(ops.cross(A[:, :2], B[:, :2]), A[:, 0] * B[:, 1] - A[:, 1] * B[:, 0])
    flat = np.pad(A[:, :2], ((0, 0), (0, 1)))
    same(ops.cross(A[:, :2], B[:, :3]), np.cross(flat, B[:, :3]))
    same(ops.cross(B[:, :3], A[:, :2]), np.cross(B[:, :3], flat))


INDICES = [
    0, -1, slice(1, None), slice(None, None, -1), slice(-1, None, -2), slice(10, 0, -1), (0, 1), (Ellipsis, 0), (slice(None), None, 1),
    (None, 0, Ellipsis, slice(None, 2)), [0, 1, 1], (slice(None), [2, 0]), (slice(None), slice(None), [0, -1]), ([0, 1], [1, 2]),
    (0, slice(None), [0, 1]), ([[0], [1]], [0, 1]), (slice(None), [[0, 1], [2, 0]], 1), np.array([True, False]), (0, np.array([1, 2, 0])),
    (slice(0, 0),), (Ellipsis, [0, 1], None), np.int64(1),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(INDICES)))
def test_indexing(i):
    key = INDICES[i]
    same(ops.convert_to_tensor(C)[key], C[key])


def test_indexing_by_tensors():
    x = ops.convert_to_tensor(C)
    same(x[ops.convert_to_tensor(1)], C[1])
    same(x[:, ops.convert_to_tensor([2, -1])], C[:, [2, -1]])
    same(x[x > 0], C[C > 0])
    with pytest.raises(IndexError):
        x[5]
    with pytest.raises(IndexError):
        x[0, 0, 0, 0]


def test_reductions_of_numpy_take_tensors():
    x = ops.convert_to_tensor(A)
    for function in (np.sum, np.mean, np.max, np.min, np.any, np.all):
        same(function(x), function(A))
        same(function(x, axis=-1, keepdims=True), function(A, axis=-1, keepdims=True))
    same(np.sum(x, axis=(0, 1)), np.sum(A))
    assert np.sum(x, dtype="float16").dtype == "float16"
    with pytest.raises(TypeError, match="sum: tensors are immutable.*out"):
        np.sum(x, out=np.zeros(()))


def test_operators():
    x = ops.convert_to_tensor(A)
    same(2 - x, 2 - A)
    same(x @ B.T, A @ B.T)
    same(B + x, B + A)
    assert isinstance(B + x, type(x))
    same(-x, -A)
    same(abs(x), abs(A))
    same(x**2, A**2)
    same((x > 0) & (x < 1), (A > 0) & (A < 1))
    same(~(x > 0), ~(A > 0))
    same(x.T, A.T)
    same(np.asarray(x), A)
    assert float(ops.sum(x)) == pytest.approx(float(A.sum()), rel=1e-5)
    assert [int(v) for v in ops.arange(3)] == [0, 1, 2]
    assert bool(ops.all(x == x))
    assert (x == None) is False  # noqa: E711
    assert len(x) == 3
    assert x.tolist() == A.tolist()
    same(np.from_dlpack(x), A)
    with pytest.raises(TypeError, match="immutable"):
        x[0] = 1


def test_dtypes():
    assert ops.add(ops.ones(2, "bfloat16"), 1.5).dtype == "bfloat16"
    assert ops.add(ops.ones(2, "int32"), 1.5).dtype == "float32"
    assert ops.add(ops.ones(2, "uint8"), ops.ones(2, "int8")).dtype == "int16"
    assert ops.sum(ops.ones(2, "bool")).dtype == "int32"
    assert ops.sum(ops.ones(2, "uint8")).dtype == "uint32"
    assert ops.mean(ops.ones(2, "int32")).dtype == "float32"
    assert ops.mean(ops.full((70000,), 2.0, "float16")) == 2.0
    assert ops.convert_to_tensor(np.zeros(2)).dtype == "float32"
    assert ops.convert_to_tensor(np.zeros(2), "int64").dtype == "int64"
    assert ops.convert_to_tensor([1, 2]).dtype == "int32"
    assert ops.convert_to_tensor([1.0, ops.ones(())]).shape == (2,)
    assert ops.matmul(ops.ones((2, 2), "int8"), ops.ones((2, 2), "int8")).dtype == "int32"
    with pytest.raises(TypeError):
        ops.convert_to_tensor(["a"])


def test_errors_name_the_op():
    with pytest.raises(ValueError, match="add"):
        ops.add(A, VECTOR)
    with pytest.raises(ValueError, match="matmul"):
        ops.matmul(A, B)
    with pytest.raises(ValueError, match="reshape"):
        ops.reshape(ops.convert_to_tensor(A), (5, -1))


def test_shapes_are_inferred_without_values():
    x = keras.KerasTensor((None, 3))

    def function(x):
        y = ops.reshape(x, (-1, 3, 1))
        return ops.mean(y, 0), y[:, 1:], ops.concatenate([y, y], 0), ops.arange(ops.shape(x)[0])

    mean, part, twice, count = keras.src.backend.compute_output_spec(function, x)
    assert mean.shape == (3, 1)
    assert part.shape == (None, 2, 1)
    assert twice.shape == (None, 3, 1)
    assert count.shape == (None,) and count.dtype == "int32"
