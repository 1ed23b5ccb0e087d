"""dot_general and convolutions: values against NumPy, gradients against differences."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from tests.primitives.checking import check_gradient, same

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(3)


def reference(a, b, contract, batch):
    """dot_general by einsum, in float64."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in a.shape]
    right = [next(letters) for _ in b.shape]
    for i, j in zip(contract[0] + batch[0], contract[1] + batch[1], strict=True):
        right[j] = left[i]
    out = [left[i] for i in batch[0]]
    out += [c for i, c in enumerate(left) if i not in contract[0] + batch[0]]
    out += [c for j, c in enumerate(right) if j not in contract[1] + batch[1]]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_axes(data):
    extents = st.integers(1, 4)
    sizes = {kind: data.draw(st.lists(extents, max_size=2)) for kind in ("batch", "contract", "left", "right")}

    def operand(free):
        order = data.draw(st.permutations(range(len(sizes["batch"]) + len(sizes["contract"]) + len(free))))
        shape = [None] * len(order)
        for n, place in zip(sizes["batch"] + sizes["contract"] + free, order, strict=True):
            shape[place] = n
        nb = len(sizes["batch"])
        return RNG.normal(size=shape).astype("f4"), tuple(order[:nb]), tuple(order[nb : nb + len(sizes["contract"])])

    a, ab, ac = operand(sizes["left"])
    b, bb, bc = operand(sizes["right"])
    result = P.dot_general(from_numpy(a), from_numpy(b), (ac, bc), (ab, bb))
    same(result, reference(a, b, (ac, bc), (ab, bb)), 1e-5)


BIG = [
    ((32, 48), (48, 40), ((1,), (0,)), ((), ())),
    ((48, 32), (40, 48), ((0,), (1,)), ((), ())),
    ((3, 20, 32), (3, 32, 33), ((2,), (1,)), ((0,), (0,))),
    ((2, 15, 3, 32), (2, 17, 3, 32), ((3,), (3,)), ((0, 2), (0, 2))),
    ((6, 10, 32), (32, 4, 16), ((2,), (0,)), ((), ())),
    ((6, 10, 32), (32, 4, 7), ((2,), (0,)), ((), ())),
    ((6, 10, 4, 16), (4, 16, 33), ((2, 3), (0, 1)), ((), ())),
    ((1, 300), (300, 50), ((1,), (0,)), ((), ())),
    ((300,), (300,), ((0,), (0,)), ((), ())),
    ((40,), (50,), ((), ()), ((), ())),
    ((0, 5), (5, 3), ((1,), (0,)), ((), ())),
    ((4, 0), (0, 3), ((1,), (0,)), ((), ())),
]


@pytest.mark.parametrize("a,b,contract,batch", BIG)
def test_templates(a, b, contract, batch):
    a, b = RNG.normal(size=a).astype("f4"), RNG.normal(size=b).astype("f4")
    same(P.dot_general(from_numpy(a), from_numpy(b), contract, batch), reference(a, b, contract, batch), 1e-4)


def kernels(compiled):
    (only,) = compiled.traces
    return only.executable.launches


ONE_COLUMN = [
    ((1, 1024), (1024, 1), ((1,), (0,)), ((), ())),
    ((1024, 1), (1024, 1), ((0,), (0,)), ((), ())),
    ((1024,), (1024,), ((0,), (0,)), ((), ())),
    ((300, 700), (300, 1), ((0,), (0,)), ((), ())),
    ((300, 7, 13), (300,), ((0,), (0,)), ((), ())),
    ((9, 60, 5), (9, 60, 1), ((0, 1), (0, 1)), ((), ())),
    ((3, 70, 50), (3, 70, 1), ((1,), (1,)), ((0,), (0,))),
    ((3, 70, 6, 7), (3, 1, 70, 1), ((1,), (2,)), ((0,), (0,))),
]


@pytest.mark.parametrize("a,b,contract,batch", ONE_COLUMN)
def test_one_column(a, b, contract, batch):
    """The operand's rows are contiguous: lanes run along them, in the kernel's epilogue too."""
    a, b = RNG.normal(size=a).astype("f4"), RNG.normal(size=b).astype("f4")
    expected = reference(a, b, contract, batch)
    same(P.dot_general(from_numpy(a), from_numpy(b), contract, batch), expected, 1e-4)
    bias = RNG.normal(size=expected.shape).astype("f4")
    compiled = Jitted(lambda x, y, z: P.relu(P.add(P.dot_general(x, y, contract, batch), z)))
    same(compiled(from_numpy(a), from_numpy(b), from_numpy(bias)), np.maximum(expected + bias, 0), 1e-4)
    if runtime.current_device().traits.schedule == "cpu":
        (kernel,) = kernels(compiled)
        assert "vload" in kernel.body


