"""Every elementwise op against NumPy and SciPy in float64, at one lane and at vector width, special values included."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.kernels import elementwise, prelude
from keras_ocl.runtime.programs import UNOPTIMISED
from tests.drivers import division_ulps, loses_int8_selects
from tests.elementwise import ROWS

RNG = np.random.default_rng(7)
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DENORMALS = 1  # CL_FP_DENORM
SMALL_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class Case:
    """One op on given inputs. `ulps` is the tolerance in units of the output's epsilon (0: equal to the bit)."""

    def __init__(self, op, out_dtype, inputs, in_dtypes, expected, ulps=0.0, atol=0.0):
        count = max(len(x) for x in inputs)
        self.count = -(-count // 16) * 16
        self.op, self.out_dtype, self.in_dtypes = op, out_dtype, in_dtypes
        self.inputs = [np.resize(x, self.count) for x in inputs]
        self.expected = np.resize(expected, self.count)
        self.ulps, self.atol = ulps, atol
        self.results = {}

    @property
    def widths(self):
        wide = 8 if "float64" in (self.out_dtype, *self.in_dtypes) else 16
        # The gpu schedule works on one element at a time, and so does all code for complex numbers.
        one = runtime.current_device().traits.schedule == "gpu" or any(map(dtypes.is_complex, (self.out_dtype, *self.in_dtypes)))
        return (1,) if one else (1, wide)

    def operands(self):
        return [f"v{k}" for k in range(len(self.in_dtypes))]

    def kernel(self, name, width):
        """The kernel's text and the helper functions it needs."""
        operands = self.operands()
        op_dtypes = self.in_dtypes if len(operands) == len(self.in_dtypes) else self.in_dtypes * len(operands)
        value, needs = elementwise.emit(self.op, width, self.out_dtype, op_dtypes, operands)
        parameters, text = [], ""
        for k, dtype in enumerate(self.in_dtypes):
            parameters.append(f"__global const {dtypes.storage_ctype(dtype)}* x{k}")
            text += f"  {prelude.register_type(dtype, width)} v{k} = {prelude.load(dtype, width, f'x{k}', 'i')};\n"
            needs = needs | prelude.helpers_for(dtype, width)
        needs = needs | prelude.helpers_for(self.out_dtype, width)
        text += f"  {prelude.register_type(self.out_dtype, width)} r = {value};\n"
        text += f"  {prelude.store(self.out_dtype, width, 'y', 'i', 'r')}\n"
        parameters.append(f"__global {dtypes.storage_ctype(self.out_dtype)}* y")
        return f"__kernel void {name}({', '.join(parameters)}) {{\n  const int i = get_global_id(0) * {width};\n{text}}}\n", needs

    def check(self):
        for width, got in self.results.items():
            bad = self._mismatches(got)
            if bad.any():
                k = np.flatnonzero(bad)
                operands = [x[k[:5]].tolist() for x in self.inputs]
                pytest.fail(
                    f"{self.op} {'/'.join(self.in_dtypes)}->{self.out_dtype} width {width}: {len(k)} wrong, at {operands}: "
                    f"{got[k[:5]].tolist()} instead of {self.expected[k[:5]].tolist()}"
                )

    def _mismatches(self, got):
        expected = self.expected
        if got.dtype.kind == "c":
            parts = (np.real, np.imag)
            near = self.ulps * EPSILON[dtypes.part(self.out_dtype)]
            return np.any([_differs(p(got), p(expected), near, self.atol) for p in parts], axis=0)
        if not dtypes.is_float(self.out_dtype):
            return got != expected
        wide = got.astype(np.float64)
        return _differs(wide, expected.astype(np.float64), self.ulps * EPSILON.get(self.out_dtype, 0), self.atol)


def _differs(got, expected, rtol, atol):
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(all="ignore"):
        close = np.isfinite(expected) & (np.abs(got - expected) <= atol + rtol * np.abs(expected))
    return ~(same | close)


def quiet(function, *args):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*args)


def floats(dtype, scale=3.0):
    """Special values, everyday ones and many magnitudes, in `dtype`."""
    info = ml_dtypes.finfo(dtypes.numpy_dtype(dtype))
    tiny, least, largest = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    special_values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, np.nan, np.inf, -np.inf, largest, -largest]
    special_values += [tiny, -tiny, least, -least, 3 * least, tiny * 0.75, 88.5, -88.5, 103.0, -103.0, 20.0, -20.0, 0.999, -0.999]
    magnitudes = 10.0 ** RNG.uniform(np.log10(tiny), np.log10(largest), 60) * RNG.choice([-1, 1], 60)
    values = np.concatenate([special_values, RNG.normal(size=200) * scale, magnitudes])
    return quiet(values.astype, dtypes.numpy_dtype(dtype))


