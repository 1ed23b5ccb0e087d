"""Which states are overwritten by their new values: those read nowhere but where the new value is written, and by nobody later."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.lower import lower_graph
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.core import dtypes
from keras_ocl.kernels.schedule import schedule_of
from tests.compiler.graphs import evaluate_trace, graph_of

SQUARE = ((36, 36), "float32")
RECORDS = ["intel-cpu", "sm_86"]


def like(value, x):
    return P.full(x.shape, value, x.dtype)


def step(x, by=0.5):
    """What a gradient step does to a state, so to say."""
    return P.add(P.mul(x, like(by, x)), like(0.25, x))


def shifted(x, by=1):
    return P.pad(x, P.constant(0, x.dtype), (by, 0), (-by, 0))


def product(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def overwritten(function, *specs, record="intel-cpu"):
    """Which states (as their numbers) `function` overwrites: a function from states to their new values, and other results behind."""
    graph, inputs = graph_of(function, *specs)
    updates = [(entry, k) for k, entry in enumerate(inputs) if entry is not None and graph.outputs[k] is not entry]
    found = lower_graph(graph, updates, runtime.read_record(record), False, lower_loop).overwritten
    return {inputs.index(node) for node in found}


IN_PLACE = {
    "one chain": lambda w: step(w),
    "read twice at its place": lambda w: P.mul(step(w), P.exp(w)),
    "through views that cancel": lambda w: P.add(P.transpose(P.exp(P.transpose(w, (1, 0))), (1, 0)), w),
    "reversed twice": lambda w: P.add(P.reverse(P.exp(P.reverse(w, (0,))), (0,)), w),
    "two results, both at its place": lambda w: (step(w), P.exp(w)),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_read_where_it_is_written(name, record):
    assert overwritten(IN_PLACE[name], SQUARE, record=record) == {0}


ELSEWHERE = {
    "transposed": lambda w: P.add(w, P.transpose(w, (1, 0))),
    "reversed": lambda w: P.mul(w, P.reverse(w, (1,))),
    "shifted": lambda w: P.add(w, shifted(w)),
    "only shifted": lambda w: P.mul(shifted(w), like(2.0, w)),
    "a part, put elsewhere": lambda w: P.concat((P.slice(w, (18, 0), (36, 36)), P.slice(w, (0, 0), (18, 36))), 0),
    "one row for all": lambda w: P.add(w, P.broadcast(P.slice(w, (0, 0), (1, 36)), w.shape, (0, 1))),
    "reshaped": lambda w: P.add(w, P.reshape(P.transpose(P.reshape(w, (18, 72)), (1, 0)), w.shape)),
    "gathered": lambda w: P.add(w, P.gather(w, (P.sub(P.full((36,), 35, "int32"), P.iota((36,), 0, "int32")),), (0,))),
    "its windows": lambda w: P.add(w, P.reduce_window(w, "max", (3, 1), (1, 1), ((1, 1), (0, 0)), (1, 1))),
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("record", RECORDS)
def test_read_at_another_place(name, record):
    assert overwritten(ELSEWHERE[name], SQUARE, record=record) == set()


def test_a_sum_of_itself_is_read_before_only_in_a_kernel_of_its_own():
    """The sum is in memory before the kernel runs that overwrites, or it is computed there, which must not overwrite."""
    for record in RECORDS:
        for axis in (0, 1):
            rest = (1 - axis,)
            function = lambda w, axis=axis, rest=rest: P.sub(w, P.broadcast(P.reduce_sum(w, (axis,)), w.shape, rest))  # noqa: E731
            graph, inputs = graph_of(function, SQUARE)
            lowered = lower_graph(graph, [(inputs[0], 0)], runtime.read_record(record), False, lower_loop)
            assert bool(lowered.overwritten) == (len(lowered.launches) == 2)


@pytest.mark.parametrize("record", RECORDS)
def test_a_product_with_itself_is_another_buffer(record):
    """The template reads all of its operands while it stores."""
    assert overwritten(lambda w: product(w, w), SQUARE, record=record) == set()
    assert overwritten(lambda w, g: (P.sub(w, product(w, g)), g), SQUARE, SQUARE, record=record) == set()


@pytest.mark.parametrize("rows", [8, 100])
@pytest.mark.parametrize("record", RECORDS)
def test_a_product_that_computes_an_operand_of_the_state_is_another_buffer(record, rows):
    """The prologue of a product reads the state while it stores; for more than few rows a kernel of CPUs reads it before."""
    kernels = 2 if rows == 100 and schedule_of(runtime.read_record(record)).vectors else 1

    def new(w, x):
        return P.convert(product(x, P.convert(w, "float32")), "int8"), x

    shapes = ((rows, 40), "int8"), ((rows, rows), "float32")
    assert overwritten(new, *shapes, record=record) == (set() if kernels == 1 else {0})
    graph, inputs = graph_of(new, *shapes)
    launches = lower_graph(graph, [(inputs[0], 0)], runtime.read_record(record), False, lower_loop).launches
    assert len(launches) == kernels


@pytest.mark.parametrize("record", RECORDS)
def test_the_epilogue_of_a_product_overwrites(record):
    """As a step with a weight's gradient does."""
    big = ((64, 64), "float32")
    assert overwritten(lambda w, x, y: (P.sub(w, product(x, y)), x, y), big, big, big, record=record) == {0}


