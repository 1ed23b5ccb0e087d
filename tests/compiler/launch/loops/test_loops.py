"""Compiled loops: values and gradients against loops in NumPy, what is built and launched, state, nesting, unknown lengths."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.core.autodiff import GradientTape
from tests.compiler.test_jit import State
from tests.primitives.checking import need_float64

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.normal(size=shape) * 0.5


def executable(compiled):
    (one,) = compiled.traces
    return one.executable


def loops(compiled):
    return [launch for launch in executable(compiled).launches if isinstance(launch, Loop)]


def kernels():
    return runtime.current_device().statistics.kernels


def run(function, *arrays, **options):
    compiled = Jitted(function, **options)
    result = compiled(*arrays)
    return compiled, [to_numpy(r) for r in (result if isinstance(result, (list, tuple)) else [result])]


def recurrent(c, u, xs, reverse=False):
    """A small recurrent cell with a product of its slice, of its state, and a sum."""

    def step(_, carries, slices):
        (c,), (x,) = carries, slices
        h = P.tanh(P.add(P.dot_general(c, u, ((1,), (0,))), P.dot_general(x, u, ((1,), (0,)))))
        return [h], [P.reduce_sum(P.mul(h, x), (1,))]

    (last,), (ys,) = P.scan(step, [c], [xs], xs.shape[0], reverse)
    return last, ys


def recurrent_reference(c, u, xs, reverse=False):
    ys = [None] * len(xs)
    for i in range(len(xs))[:: -1 if reverse else 1]:
        c = np.tanh(c @ u + xs[i] @ u)
        ys[i] = (c * xs[i]).sum(1)
    return c, np.stack(ys)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_scan(reverse, length):
    need_float64()
    c, u, xs = normal(3, 4), normal(4, 4), normal(length, 3, 4)
    _, found = run(lambda *a: recurrent(*a, reverse=reverse), c, u, xs)
    for f, e in zip(found, recurrent_reference(c, u, xs, reverse), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-12, atol=1e-14)


def scalar(last, ys):
    return P.add(P.reduce_sum(P.mul(last, last), (0, 1)), P.reduce_sum(P.exp(ys), (0, 1)))


def gradients(function, *tensors):
    with GradientTape() as tape:
        tape.watch(list(tensors))
        loss = function(*tensors)
    return tape.gradient(loss, list(tensors))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_and_its_gradient(reverse):
    need_float64()
    arrays = [normal(3, 4), normal(4, 4), normal(6, 3, 4)]
    weights = [normal(*a.shape) for a in arrays]

    def loss(*tensors):
        return scalar(*recurrent(*tensors, reverse=reverse))

    def weighted(*tensors):
        total = None
        for g, w in zip(gradients(loss, *tensors), weights, strict=True):
            term = P.reduce_sum(P.mul(g, from_numpy(w)), tuple(range(len(g.shape))))
            total = term if total is None else P.add(total, term)
        return total

    first = Jitted(lambda *t: gradients(loss, *t))
    second = Jitted(lambda *t: gradients(weighted, *t))
    values = [Jitted(f) for f in (loss, weighted)]
    for compiled, value in zip((first, second), values, strict=True):
        found = [to_numpy(g) for g in compiled(*arrays)]
        for k, a in enumerate(arrays):
            direction, step = normal(*a.shape), 1e-5
            ends = [to_numpy(value(*(b + s * step * direction if i == k else b for i, b in enumerate(arrays)))) for s in (1, -1)]
            np.testing.assert_allclose((found[k] * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.fixture
def launched(monkeypatch):
    """Every step of a loop is launched, on GPUs too."""
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, persistent_loops=False))


def test_the_forward_pass_runs_once_and_products_over_all_steps_lie_outside(launched):
    arrays = [a.astype("float32") for a in (normal(16, 40), normal(40, 40), normal(9, 16, 40))]
    compiled, _ = run(lambda *t: gradients(lambda *t: scalar(*recurrent(*t)), *t), *arrays)
    forward, backward = loops(compiled)
    assert [sum("matrix product" in k.name for k in loop.launches) for loop in (forward, backward)] == [1, 1]
    assert len(forward.launches) <= 2
    outside = [k.name for k in executable(compiled).launches if "matrix product" in k.name]
    assert len(outside) == 4  # x u; and for the gradient h' dz, x' dz, dz u'


def test_an_unknown_length_builds_nothing_again(launched):
    u = from_numpy(normal(4, 4).astype("float32"))
    compiled = Jitted(lambda xs: recurrent(P.full((3, 4), 0.5, "float32"), u, xs), dynamic=(0,))
    compiled(normal(8, 3, 4).astype("float32"))
    before = kernels()
    for n in (1, 5, 12, 33):
        xs = normal(n, 3, 4).astype("float32")
        last, ys = compiled(xs)
        expected = recurrent_reference(np.full((3, 4), 0.5), to_numpy(u).astype("float64"), xs.astype("float64"))
        np.testing.assert_allclose(to_numpy(last), expected[0], rtol=1e-4)
        np.testing.assert_allclose(to_numpy(ys), expected[1], rtol=1e-4, atol=1e-5)
    assert kernels() == before


def test_no_steps():
    compiled = Jitted(lambda c, xs: P.scan(lambda i, c, s: ([P.add(c[0], s[0])], [c[0]]), [c], [xs], xs.shape[0]), dynamic=False)
    (last,), (ys,) = compiled(normal(3).astype("float32"), np.zeros((0, 3), "float32"))
    assert to_numpy(ys).shape == (0, 3)
    assert to_numpy(last).shape == (3,)


def test_swapped_repeated_and_constant_results():
    """Carries that trade places, results that are inputs, constants, slices, the index, or the same twice."""
    k = from_numpy(np.arange(3, dtype="int32"))

    def function(a, b, xs):
        def step(i, carries, slices):
            a, b, n, m = carries
            total = P.add(a, b)
            index = P.broadcast(i, (3,), ())
            return [b, total, total, P.add(m, index)], [slices[0], total, a, k, index, total]

        return sum(P.scan(step, [a, b, a, P.zeros_like(a)], [xs], 6), [])

    a, b, xs = np.array([0, 1, 2], "int32"), np.array([1, 1, 5], "int32"), RNG.integers(0, 9, (6, 3)).astype("int32")
    _, found = run(function, a, b, xs)
    n, ys = a, []
    for i in range(6):
        ys.append([xs[i], a + b, a, np.arange(3), np.full(3, i), a + b])
        a, b, n = b, a + b, a + b
    expected = [a, b, n, np.full(3, 15), *(np.stack(y) for y in zip(*ys, strict=True))]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f, e)


def test_loops_within_loops():
    need_float64()

    def function(c, xs):
        def outer(i, carries, slices):
            def inner(j, carries, slices):
                (c,), (x,) = carries, slices
                c = P.add(P.mul(c, P.full(c.shape, 0.5, "float64")), P.sin(x))
                return [c], [P.mul(c, x)]

            (c,), (ys,) = P.scan(inner, carries, [slices[0]], 4)
            return [P.tanh(c)], [P.reduce_sum(ys, (0,))]

        (last,), (ys,) = P.scan(outer, [c], [xs], 5)
        return last, ys

    def reference(c, xs):
        totals = []
        for x in xs:
            total = 0
            for y in x:
                c = 0.5 * c + np.sin(y)
                total = total + c * y
            c = np.tanh(c)
            totals.append(total)
        return c, np.stack(totals)

    c, xs = normal(3), normal(5, 4, 3)
    _, found = run(function, c, xs)
    for f, e in zip(found, reference(c, xs), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-12, atol=1e-14)

    def loss(c, xs):
        last, ys = function(c, xs)
        return P.add(P.reduce_sum(last, (0,)), P.reduce_sum(P.mul(ys, ys), (0, 1)))

    def value(c, xs):
        last, ys = reference(c, xs)
        return last.sum() + (ys * ys).sum()

    _, found = run(lambda *t: gradients(loss, *t), c, xs)
    for k, a in enumerate((c, xs)):
        d = normal(*a.shape)
        ends = [value(*(b + s * 1e-5 * d if i == k else b for i, b in enumerate((c, xs)))) for s in (1, -1)]
        np.testing.assert_allclose((found[k] * d).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_state_that_the_body_assigns():
    total, scale = State(np.zeros(3, "float32")), State(np.full(3, 2.0, "float32"))

    def function(xs):
        def step(_, carries, slices):
            total.assign(P.add(total.value, P.mul(slices[0], scale.value)))
            return [], [total.value]

        return P.scan(step, [], [xs], xs.shape[0])[1][0]

    xs = normal(5, 3).astype("float32")
    compiled, (ys,) = run(function, xs)
    sums = np.cumsum(2 * xs, 0)
    np.testing.assert_allclose(ys, sums, rtol=1e-5)
    np.testing.assert_allclose(to_numpy(total.value), sums[-1], rtol=1e-5)
    compiled(xs)
    np.testing.assert_allclose(to_numpy(total.value), 2 * sums[-1], rtol=1e-5)


def test_sorts_and_host_operations_in_the_body():
    need_float64()

    def function(xs):
        def step(i, carries, slices):
            ordered = P.sort((slices[0],), 0)[0]
            inverse = P.inverse(P.add(slices[0], P.mul(carries[0], carries[0])))
            return [P.add(carries[0], ordered)], [inverse, ordered]

        return sum(P.scan(step, [P.full((3, 3), 0.0, "float64")], [xs], 5), [])

    xs = normal(5, 3, 3) + 3 * np.eye(3)
    _, found = run(function, xs)
    c, inverses = np.zeros((3, 3)), []
    for x in xs:
        inverses.append(np.linalg.inv(x + c * c))
        c = c + np.sort(x, 0)
    for f, e in zip(found, (c, np.stack(inverses), np.sort(xs, 1)), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-9)


def test_steps_of_a_while_run_ahead_of_its_condition():
    """Which is read once before the first step, and then after 4, 8, ... more; what is launched beyond the end changes nothing."""

    def function(x, limit):
        def going(variables):
            return P.lt(P.reduce_max(variables[1], (0,)), limit)

        def step(variables):
            n, x = variables
            return [P.add(n, P.constant(1, "int32")), P.add(x, x)]

        return P.while_loop(going, step, [P.constant(0, "int32"), x])

    x = np.array([1, 3, 2], "float32")
    compiled = Jitted(function)
    statistics = runtime.current_device().statistics
    for limit, steps, batches in ((100.0, 6, 2), (1.0, 0, 0), (25.0, 4, 1), (7.0, 2, 1), (4.0, 1, 1), (3e30, 100, 6)):
        before = statistics.downloads
        n, y = compiled(x, np.float32(limit))
        assert statistics.downloads - before == batches + 1
        assert to_numpy(n) == steps
        np.testing.assert_array_equal(to_numpy(y), x * 2**steps)


@pytest.mark.parametrize("what", ["host operation", "loop"])
def test_steps_of_a_while_that_are_more_than_kernels_wait_for_its_condition(what):
    def inner(x):
        if what == "host operation":
            return P.inverse(x)
        return P.scan(lambda i, c, s: ([P.sub(P.full((3, 3), 1.0, "float32"), c[0])], []), [x], [], 5)[0][0]

    def function(x, limit):
        return P.while_loop(
            lambda v: P.lt(v[0], limit), lambda v: [P.add(v[0], P.constant(1, "int32")), inner(v[1])], [P.constant(0, "int32"), x]
        )

    x = np.diag([0.5, 2.0, 4.0]).astype("float32")
    compiled = Jitted(function)
    device = runtime.current_device()
    for limit in (0, 1, 2, 5):
        before = device.statistics.downloads
        n, y = compiled(x, np.int32(limit))
        operands = limit if what == "host operation" and device.sharing != "shared" else 0
        assert device.statistics.downloads - before == (limit + 1) + operands
        once = np.linalg.inv(x) if what == "host operation" else 1 - x
        assert to_numpy(n) == limit
        np.testing.assert_allclose(to_numpy(y), once if limit % 2 else x, rtol=1e-6)


def test_a_carry_must_keep_its_shape():
    with pytest.raises(ValueError, match=r"begins as \(3,\) float32 and becomes \(3, 1\) float32"):
        Jitted(lambda x: P.scan(lambda i, c, s: ([P.reshape(c[0], (3, 1))], []), [x], [], 5))(np.ones(3, "float32"))


def test_intermediates_of_a_step_share_the_arena():
    def function(xs):
        def step(_, carries, slices):
            a = P.dot_general(carries[0], slices[0], ((1,), (0,)))
            b = P.dot_general(P.tanh(a), slices[0], ((1,), (0,)))
            return [b], []

        return P.scan(step, [P.full((64, 64), 1.0, "float32")], [xs], xs.shape[0])[0][0]

    compiled, _ = run(function, np.zeros((6, 64, 64), "float32"))
    assert executable(compiled).arena_bytes <= 3 * 64 * 64 * 4


@pytest.mark.parametrize("units", [3, 37])
def test_a_step_of_gates_is_two_kernels_each_way(units):
    """The gradient of a split is stored part by part, by the kernel that computes the parts; that of the biases after the loop."""

    def cell(c, h, x, u, b):
        biases = [P.reshape(P.slice(b, (k, 0), (k + 1, 2 * units)), (2 * units,)) for k in range(2)]
        parts = zip((x, P.dot_general(h, u, ((1,), (0,)))), biases, strict=True)
        z = P.add(*(P.add(part, P.broadcast(bias, part.shape, (1,))) for part, bias in parts))
        gate, new = (P.slice(z, (0, k * units), (20, (k + 1) * units)) for k in range(2))
        c = P.add(P.mul(P.logistic(gate), c), P.tanh(new))
        return c, P.mul(P.tanh(c), P.logistic(gate))

    def scanned(h, u, b, xs):
        def step(_, carries, slices):
            return list(cell(*carries, slices[0], u, b)), []

        return P.scan(step, [h, h], [xs], 6)[0]

    def unrolled(h, u, b, xs):
        c = h
        for t in range(6):
            c, h = cell(c, h, P.reshape(P.slice(xs, (t, 0, 0), (t + 1, 20, 2 * units)), (20, 2 * units)), u, b)
        return c, h

    arrays = [a.astype("float32") for a in (normal(20, units), normal(units, 2 * units), normal(2, 2 * units), normal(6, 20, 2 * units))]
    results = []
    for function in (scanned, unrolled):
        compiled, found = run(lambda *t, f=function: gradients(lambda *t: P.reduce_sum(P.mul(*f(*t)), (0, 1)), *t), *arrays)
        results.append(found)
        if function is scanned:
            assert all(len(loop.launches) <= 2 for loop in loops(compiled))
    for scan, plain in zip(*results, strict=True):
        np.testing.assert_allclose(scan, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("units", [37, 64])
@pytest.mark.parametrize("schedule", ["gpu", None])
def test_two_products_in_turn(units, schedule, monkeypatch):
    """On a GPU the second computes its left operand, which is made of the first one's, where it reads it; a third kernel does elsewhere.

    Their gradients lie side by side in the slices' gradient and, without the last, in that of the first product.
    """
    device = runtime.current_device()
    if schedule:
        monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule=schedule, compute_units=64))

    def cell(h, x, u, v):
        a, b, c = (P.slice(x, (0, k * units), (20, (k + 1) * units)) for k in range(3))
        product = P.dot_general(h, u, ((1,), (0,)))
        z, r = (P.logistic(P.add(y, P.slice(product, (0, k * units), (20, (k + 1) * units)))) for k, y in enumerate((a, b)))
        new = P.tanh(P.add(c, P.dot_general(P.mul(r, h), v, ((1,), (0,)))))
        return P.add(P.mul(z, P.sub(h, new)), new)

    def scanned(h, u, v, xs):
        return P.scan(lambda _, carries, slices: ([cell(*carries, slices[0], u, v)], []), [h], [xs], 6)[0][0]

    def unrolled(h, u, v, xs):
        for t in range(6):
            h = cell(h, P.reshape(P.slice(xs, (t, 0, 0), (t + 1, 20, 3 * units)), (20, 3 * units)), u, v)
        return h

    arrays = [normal(*shape).astype("f4") for shape in ((20, units), (units, 2 * units), (units, units), (6, 20, 3 * units))]
    results = []
    for function in (scanned, unrolled):
        compiled, found = run(lambda *t, f=function: gradients(lambda *t: P.reduce_sum(P.mul(f(*t), f(*t)), (0, 1)), *t), *arrays)
        results.append(found)
        if function is scanned:
            assert all(len(loop.launches) <= (2 if device.traits.schedule == "gpu" else 3) for loop in loops(compiled))
    for scan, plain in zip(*results, strict=True):
        np.testing.assert_allclose(scan, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("inverted", [False, True])
def test_a_part_of_a_product_that_is_a_result_too(inverted):
    """In several shapes and as a carry; a host operation reads one of them where it is whole."""
    c, u = normal(4, 4).astype("f4"), normal(4, 8).astype("f4")

    def step(_, carries, __):
        product = P.dot_general(carries[0], from_numpy(u), ((1,), (0,)))
        thin = P.slice(P.reshape(product, (4, 2, 4)), (0, 1, 0), (4, 2, 4))
        part = P.reshape(thin, (4, 4))
        new = P.add(P.tanh(part), carries[1])
        ys = [part, thin, P.reshape(part, (2, 8)), part, P.inverse(part) if inverted else P.reshape(part, (1, 4, 4))]
        return [new, part], ys

    compiled, (*last, a, b, c2, d, e) = run(lambda c: sum(P.scan(step, [c, c], [], 6), []), c)
    carries, parts = (c, c), []
    for _ in range(6):
        part = (carries[0] @ u)[:, 4:]
        carries = np.tanh(part) + carries[1], part
        parts.append(part)
    for found, expected in zip(last, carries, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    for found in (a, b, c2, d, e):
        expected = np.linalg.inv(parts) if inverted and found is e else np.array(parts)
        np.testing.assert_allclose(found.reshape(6, 4, 4), expected, rtol=1e-2 if inverted else 1e-4, atol=1e-5)


def test_what_the_step_number_gives_stays_in_the_loop():
    """The number of the step depends on nothing else, and is no constant."""

    def counted(x):
        def step(index, carries, slices):
            number = P.broadcast(P.convert(index, "float32"), x.shape, ())
            return [P.add(carries[0], P.mul(number, x))], []

        return P.scan(step, [x], [], 9)[0][0]

    x = np.array([1.0, -2.0, 3.0], "float32")
    np.testing.assert_allclose(to_numpy(Jitted(counted)(from_numpy(x))), 37 * x, rtol=1e-6)


@pytest.mark.parametrize("kind", ["scan", "while", "loop in a loop"])
def test_kernels_that_do_the_same_in_every_step_run_before_the_loop(kind):
    """Here the sums of a matrix and what is made of them, unless that is much more than what they read."""
    steps, x, m = 5, normal(16).astype("f4"), (normal(16, 300) / 20).astype("f4")

    def step(x, m):
        rows = P.tanh(P.reduce_sum(m, (1,)))  # a host operation keeps the passes on graphs from seeing that it is invariant
        order = P.sort((rows, P.iota((16,), 0, "int32")), 0, keys=1)[1]
        return P.add(P.gather(x, (order,), (0,)), rows)

    def function(x, m):
        if kind == "while":
            return P.while_loop(
                lambda v: P.lt(v[0], P.constant(steps, "int32")),
                lambda v: [P.add(v[0], P.constant(1, "int32")), step(v[1], m)],
                [P.constant(0, "int32"), x],
            )[1]
        if kind == "scan":
            return P.scan(lambda i, c, s: ([step(c[0], m)], []), [x], [], steps)[0][0]
        inner = lambda c: P.scan(lambda i, c, s: ([step(c[0], m)], []), [c], [], 1)[0][0]  # noqa: E731
        return P.scan(lambda i, c, s: ([P.neg(inner(P.neg(c[0])))], []), [x], [], steps)[0][0]

    expected, rows = x.astype("f8"), np.tanh(m.astype("f8").sum(1))
    order = np.argsort(rows)
    for _ in range(steps):
        expected = -(-expected[order] + rows) if kind == "loop in a loop" else expected[order] + rows
    compiled, (got,) = run(function, x, m)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    (loop,) = loops(compiled)
    assert not any("sort" in launch.name for launch in loop.launches)
    assert any("sort" in launch.name for launch in executable(compiled).launches)
    np.testing.assert_array_equal(to_numpy(compiled(x, m)), got)


def test_what_would_take_much_memory_is_made_in_every_step():
    x, m = normal(40, 600).astype("f4"), RNG.integers(-8, 8, (600, 600)).astype("i1")

    def step(c, m):
        return P.tanh(P.dot_general(c, P.convert(m, "float32"), ((1,), (0,))))  # of forty rows: the matrix is stored as floats

    def function(x, m):
        return P.while_loop(
            lambda v: P.lt(v[0], P.constant(2, "int32")),
            lambda v: [P.add(v[0], P.constant(1, "int32")), step(v[1], m)],
            [P.constant(0, "int32"), x],
        )[1]

    compiled, (got,) = run(function, x, m)
    np.testing.assert_allclose(got, np.tanh(np.tanh(x.astype("f8") @ m) @ m), atol=1e-3)
    (loop,) = loops(compiled)
    assert any("convert" in launch.name for launch in loop.launches)