def integers(dtype):
    info = np.iinfo(dtype)
    edge = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, info.max, info.max - 1, info.min, info.min + 1]
    edge += [-1, -2, -3, -7] if info.min < 0 else []
    return np.concatenate([np.array(edge, dtype), RNG.integers(info.min, info.max, 60, dtype, endpoint=True), np.arange(30).astype(dtype)])


def pairs(values, count=600):
    """Two operands: all pairs of the first values, and random pairs."""
    head = values[:24]
    a, b = np.repeat(head, len(head)), np.tile(head, len(head))
    return np.concatenate([a, RNG.choice(values, count)]), np.concatenate([b, RNG.choice(values, count)])


def float_cases(dtype, denormals):
    # Functions are exact to rounding of float32 before a smaller type is stored; denormal results may be flushed.
    tiny = float(ml_dtypes.finfo(dtypes.numpy_dtype(dtype)).tiny)
    x, values = floats(dtype), floats(dtype)
    if not denormals:
        values = np.where(np.abs(values) < tiny, 0, values).astype(values.dtype)
    a, b = pairs(values)
    for op, row in ROWS.items():
        if row.floats is None:
            continue
        unary = elementwise.OPS[op].arity == 1
        inputs = [x[x != -np.inf] if op == "lgamma" else x] if unary else [a, b]  # Mesa's is -inf there, as SciPy's and against C
        y = quiet(row.floats, *(i.astype(row.wide(dtype)) for i in inputs))
        if row.predicate:
            yield Case(op, "bool", inputs, [dtype] * len(inputs), y)
            continue
        ulps = division_ulps() if op == "div" and dtype != "float64" else row.ulps
        slack = ulps if dtype in ("float32", "float64") else min(ulps, 1)
        lost = tiny if ulps or not unary and not denormals else 0
        yield Case(op, dtype, inputs, [dtype] * len(inputs), quiet(y.astype, x.dtype), slack, lost + row.atol * EPSILON[dtype])
    mask = RNG.random(len(a)) < 0.5
    yield Case("select", dtype, [mask, a, b], ["bool", dtype, dtype], np.where(mask, a, b))


def integer_cases(dtype):
    x, (a, b) = integers(dtype), pairs(integers(dtype))
    for op, row in ROWS.items():
        if row.integers is None:
            continue
        inputs = [x] if elementwise.OPS[op].arity == 1 else [a, b]
        if op.startswith("shift"):
            other = np.abs(b.astype("int64")).astype(dtype)
            inputs[1] = np.where(other < 0, 1, other).astype(dtype)
        y = quiet(row.integers, *inputs)
        if y.dtype == object:
            bits = 8 * x.itemsize
            y = np.array([int(v) & ((1 << bits) - 1) for v in y], f"uint{bits}").view(dtype)
        yield Case(op, "bool" if row.predicate else dtype, inputs, [dtype] * len(inputs), y)
    mask = RNG.random(len(a)) < 0.5
    yield Case("select", dtype, [mask, a, b], ["bool", dtype, dtype], np.where(mask, a, b))


def bool_cases():
    a, b = np.array([False, False, True, True] * 4), np.array([False, True, False, True] * 4)
    for op, row in ROWS.items():
        if row.bools is not None:
            inputs = [a, b][: elementwise.OPS[op].arity]
            yield Case(op, "bool", inputs, ["bool"] * len(inputs), row.bools(*inputs))
    yield Case("select", "bool", [a, b, ~b], ["bool"] * 3, np.where(a, b, ~b))


def saturating(x, dtype):
    """Truncated floats as integers: NaN to 0, what is out of range to the nearest limit."""
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    clipped = [0 if np.isnan(v) else high if v >= high else low if v <= low else int(v) for v in x.astype("f8").tolist()]
    return np.array(clipped, dtype)


def convert_cases(source, targets):
    if source == "bool":
        x = np.array([False, True] * 8)
    elif dtypes.is_float(source):
        x = floats(source, 300.0)
    else:
        x = integers(source)
    for target in targets:
        if target == source:
            continue
        if dtypes.is_integer(target) and dtypes.is_float(source):
            y = saturating(x, target)
        elif source == "float64" and target == "bfloat16" or dtypes.is_integer(source) and target in SMALL_FLOATS:
            y = quiet(lambda t=target: x.astype(np.float32).astype(dtypes.numpy_dtype(t)))
        else:
            y = quiet(x.astype, dtypes.numpy_dtype(target))
        yield Case("convert", target, [x], [source], y)


def bitcast_cases():
    groups = [("int8", "uint8"), ("int16", "uint16", "float16", "bfloat16"), ("int32", "uint32", "float32"), ("int64", "uint64")]
    for group in groups:
        for source in group:
            for target in group:
                x = integers(source) if dtypes.is_integer(source) else floats(source)
                x = x[~np.isnan(x)] if dtypes.is_float(source) else x
                y = x.view(dtypes.numpy_dtype(target))
                if dtypes.is_float(target):
                    x, y = x[~np.isnan(y)], y[~np.isnan(y)]
                yield Case("bitcast", target, [x], [source], y)


