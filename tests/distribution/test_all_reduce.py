"""keras_ocl.all_reduce: in one process, and in jobs of two and three ranks against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.distribution import mpi
from tests.distribution.job import needs_mpi, run_job

JOB = """
    import keras_ocl
    from keras import ops
    from keras_ocl.distribution import mpi
    world = mpi.world()
    size = world.size
    rows = np.random.default_rng(0).normal(size=(size, 5)).astype("float32")  # of all ranks
    mine, total = rows[rank], rows.sum(0)
    called, reduce = [], world.all_reduce
    world.all_reduce = lambda arrays, kind, *rest: called.append((kind, *(a.shape for a in arrays))) or reduce(arrays, kind, *rest)

    def calls(function, *args):
        "The collectives that it runs, once it is compiled."
        function(*args)
        called.clear()
        function(*args)
        return list(called)

    def check(name, found, expected):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6, err_msg=name)

    ways = {"eager": lambda f: f, "jit": keras_ocl.jit}
"""

VALUES = """
    for way, wrap in ways.items():
        for kind, function in [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)]:
            check(kind, wrap(lambda x: keras_ocl.all_reduce(x * 2, kind) + 1)(mine), function(rows * 2, 0) + 1)
        assert int(wrap(lambda x: keras_ocl.all_reduce(x, "or"))(np.int32(1 << rank))) == 2**size - 1
        assert not wrap(lambda x: keras_ocl.all_reduce(x, "and"))(np.bool_(rank == 0))
        nest = {"a": [mine, None], "b": (np.int32(rank), keras.Variable(mine[:2]), 0.5)}
        found = wrap(lambda: keras_ocl.all_reduce(nest))()
        check(way, found["a"][0], total)
        assert found["a"][1] is None and type(found["b"]) is tuple and found["b"][0].dtype == "int32"
        check(way, found["b"][1], total[:2])
        assert int(found["b"][0]) == size * (size - 1) // 2 and float(found["b"][2]) == size / 2
    assert len(calls(lambda: keras_ocl.all_reduce(nest))) == 1
    # an extent that varies, equal on all ranks; and rows that differ between them
    sums = keras_ocl.jit(lambda x, y: keras_ocl.all_reduce([x, ops.sum(y)]), dynamic=True)
    for n in (2, 5, 3):
        first, second = sums(rows[rank, :n], np.ones(n + rank, "float32"))
        check("varying", first, total[:n])
        assert float(second) == size * n + size * (size - 1) / 2
    print("values")
"""

GRADIENTS = """
    def loss(x):  # sum over ranks: |total|^2 * (1 + ... + size), of which each rank has its part
        return (rank + 1.0) * ops.sum(ops.square(keras_ocl.all_reduce(x)))

    weight = size * (size + 1) / 2
    for way, wrap in ways.items():
        check(way, wrap(keras_ocl.grad(loss))(mine), 2 * weight * total)
        # of a gradient, which is 2 * weight * total on each rank
        twice = wrap(keras_ocl.grad(lambda x: ops.sum(keras_ocl.grad(loss)(x))))
        check(way, twice(mine), np.full(5, 2 * weight * size, "float32"))
        # what a call reduces besides: integers, and what the target does not depend on
        both = lambda x: (lambda s, *_: ops.sum(s * s))(*keras_ocl.all_reduce([x, np.int32(1), x * 3]))
        check(way, wrap(keras_ocl.grad(both))(mine), 2 * size * total)
        try:
            wrap(keras_ocl.grad(lambda x: ops.sum(keras_ocl.all_reduce(x, "max"))))(mine)
        except NotImplementedError as error:
            assert "only sums have a gradient, not kind 'max'" in str(error)
        else:
            raise AssertionError("max has no gradient")

    # through a loop: carry' = sum over ranks of carry + x of the step
    def looped(x, start):
        return ops.sum(ops.scan(lambda c, row: (keras_ocl.all_reduce(c) / size + row, c), start, x)[0])

    steps = rows[:, None].repeat(7, 1) * np.arange(1, 8, dtype="float32")[None, :, None]
    for way, wrap in ways.items():
        value, (by_x, by_start) = wrap(keras_ocl.value_and_grad(looped, (0, 1)))(steps[rank], mine)
        check(way, value, (steps[:, :-1].mean(0).sum(0) + rows.mean(0) + steps[rank, -1]).sum())
        check(way, by_x, np.ones((7, 5)))
        check(way, by_start, np.ones(5))
    print("gradients")
