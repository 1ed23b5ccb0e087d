"""Differences between the ranks of a job, and checks of what must be equal."""

import logging
from functools import partial

import numpy as np
from keras.src import callbacks as keras_callbacks

from keras_ocl.distribution import mpi
from keras_ocl.distribution.drift import differing
from keras_ocl.hooks.distribution import placement, process_id

_WRITERS = (keras_callbacks.CSVLogger, keras_callbacks.ProgbarLogger, keras_callbacks.RemoteMonitor, keras_callbacks.TensorBoard)
_log = logging.getLogger("keras_ocl")


def without_writers(callbacks):
    """Callbacks for a rank other than the first, which alone writes; what they restore and decide is the same on all ranks."""
    kept = [c for c in callbacks if not isinstance(c, _WRITERS)]
    for callback in kept:
        if isinstance(callback, keras_callbacks.ModelCheckpoint):
            callback.verbose = 0
            callback._save_model = partial(_checkpoint, callback)
        if isinstance(callback, keras_callbacks.BackupAndRestore):
            callback._save_model = lambda callback=callback: whole_values(callback.model)
            callback.on_train_end = lambda logs=None: None  # would remove the backup
    return kept


def _checkpoint(callback, epoch, batch, logs):
    """What ModelCheckpoint does in a step, except for writing the file."""
    if callback._should_save_model(epoch, batch, logs, callback._get_file_path(epoch, batch, logs)):
        whole_values(callback.model)


def whole_values(model):
    """Called on all ranks where a model is saved, to gather cut variables. The first rank, which writes, gets a list of their whole values:
    while it holds that, it reads them without the others. Ranks that give it their parts get None."""
    first = process_id() == 0
    variables = [*model.variables, *(getattr(model, "optimizer", None) or model).variables]
    cut = {id(v): v._owned for v in variables if v._owned.layout is not None}
    arrays = []
    for owned in cut.values():
        array = owned.array(shown=first)
        if first:
            arrays.append(array)
    return arrays if first or not (cut or placement()) else None


def agree(variables):
    """Give all ranks the first rank's values of those `variables` that are not cut; returns the indices of those that differed.

    Raises:
        RuntimeError: ranks have different variables, as their scripts build different models.
    """
    world = mpi.world()
    names = [(v.path, tuple(v.shape), str(v.dtype), getattr(v._layout, "axes", None)) for v in variables]
    for rank, theirs in enumerate(world.gather_objects(names)):
        if theirs != names:
            odd = next((pair for pair in zip(names, theirs, strict=False) if pair[0] != pair[1]), (len(names), len(theirs)))
            raise RuntimeError(
                f"The ranks of the job have different models: rank {world.rank} has {odd[0]} where rank {rank} has {odd[1]};"
                " every rank must run the same script."
            )
    variables = [v for v in variables if v._owned.layout is None]
    different = differing(world, variables)
    for k in different:
        variables[k].assign(world.broadcast(np.array(variables[k])))
    if different and world.rank == 0:
        first = variables[different[0]].path
        _log.info("%d variables began differently on the ranks, %s first; all have the first rank's values now.", len(different), first)
    return different