def complex_cases(dtype):
    part = dtypes.part(dtype)
    near = 1e-6 if part == "float32" else 1e-14

    def make():
        return (RNG.normal(size=64) + 1j * RNG.normal(size=64)).astype(dtype)

    a, b, c = make(), make(), RNG.normal(size=64).astype(part)
    b[:8] = a[:8]
    odd = np.array([np.nan, np.inf, 1j * np.nan, 1j * np.inf] * 16, dtype)
    for op, row in ROWS.items():
        if row.complexes is not None:
            inputs = [np.where(RNG.random(64) < 0.2, odd, a) if op.startswith("is_") else a, b][: elementwise.OPS[op].arity]
            y = quiet(row.complexes, *inputs)
            yield Case(op, str(y.dtype), inputs, [dtype] * len(inputs), y, 4, near)
    yield Case("complex", dtype, [c, c[::-1]], [part] * 2, (c + 1j * c[::-1]).astype(dtype))
    yield Case("convert", dtype, [c], [part], c.astype(dtype))
    yield Case("convert", part, [a], [dtype], a.real)
    yield Case("convert", "bool", [a * (c > 0)], [dtype], c > 0)
    if dtype == "complex128":
        yield Case("convert", "complex64", [a], [dtype], a.astype("complex64"))
        yield Case("convert", dtype, [a.astype("complex64")], ["complex64"], a.astype("complex64").astype(dtype))


def threefry(key0, key1, low, high):
    """The reference: Threefry-2x32 with 20 rounds, first word."""
    keys = [key0, key1, 0x1BD11BDA ^ key0 ^ key1]
    x, y = (low + key0) % 2**32, (high + key1) % 2**32
    for i, r in enumerate([13, 15, 26, 6, 17, 29, 16, 24] * 2 + [13, 15, 26, 6]):
        x = (x + y) % 2**32
        y = ((y << r | y >> (32 - r)) % 2**32) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x, y = (x + keys[j % 3]) % 2**32, (y + keys[(j + 1) % 3] + j) % 2**32
    return x


class Threefry(Case):
    """random_bits takes vectors of the low word of the counter only, scalars for the rest."""

    def __init__(self, key0, key1, low, high):
        expected = np.array([threefry(key0, key1, int(x), high) for x in low], np.uint32)
        super().__init__("threefry", "uint32", [low], ["uint32"], expected)
        self.scalars = (f"{key0}u", f"{key1}u", f"{high}u")

    def operands(self):
        key0, key1, high = self.scalars
        return [key0, key1, "v0", high]


def all_cases(device):
    available = ["float32", "float16", "bfloat16"] + (["float64"] if device.traits.fp64 else [])
    for dtype in available:
        yield from float_cases(dtype, dtype not in ("float32", "bfloat16") or bool(device.driver.handle.single_fp_config & DENORMALS))
    for dtype in INTEGERS:
        yield from integer_cases(dtype)
    yield from bool_cases()
    everything = ["bool", *INTEGERS, *available]
    for dtype in everything:
        yield from convert_cases(dtype, everything)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        yield from convert_cases(dtype, (*SMALL_FLOATS, *everything[-1:], "float32", "bool", "uint8", "int64"))
        for source in dict.fromkeys(("float32", everything[-1], "uint8", "int64")):
            yield from convert_cases(source, [dtype])
    yield from bitcast_cases()
    for dtype in ("complex64", "complex128") if device.traits.fp64 else ("complex64",):
        yield from complex_cases(dtype)
    for key0, key1, high in ((0, 0, 0), (2**32 - 1, 2**32 - 1, 2**32 - 1), (0x13198A2E, 0x03707344, 0x85A308D3)):
        edge = np.array([0, 2**32 - 1, 0x243F6A88, 1], np.uint32)
        yield Threefry(key0, key1, np.concatenate([edge, RNG.integers(0, 2**32, 60, np.uint32)]), high)


def test_threefry_reference_gives_the_known_answers():
    assert threefry(0, 0, 0, 0) == 0x6B200159
    assert threefry(*[2**32 - 1] * 4) == 0x1CB996FC
    assert threefry(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3) == 0xC4923A9C


@pytest.fixture(scope="module")
def cases():
    found = {}
    for case in all_cases(runtime.current_device()):
        found.setdefault(case.op, []).append(case)
    return found


