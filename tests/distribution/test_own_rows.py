"""Ranks that each give rows of their own (`auto_shard_dataset=False`) train to what one process does on all of them together."""

import textwrap

import pytest

from tests.distribution.job import needs_mpi, run_job

pytestmark = needs_mpi

STEPS = """
    from tests.distribution.models import make
    from keras.distribution import DataParallel, DeviceMesh, LayoutMap, ModelParallel, TensorLayout, list_devices, set_distribution

    def train(name, rows_of):
        model, x, y, weights = make(name)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
        losses, take = [], lambda a, b: ([v[a:b] for v in x] if isinstance(x, list) else x[a:b], y[a:b], weights[a:b])
        for ends in {ends}:
            losses.append(model.train_on_batch(*take(*rows_of(ends))))
        a, b = rows_of({ends}[0])
        losses.append(model.test_on_batch(*take(a, b)))
        return np.array(losses), model.predict_on_batch(take(a, b)[0])

    def compare(name, distribution):
        set_distribution(None)
        alone, predicted = train(name, lambda ends: (0, ends[-1]))
        set_distribution(distribution)
        place = distribution.data_shard_id
        together, ours = train(name, lambda ends: (ends[place], ends[place + 1]))
        np.testing.assert_allclose(together[:-1], alone[:-1], rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(together[-1], alone[-1], rtol=5e-3, err_msg=name)  # moving averages of what has no gradient
        begin, end = {ends}[0][place : place + 2]
        np.testing.assert_allclose(ours, predicted[begin:end], rtol=5e-3, atol=2e-4, err_msg=name)
        print("equal")
"""
TWO = [(0, 20, 37), (0, 5, 30), (0, 18, 37), (0, 12, 12), (0, 0, 12), (0, 30, 37)]
FEW = [*TWO, (0, 1, 2), (0, 1, 1), (0, 0, 1)]  # of which batch normalization makes steps that rounding changes
THREE = [(0, 9, 20, 37), (0, 5, 5, 30), (0, 1, 2, 3), (0, 37, 37, 37), (0, 10, 20, 30)]


@pytest.mark.parametrize(
    ("ranks", "ends", "names"),
    [(2, TWO, ["cnn", "recurrent"]), (2, FEW, ["mlp", "recommender"]), (3, THREE, ["mlp", "transformer"])],
    ids=["two ranks", "few rows", "three ranks"],
)
def test_losses_are_those_of_one_process(ranks, ends, names):
    code = STEPS.format(ends=ends) + f"""
    for name in {names}:
        compare(name, DataParallel(auto_shard_dataset=False))
    """  # fmt: skip
    assert run_job(code, ranks).count("equal") == ranks * len(names)


def test_ranks_that_share_the_model_give_the_same_rows():
    """Of four ranks two each have a part of the variables and give the same rows; and variables that are cut along the batch axis."""
    code = STEPS.format(ends=TWO) + """
    def cut(shape, axes):
        mesh = DeviceMesh(shape, ("batch", "model"), list_devices())
        layouts = LayoutMap(mesh)
        layouts[".*kernel"] = TensorLayout(axes, mesh)
        return ModelParallel(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False)

    compare("mlp", cut((2, 2), (None, "model")))
    compare("mlp", cut((2, 2), ("batch", "model")))
    """  # fmt: skip
    assert run_job(code, 4).count("equal") == 8


def test_ranks_with_two_devices_each():
    code = STEPS.format(ends=TWO) + """
    compare("mlp", DataParallel(devices=["cpu:0/1of2", "cpu:0/2of2"] * 2, auto_shard_dataset=False))
    """  # fmt: skip
    for shares in "", "3,1,1,2":
        assert run_job(code, 2, KERAS_OCL_BIND="0", KERAS_OCL_SHARES=shares).count("equal") == 2


