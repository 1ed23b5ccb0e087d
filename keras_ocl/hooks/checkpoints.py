"""Checkpoints of callbacks are whole: written beside the ones before, and put in their place when they are complete.

Keras writes over the file that it has. A process that ends meanwhile would leave nothing to go on from.
"""

import functools
import os
import shutil

from keras.src import callbacks as keras_callbacks
from keras.src.utils import file_utils

_PARTIAL, _COMPLETE = ".partial", ".complete"  # what a name begins with, always the same: a next attempt writes over what is left


def make_whole(callbacks):
    """Lets the callbacks among these that save models do so in two steps, and the one that restores finish what was begun."""
    for callback in callbacks:
        if isinstance(callback, keras_callbacks.BackupAndRestore):
            if not file_utils.is_remote_path(callback.backup_dir):
                callback._save_model = functools.partial(_back_up, callback)
                callback._load_model = functools.partial(_load, callback)
        elif isinstance(callback, keras_callbacks.ModelCheckpoint):
            callback._save_model = functools.partial(_save, callback)


class _Beside:
    """A model as ModelCheckpoint sees it: what it saves appears under its name when it is complete."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def save(self, filepath, **options):
        _replace(filepath, lambda path: self._model.save(path, **options))

    def save_weights(self, filepath, **options):
        _replace(filepath, lambda path: self._model.save_weights(path, **options))


def _save(callback, *arguments, **named):
    """`ModelCheckpoint._save_model`."""
    model = callback._model
    callback._model = _Beside(model)
    try:
        type(callback)._save_model(callback, *arguments, **named)
    finally:
        callback._model = model


def _replace(path, write):
    """Let `write` write the file `path`, under another name as long as it is not complete."""
    if file_utils.is_remote_path(path):
        write(path)
        return
    folder, name = os.path.split(os.path.realpath(path))  # where it is a link, that stays one
    partial = os.path.join(folder, f"{_PARTIAL}-{name}")  # Keras looks at how the name ends
    try:
        write(partial)
        _flush(partial)
        os.replace(partial, os.path.join(folder, name))
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)  # a full disk has room again
        raise


def _back_up(callback):
    """`BackupAndRestore._save_model`: weights and metadata, which belong together, become the backup by one renaming of a folder."""
    final = callback.backup_dir, callback._weights_path, callback._training_metadata_path
    folder = final[0]
    partial, complete = os.path.join(folder, _PARTIAL), os.path.join(folder, _COMPLETE)
    _adopt(callback)
    shutil.rmtree(partial, ignore_errors=True)
    callback.backup_dir, callback._weights_path, callback._training_metadata_path = (
        partial, *(os.path.join(partial, os.path.basename(path)) for path in final[1:])
    )  # fmt: skip
    try:
        type(callback)._save_model(callback)
        for name in os.listdir(partial):
            _flush(os.path.join(partial, name))
        os.rename(partial, complete)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        callback.backup_dir, callback._weights_path, callback._training_metadata_path = final
    _adopt(callback)


def _adopt(callback):
    """Put a complete backup's files in their places; goes on where a process ended on the way."""
    complete = os.path.join(callback.backup_dir, _COMPLETE)
    if not os.path.isdir(complete):
        return
    files = (callback._weights_path, callback._prev_weights_path), (callback._training_metadata_path, callback._prev_training_metadata_path)
    for path, previous in files:
        new = os.path.join(complete, os.path.basename(path))
        if os.path.exists(new):
            if callback.double_checkpoint and os.path.exists(path):
                os.replace(path, previous)
            os.replace(new, path)
    os.rmdir(complete)


def _load(callback):
    """`BackupAndRestore._load_model`."""
    _adopt(callback)
    type(callback)._load_model(callback)


def _flush(path):
    """Write a file to the disk: some tell only now that it is full."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