@pytest.mark.parametrize("record", RECORDS)
def test_a_state_that_a_later_kernel_reads(record):
    """What needs the old value runs before, unless it needs the new one too."""
    big = ((64, 64), "float32")
    assert overwritten(lambda w, x: (step(w), x, product(w, x)), big, big, record=record) == {0}

    def needs_both(w, x):
        new = P.exp(product(w, x))
        return new, x, product(new, w)

    assert overwritten(needs_both, big, big, record=record) == set()

    def new_and_old(w, x):
        new = step(w)
        return new, x, product(P.transpose(new, (1, 0)), w)

    assert 0 not in overwritten(new_and_old, big, big, record=record)


@pytest.mark.parametrize("record", RECORDS)
def test_a_state_that_a_later_kernel_reads_through_a_view(record):
    big = ((64, 64), "float32")

    def step_and_reshaped(w, x):
        new = P.exp(product(x, x))
        return new, x, product(P.reshape(w, (32, 128)), P.reshape(new, (128, 32)))

    assert overwritten(step_and_reshaped, big, big, record=record) == set()


@pytest.mark.parametrize("record", RECORDS)
def test_two_states_that_change_places(record):
    """Each is read for the other's new value in the same kernel or in a later one."""
    assert overwritten(lambda a, b: (step(a), step(b)), SQUARE, SQUARE, record=record) == {0, 1}
    assert overwritten(lambda a, b: (step(b), step(a)), SQUARE, SQUARE, record=record) == {1}
    assert overwritten(lambda a, b: (P.add(a, b), P.sub(a, b)), SQUARE, SQUARE, record=record) == {1}

    def turned(a, b):
        return P.transpose(b, (1, 0)), P.add(P.transpose(a, (1, 0)), b)

    assert overwritten(turned, SQUARE, SQUARE, record=record) == {1}


def test_a_state_that_is_read_elsewhere_through_a_view_in_memory():
    """A template has the reshape in memory, where the update reads it too."""
    big = ((64, 64), "float32")

    def function(w, x):
        flat = P.reshape(w, (32, 128))
        return P.add(w, P.reshape(P.reverse(flat, (0,)), w.shape)), x, product(flat, P.reshape(x, (128, 32)))

    assert overwritten(function, big, big) == set()


def test_two_updates_of_one_value():
    """States that get the same new value: one buffer cannot be both."""

    def same(a, b):
        new = P.add(a, b)
        return new, new

    assert overwritten(same, SQUARE, SQUARE) == set()


def test_another_shape_or_dtype_is_another_buffer():
    assert overwritten(lambda w: P.reshape(P.exp(w), (1296,)), SQUARE) == set()
    assert overwritten(lambda w: P.convert(P.exp(w), "float16"), SQUARE) == set()


# ---- and the values are right

FUNCTIONS = {
    "step": step,
    "transposed": lambda w: P.transpose(w, (1, 0)),
    "reversed": lambda w: P.reverse(w, (0, 1)),
    "shifted": lambda w: P.add(w, shifted(w, 2)),
    "tanh": P.tanh,
    "rows": lambda w: P.sub(w, P.broadcast(P.reduce_max(w, (1,)), w.shape, (0,))),
    "columns": lambda w: P.sub(w, P.broadcast(P.reduce_max(w, (0,)), w.shape, (1,))),
    "product": lambda w: P.tanh(product(w, w)),
    "halves": lambda w: P.concat((P.slice(w, (w.shape[0] // 2, 0), w.shape), P.slice(w, (0, 0), (w.shape[0] // 2, w.shape[1]))), 0),
    "flat": lambda w: P.reshape(P.transpose(P.reshape(w, (w.shape[0] * 2, w.shape[1] // 2)), (1, 0)), w.shape),
}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_updates_of_states_are_right(data):
    """Three states, whose new values are made of each other's old and new ones in random ways."""
    chosen = [
        (data.draw(st.integers(0, 2 + 2 * k)), data.draw(st.integers(0, 2 + 2 * k)), data.draw(st.sampled_from(sorted(FUNCTIONS))))
        for k in range(4)
    ]
    news = [data.draw(st.integers(0, 10)) for _ in range(3)]

    def function(*states):
        values = list(states)
        for a, b, name in chosen:
            made = FUNCTIONS[name](values[a])
            values += [made, P.add(P.mul(made, like(0.5, made)), P.mul(values[b], like(0.5, made)))]
        return tuple(values[k] for k in news)

    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, (36, 36)).astype("f4") for _ in range(3)]
    device = runtime.current_device()
    graph, inputs = graph_of(function, *[(a.shape, "float32") for a in arrays])
    used = [(k, node) for k, node in enumerate(inputs) if node is not None]
    updates = [(node, k) for k, node in used if graph.outputs[k] is not node]
    executable = Executable(device, graph, [node for _, node in used], updates, states=[node for _, node in used])
    results = executable.run([device.upload(arrays[k]) for k, _ in used])
    for got, want in zip(results, evaluate_trace(function, *arrays), strict=True):
        np.testing.assert_allclose(device.download(got, dtypes.numpy_dtype("float32"), want.shape), want, rtol=2e-4, atol=2e-5)