DATA = """
    for name in ("tensorflow", "torch"):
        sys.modules.pop(name, None)
    import warnings
    warnings.simplefilter("ignore")
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
    y, w = np.sin(x[:, :2]), np.abs(x[:, 2])
    parts = [[(0, 8), (8, 16), (16, 21)], [(30, 38), (38, 41)], [(41, 47), (47, 60), (20, 30), (21, 22)]]  # of each rank
    steps = max(map(len, parts[:size]))

    def together():
        for k in range(steps):
            rows = np.concatenate([np.arange(*own[k]) for own in parts[:size] if k < len(own)])
            yield x[rows], y[rows], w[rows]

    def own():
        for a, b in parts[rank]:
            yield x[a:b], y[a:b], w[a:b]

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return len(parts[rank])

        def __getitem__(self, k):
            a, b = parts[rank][k]
            return x[a:b], y[a:b], w[a:b]

    class Losses(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs):
            self.seen.append(float(logs["loss"]))

    def train(data, validation, epochs=2, per_execution=1, **options):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(7, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
        model.compile("adam", "mse", weighted_metrics=["mae"], steps_per_execution=per_execution)
        losses, seen = Losses(), []
        for k in range(epochs):  # of one each, as generators end
            given = {"validation_data": validation()} if validation else {}
            history = model.fit(*data(), verbose=0, callbacks=[losses], **given, **options).history
            seen.append([v[0] for _, v in sorted(history.items())])
        return np.array(losses.seen), np.array(seen)

    def compare(reference, data, validation=None, **options):
        for a, b in zip(train(data, validation, **options), reference):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        print("equal")

    def alone(*args, **options):
        keras.distribution.set_distribution(None)
        found = train(*args, **options)
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        return found
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_kinds_of_data_and_ranks_whose_data_end_earlier(ranks):
    code = f"    size = {ranks}" + DATA + """
    def tensorflow():
        import tensorflow as tf
        shapes = tuple(tf.TensorSpec(s, "float32") for s in [(None, 6), (None, 2), (None,)])
        return [tf.data.Dataset.from_generator(own, output_signature=shapes)]

    def torch():
        import torch
        class Loaded(torch.utils.data.Dataset):
            def __len__(self):
                return len(parts[rank])
            def __getitem__(self, k):
                return Rows()[k]
        return [torch.utils.data.DataLoader(Loaded(), batch_size=None)]

    reference = alone(lambda: [together()], None)
    compare(reference, lambda: [own()])
    compare(reference, lambda: [Rows()], shuffle=False)
    for find, load in ("tensorflow", tensorflow), ("torch", torch):
        import importlib.util
        if importlib.util.find_spec(find) is None:
            print("equal")
        else:
            compare(reference, load)
    compare(alone(lambda: [together()], None, steps_per_epoch=2), lambda: [own()], steps_per_epoch=2)
    compare(alone(lambda: [together()], None, per_execution=2), lambda: [Rows()], shuffle=False, per_execution=2)
    """  # fmt: skip
    assert run_job(code, ranks).count("equal") == 6 * ranks


def test_arrays_validation_evaluation_and_prediction():
    code = "    size = 2" + DATA + """
    parts[:] = [[(0, 8), (8, 16), (16, 20)], [(20, 28), (28, 31)]]
    share = [(0, 20), (20, 31)][rank]
    tested = [(31, 43), (43, 60)][rank]
    rows = slice(*share), slice(*tested)
    given = lambda at: (x[at], y[at], w[at])

    def everything(data, validation, predicted, **options):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(2)])
        model.compile("adam", "mse", weighted_metrics=["mae"])
        seen = [model.fit(*data(), verbose=0, validation_data=validation(), **options).history for _ in range(2)]
        seen = [v[0] for found in seen for _, v in sorted(found.items())]
        return np.array([*seen, *model.evaluate(validation(), verbose=0)]), model.predict(predicted(), verbose=0, batch_size=8)

    def validation():
        for a, b, c, d in (31, 39, 43, 51), (39, 43, 51, 59), (0, 0, 59, 60):
            at = np.r_[a:b, c:d]
            yield x[at], y[at], w[at]

    keras.distribution.set_distribution(None)
    reference, predicted = everything(lambda: [together()], validation, lambda: x)
    distribution = keras.distribution.DataParallel()
    keras.distribution.set_distribution(distribution)
    distribution.auto_shard_dataset = False  # as Keras's own message says

    class Tested(keras.utils.PyDataset):
        def __len__(self):
            return -(-(tested[1] - tested[0]) // 8)
        def __getitem__(self, k):
            a = tested[0] + 8 * k
            return given(slice(a, min(a + 8, tested[1])))

    class Own(keras.utils.PyDataset):
        def __len__(self):
            return len(parts[rank])
        def __getitem__(self, k):
            return given(slice(*parts[rank][k]))

    for arrays in True, False:
        data = (lambda: [x[rows[0]], y[rows[0]], 8]) if arrays else lambda: [Own()]
        found, ours = everything(data, Tested, lambda: x[rows[0]], **({"sample_weight": w[rows[0]]} if arrays else {}), shuffle=False)
        np.testing.assert_allclose(found, reference, rtol=1e-5)
        np.testing.assert_allclose(ours, predicted[rows[0]], rtol=1e-4, atol=1e-5)
        print("equal")
    distribution.auto_shard_dataset = True
    found, ours = everything(lambda: [together()], validation, lambda: x)
    np.testing.assert_allclose(found, reference, rtol=1e-5)
    assert ours.shape == predicted.shape
    print("equal")
    """  # fmt: skip
    assert run_job(code, 2).count("equal") == 6


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = x[:, : 5 + rank]", "the batch of rank 1 is 2 arrays of rows of (6, 1, 'float32'), (2, 'float32'), where that of rank 0 is 2"),
        ("steps = 3 - rank", "rank 1 has 2 steps per epoch and 1 per execution, where rank 0 has 3 and 1; all ranks need the same."),
        ("y = y[: 7 + rank]", "the arrays of rank 0's batch have [8, 7] rows; all need as many."),
        ("eagerly = True", "steps that run eagerly compute whole batches on every rank"),
    ],
)
def test_what_does_not_go_together_ends_the_job(code, message):
    program = f"""
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        x, y, steps, eagerly = np.ones((8, 6, 1), "float32"), np.ones((8, 2), "float32"), None, False
        {code}
        model = keras.Sequential([keras.Input((None, 1)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)])
        model.compile("sgd", "mse", run_eagerly=eagerly)

        def batches():
            while True:
                yield x, y

        model.fit(batches(), verbose=0, steps_per_epoch=steps or 2)
    """
    with pytest.raises(AssertionError) as error:
        run_job(textwrap.dedent(program), 2)
    assert message in str(error.value)


def test_a_custom_step_gets_its_own_rows_back():
    output = run_job(
        """
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = keras.layers.Dense(2)

            def call(self, x):
                return self.layer(x), keras.ops.mean(x, 0)

        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        keras.utils.set_random_seed(0)
        model, x = Model(), np.arange(14, dtype="float32").reshape(7, 2)
        own = x[[slice(0, 5), slice(5, 7)][rank]]
        rows, mean = model.predict_on_batch(own)
        np.testing.assert_allclose(rows, own @ np.array(model.layer.kernel), rtol=1e-5)
        np.testing.assert_allclose(mean, x.mean(0), rtol=1e-6)
        print("equal")
        """,
        2,
    )
    assert output.count("equal") == 2
