"""Per-epoch callbacks, and HDF5 files that one backend writes and another reads. The functions are measures of the dense study."""

import os
from pathlib import Path

import keras
import numpy as np

EXAMPLES = 256  # whose predictions are compared
WEIGHTS, MODEL, EXPECTED = ".weights.h5", ".h5", ".npz"


def write(context):
    """Train with a per-epoch callback, then save the weights and the model in HDF5, and what the model predicts.

    Adds told: the logs of each epoch as the callback got them; history: as `fit` returned them.
    """
    subject, told = context.subject, []
    subject.restart(0)
    model = subject.model
    tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: told.append({name: float(v) for name, v in logs.items()}))
    context.progress("training")
    fitted = model.fit(
        subject.x, subject.y, batch_size=subject.batch, epochs=context.extent.epochs, shuffle=False, verbose=0, callbacks=[tell]
    )
    history = [dict(zip(fitted.history, map(float, epoch), strict=True)) for epoch in zip(*fitted.history.values(), strict=True)]
    folder = _folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    writer = "-".join(filter(None, (keras.config.backend(), os.environ.get("KERAS_OCL_DEVICE")))).replace("/", "-")
    model.save_weights(folder / f"{writer}{WEIGHTS}")
    model.save(folder / f"{writer}{MODEL}")
    x = subject.x_test[:EXAMPLES]
    np.savez(folder / f"{writer}{EXPECTED}", x=x, predictions=model.predict(x, verbose=0))
    return {"told": told, "history": history}


def read(context):
    """Load every backend's files and predict.

    Adds loaded: {backend that wrote: {"weights", "model": largest absolute difference to what the writer predicted, "moved": of the model
    before the weights were loaded}}. Raises FileNotFoundError where nothing was written.
    """
    folder, model, loaded = _folder(context), context.subject.model, {}
    writers = sorted(path.name.removesuffix(EXPECTED) for path in folder.glob(f"*{EXPECTED}"))
    if not writers:
        raise FileNotFoundError(f"no backend has saved a model in {folder}: run the row {context.row.settings['written_by']!r} first")
    for writer in writers:
        context.progress(f"loading what {writer} wrote")
        with np.load(folder / f"{writer}{EXPECTED}") as file:
            x, expected = file["x"], file["predictions"]

        def distance(model, x=x, expected=expected):
            return float(np.max(np.abs(model.predict(x, verbose=0) - expected)))

        context.subject.restart(1)
        moved = distance(model)
        model.load_weights(folder / f"{writer}{WEIGHTS}")
        whole = keras.models.load_model(folder / f"{writer}{MODEL}")
        loaded[writer] = {"weights": distance(model), "model": distance(whole), "moved": moved}
    return {"loaded": loaded}


def _folder(context):
    return Path(context.out, "hdf5")