"""

ORDER = """
    def several(x, y, z):
        a = keras_ocl.all_reduce(x * 2)
        keras_ocl.all_reduce(y, "max")  # nothing uses it, and only `a` waits for a kernel, which computes z * 3 as well
        again = [keras_ocl.all_reduce(y) for _ in range(2)]
        return (a, z * 3, again) if rank else a

    expected = [("sum", (5,)), ("max", (5,)), ("sum", (5,)), ("sum", (5,))]
    for wrap in ways.values():
        assert calls(wrap(several), mine, mine, mine) == expected, called

    # in branches and loops, between calls outside, and in gradients: backwards
    def nested(x):
        first = keras_ocl.all_reduce(x[:1])
        chosen = ops.cond(x[0] > 0, lambda: keras_ocl.all_reduce(x[:2]), lambda: keras_ocl.all_reduce(x[:2], "min"))
        _, ys = ops.scan(lambda c, r: (keras_ocl.all_reduce(c), keras_ocl.all_reduce(r, "max")), x[:3], np.ones((6, 1), "float32"))
        last = ops.while_loop(lambda c, k: k < 5, lambda c, k: (keras_ocl.all_reduce(c), k + 1), (x[:4], 0 * ops.size(x)))[0]
        mapped = ops.vectorized_map(lambda r: keras_ocl.all_reduce(r, "min"), ops.stack([x] * 2))
        keras_ocl.all_reduce(x)
        return first

    found = calls(keras_ocl.jit(nested), mine)
    branches = [("min", (2,)), ("sum", (2,))]
    steps = [("sum", (3,)), ("max", (1,))]
    assert found[0] == ("sum", (1,)) and sorted(found[1:3]) == branches, found
    assert all(sorted(found[k : k + 2]) == sorted(steps) for k in range(3, 15, 2)), found
    assert found[15:] == [*[("sum", (4,))] * 5, *[("min", (5,))] * 2, ("sum", (5,))], found

    def chained(x):
        y = keras_ocl.all_reduce(x[:3])
        z = keras_ocl.all_reduce(x[:2])
        return ops.sum(y) + ops.sum(z)

    for wrap in ways.values():
        found = calls(wrap(keras_ocl.grad(chained)), mine)
        assert found == [("sum", (3,)), ("sum", (2,)), ("sum", (2,)), ("sum", (3,))], found
    print("order")
"""

TRAINING = """
    # each rank trains on rows of its own with a loop of its own: as one process does on all rows
    def made():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, size, 12, 4)).astype("float32")
    y = y[..., :1]

    def trained(wrap, x, y, shared):
        model, optimizer = made(), keras.optimizers.Adam(0.01)

        def step(x, y):
            with keras_ocl.GradientTape() as tape:
                loss = ops.mean(ops.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            if shared:
                loss, gradients = keras.tree.map_structure(lambda t: t / size, keras_ocl.all_reduce((loss, gradients)))
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        step = wrap(step)
        return [float(step(x, y)) for _ in range(5)]

    expected = trained(keras_ocl.jit, x.reshape(-1, 4), y.reshape(-1, 1), False)
    for way, wrap in ways.items():
        check(way, trained(wrap, x[rank], y[rank], True), expected)

    # a layer that calls it, in a step of `fit`
    class Total(keras.layers.Layer):
        def call(self, x):
            return keras_ocl.all_reduce(ops.sum(x, axis=0, keepdims=True)) + 0 * x

    model = keras.Sequential([keras.Input((5,)), Total()], name="totals")
    model.compile("sgd", "mse", metrics=["mae"])
    logs = model.evaluate(np.tile(mine, (3, 1)), np.zeros((3, 5), "float32"), verbose=0)
    check("evaluate", logs[1], np.abs(3 * total).mean())

    # where Keras's distribution divides the batch there is nothing to add up
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    looped = keras.layers.Lambda(lambda x: ops.scan(lambda c, row: (keras_ocl.all_reduce(c), row), x[0], ops.ones((6, 1)))[0] + 0 * x)
    for where, divided in [(" by totals/total", model), ("", keras.Sequential([keras.Input((5,)), looped]))]:
        try:
            divided.predict(np.ones((6, 5), "float32"), verbose=0)
        except RuntimeError as error:
            assert f"all_reduce is called{where} in a step that keras.distribution divides among the ranks: its" in str(error), error
        else:
            raise AssertionError("all_reduce of whole batches")
    check("after", keras_ocl.jit(keras_ocl.all_reduce)(mine), total)
    print("training")
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(ranks):
    parts = {"values": VALUES, "gradients": GRADIENTS, "order": ORDER, "training": TRAINING}
    output = run_job(JOB + "".join(parts.values()), ranks)
    assert {part: output.count(part) for part in parts} == dict.fromkeys(parts, ranks)


@pytest.mark.parametrize("wrap", [lambda f: f, keras_ocl.jit])
def test_one_process_keeps_its_values(wrap):
    x = ops.convert_to_tensor([1.0, 2.0])
    found = wrap(lambda x: keras_ocl.all_reduce({"x": x, "none": None, "two": (2,)}, "max"))(x)
    np.testing.assert_array_equal(found["x"], [1, 2])
    assert found["none"] is None and int(found["two"][0]) == 2
    np.testing.assert_array_equal(wrap(keras_ocl.grad(lambda x: ops.sum(keras_ocl.all_reduce(x) ** 2)))(x), [2, 4])


def test_eager_tensors_are_returned_as_they_are():
    x = ops.ones(3)
    assert keras_ocl.all_reduce([x])[0] is x


def test_a_launched_process_that_has_not_joined(monkeypatch):
    monkeypatch.setattr(mpi, "_joined", None)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"does not know the others: call keras.distribution.initialize\(\) first\."):
        keras_ocl.all_reduce([1.0])


@pytest.mark.parametrize(
    "x, kind, error, message",
    [
        ([1.0], "mean", ValueError, "Ranks combine arrays by sum, prod, max, min, and, or; 'mean' is none of them."),
        ([1j], "max", TypeError, "all_reduce: 'max' does not go with complex64."),
        ([1.0], "and", TypeError, "all_reduce: 'and' does not go with float32."),
        (keras.Input((2,)), "sum", TypeError, "cannot take a KerasTensor: call it in the `call` method of a layer"),
    ],
)
def test_what_it_refuses(x, kind, error, message):
    with pytest.raises(error) as wrong:
        keras_ocl.all_reduce(x, kind)
    assert message in str(wrong.value)
