"""Conditions in traces: the branch that is taken is computed, with the results and gradients of eager code, which runs that one alone."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import GradientTape
from keras_ocl import primitives as P
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.core.primitive import Kind
from keras_ocl.primitives.cond import nested

N = 64
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, N)).astype("float32")
W = (RNG.normal(size=(N, N)) / 8).astype("float32")


def flat(result):
    return [ops.convert_to_numpy(leaf) for leaf in keras.tree.flatten(result)]


def compare(function, *arguments, rtol=1e-5, atol=1e-5):
    """That `function` gives the same compiled as eagerly; the compiled function."""
    compiled = keras_ocl.jit(function)
    for given in arguments:
        given = [ops.convert_to_tensor(a) for a in given]
        for found, expected in zip(flat(compiled(*given)), flat(function(*given)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    return compiled


def conditions(function, *arguments):
    """How many conditions the trace of a function has, those in loops included."""
    found = []

    def traced(*arguments):
        result = function(*arguments)
        trace = keras_ocl.core.primitive.current_trace.get()
        found.append(sum(eq.primitive.kind is Kind.COND for eq in nested(trace.equations)))
        return result

    keras_ocl.jit(traced)(*map(ops.convert_to_tensor, arguments))
    return found[0]


def dear(x, w, p):
    """Products in both branches."""
    return ops.cond(p > 0, lambda: ops.tanh(x @ w) @ w, lambda: ops.matmul(ops.sin(x), w * 2.0))


BOTH = [(X, W, np.float32(p)) for p in (1, -1, 1)]


def test_results():
    assert conditions(dear, *BOTH[0]) == 1
    compare(dear, *BOTH)


def test_cheap_branches_are_selected():
    def cheap(x, p):
        return ops.cond(p > 0, lambda: ops.tanh(x), lambda: x * 2.0)

    assert conditions(cheap, X, np.float32(1)) == 0
    compare(cheap, (X, np.float32(1)), (X, np.float32(-1)))


def with_gradients(function):
    def differentiated(x, w, p):
        with GradientTape() as tape:
            tape.watch([x, w])
            y = function(x, w, p)
            loss = ops.sum(ops.square(y))
        return y, *tape.gradient(loss, [x, w], unconnected_gradients="zero")

    return differentiated


def test_gradients():
    function = with_gradients(dear)
    assert conditions(function, *BOTH[0]) == 3  # the second has the residuals too, and is merged with the first
    compare(function, *BOTH, rtol=1e-4, atol=1e-4)


def test_gradients_of_an_operand_that_one_branch_reads_and_of_one_that_is_handed_through():
    compare(with_gradients(lambda x, w, p: ops.cond(p > 0, lambda: ops.tanh(x @ w) @ w, lambda: x)), *BOTH, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_finite_differences():
    x, w = X[:8].astype("float64"), W.astype("float64")

    def loss(x, w, p):
        def power(start, times):
            for _ in range(times):
                start = ops.tanh(start @ w)
            return ops.sum(ops.square(start))

        return ops.cond(p > 0, lambda: power(x, 5), lambda: power(ops.sin(x), 4))

    def gradient(x, w, p):
        with GradientTape() as tape:
            tape.watch([x, w])
            y = loss(x, w, p)
        return tape.gradient(y, [x, w])

    value, found = keras_ocl.jit(loss), keras_ocl.jit(gradient)
    assert conditions(loss, x, w, np.float64(1)) == 1
    for p in (np.float64(1), np.float64(-1)):
        for k, g in enumerate(found(x, w, p)):
            step = RNG.normal(size=g.shape)
            ends = [float(value(*(a + s * step if k == j else a for j, a in enumerate((x, w))), p)) for s in (1e-6, -1e-6)]
            np.testing.assert_allclose(np.sum(ops.convert_to_numpy(g) * step), (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


def test_gradients_of_gradients():
    def second(x, w, p):
        with GradientTape() as outer:
            outer.watch([x, w])
            with GradientTape() as inner:
                inner.watch(x)
                y = ops.sum(ops.square(dear(x, w, p)))
            g = ops.sum(ops.square(inner.gradient(y, x)))
        return outer.gradient(g, [x, w])

    compare(second, *BOTH, rtol=1e-3, atol=1e-1)


def test_a_gradient_that_is_not_a_number_in_the_branch_not_taken():
    def function(x, w, p):
        return ops.cond(p > 0, lambda: ops.sqrt(x) @ w @ w, lambda: ops.tanh(x @ w) @ w)

    x = np.zeros_like(X)
    assert conditions(function, x, W, np.float32(-1)) == 1
    found = keras_ocl.jit(with_gradients(function))(x, W, np.float32(-1))
    assert all(np.isfinite(f).all() for f in flat(found))


def test_the_branch_not_taken_is_not_computed():
    """A loop of so many steps would take minutes."""

    def function(x, w, p, n):
        def long():
            return ops.while_loop(lambda k, y: k < n, lambda k, y: (k + 1, ops.tanh(y @ w)), (ops.zeros_like(n), x))[1]

        def longer():
            return ops.fori_loop(0, 10**7, lambda k, y: ops.tanh(y @ w), x)

        return ops.cond(p > 0, lambda: ops.cond(p > 1, long, longer), lambda: x @ w)

    compiled = keras_ocl.jit(function)
    n = np.int32(10**9)
    np.testing.assert_allclose(compiled(X, W, np.float32(-1), n), X @ W, atol=1e-5)
    expected = np.tanh(np.tanh(X @ W) @ W)
    np.testing.assert_allclose(compiled(X, W, np.float32(2), np.int32(2)), expected, atol=1e-5)


def test_kernels_of_both_branches_read_the_condition(apart):
    compiled = keras_ocl.jit(dear)
    compiled(*map(ops.convert_to_tensor, BOTH[0]))
    (traced,) = compiled.traces
    launches = traced.executable.launches
    assert not any(isinstance(launch, Loop) for launch in launches)
    for name, guard in (("if true", "!p"), ("if false", "p")):
        own = [launch for launch in launches if launch.name.endswith(name)]
        assert own and all(launch.guards[0].startswith(guard) for launch in own)


@pytest.mark.parametrize("positive", [True, False])
def test_state(positive):
    v, w, seeds = keras.Variable(W), keras.Variable(0.5, trainable=False), keras.random.SeedGenerator(3)
    start = ops.convert_to_numpy(seeds.state.value).copy()

    def function(x, p):
        def yes():
            v.assign(ops.tanh(v @ v))
            return x @ v + keras.random.uniform((N,), seed=seeds)

        def no():
            w.assign_add(1.0)
            return x @ v @ v

        with GradientTape() as tape:
            y = ops.cond(p > 0, yes, no)
            loss = ops.sum(ops.square(y)) + ops.sum(v)
        return y, tape.gradient(loss, v), v + w

    found = []
    for call in (keras_ocl.jit(function), function):
        v.assign(W)
        w.assign(0.5)
        seeds.state.assign(start)
        results = flat(call(ops.convert_to_tensor(X), ops.convert_to_tensor(1.0 if positive else -1.0)))
        results += flat([v.value, w.value, seeds.state.value])
        found.append(results)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
    assert float(w.value) == (0.5 if positive else 1.5)
    assert np.array_equal(flat([seeds.state.value])[0], start) is not positive


def test_in_a_stateless_scope():
    v, w = keras.Variable(W), keras.Variable(0.0)

    def function(x, p, value):
        with keras.StatelessScope(state_mapping=[(v, value)]) as scope:

            def yes():
                v.assign(ops.tanh(v @ v))
                return x @ v

            def no():
                w.assign(w + 2.0)
                return x @ v @ v

            y = ops.cond(p > 0, yes, no)
        return y, scope.get_current_value(v), scope.get_current_value(w)

    compiled = keras_ocl.jit(function)
    for p in (1.0, -1.0):
        y, new, other = flat(compiled(*map(ops.convert_to_tensor, (X, np.float32(p), W))))
        np.testing.assert_allclose(new, np.tanh(W @ W) if p > 0 else W, atol=1e-5)
        np.testing.assert_allclose(y, X @ new if p > 0 else X @ W @ W, atol=1e-4)
        assert other == (0 if p > 0 else 2)
    assert float(w.value) == 0


@pytest.mark.parametrize("loop", ["for", "while"])
def test_in_loops(loop):
    def function(x, w, p):
        def step(k, y):
            return ops.cond(ops.equal(k % 2, 0), lambda: ops.tanh(y @ w), lambda: ops.sin(y) @ w @ w * 0.5)

        if loop == "for":
            return ops.fori_loop(0, 7, step, x)
        n = ops.cast(p * p * 7, "int32")
        return ops.while_loop(lambda k, y: k < n, lambda k, y: (k + 1, step(k, y)), (ops.zeros_like(n), x))[1]

    assert conditions(function, *BOTH[0]) == 1
    compare(function, *BOTH)
    compare(with_gradients(function), *BOTH, rtol=1e-3, atol=1e-3)


def test_of_slices_of_a_stack():
    def function(x, w, p):
        def step(carry, piece):
            y = ops.cond(ops.sum(piece) > 0, lambda: piece @ w @ w, lambda: piece + carry)
            return y, y

        xs = ops.reshape(ops.concatenate([x, -x, x * p]), (9, 16, N))
        last, ys = ops.scan(step, xs[0], xs)
        return last, ys

    compare(function, *BOTH)
    compare(with_gradients(lambda *given: function(*given)[1]), *BOTH, rtol=1e-3, atol=1e-3)


def test_a_loop_in_a_branch():
    def function(x, w, p):
        return ops.cond(p > 0, lambda: ops.fori_loop(0, 9, lambda k, y: ops.tanh(y @ w), x), lambda: x @ w)

    compare(function, *BOTH)
    compare(with_gradients(function), *BOTH, rtol=1e-3, atol=1e-3)


def test_results_of_all_kinds():
    """Of two dtypes, constants, handed through, twice the same, views, None, and numbers."""

    def function(x, w, p):
        def yes():
            y = x @ w
            return y, ops.reshape(y, (-1, 6, N)), ops.transpose(y), x, 1, None, ops.cast(ops.sum(y @ w), "float32"), w

        def no():
            y = x * 2.0
            z = ops.reshape(x @ w, (-1, 6, N))
            return y, z, ops.transpose(y @ w), ops.zeros_like(x), 2.0, None, ops.convert_to_tensor(3, "int32"), w

        return [r for r in ops.cond(p > 0, yes, no) if r is not None]

    compare(function, *BOTH, atol=1e-3)


def test_branches_within_branches():
    def function(x, w, p):
        def inner():
            return ops.cond(p > 1, lambda: ops.tanh(x @ w) @ w, lambda: ops.sin(x @ w) @ w @ w)

        return ops.cond(p > 0, inner, lambda: ops.cond(p > -1, lambda: x @ w, lambda: x @ w @ w @ w))

    given = [(X, W, np.float32(p)) for p in (2, 0.5, -0.5, -2)]
    compare(function, *given)
    compare(with_gradients(function), *given, rtol=1e-3, atol=1e-3)


def test_mapped_over_examples():
    def function(x, w, p):
        def one(row):
            return ops.cond(p > 0, lambda: ops.tanh(row @ w) @ w, lambda: row @ w)

        def by_row(row):
            return ops.cond(row[0, 0] > 0, lambda: ops.tanh(row @ w) @ w, lambda: row @ w)

        rows = ops.reshape(x, (4, 12, N))
        return ops.vectorized_map(one, rows), ops.vectorized_map(by_row, rows)

    compare(function, *BOTH)
    for k in range(2):
        compare(with_gradients(lambda *given, k=k: function(*given)[k]), *BOTH, rtol=1e-3, atol=1e-3)


def test_computed_again():
    compare(with_gradients(lambda x, w, p: keras.remat(lambda x: dear(x, w, p))(x)), *BOTH, rtol=1e-3, atol=1e-3)
    remat = lambda x, w, p: ops.cond(p > 0, lambda: keras.remat(lambda x: ops.tanh(x @ w) @ w)(x), lambda: x @ w)  # noqa: E731
    compare(with_gradients(remat), *BOTH, rtol=1e-3, atol=1e-3)


def test_checks():
    """An index counts in the branch that is taken; values are looked at in both."""

    def function(x, w, p, index):
        return ops.cond(p > 0, lambda: ops.take(x @ w, index, axis=0) @ w, lambda: (x @ w @ w)[:2])

    def odd(x, w, p):
        return ops.cond(p > 0, lambda: x @ w @ w, lambda: ops.log(x @ w - 1e3) @ w)

    compiled, out = keras_ocl.jit(function), np.array([1, 48])
    with keras_ocl.checks():
        assert conditions(function, X, W, np.float32(1), np.array([1, 2])) == 1
        np.testing.assert_allclose(compiled(X, W, np.float32(1), np.array([1, 2])), (X @ W @ W)[1:3], atol=1e-4)
        compiled(X, W, np.float32(-1), out)
        with pytest.raises(IndexError, match="48"):
            compiled(X, W, np.float32(1), out)
        with pytest.raises(FloatingPointError, match="NaN"):
            keras_ocl.jit(odd)(X, W, np.float32(-1))
    with keras_ocl.checks(), pytest.raises(FloatingPointError, match="NaN"):
        keras_ocl.jit(with_gradients(odd))(X, W, np.float32(-1))


def test_unknown_batches():
    compiled = keras_ocl.jit(with_gradients(dear))
    for rows in (48, 40, 33, 17):
        for p in (1, -1):
            given = [ops.convert_to_tensor(a) for a in (X[:rows], W, np.float32(p))]
            for a, b in zip(flat(compiled(*given)), flat(with_gradients(dear)(*given)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert len(compiled.traces) <= 2


class Gated(layers.Layer):
    """A branch for batches whose mean is positive, another for others."""

    def build(self, shape):
        self.a = self.add_weight(shape=(shape[-1], N), name="a")
        self.b = self.add_weight(shape=(shape[-1], N), name="b")
        self.uses = self.add_weight(shape=(), initializer="zeros", trainable=False, name="uses")

    def call(self, x):
        def yes():
            self.uses.assign_add(1.0)
            return ops.tanh(x @ ops.convert_to_tensor(self.a))

        return ops.cond(ops.mean(x) > 0, yes, lambda: ops.sin(x) @ ops.convert_to_tensor(self.b))


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_in_fit(dtype):
    x, y = np.concatenate([X, -X, X * 0.5])[:130], RNG.normal(size=(130, 1)).astype("float32")
    found = []
    for eagerly in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((N,)), Gated(dtype=dtype), layers.Dense(1, dtype="float32")])
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eagerly)
        history = model.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0).history["loss"]
        found.append((history, [ops.convert_to_numpy(w) for w in model.weights]))
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=tolerance)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_a_host_operation_makes_it_a_select():
    def function(x, w, p):
        return ops.cond(p > 0, lambda: ops.svd(x @ w, compute_uv=False), lambda: ops.sum(x @ w, axis=1))

    assert conditions(function, *BOTH[0]) == 0
    compare(function, *BOTH, rtol=1e-3, atol=1e-3)


def test_different_shapes_are_an_error():
    with pytest.raises(ValueError, match=r"cond: true_fn and false_fn must return the same structure, shapes included: shapes"):
        keras_ocl.jit(lambda x, w, p: ops.cond(p > 0, lambda: x @ w, lambda: w))(*map(ops.convert_to_tensor, BOTH[0]))
    assert P.cond_p.kind is Kind.COND


def test_exported_models_have_both_branches(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    a, b = keras.Input((N,), batch_size=48), keras.Input((), batch_size=48)
    outputs = layers.Lambda(lambda given: dear(given[0], ops.convert_to_tensor(W), ops.sum(given[1])), output_shape=(N,))([a, b])
    model = keras.Model([a, b], outputs)
    model([X, np.ones(48, "float32")])
    path = str(tmp_path / "model.onnx")
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    for sign in (1, -1):
        given = [X, np.full(48, sign, "float32")]
        (found,) = session.run(None, dict(zip(names, given, strict=True)))
        np.testing.assert_allclose(found, model.predict(given, batch_size=48, verbose=0), rtol=1e-4, atol=1e-4)


def test_a_host_operation_in_a_gradient_alone():
    @ops.custom_gradient
    def doubled(x):
        def grad(*upstream):
            (g,) = upstream
            return ops.linalg.svd(g, compute_uv=False)[0] + g * 2.0

        return x * 2.0, grad

    def function(x, w, p):
        return ops.cond(p > 0, lambda: doubled(x @ w) @ w, lambda: ops.tanh(x @ w) @ w)

    assert conditions(function, *BOTH[0]) == 1
    compare(with_gradients(function), *BOTH, rtol=1e-3, atol=1e-2)
