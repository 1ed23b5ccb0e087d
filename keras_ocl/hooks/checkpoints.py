"""Checkpoints of callbacks are atomic: written beside the previous ones, which they replace when complete.

Keras overwrites its file. A process that ends meanwhile would leave nothing to resume from.
"""

import functools
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from keras.src import callbacks as keras_callbacks
from keras.src.utils import file_utils

from keras_ocl.distribution import mpi

_PARTIAL, _COMPLETE = ".partial", ".complete"  # beginnings of names, always the same: a next attempt overwrites what is left
_FILES = "_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path"  # attributes of BackupAndRestore


def make_whole(callbacks, together):
    """Lets those of the callbacks that save models do so in two steps, and the one that restores complete an interrupted replacement.

    Args:
        together: whether all ranks of the job train one model; then all restore the first rank's files.
    """
    for callback in callbacks:
        if isinstance(callback, keras_callbacks.BackupAndRestore):
            if not file_utils.is_remote_path(callback.backup_dir):
                callback._save_model = functools.partial(_back_up, callback)
                callback.on_train_begin = functools.partial(_restore_together if together else _restore, callback)
        elif isinstance(callback, keras_callbacks.ModelCheckpoint):
            callback._save_model = functools.partial(_save, callback)


class _Beside:
    """A model for ModelCheckpoint: a file that it saves gets its name when it is complete."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def save(self, filepath, **options):
        _replace(filepath, lambda path: self._model.save(path, **options))

    def save_weights(self, filepath, **options):
        _replace(filepath, lambda path: self._model.save_weights(path, **options))


def _save(callback, *arguments, **named):
    """Replaces `ModelCheckpoint._save_model`."""
    model = callback._model
    callback._model = _Beside(model)
    try:
        type(callback)._save_model(callback, *arguments, **named)
    finally:
        callback._model = model


def _replace(path, write):
    """Let `write` write the file `path`, under another name until it is complete."""
    if file_utils.is_remote_path(path):
        write(path)
        return
    folder, name = os.path.split(os.path.realpath(path))  # if it is a link, it stays one
    partial = os.path.join(folder, f"{_PARTIAL}-{name}")  # Keras looks at the end of the name
    try:
        write(partial)
        _flush(partial)
        os.replace(partial, os.path.join(folder, name))
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)  # makes room on a full disk
        raise


def _back_up(callback):
    """Replaces `BackupAndRestore._save_model`: weights and metadata together become the backup, by renaming one folder."""
    partial, complete = (os.path.join(callback.backup_dir, name) for name in (_PARTIAL, _COMPLETE))
    _adopt(callback)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _in_folder(callback, partial):
            type(callback)._save_model(callback)
        for name in os.listdir(partial):
            _flush(os.path.join(partial, name))
        os.rename(partial, complete)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _adopt(callback)


@contextmanager
def _in_folder(callback, folder):
    """Context manager in which BackupAndRestore uses files in another folder."""
    paths = {name: getattr(callback, name) for name in ("backup_dir", *_FILES)}
    callback.backup_dir = folder
    for name in _FILES:
        setattr(callback, name, os.path.join(folder, os.path.basename(paths[name])))
    try:
        yield
    finally:
        for name, path in paths.items():
            setattr(callback, name, path)


def _adopt(callback):
    """Move a complete backup's files to their places; continues where an earlier process ended."""
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


def _restore(callback, logs=None):
    """Replaces `BackupAndRestore.on_train_begin`."""
    _adopt(callback)
    type(callback).on_train_begin(callback, logs)


def _restore_together(callback, logs=None):
    """The same for all ranks, from the first rank's files: others may not see them, or only until it has removed them."""
    world, files = mpi.world(), None
    if world.rank == 0:
        _adopt(callback)
        files = {name: Path(getattr(callback, name)).read_bytes() for name in _FILES if os.path.exists(getattr(callback, name))}
    files = world.gather_objects(files)[0]
    if world.rank == 0:
        type(callback).on_train_begin(callback, logs)
        return
    with tempfile.TemporaryDirectory() as folder, _in_folder(callback, folder):
        for name, content in files.items():
            Path(getattr(callback, name)).write_bytes(content)
        type(callback).on_train_begin(callback, logs)


def _flush(path):
    """Write a file to the disk: some file systems only now report that it is full."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
