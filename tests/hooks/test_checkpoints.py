"""What ModelCheckpoint and BackupAndRestore leave when a process ends while they save: the state before, or the one after."""

import json
import os
import shutil

import h5py
import keras
import numpy as np
import pytest

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


def make():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    return model


def fit(model, *callbacks, epochs=1, **options):
    model.fit(X, X, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks), **options)
    return model


def weights(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


class Ended(BaseException):
    """In place of the process's end: nothing runs behind it but what a `finally` or `except` does."""


@pytest.fixture
def end_at(monkeypatch):
    """A function: from now on the n-th dataset written, or renaming made, ends the process; returns their list."""
    counted, limit = [], [None]

    def count(event):
        counted.append(event)
        if len(counted) == limit[0]:
            raise Ended(event)

    def before(name, function):
        return lambda *arguments, **named: (count(name), function(*arguments, **named))[1]

    monkeypatch.setattr(h5py.Group, "create_dataset", before("write", h5py.Group.create_dataset))
    monkeypatch.setattr(os, "replace", before("replace", os.replace))
    monkeypatch.setattr(os, "rename", before("rename", os.rename))

    def start(n):
        counted.clear()
        limit[0] = n
        return counted

    return start


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_checkpoint_is_the_one_before_or_the_new_one(tmp_path, end_at, name):
    path = tmp_path / name

    def loaded():
        if name.endswith(".keras"):
            return weights(keras.saving.load_model(path))
        model = make()
        model.load_weights(path)
        return weights(model)

    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=not name.endswith(".keras"))
    model = fit(make(), checkpoint)
    before, counted = weights(model), end_at(None)
    fit(model, checkpoint)
    events = len(counted)
    assert events > 10 and os.listdir(tmp_path) == [name]
    fit(model, checkpoint)
    for n in range(1, events + 1, 4):
        before = loaded()
        end_at(n)
        with pytest.raises(Ended):
            fit(model, checkpoint)
        np.testing.assert_array_equal(loaded(), before)
        assert os.listdir(tmp_path) == [name]  # nothing that takes room on a full disk


@pytest.mark.parametrize("double", [False, True])
def test_a_backup_is_of_one_epoch(tmp_path, end_at, double):
    """Weights and the number of epochs belong together, wherever between two files a process ends."""
    folder, states, begun = tmp_path / "backup", [], []

    def backup():
        return keras.callbacks.BackupAndRestore(folder, double_checkpoint=double, delete_checkpoint=False)

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            begun.append((self.model._initial_epoch, weights(self.model)))

    remember = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: states.append(weights(model)))
    model = make()
    fit(model, remember, epochs=3)
    counted = end_at(None)
    fit(make(), backup(), epochs=2)
    files = {"latest.weights.h5", "training_metadata.json"}
    assert set(os.listdir(folder)) == files | ({f"{name}.bkp" for name in files} if double else set())
    events = list(counted)
    for n, event in enumerate(events, 1):
        if event == "write" and n % 9:
            continue  # enough of them
        shutil.rmtree(folder)
        model = fit(make(), backup(), epochs=1)
        end_at(n)
        try:
            fit(model, backup(), epochs=3)
        except Ended:
            pass
        end_at(None)
        again = fit(make(), backup(), Look(), epochs=3)
        epoch, restored = begun[-1]
        np.testing.assert_array_equal(restored, states[epoch - 1])
        np.testing.assert_array_equal(weights(again), states[-1])
        assert json.loads((folder / "training_metadata.json").read_text())["epoch"] == 3
    assert {epoch for epoch, _ in begun} == {1, 2, 3}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.keras").symlink_to(tmp_path / "model.keras")
    fit(make(), keras.callbacks.ModelCheckpoint(tmp_path / "link.keras"))
    assert (tmp_path / "link.keras").is_symlink() and (tmp_path / "model.keras").is_file()


def test_a_folder_of_that_name(tmp_path):
    (tmp_path / "model.keras").mkdir()
    with pytest.raises(OSError, match="non-directory filepath"):
        fit(make(), keras.callbacks.ModelCheckpoint(tmp_path / "model.keras"))


def test_a_full_disk(tmp_path, monkeypatch):
    """That some file systems notice only when all is written."""

    def full(_):
        raise OSError(28, "No space left on device")

    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
    model = fit(make(), checkpoint)
    before = (tmp_path / "model.keras").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fit(model, checkpoint)
    assert (tmp_path / "model.keras").read_bytes() == before and len(os.listdir(tmp_path)) == 1