OUTER = [
    ((40, 1), (1, 50), ((1,), (0,)), ((), ())),
    ((1, 40), (50, 1), ((0,), (1,)), ((), ())),
    ((7, 1, 4), (5, 7, 1, 3), ((1,), (2,)), ((0,), (1,))),
    ((1, 3, 1, 4), (1, 5, 1), ((2, 0), (0, 2)), ((), ())),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("a,b,contract,batch", OUTER)
def test_outer_products(a, b, contract, batch, dtype):
    """One product per element is elementwise work, which fuses (floats)."""
    a, b = (RNG.integers(-5, 6, shape).astype(dtype) for shape in (a, b))
    compiled = Jitted(lambda x, y: P.relu(P.neg(P.dot_general(x, y, contract, batch))))
    same(compiled(from_numpy(a), from_numpy(b)), np.maximum(-reference(a.astype("i8"), b.astype("i8"), contract, batch), 0).astype(dtype))
    if dtype != "int32":
        (kernel,) = kernels(compiled)
        assert "product" not in kernel.name


@pytest.mark.parametrize("dtype,result", [("int8", None), ("int8", "int32"), ("uint8", None), ("int64", None), ("bool", None)])
@pytest.mark.parametrize("size", [3, 40])
def test_integers(dtype, result, size):
    a, b = (RNG.integers(0, 3, (size, size)).astype(dtypes.numpy_dtype(dtype)) for _ in range(2))
    expected = a.astype("i8") @ b.astype("i8")
    same(P.dot_general(from_numpy(a), from_numpy(b), ((1,), (0,)), dtype=result), expected.astype(dtypes.numpy_dtype(result or dtype)))


@pytest.mark.parametrize("size", [5, 40])
def test_narrow_floats_and_complex(size):
    a, b = RNG.integers(-3, 4, (2, size, size))
    for dtype in ("float16", "bfloat16"):
        x, y = (from_numpy(v.astype(dtypes.numpy_dtype(dtype))) for v in (a, b))
        same(P.dot_general(x, y, ((1,), (0,)), dtype="float32"), a @ b)
        same(P.dot_general(x, y, ((1,), (0,))), (a @ b).astype(dtypes.numpy_dtype(dtype)))
    x, y = (a + 1j * b).astype("c8"), (b - 2j * a).astype("c8")
    same(P.dot_general(from_numpy(x), from_numpy(y), ((1,), (0,))), x @ y, 1e-5)


@pytest.mark.parametrize(
    "a,b,contract,batch",
    [
        ((3, 4), (4, 2), ((1,), (0,)), ((), ())),
        ((4, 3), (2, 4), ((0,), (1,)), ((), ())),
        ((2, 3, 4), (4, 2, 5), ((2,), (0,)), ((0,), (1,))),
        ((3, 2, 4), (4, 5, 2), ((1, 2), (2, 0)), ((), ())),
        ((9, 16), (16, 8), ((1,), (0,)), ((), ())),
    ],
)
def test_product_gradients(a, b, contract, batch):
    check_gradient(lambda x, y: P.dot_general(x, y, contract, batch), RNG.normal(size=a), RNG.normal(size=b))


def test_product_errors():
    a, b = from_numpy(np.zeros((2, 3), "f4")), from_numpy(np.zeros((4, 2), "f4"))
    with pytest.raises(ValueError, match="dot_general.*contracted"):
        P.dot_general(a, b, ((1,), (0,)))
    with pytest.raises(TypeError, match="dot_general.*dtypes"):
        P.dot_general(a, from_numpy(np.zeros((3, 2), "i4")), ((1,), (0,)))


# ---- convolution


def convolve(x, w, strides, padding, dilation, input_dilation, groups):
    """The definition, in float64."""
    rank = x.ndim - 2
    spread = np.zeros((x.shape[0], *((n - 1) * d + 1 for n, d in zip(x.shape[1:-1], input_dilation, strict=True)), x.shape[-1]))
    spread[(slice(None), *(slice(None, None, d) for d in input_dilation))] = x
    spread = np.pad(spread, [(0, 0), *padding, (0, 0)])
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[:rank], dilation, strict=True)]
    out = [(n - k) // s + 1 for n, k, s in zip(spread.shape[1:-1], window, strides, strict=True)]
    result = np.zeros((x.shape[0], *out, w.shape[-1]))
    inputs, outputs = w.shape[-2], w.shape[-1] // groups
    for taps in itertools.product(*map(range, w.shape[:rank])):
        where = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(taps, dilation, out, strides, strict=True))
        part = spread[(slice(None), *where)]
        for g in range(groups):
            piece = part[..., g * inputs : (g + 1) * inputs] @ w[taps][:, g * outputs : (g + 1) * outputs]
            result[..., g * outputs : (g + 1) * outputs] += piece
    return result


CONVOLUTIONS = [
    ((2, 7, 6, 4), (3, 3, 4, 5), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1),
    ((2, 8, 7, 4), (3, 2, 2, 6), (2, 1), ((0, 1), (1, 0)), (1, 2), (1, 1), 2),
    ((1, 5, 4, 3), (2, 2, 3, 2), (1, 1), ((2, 1), (0, 2)), (1, 1), (2, 3), 1),
    ((2, 9, 3), (4, 1, 6), (2,), ((2, 1),), (1,), (1,), 3),
    ((1, 4, 5, 3, 2), (2, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (1, 0)), (1, 1, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("x,w,strides,padding,dilation,spread,groups", CONVOLUTIONS)
def test_convolution(x, w, strides, padding, dilation, spread, groups):
    x, w = RNG.normal(size=x), RNG.normal(size=w)
    params = (strides, padding, dilation, spread, groups)
    y = P.conv(from_numpy(x.astype("f4")), from_numpy(w.astype("f4")), *params)
    same(y, convolve(x.astype("f4"), w.astype("f4"), *params), 1e-4)
    check_gradient(lambda a, b: P.conv(a, b, *params), x, w)


def test_convolution_errors():
    x, w = from_numpy(np.zeros((2, 7, 6, 4), "f4")), from_numpy(np.zeros((3, 3, 3, 5), "f4"))
    with pytest.raises(ValueError, match="groups"):
        P.conv(x, w, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)
    with pytest.raises(ValueError, match="strides"):
        P.conv(x, w, (1,), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)
    for dtype in ("int8", "int32"):  # no kernel, and so no integer matrix unit, convolves integers
        with pytest.raises(TypeError, match=f"{dtype}, {dtype}; convert them to one float dtype"):
            P.conv(*(from_numpy(np.zeros(shape, dtype)) for shape in (x.shape, (3, 3, 4, 5))), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)
