"""Numbers of 4 bits against NumPy, alone and where a product of few rows reads them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from tests.primitives.checking import same

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(5)
LIMITS = {"int8": (-8, 8), "uint8": (0, 16)}


def packed(x, axis, dtype="int8"):
    """Two of `x` in a byte of `dtype` along `axis`, the even one in its lower half."""
    x = np.moveaxis(x, axis, 0).astype("u1") & 15
    x = np.concatenate([x, np.zeros_like(x[:1])]) if len(x) % 2 else x
    return np.ascontiguousarray(np.moveaxis(x[0::2] | x[1::2] << 4, 0, axis)).view(dtype)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 3, 7, 16, 30, 64]), min_size=1, max_size=3).map(tuple), st.data())
def test_unpacking(shape, data):
    axis, dtype = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from(["int8", "uint8"]))
    x = RNG.integers(*LIMITS[dtype], shape).astype(dtype)
    p, length = from_numpy(packed(x, axis, data.draw(st.sampled_from(["int8", "uint8"])))), shape[axis]
    same(P.unpack_int4(p, axis, length, dtype), x)
    same(Jitted(lambda p: P.add(P.unpack_int4(p, axis, length, dtype), P.full(shape, 1, dtype)))(p), x + 1)
    perm = tuple(reversed(range(len(shape))))
    same(Jitted(lambda p: P.transpose(P.unpack_int4(p, axis, length, dtype), perm))(p), x.T)  # read across lanes
    if length > 3:
        start, limit = [0] * len(shape), list(shape)
        start[axis], limit[axis] = 3, length - 1  # lanes begin in the upper half of a byte
        same(Jitted(lambda p: P.slice(P.unpack_int4(p, axis, length, dtype), start, limit))(p), np.take(x, range(3, length - 1), axis))


def test_unpacking_extents_that_vary():
    unpacked = Jitted(lambda p: P.unpack_int4(p, 1, 2 * p.shape[1]), dynamic=True)
    for shape in ((3, 8), (5, 8), (3, 34), (9, 2)):
        x = RNG.integers(-8, 8, shape).astype("int8")
        same(unpacked(packed(x, 1)), x)
    assert len(unpacked.traces) == 1


def test_what_cannot_be_unpacked():
    x = from_numpy(np.zeros((3, 4), "int8"))
    with pytest.raises(ValueError, match=r"unpack_int4: 9 numbers along axis 1 do not lie in shape \(3, 4\)"):
        P.unpack_int4(x, 1, 9)
    with pytest.raises(TypeError, match="unpack_int4: int8 into float32; both are int8 or uint8"):
        P.unpack_int4(x, 1, 8, "float32")
    with pytest.raises(TypeError, match="unpack_int4: int32"):
        P.unpack_int4(P.convert(x, "int32"), 1, 8)


def launches(compiled):
    (one,) = compiled.traces
    return one.executable.launches


def dequantised(w, scale, zero, groups, columns, dtype="float32"):
    """Weights in groups of rows, each with a scale and a zero point for every column."""
    w = P.unpack_int4(w, 1, columns)
    w = P.sub(P.convert(w, dtype), P.convert(P.gather(zero, (groups,), (0,)), dtype))
    return P.mul(w, P.gather(scale, (groups,), (0,)))


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("depth,columns", [(16, 48), (48, 144), (33, 66), (64, 39), (300, 1040), (9000, 16)])
def test_products_read_weights_as_they_are_stored(rows, depth, columns):
    x, w = RNG.normal(size=(rows, depth)).astype("f4"), RNG.integers(-8, 8, (depth, columns)).astype("i1")
    scale, zero = RNG.normal(size=(4, columns)).astype("f4"), RNG.integers(-8, 8, (4, columns)).astype("i1")
    groups, bias = np.sort(RNG.integers(0, 4, depth)).astype("i4"), RNG.normal(size=columns).astype("f4")
    expected = np.maximum(x.astype("f8") @ ((w.astype("f8") - zero[groups]) * scale[groups]) + bias, 0)

    def dense(x, w, scale, zero, groups, bias):
        y = P.dot_general(x, dequantised(w, scale, zero, groups, columns), ((1,), (0,)))
        return P.relu(P.add(y, P.broadcast(bias, y.shape, (1,))))

    compiled = Jitted(dense, dynamic=False)
    got = to_numpy(compiled(x, packed(w, 1), scale, zero, groups, bias))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())
    if runtime.current_device().traits.schedule == "cpu" and columns % 2 == 0:
        stored = [launch.name for launch in launches(compiled) if "matrix product" not in launch.name]
        assert stored == ([] if rows <= 8 else ["mul"])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16"])
def test_products_convert_what_they_read(dtype):
    x, w = RNG.normal(size=(3, 50)), RNG.integers(0, 2, (50, 70)).astype(np.dtype(dtype))
    compiled = Jitted(lambda x, w: P.dot_general(x, P.convert(w, "float32"), ((1,), (0,))))
    same(compiled(x.astype("f4"), w), x @ w.astype("f8"), 1e-4)
    if runtime.current_device().traits.schedule == "cpu":
        assert len(launches(compiled)) == 1


def test_weights_of_several_axes_and_not_a_number():
    x, w = RNG.normal(size=(2, 40)).astype("f4"), RNG.integers(-8, 8, (40, 6 * 16)).astype("i1")
    scale = np.where(np.arange(96) == 7, np.nan, np.where(np.arange(96) == 50, np.inf, 0.5)).astype("f4")

    def dense(x, w, scale):
        w = P.mul(P.convert(P.unpack_int4(w, 1, 96), "float32"), P.broadcast(scale, (40, 96), (1,)))
        return P.dot_general(x, P.reshape(w, (40, 6, 16)), ((1,), (0,)))

    compiled = Jitted(dense)
    with np.errstate(invalid="ignore"):
        expected = (x.astype("f8") @ (w * scale.astype("f8"))).reshape(2, 6, 16)
    same(compiled(x, packed(w, 1), scale), expected, 1e-4)
    if runtime.current_device().traits.schedule == "cpu":
        assert len(launches(compiled)) == 1


def test_weights_that_others_need_too_are_stored():
    x, w = RNG.normal(size=(2, 32)).astype("f4"), RNG.integers(-8, 8, (32, 64)).astype("i1")

    def twice(x, w):
        w = P.convert(P.unpack_int4(w, 1, 64), "float32")
        return P.dot_general(x, w, ((1,), (0,))), w

    product, whole = Jitted(twice)(x, packed(w, 1))
    same(product, x.astype("f8") @ w, 1e-4)
    same(whole, w.astype("f4"))
