"""A rank of a training with a fault: FOLDER FAULT MOMENT (see faults.py)."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn", "tensorflow")))  # Keras loads what it finds, which takes longer than training

import h5py  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.distribution.modes import prepare  # noqa: E402

prepare()
keras.distribution.initialize()

from keras_ocl.distribution import mpi  # noqa: E402

EPOCHS, STEPS, ROWS = 4, 4, 16
folder, fault, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
world = mpi.world()
failing = world.rank == 1  # where it is not the first rank, which writes


def happens():
    (folder / "happened").touch()


def kill():
    happens()
    os.kill(os.getpid(), signal.SIGKILL)


class Fault(keras.callbacks.Callback):
    """Does what the fault says, from the second epoch on, when there is a backup."""

    def __init__(self):
        super().__init__()
        self.events = None  # of saving

    def on_train_batch_begin(self, batch, logs=None):
        if not failing or self.model.optimizer.iterations.numpy() != STEPS + 1 + moment % 7:
            return
        if fault == "step":
            threading.Timer(0.0005 * (moment % 4), kill).start()
        elif fault == "all-reduce":
            type(world)._wait = lambda *_: kill()  # its part is sent already
        elif fault == "stopped":
            happens()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "sleeps":
            happens()
            time.sleep(100)

    def on_epoch_end(self, epoch, logs=None):
        if epoch != 1:
            return
        if fault == "full disk" and world.rank == 0:
            free = os.statvfs(folder)
            happens()
            (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize - (moment + 1) * 20_000))  # a backup has 230 kB
        if fault.startswith("saving") and world.rank == 0:
            self.events = 0
            sys.addaudithook(lambda event, arguments: self.saves() if event == "os.rename" else None)
            create = h5py.Group.create_dataset
            h5py.Group.create_dataset = lambda *a, **k: (create(*a, **k), self.saves())[0]
        if fault == "saving on another" and failing:
            threading.Thread(target=self.wait_for_saving, daemon=True).start()

    def saves(self):
        self.events += 1
        if self.events == 1 + 5 * moment:
            if fault == "saving":
                kill()
            (folder / "saving").touch()
            time.sleep(100)

    def wait_for_saving(self):
        while not (folder / "saving").exists():
            time.sleep(0.01)
        (folder / "saving").unlink()
        kill()


class Weights(keras.callbacks.Callback):
    """Keeps the weights of each epoch, and which was the first."""

    def __init__(self):
        super().__init__()
        self.first, self.after = None, []

    def on_epoch_begin(self, epoch, logs=None):
        self.first = epoch if self.first is None else self.first

    def on_epoch_end(self, epoch, logs=None):
        self.after.append(flat(self.model))


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


if world.size > 1:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential([keras.Input((16,)), layers.Dense(128, activation="tanh"), layers.Dense(128, activation="tanh"), layers.Dense(4)])
model.compile(keras.optimizers.Adam(0.01), "mse")
rng = np.random.default_rng(0)
x = rng.normal(size=(STEPS * ROWS, 16)).astype("float32")
y = rng.normal(size=(STEPS * ROWS, 4)).astype("float32")
checkpoint, backup, weights = folder / "model.keras", folder / "backup", Weights()
whole = flat(keras.saving.load_model(checkpoint)) if checkpoint.exists() and world.rank == 0 else None
saving = [keras.callbacks.BackupAndRestore(backup), keras.callbacks.ModelCheckpoint(checkpoint)]
if moment % 2:  # the other file is the first to find the disk full
    saving.reverse()
model.fit(x, y, batch_size=ROWS, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Fault(), *saving, weights])
if fault == "reference":
    np.savez(folder / "reference.npz", *weights.after)
    checkpoint.unlink()
elif fault == "none" and world.rank == 0:
    expected = list(np.load(folder / "reference.npz").values())
    equal = [epoch for epoch, w in enumerate(expected) if whole is not None and np.abs(w - whole).max() < 1e-3]
    error = float(np.abs(flat(model) - expected[-1]).max())
    print("result", json.dumps({"began with epoch": weights.first, "checkpoint of epoch": equal[0] if equal else None, "error": error}))
