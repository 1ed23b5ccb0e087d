"""What Keras's callbacks do to a training that runs on this backend."""

import json
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.hooks.regression import make_data, make_model
from tests.plugin.process import run_python

FIT = {"batch_size": 10, "shuffle": False, "verbose": 0}


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_backup_and_restore_goes_on_as_if_nothing_had_happened(tmp_path):
    x, y = make_data()
    whole = make_model("adam")
    history = whole.fit(x, y, epochs=4, **FIT).history["loss"]
    with pytest.raises(KeyboardInterrupt):
        make_model("adam").fit(x, y, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup"), Interrupt(2)], **FIT)
    model = make_model("adam", seed=5)
    rest = model.fit(x, y, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")], **FIT)
    assert rest.epoch == [2, 3]
    np.testing.assert_allclose(rest.history["loss"], history[2:], rtol=1e-5)
    for a, b in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert not (tmp_path / "backup").exists()


def test_early_stopping_restores_the_best_weights():
    x, y = make_data()
    seen = []
    model = make_model()
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(model.get_weights()))
    # The rate ruins the model from the third epoch on.
    ruin = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 if epoch < 2 else 3.0)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    history = model.fit(x, y, validation_data=(x, y), epochs=9, callbacks=[keep, ruin, stop], **FIT)
    assert history.epoch == [0, 1, 2, 3] and stop.best_epoch == 1
    for a, b in zip(seen[1], model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_learning_rates():
    x, y = make_data()
    model = make_model(keras.optimizers.SGD(0.1))
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append((float(self.model.optimizer.learning_rate), logs["learning_rate"]))

    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100.0, min_lr=0.02)
    before = model.get_weights()
    model.fit(x, y, epochs=5, callbacks=[plateau, Rates()], **FIT)
    np.testing.assert_allclose(rates, [(0.1, 0.1), (0.05, 0.1), (0.025, 0.05), (0.02, 0.025), (0.02, 0.02)], rtol=1e-6)
    # A rate of zero, set from outside a compiled step, changes nothing any more.
    trained = model.get_weights()
    model.fit(x, y, epochs=2, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)], **FIT)
    for a, b, c in zip(before, trained, model.get_weights(), strict=True):
        assert np.any(a != b)
        np.testing.assert_array_equal(b, c)


def test_checkpoints_of_the_best_and_of_batches(tmp_path):
    x, y = make_data()
    model = make_model("adam")
    files = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.weights.h5", save_freq=2, save_weights_only=True),
    ]
    seen = {}
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.update({batch + 1: model.get_weights()}))
    model.fit(x, y, callbacks=[*files, keep], **FIT)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["1-2.weights.h5", "1-4.weights.h5", "best.weights.h5"]
    for name, batch in (("1-2", 2), ("1-4", 4), ("best", 5)):
        other = make_model("adam", seed=3)
        other.load_weights(tmp_path / f"{name}.weights.h5")
        for a, b in zip(other.get_weights(), seen[batch], strict=True):
            np.testing.assert_array_equal(a, b)


def test_swapping_in_averaged_weights():
    x, y = make_data()
    model = make_model(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9))
    model.fit(x, y, epochs=2, **FIT, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])
    current = model.get_weights()
    averages = [np.array(v) for v in model.optimizer._model_variables_moving_average]
    swapped = model.evaluate(x, y, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
    for a, b in zip(current, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.set_weights(averages)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), swapped, rtol=1e-6)


def test_mixed_bfloat16():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        x, y = make_data()
        model = make_model("adam")
        assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        losses = model.fit(x, y, epochs=5, **FIT).history["loss"]
        assert losses[-1] < losses[0]
        assert all(w.dtype == "float32" for w in model.get_weights())
        assert model.predict(x, verbose=0).dtype == "bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.skipif(find_spec("orbax") is None, reason="orbax-checkpoint is not installed")
def test_orbax(tmp_path):
    output = run_python(
        f"""
        import json
        import keras
        import numpy as np

        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile("adam", "mse")
        x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
        callback = keras.callbacks.OrbaxCheckpoint(directory={str(tmp_path / "orbax")!r}, save_freq="epoch")
        model.fit(x, x[:, :2], epochs=2, verbose=0, callbacks=[callback])
        callback.wait_until_finished()
        loaded = keras.saving.load_model({str(tmp_path / "orbax")!r})
        difference = np.abs(model.predict(x, verbose=0) - loaded.predict(x, verbose=0)).max()
        print(json.dumps([float(difference), int(loaded.optimizer.iterations)]))
        """,
        KERAS_BACKEND="ocl",
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    assert json.loads(output.splitlines()[-1]) == [0.0, 2]
