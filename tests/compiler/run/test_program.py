"""A compiled step is data: it compares, prints and pickles, and its numbers are formulas of the unknown extents."""

import pickle
import pickletools

import keras
import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.run import binding
from keras_ocl.compiler.run.program import Formula, HostCall, KernelLaunch, Loop, Pointer, Scalar, inside, launches_of, value
from keras_ocl.primitives import linalg

pytestmark = pytest.mark.usefixtures("apart")  # launches are counted


def product(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def rows(x, w):
    """The products' batch may be unknown."""
    return P.tanh(product(product(x, w), w))


def alternating(x):
    """A loop whose carry lies in two buffers in turn."""
    (last,), _ = P.scan(lambda _, carries, slices: ([product(carries[0], x)], []), [x], [], 5)
    return product(last, x)


def nested(x):
    """A loop that ends by a condition, around another."""

    def step(carries):
        number, y = carries
        (y,), _ = P.scan(lambda _, inner, slices: ([product(inner[0], x)], []), [y], [], 3)
        return [P.add(number, P.constant(1, "int32")), y]

    return P.while_loop(lambda carries: P.lt(carries[0], P.constant(4, "int32")), step, [P.constant(0, "int32"), x])[1]


def with_host(x):
    q, r = linalg.qr(product(x, x))
    return product(q, r)


CASES = {
    "rows": (rows, (6, 40), (40, 40)),
    "alternating": (alternating, (48, 48)),
    "nested": (nested, (48, 48)),
    "with a host operation": (with_host, (48, 48)),
}


def lowered(function, *shapes, dynamic=False, record="intel-cpu"):
    """The Program of a function of float32 arrays, traced anew, for a device that is not there."""
    with runtime.device_scope(runtime.RecordDevice("record", runtime.read_record(record))):
        return Jitted(function, dynamic).compiled(*[np.zeros(shape, "float32") for shape in shapes]).executable.program


@pytest.mark.parametrize("dynamic", [False, (0,)])
@pytest.mark.parametrize("case", CASES)
def test_a_function_lowered_twice_gives_the_same(case, dynamic):
    function, *shapes = CASES[case]
    first, second = (lowered(function, *shapes, dynamic=dynamic) for _ in range(2))
    assert first == second and first is not second and str(first) == str(second)
    assert first != lowered(function, *[(n - 1, m - 1) for n, m in shapes], dynamic=dynamic)


@pytest.mark.parametrize("case", CASES)
def test_it_is_pickled_without_anything_alive(case):
    function, *shapes = CASES[case]
    program = lowered(function, *shapes, dynamic=(0,))
    data = pickle.dumps(program)
    assert pickle.loads(data) == program
    strings, modules = [], set()
    for opcode, argument, _ in pickletools.genops(data):
        if isinstance(argument, str):
            strings.append(argument)
        if opcode.name == "STACK_GLOBAL":
            modules.add(next(s for s in reversed(strings) if s.startswith(("keras_ocl", "builtins"))))
    assert modules == {"keras_ocl.compiler.run.program"}


@pytest.mark.parametrize("case", CASES)
def test_text_has_a_line_for_each_buffer_and_launch(case):
    function, *shapes = CASES[case]
    program = lowered(function, *shapes, dynamic=(0,))

    def count(launches):
        return sum(1 + (count(x.body) if isinstance(x, Loop) else 0) for x in launches)

    _, *lines = str(program).split("\n")
    assert len(lines) == len(program.formulas) + len(program.buffers) + count(program.launches)


def test_text():
    program = lowered(rows, (6, 40), (40, 40), dynamic=(0,))
    first, second = program.kernels
    assert str(program).split("\n") == [
        "rows: 2 kernels, u0 = 6, u1 = 40, -cl-denorms-are-zero",
        "v0 = 0 - u0",
        "v1 = v0 // 6",
        "v2 = 0 - v1",
        "v3 = u0 * 40",
        "v4 = u1 * 40",
        "b0: v3 float32, input 0",
        "b1: v4 float32, input 1",
        "b2: v3 float32, output 0",
        "b3: v3 float32, live from 0 to 1",
        f"0: dot_general matrix product: {first}(int u0, b0, b1, out b3) on 2 x v2 x 1 in groups of 1 x 1 x 1",
        f"1: dot_general+tanh matrix product: {second}(int u0, b3, b1, out b2) on 2 x v2 x 1 in groups of 1 x 1 x 1",
    ]
    loop = str(lowered(alternating, (48, 48))).split("\n")[-3:-1]
    assert loop[0] == "1: scan: 5 times; before copy b0 + 0 to b2 + 0, 9216 bytes"
    assert loop[1].startswith("    0: dot_general matrix product: k") and "(b2|b3, b0, out b3|b2) on" in loop[1]


def test_numbers_are_formulas_of_the_unknown_extents():
    program = lowered(rows, (6, 40), (40, 40), dynamic=(0,))
    at = program.numbers()
    assert at(6, 40)["u0"] == 6
    fixed = lowered(rows, (9, 40), (40, 40))
    assert not fixed.formulas and not fixed.extents
    for numbers in (at(6, 40), at(9, 40)):
        x, w, result, between = [value(memory.elements, numbers) for memory in program.buffers]
        assert (x, w, result, between) == (numbers["u0"] * 40, 1600, numbers["u0"] * 40, numbers["u0"] * 40)
    given = [a for launch in program.launches for a in launch.arguments if isinstance(a, Scalar)]
    assert any(isinstance(a.value, Formula) for a in given)


def test_variants_of_a_loop_name_the_two_places_of_a_carry():
    program = lowered(alternating, (48, 48))
    (loop,) = (launch for launch in program.launches if isinstance(launch, Loop))
    assert loop.length == 5 and len(loop.variants) == 2 and [x.number for x in (*loop.body, loop)] == [0, 1]
    assert [times for _, times in launches_of(program.launches)] == [2, 1]
    first, second = (inside(loop, v, program.frame) for v in range(2))
    changing = {(a, b) for a, b in zip(first, second, strict=True) if a != b}
    assert len(changing) == 2 and changing == {(b, a) for a, b in changing}
    for copied in loop.before:
        assert copied.source == program.inputs[0] and copied.target in first
    assert all((program.buffers[b].first, program.buffers[b].last) in ((0, 1), (0, 2)) for pair in changing for b in pair)


def test_host_operations_name_their_primitive():
    program = lowered(with_host, (48, 48))
    (call,) = (launch for launch in program.launches if isinstance(launch, HostCall))
    assert (call.name, call.primitive, call.single) == ("host qr", "qr", False)
    assert [(a.shape, a.dtype) for a in (*call.reads, *call.writes)] == [((48, 48), "float32")] * 3


def test_states_tell_which_are_overwritten():
    kept, counted = (keras.Variable(np.ones(4, "float32")) for _ in range(2))

    def step(x):
        counted.assign(P.add(counted.value, x))
        return P.mul(kept.value, x)

    with runtime.device_scope(runtime.RecordDevice("record", runtime.read_record("intel-cpu"))):
        program = Jitted(step).compiled(np.zeros((4,), "float32")).executable.program
    assert sorted(state.overwritten for state in program.states) == [False, True]
    shared = [output.buffer for output in program.outputs if output.memory == "shared"]
    assert shared == [state.buffer for state in program.states if state.overwritten]
    (writes,) = (x for x in program.launches if isinstance(x, KernelLaunch) and x.overwrites)
    assert shared[0] in [a.buffer for a in writes.arguments if isinstance(a, Pointer) and a.written]


def test_an_interrupted_change_is_begun_again(monkeypatch):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(40, 40)).astype("float32") / 6
    function = Jitted(rows, (0,))

    def check(n):
        x = rng.normal(size=(n, 40)).astype("float32")
        got = np.asarray(function(x, w))
        np.testing.assert_allclose(got, np.tanh(x.astype("float64") @ w @ w), atol=1e-5)

    check(6), check(9)
    (compiled,) = function.traces
    bound, original, calls = compiled.executable._binding, binding.runtime.set_argument, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(*args)

    assert len(bound._scalars) > 1
    with monkeypatch.context() as patch:
        patch.setattr(binding.runtime, "set_argument", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(6)
    assert bound.values is None
    check(9)  # the first argument is that for 6 rows
    check(6)


def test_a_change_sets_what_changes_alone(monkeypatch):
    w, function, numbers = np.eye(40, dtype="float32"), Jitted(rows, (0,)), []
    for n in (6, 9):
        function(np.ones((n, 40), "float32"), w)
    (compiled,) = function.traces
    original = binding.runtime.set_argument
    monkeypatch.setattr(binding.runtime, "set_argument", lambda *args: numbers.append(args) or original(*args))
    compiled.executable.at((9, 40))
    assert not numbers
    compiled.executable.at((12, 40))
    assert numbers and len(numbers) <= len(compiled.executable._binding._scalars)
