"""Tracing, compiling and replaying: results, caching, state, fusion."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted, jit
from keras_ocl.compiler.launch.lower import function_name
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.variable import Owned
from tests.drivers import need_signed_zeros

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted


class State:
    """The least a variable must have: a value that a trace can read and assign."""

    trainable, path = True, "state"

    def __init__(self, array):
        made = from_numpy(array)
        storage = made.storage.device.allocate_state(made.storage.nbytes, "state")
        made.storage.device.copy(made.storage, storage)
        self._owned = Owned(made.shape, made.dtype, storage)
        self.shape, self.dtype = made.shape, made.dtype

    @property
    def value(self):
        trace = current_trace.get()
        return self._owned.lend() if trace is None else trace.read(self)

    def assign(self, value):
        current_trace.get().assign(self, value)


def like(x, value):
    return P.full(x.shape, value, x.dtype)


def softmax(x):
    rows, columns = x.shape
    shifted = P.sub(x, P.broadcast(P.reduce_max(x, (1,)), (rows, columns), (0,)))
    e = P.exp(shifted)
    return P.div(e, P.broadcast(P.reduce_sum(e, (1,)), (rows, columns), (0,)))


def launches(jitted):
    return [launch.name for compiled in jitted.traces for launch in compiled.executable.launches]


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def test_softmax_is_one_kernel():
    x = random(37, 50)
    compiled = Jitted(softmax)
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    np.testing.assert_allclose(to_numpy(compiled(x)), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert len(launches(compiled)) == 1, launches(compiled)


def test_product_takes_bias_and_activation_as_epilogue():
    x, w, b = random(33, 40), random(40, 70), random(70)
    weights, bias = from_numpy(w), from_numpy(b)

    def dense(x):
        y = P.dot_general(x, weights, ((1,), (0,)))
        return P.relu(P.add(y, P.broadcast(bias, y.shape, (1,))))

    compiled = Jitted(dense)
    np.testing.assert_allclose(to_numpy(compiled(x)), np.maximum(x.astype("float64") @ w + b, 0), rtol=1e-4, atol=1e-4)
    assert len(launches(compiled)) == 1, launches(compiled)


def test_other_batch_size_builds_nothing():
    x, w = random(64, 40), random(40, 30)
    weights = from_numpy(w)
    compiled = Jitted(lambda x: softmax(P.dot_general(x, weights, ((1,), (0,)))), dynamic=(0,))
    compiled(x)
    before = runtime.current_device().statistics.kernels
    for n in (1, 7, 63, 200):
        y = random(n, 40)
        e = np.exp(y.astype("float64") @ w - (y.astype("float64") @ w).max(1, keepdims=True))
        np.testing.assert_allclose(to_numpy(compiled(y)), e / e.sum(1, keepdims=True), rtol=1e-4)
    assert runtime.current_device().statistics.kernels == before


def test_a_far_larger_batch_gets_kernels_of_its_own_once():
    w = random(400, 300)
    weights = from_numpy(w)
    compiled = Jitted(lambda x: P.tanh(P.dot_general(x, weights, ((1,), (0,)))), dynamic=(0,))
    found, new = set(), []
    for n in (2, 8, 500, 7, 100, 1999, 3):
        y = random(n, 400)
        np.testing.assert_allclose(to_numpy(compiled(y)), np.tanh(y.astype("float64") @ w), rtol=1e-3, atol=1e-4)
        traits = runtime.current_device().traits
        kernels = {function_name(launch, traits) for each in compiled.traces for launch in each.executable.launches}
        new.append(bool(kernels - found))
        found |= kernels
    made = (2,) if runtime.current_device().traits.schedule == "reference" else (2, 500)  # that one's kernels suit any number of rows
    assert new == [n in made for n in (2, 8, 500, 7, 100, 1999, 3)]


def test_state_is_updated_in_place():
    state = State(np.ones((5, 7), "float32"))

    def step(x):
        state.assign(P.add(state.value, x))
        return P.reduce_sum(state.value, (0, 1))

    compiled = Jitted(step)
    storage = state._owned.storage
    for count in range(1, 4):
        total = compiled(np.full((5, 7), 2.0, "float32"))
        assert to_numpy(total) == pytest.approx(35 * (1 + 2 * count))
    assert state._owned.storage is storage


def test_a_held_value_is_not_overwritten():
    state = State(np.zeros(1000, "float32"))
    compiled = Jitted(lambda x: state.assign(P.add(state.value, x)))
    compiled(np.ones(1000, "float32"))
    held = state.value
    compiled(np.ones(1000, "float32"))
    assert to_numpy(held).tolist() == [1.0] * 1000
    assert to_numpy(state.value).tolist() == [2.0] * 1000


def test_update_epilogue_of_a_product():
    weights, moment = State(random(30, 20)), State(np.zeros((30, 20), "float32"))
    w, m = to_numpy(weights.value).astype("float64"), 0.0

    def step(x, y):
        gradient = P.dot_general(x, y, ((0,), (0,)))
        new = P.add(P.mul(moment.value, like(gradient, 0.9)), gradient)
        moment.assign(new)
        weights.assign(P.sub(weights.value, P.mul(new, like(new, 0.1))))

    compiled = Jitted(step, dynamic=(0,))
    x, y = random(16, 30), random(16, 20)
    for _ in range(3):
        compiled(x, y)
        m = 0.9 * m + x.astype("float64").T @ y
        w = w - 0.1 * m
    np.testing.assert_allclose(to_numpy(weights.value), w, rtol=1e-4, atol=1e-4)
    assert len(launches(compiled)) == 1, launches(compiled)


def test_failed_trace_leaves_state_alone():
    state = State(np.zeros(3, "float32"))

    def step(x):
        state.assign(P.add(state.value, x))
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        Jitted(step)(np.ones(3, "float32"))
    assert current_trace.get() is None
    assert to_numpy(state.value).tolist() == [0, 0, 0]


def test_python_side_effects_run_once_a_signature():
    calls = []

    def double(x):
        calls.append(x.shape)
        return P.add(x, x)

    compiled = Jitted(double, dynamic=False)
    for n in (3, 3, 4, 3):
        compiled(np.ones(n, "float32"))
    assert [tuple(c) for c in calls] == [(3,), (4,)]


def test_outputs_that_are_inputs_or_repeated_are_separate_arrays():
    compiled = Jitted(lambda x: (x, P.neg(x), P.neg(x)))
    a, b, c = compiled(np.arange(4, dtype="float32"))
    assert to_numpy(a).tolist() == [0, 1, 2, 3]
    assert to_numpy(b).tolist() == to_numpy(c).tolist() == [0, -1, -2, -3]
    assert len({id(t.storage) for t in (a, b, c)}) == 3


def test_a_reshaped_result_is_not_copied():
    """It lies where the value does that it is a reshape of; the same of an argument is a copy, and of another result too."""
    compiled = Jitted(lambda x: (P.reshape(P.exp(x), (6, 4)), P.reshape(x, (2, 12))), dynamic=())
    x = random(2, 3, 4)
    y, z = compiled(x)
    assert y.shape == (6, 4) and z.shape == (2, 12) and len(launches(compiled)) == 1, launches(compiled)
    np.testing.assert_allclose(to_numpy(y), np.exp(x.astype("float64")).reshape(6, 4), rtol=1e-6)
    assert (to_numpy(z) == x.reshape(2, 12)).all()
    twice = Jitted(lambda x: (P.exp(x), P.reshape(P.exp(x), (24,))))
    a, b = twice(x)
    assert a.storage is not b.storage and (to_numpy(a).ravel() == to_numpy(b)).all()


def test_a_reshape_of_an_old_value_is_read_before_it_is_overwritten():
    state = State(random(4, 5))
    before = to_numpy(state.value)

    def step(x):
        old = P.reshape(state.value, (20,))
        state.assign(P.add(state.value, x))
        return old

    old = Jitted(step)(np.ones((4, 5), "float32"))
    assert (to_numpy(old) == before.ravel()).all() and (to_numpy(state.value) == before + 1).all()


def test_reading_a_traced_value_is_a_clear_error():
    with pytest.raises(RuntimeError, match="run_eagerly=True"):
        Jitted(lambda x: to_numpy(P.neg(x)))(np.ones(3, "float32"))


def test_flattened_operand_is_not_copied():
    w = from_numpy(random(24, 5))
    compiled = Jitted(lambda x: P.dot_general(P.reshape(P.exp(x), (x.shape[0], 24)), w, ((1,), (0,))), dynamic=(0,))
    x = random(6, 2, 3, 4)
    np.testing.assert_allclose(to_numpy(compiled(x)), np.exp(x.astype("float64")).reshape(6, 24) @ to_numpy(w), rtol=1e-4)
    assert len(launches(compiled)) == 2, launches(compiled)


@pytest.mark.parametrize("shape", [(70000,), (300, 40, 8), (64, 20, 20, 12)])
def test_long_reductions_are_split_and_repeatable(shape):
    x = random(*shape)
    axes = tuple(range(len(shape) - 1)) or (0,)
    compiled = Jitted(lambda x: P.reduce_sum(x, axes))
    first = to_numpy(compiled(x))
    np.testing.assert_allclose(first, x.astype("float64").sum(axes), rtol=1e-4, atol=1e-2)
    assert len(launches(compiled)) == 2
    assert (to_numpy(compiled(x)) == first).all()


def test_an_old_value_that_is_returned_is_read_before_it_is_overwritten():
    state = State(np.zeros(500, "float32"))

    def step(x):
        old = state.value
        state.assign(P.add(old, x))
        return old

    compiled = Jitted(step)
    assert to_numpy(compiled(np.ones(500, "float32"))).tolist() == [0.0] * 500
    assert to_numpy(compiled(np.ones(500, "float32"))).tolist() == [1.0] * 500
    assert to_numpy(state.value).tolist() == [2.0] * 500


def test_an_epilogue_that_cannot_run_in_lanes():
    """A gather by column and a reshape that takes the column apart beside a product: each lane needs its own address."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(12, 24)).astype("float32"), rng.normal(size=(24, 32)).astype("float32")
    table, where, pairs = (
        rng.normal(size=7).astype("float32"),
        rng.integers(0, 7, 32).astype("int32"),
        rng.normal(size=(2, 12, 16)).astype("float32"),
    )

    def f(a, b, table, where, pairs):
        index = P.broadcast(P.add(where, P.full((32,), 0, "int32")), (12, 32), (1,))
        looked_up = P.gather(table, (index,), (0,))
        apart = P.reshape(P.transpose(P.neg(pairs), (1, 2, 0)), (12, 32))
        product = P.dot_general(a, b, contract=((1,), (0,)), batch=((), ()))
        return P.sub(P.mul(P.add(product, looked_up), apart), looked_up)

    expected = (a @ b + table[where]) * -pairs.transpose(1, 2, 0).reshape(12, 32) - table[where]
    got = to_numpy(Jitted(f)(*[from_numpy(v) for v in (a, b, table, where, pairs)]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_methods_compile():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @jit
        def product(self, x):
            return P.mul(x, like(x, self.factor))

    x = random(5)
    for factor in (2.0, 3.0):
        np.testing.assert_allclose(to_numpy(Scaled(factor).product(x)), factor * x, rtol=1e-6)


def test_what_cannot_be_compiled_is_told():
    with pytest.raises(TypeError, match="compiles functions, not int"):
        jit(3)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Says that it is hashable, and is not."""

    names: list


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (({"a"},), {}, "the argument `names` is of type set"),
        ((), {"names": [1, {"a"}]}, "the argument `names` holds a value of type set"),
        ((), {"names": "a", "other": bytearray(1)}, "the argument `other` is of type bytearray"),
        ((Settings([1]),), {}, "the argument `names` is of type Settings"),
        ((memoryview(bytearray(1)),), {}, "the argument `names` is of type memoryview"),
        (("a", {"b"}), {}, "the argument `rest` holds a value of type set"),
    ],
)
def test_what_cannot_be_hashed_is_named(args, kwargs, told):
    def function(x, names, *rest, other=None):
        return x

    with pytest.raises(TypeError, match=f"^named: {told}, which Python cannot hash; pass an array or a tuple instead.$"):
        jit(function, name="named")(random(3), *args, **kwargs)


def test_errors_of_what_is_hashable_are_not_covered_up():
    class Odd:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise TypeError("on purpose")

    compiled = jit(lambda x, odd: x)
    compiled(random(3), Odd())
    with pytest.raises(TypeError, match="on purpose"):
        compiled(random(3), Odd())


def test_numbers_in_the_signature_are_told_apart_as_the_function_does():
    need_signed_zeros()
    calls = []

    def times(x, factor):
        calls.append(factor)
        return P.mul(x, like(x, factor))

    compiled = jit(times)
    x = np.ones(3, "float32")
    for zero in (0.0, -0.0, 0.0, -0.0):
        np.testing.assert_array_equal(np.signbit(to_numpy(compiled(x, zero))), np.signbit(zero))
    assert len(calls) == 2
    for _ in range(3):
        assert np.isnan(to_numpy(compiled(x, float("nan")))).all()
    assert len(calls) == 3
    for one in (1, 1.0, True):
        compiled(x, one)
    assert [type(c) for c in calls[3:]] == [int, float, bool]

    kinds = []
    compiled = jit(lambda x, z: kinds.append(z) or x)
    for z in (0j, -0j, complex(-0.0, 0.0), complex(float("nan"), 0), complex(float("nan"), 0), 0j):
        compiled(x, z)
    assert len(kinds) == 4


def test_variables_in_the_signature_stay_alive():
    class Variable:
        def _tape_value(self):
            raise AssertionError("nothing reads it")

    variable, f = Variable(), Jitted(lambda v, x: x)
    alive = weakref.ref(variable)
    f(variable, random(3))
    del variable
    gc.collect()
    assert alive() is not None  # or another variable may get its id, and its trace