def run(device, cases, options=""):
    """Fill in the cases' results; one program for all of their kernels."""
    kernels = {}
    alone = "__attribute__((intel_vec_len_hint(1))) " if device.traits.vec_len_hint else ""  # as the compiler writes them (program_specs)
    for n, case in enumerate(cases):
        for width in case.widths:
            text, helpers = case.kernel(f"k{n}_{width}", width)
            kernels[n, width] = (f"k{n}_{width}", text.replace("__kernel ", f"__kernel {alone}", 1), prelude.pieces(helpers))
    built = device.build(kernels.values(), options)
    for (n, width), (name, *_) in kernels.items():
        case = cases[n]
        out = device.allocate(case.count * dtypes.itemsize(case.out_dtype), "a test's result")
        inputs = [device.upload(x) for x in case.inputs]
        kernel = built[name]
        for position, storage in enumerate([*inputs, out]):
            runtime.set_argument(kernel, position, storage)
        device.enqueue(kernel, (case.count // width,), None)
        case.results[width] = device.download(out, dtypes.numpy_dtype(case.out_dtype), (case.count,))


@pytest.mark.parametrize("op", sorted(elementwise.OPS))
def test_agrees_with_numpy(cases, op):
    device, cases = runtime.current_device(), cases[op]
    if op in ("div", "floor_div") and loses_int8_selects():
        cases = [case for case in cases if case.out_dtype != "int8"]
    run(device, cases)
    for case in cases:
        case.check()
    if device.programs.unoptimised_is_exact:
        found = [dict(case.results) for case in cases]
        run(device, cases, UNOPTIMISED)
        for case, results in zip(cases, found, strict=True):
            for width, got in results.items():
                same = _bits(got) == _bits(case.results[width])
                assert same, f"{op} {'/'.join(case.in_dtypes)} width {width}: other bits where nothing is optimised"


@pytest.mark.parametrize("op, limit", [("tanh", 9.0), ("erf", 3.92)])
def test_functions_that_saturate_stay_within_one_and_odd(device, op, limit):
    """About the limit, where the quotient of polynomials ends."""
    x = np.concatenate([np.linspace(limit * 0.8, limit * 1.1, 20001), [np.inf, 1e30, limit]]).astype(np.float32)
    cases = [Case(op, "float32", [values], ["float32"], np.ones(1)) for values in (x, -x)]
    run(device, cases)
    for width in cases[0].widths:
        right, left = (case.results[width] for case in cases)
        assert (right <= 1).all() and (right[np.resize(x, len(right)) > limit] == 1).all()
        assert np.array_equal(left, -right)


def _bits(values):
    """The bytes of an array; of a NaN nothing but that it is one."""
    if values.dtype.kind in "biu":
        return values.tobytes()
    return np.where(np.isnan(values), np.zeros((), values.dtype), values).tobytes() + np.isnan(values).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, "float32", "0x1p+0f"),
        (0.1, "float16", "0x1.998p-4f"),
        (-2.5, "float64", "(-0x1.4p+1)"),
        (1e6, "float16", "((float)INFINITY)"),
        (float("nan"), "float64", "((double)NAN)"),
        (True, "bool", "-1"),
        (-3, "int8", "((char)(-3))"),
        (-(2**31), "int32", "(-2147483647 - 1)"),
        (-1, "uint64", "18446744073709551615uL"),
        (1 + 2j, "complex64", "(float2)(0x1p+0f, 0x1p+1f)"),
    ],
)
def test_literals(value, dtype, text):
    assert elementwise.literal(value, dtype) == text


def test_errors_name_op_and_dtypes():
    with pytest.raises(ValueError, match="no elementwise op 'cosine'"):
        elementwise.emit("cosine", 1, "float32", ["float32"], ["x"])
    with pytest.raises(TypeError, match="'add' takes 2 operands, got 1"):
        elementwise.emit("add", 1, "float32", ["float32"], ["x"])
    with pytest.raises(TypeError, match="'exp' has no form for int32"):
        elementwise.emit("exp", 1, "int32", ["int32"], ["x"])


def test_operands_are_in_parentheses_where_they_must_be():
    for operand, alone in [("v1", True), ("5u", True), ("(-0x1p+0f)", True), ("-1", False), ("a.lo", False), ("(float4)(x)", False)]:
        text, _ = elementwise.emit("add", 4, "float32", ["float32"] * 2, ["x", operand])
        assert text == (f"(x + {operand})" if alone else f"(x + ({operand}))")


def test_an_expression_names_what_it_calls():
    assert elementwise.emit("tanh", 16, "float32", ["float32"], ["x"]) == ("tanh_float_16(x)", {"tanh_float_16"})
    assert elementwise.emit("tanh", 4, "float64", ["float64"], ["x"]) == ("tanh(x)", set())
    text, helpers = elementwise.emit("convert", 1, "bfloat16", ["complex128"], ["x"])
    assert text == "round_bfloat16_1(convert_float(x.x))" and helpers == {"round_bfloat16_1"}
