"""Each primitive's ONNX rule against the primitive itself, with an unknown leading extent."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import jit
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels.elementwise import OPS
from tests.elementwise import ROWS, everywhere

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

from keras_ocl.export.onnx.graph import WHERE_USED  # noqa: E402 (needs onnx)
from keras_ocl.export.onnx.model import REFUSED, RULES, Input, onnx_model  # noqa: E402 (needs onnx)

RNG = np.random.default_rng(11)
NUMBERS = np.concatenate([RNG.normal(size=17) * 2, [0.0, -0.0, 1.0, -1.0, 1e-4, -1e-4, 40.5, -40.5, 2.5, 3.5]]).astype("f4").reshape(9, 3)
SMALL = (np.tanh(NUMBERS) * 0.9).astype("f4")
POSITIVE = np.abs(NUMBERS) + 0.1
INTEGERS = RNG.integers(-9, 9, (9, 3))


def exported(function, *arrays, opset=None, unknown=True):
    """Results of the exported function in ONNX Runtime; first extents are unknown."""
    names = [f"x{k}" for k in range(len(arrays))]
    shapes = [("batch", *a.shape[1:]) if unknown and a.ndim else a.shape for a in arrays]
    inputs = [Input(n, shape, a.dtype.name) for n, shape, a in zip(names, shapes, arrays, strict=True)]

    def listed(*tensors):
        results = function(*tensors)
        return list(results) if isinstance(results, (tuple, list)) else [results]

    model = onnx_model(listed, inputs, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, arrays, strict=True)))


def check(function, *arrays, tolerance=2e-6, **options):
    results = jit(function)(*arrays)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    for got, expected in zip(exported(function, *arrays, **options), map(to_numpy, results), strict=True):
        assert got.shape == expected.shape and got.dtype == expected.dtype
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, expected)


def test_every_primitive_has_a_rule_or_a_reason():
    ours = {name for name in Primitive.registry if name != "project" and not name.startswith("partial_")}
    known = {*RULES, *REFUSED, *(primitive.name for primitive in WHERE_USED)}
    assert ours <= known, f"give {sorted(ours - known)} a rule or a reason in export/onnx/rules/"
    assert not set(RULES) & set(REFUSED)


# ---- elementwise

EXPORTED = {name: row for name, row in ROWS.items() if name in RULES}
FLOATS = {name: row for name, row in EXPORTED.items() if row.floats}
DOMAINS = sorted({(OPS[name].arity, row.domain) for name, row in FLOATS.items()}, key=str)


def applied(names, *operands):
    """The results of these operations, each of as many of the operands as it takes."""
    functions = {"not": P.not_, "and": P.and_, "or": P.or_}
    return [(functions.get(n) or getattr(P, n))(*operands[: OPS[n].arity]) for n in names]


@pytest.mark.parametrize(("arity", "domain"), DOMAINS, ids=lambda x: "" if isinstance(x, int) else " ".join(f.__name__ for f in x))
def test_floats(arity, domain):
    operands = [f(x) for f, x in zip(domain, (NUMBERS, NUMBERS[::-1].copy())[:arity], strict=False)]
    names = [name for name, row in FLOATS.items() if (OPS[name].arity, row.domain) == (arity, domain)]
    check(lambda *operands: applied(names, *operands), *operands, tolerance=5e-6 if everywhere in domain[:1] and arity == 1 else 2e-5)


def test_accurate_near_zero():
    x = np.array([1e-6, -3e-5, 2e-3, 0.49, -0.49, 0.51, -0.51], "f4")
    for function, reference in ((P.expm1, np.expm1), (P.log1p, np.log1p)):
        np.testing.assert_allclose(exported(function, x)[0], reference(x.astype("f8")), rtol=5e-6)


def test_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf, 1.0], "f4")
    check(lambda x: [P.is_nan(x), P.is_inf(x), P.is_finite(x), P.relu(x), P.expm1(x), P.logistic(x), P.max(x, P.zeros_like(x))], x)


def test_select():
    check(lambda a, b: P.select(P.lt(a, b), a, P.zeros_like(b)), POSITIVE, NUMBERS)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8", "uint16", "uint32"])
def test_integers(dtype):
    a, b = INTEGERS.astype(dtype), np.where(INTEGERS[::-1] == 0, 3, INTEGERS[::-1]).astype(dtype)
    shift = (np.abs(INTEGERS) % 7).astype(dtype)
    names = [name for name, row in EXPORTED.items() if row.integers and name != "pow" and not name.startswith("shift")]
    check(lambda a, b, s: applied(names, a, b) + applied(["shift_left", "shift_right"], a, s), a, b, shift)


def test_bools():
    a, b = INTEGERS > 0, INTEGERS % 2 == 0
    names = [name for name, row in EXPORTED.items() if row.bools]
    check(lambda a, b: [*applied(names, a, b), P.select(a, b, a), P.convert(a, "float32")], a, b)


def test_bits_need_opset_18():
    x = np.arange(4, dtype="int32")
    with pytest.raises(NotImplementedError, match="`and` of int32 in the model needs opset 18"):
        exported(lambda x: P.and_(x, x), x, opset=17)


def test_convert():
    dtypes = ("bool", "int32", "int8", "float16", "bfloat16")
    check(lambda x: [P.convert(P.convert(x, dtype), "float32") for dtype in dtypes], NUMBERS)


def test_half_precision():
    x = NUMBERS.astype("float16")
    check(lambda x: P.add(P.tanh(x), P.full(x.shape, 0.5, x.dtype)), x, tolerance=2e-3)


# ---- movement


def test_broadcasts():
    def function(x):
        c = P.slice(x, (0, 0), (x.shape[0], 1))
        r = P.slice(x, (0, 0), (1, 3))
        a = P.add(x, P.broadcast(P.reshape(r, (3,)), x.shape, (1,)))
        b = P.mul(a, P.broadcast(c, x.shape, (0, 1)))
        wide = P.broadcast(P.reshape(c, (x.shape[0],)), (x.shape[0], 4), (0,))
        outer = P.add(wide, P.full(wide.shape, 2, "float32"))
        return a, b, outer, P.broadcast(x, (2, *x.shape), (1, 2)), P.full((x.shape[0], 2), x.shape[0], "int32"), P.constant(3, "float32")

    check(function, NUMBERS)


def test_movement():
    def function(x):
        n = x.shape[0]
        return (
            P.reshape(x, (n * 3,)),
            P.reshape(x, (3, n)),
            P.transpose(x, (1, 0)),
            P.reverse(x, (0, 1)),
            P.slice(x, (1, 0), (n - 1, 3), (2, 2)),
            P.slice(x, (n - 2, 1), (n, 3)),
            P.pad(x, P.constant(7, "float32"), (1, -1), (n, 2)),
            P.pad(x, P.constant(0, "float32"), (0, 1), (-2, 0), (2, 1)),
            P.concat((x, P.exp(x), x), 0),
            P.concat((x, x), 1),
            P.iota((n, 3), 0, "int32"),
            P.mul(x, P.iota((n, 3), 1, "float32")),
        )

    check(function, SMALL)


def test_stored_arrays_are_stored_as_they_are_used():
    kernel = from_numpy(RNG.normal(size=(4, 3)).astype("f4"))
    both = from_numpy(RNG.normal(size=(3, 3)).astype("f4"))

    def function(x):
        once = P.dot_general(x, P.reshape(P.transpose(kernel, (1, 0)), (3, 2, 2)), ((1,), (0,)))
        return [once, P.dot_general(x, P.transpose(both, (1, 0)), ((1,), (1,))), P.dot_general(x, both, ((1,), (1,)))]

    model = onnx_model(function, [Input("x", ("batch", 3), "float32")])
    assert sum(list(i.dims) == [3, 4] for i in model.graph.initializer) == 1
    assert sum(list(i.dims) == [4, 3] for i in model.graph.initializer) == 0
    check(lambda x: function(x), NUMBERS)


# ---- reductions


@pytest.mark.parametrize("opset", [17, 18])
def test_reductions(opset):
    def function(x):
        return [getattr(P, f"reduce_{k}")(x, axes) for k in ("sum", "prod", "max", "min") for axes in ((0,), (1,), (0, 1))]

    check(function, SMALL, opset=opset, tolerance=1e-5)
    check(function, (INTEGERS % 3).astype("int32"), opset=opset)
    check(lambda x: [P.reduce_max(x, (1,)), P.reduce_sum(x, (0,))], (INTEGERS % 3).astype("uint8"), opset=opset)
    check(lambda x: [P.reduce_and(x, (0,)), P.reduce_or(x, (1,)), P.reduce_max(x, (0, 1))], INTEGERS > 0, opset=opset)
    check(lambda x: [P.argmax(x, 0), P.argmin(x, 1, "int64")], INTEGERS.astype("float32"), opset=opset)


def test_running():
    def function(x):
        running = [f(x, axis, reverse) for f in (P.cumsum, P.cumprod, P.cummax, P.cummin) for axis, reverse in ((0, False), (1, True))]
        return [*running, P.linear_recurrence(x, P.exp(x), 0, True)]

    check(function, SMALL, tolerance=1e-5)
    check(lambda x: [P.cumsum(x, 0), P.cummax(x, 1, True)], INTEGERS.astype("int8"))


def test_windows():
    x = RNG.normal(size=(2, 7, 8, 3)).astype("f4")

    def function(x):
        ones = (1, 1, 1, 1)
        whole = P.convert(P.mul(x, P.full(x.shape, 9, x.dtype)), "int32")
        return [
            P.reduce_window(x, "max", (1, 2, 3, 1), (1, 2, 1, 1), ((0, 0), (1, 0), (0, 1), (0, 0)), ones),
            P.reduce_window(x, "min", (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1, 2, 1, 1)),
            P.reduce_window(x, "sum", (1, 3, 2, 1), (1, 1, 2, 1), ((0, 0), (1, 1), (3, 2), (0, 0)), ones),
            P.reduce_window(x, "sum", (1, 1, 1, 1), (1, 2, 3, 1), ((0, 0),) * 4, ones),
            P.reduce_window(x, "max", (2, 1, 1, 3), ones, ((0, 1), (0, 0), (0, 0), (0, 0)), ones),
            P.reduce_window(whole, "max", (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, ones),
        ]

    check(function, x, tolerance=1e-5)
    dilated = lambda x: P.reduce_window(x, "sum", (1, 2, 2, 1), (1, 1, 1, 1), ((0, 0),) * 4, (1, 2, 1, 1))  # noqa: E731
    check(dilated, x, opset=19, tolerance=1e-5)
    with pytest.raises(NotImplementedError, match="dilated sum .* needs opset 19"):
        exported(dilated, x)


# ---- products


def test_products():
    a, b, c = (RNG.normal(size=s).astype("f4") for s in ((4, 3, 5, 2), (4, 5, 3, 6), (5, 2, 7, 3)))

    def function(a, b):
        w = from_numpy(c)
        return [
            P.dot_general(a, b, ((2,), (1,)), ((0, 1), (0, 2))),
            P.dot_general(a, b, ((2, 1), (1, 2)), ((0,), (0,))),
            P.dot_general(a, w, ((2, 3), (0, 1))),
            P.dot_general(a, w, ((2,), (0,))),
            P.dot_general(P.reshape(a, (a.size,)), P.reshape(a, (a.size,)), ((0,), (0,))),
            P.dot_general(a, b, ((), ()), ((0,), (0,))),
            P.dot_general(P.convert(a, "int8"), P.convert(b, "int8"), ((2,), (1,)), ((0, 1), (0, 2)), "int32"),
        ]

    check(function, a, b, tolerance=1e-5)


def test_attention():
    query, key, value = (RNG.normal(size=s).astype("f4") for s in ((2, 5, 4, 3), (2, 6, 2, 3), (2, 6, 2, 5)))
    bias, mask = RNG.normal(size=(2, 1, 5, 6)).astype("f4"), RNG.integers(0, 4, (2, 4, 1, 6)) > 0

    def function(query, key, value, bias, mask):
        return [P.attention(query, key, value, bias, mask, 0.7, False), P.attention(query, key, value, None, None, 0.5, True)]

    check(function, query, key, value, bias, mask, tolerance=1e-5)


CONVOLUTIONS = {
    "plain": ((1, 2), ((1, 1), (0, 1)), (1, 1), (1, 1), 1),
    "dilated, grouped": ((1, 1), ((2, 1), (0, 0)), (2, 1), (1, 1), 2),
    "cropped": ((1, 1), ((-1, 0), (2, -1)), (1, 1), (1, 1), 1),
    "spread": ((2, 1), ((1, 1), (1, 2)), (1, 1), (2, 3), 1),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name):
    params = CONVOLUTIONS[name]
    x = RNG.normal(size=(2, 6, 5, 4)).astype("f4")
    w = from_numpy(RNG.normal(size=(3, 2, 4 // params[-1], 6)).astype("f4"))
    check(lambda x: P.conv(x, w, *params), x, tolerance=1e-5)


@pytest.mark.parametrize(
    ("extents", "params"),
    [
        ((9, 7), ((2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)),
        ((8, 6), ((2, 1), ((1, 0), (0, 1)), (1, 2), (1, 1), 2)),
        ((12, 8), ((2, 2), ((-2, -1), (0, -1)), (1, 1), (1, 1), 1)),
    ],
)
def test_transposed_convolution(extents, params):
    w = from_numpy(RNG.normal(size=(3, 2, 4 // params[-1], 6)).astype("f4"))
    shape = P.conv_output_shape((2, *extents, 4), (3, 2, 4 // params[-1], 6), **dict(zip(
        ("strides", "padding", "dilation", "input_dilation", "groups"), params, strict=True)))  # fmt: skip
    dy = RNG.normal(size=shape).astype("f4")
    check(lambda dy: P.conv_input_grad(dy, w, (dy.shape[0], *extents, 4), *params), dy, tolerance=1e-5)


# ---- indexing


def test_numbers_of_four_bits():
    x = RNG.integers(-128, 128, (4, 6)).astype("i1")
    for dtype in ("int8", "uint8"):
        check(lambda x, dtype=dtype: P.unpack_int4(x, 1, 12, dtype), x)
        check(lambda x, dtype=dtype: P.unpack_int4(x, 1, 11, dtype), x.view("u1"))
        check(lambda x, dtype=dtype: P.unpack_int4(x, 0, 2 * x.shape[0] - 1, dtype), x)


def test_gather_and_scatter():
    x = RNG.normal(size=(5, 4, 3)).astype("f4")
    at, other = np.array([[0, 3], [-1, 9]], "i4"), np.array([[1, 2], [0, 3]], "i4")
    updates = RNG.normal(size=(2, 2, 3)).astype("f4")

    def function(x, at, other, updates):
        def scattered(mode):
            return P.scatter(x, (at, other), updates, (0, 1), mode)

        return [
            P.gather(x, (at,), (1,)),
            P.gather(x, (at, other), (0, 2)),
            *(scattered(m) for m in ("set", "add", "mul", "max", "min")),
            P.scatter_new((5, 4, 3), (at, other), updates, (0, 1)),
            P.scatter_new((3, 6), (at,), P.exp(updates), (1,), "set"),
        ]

    check(function, x, at, other, updates, unknown=False, tolerance=1e-5)


def test_slices_at_computed_positions():
    x, update = RNG.normal(size=(6, 5)).astype("f4"), RNG.normal(size=(2, 3)).astype("f4")
    for i, j in ((1, 2), (-3, 9)):
        starts = np.array(i, "i4"), np.array(j, "i4")
        check(lambda x, i, j: P.dynamic_slice(x, (i, j), (2, 3)), x, *starts)
        check(lambda x, u, i, j: P.dynamic_update_slice(x, u, (i, j)), x, update, *starts, unknown=False)


def test_sorting():
    x = RNG.permutation(24).reshape(4, 6).astype("f4")
    groups = (x % 3).astype("i4")
    check(lambda x: [*P.sort((x,), 0), P.top_k(x, 3)[0], P.top_k(x, 2)[1]], x)
    check(lambda g, x: P.sort((g, x, P.iota(x.shape, 1, "int32")), 1, keys=2), groups, x)


# ---- what has no operator


def test_refused():
    x = np.ones((1, 2, 2), "f4")
    for function, message in [
        (P.erf_inv, "`erf_inv` of the model cannot be exported: ONNX has no such operator"),
        (P.inverse, "`inverse` of the model cannot be exported: ONNX has no such decomposition"),
        (lambda x: P.real(P.complex(x, x)), "`complex` of the model cannot be exported: ONNX has no complex arithmetic"),
        (lambda x: P.random_bits(P.convert(P.reduce_sum(x, (0, 1)), "uint32"), (3,)), "keeps no state"),
    ]:
        with pytest.raises(NotImplementedError, match=message):
            exported(function, x)
    check(P.det, np.array([[[2.0, 1.0], [3.0, 4.0]]], "f4"))
