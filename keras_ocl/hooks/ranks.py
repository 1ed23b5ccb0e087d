"""What the ranks of a job do differently, and what must be equal on all of them."""

import hashlib
import logging

import numpy as np
from keras.src import callbacks as keras_callbacks

from keras_ocl.distribution import mpi

_WRITERS = (keras_callbacks.CSVLogger, keras_callbacks.ProgbarLogger, keras_callbacks.RemoteMonitor, keras_callbacks.TensorBoard)
_log = logging.getLogger("keras_ocl")


def without_writers(callbacks):
    """The callbacks of a rank but the first, which alone writes; what they restore and decide is the same everywhere."""
    kept = [c for c in callbacks if not isinstance(c, _WRITERS)]
    for callback in kept:
        if isinstance(callback, (keras_callbacks.ModelCheckpoint, keras_callbacks.BackupAndRestore)):
            callback._save_model = _nothing
        if isinstance(callback, keras_callbacks.BackupAndRestore):
            callback.on_train_end = _nothing  # removes the backup
    return kept


def _nothing(*_, **__):
    return None


def agree(variables):
    """Gives all ranks the first one's values of `variables`, and says which differed.

    Raises:
        RuntimeError: ranks have other variables: their scripts build different models.
    """
    world = mpi.world()
    names = [(v.path, tuple(v.shape), str(v.dtype)) for v in variables]
    for rank, theirs in enumerate(world.gather_objects(names)):
        if theirs != names:
            odd = next((pair for pair in zip(names, theirs, strict=False) if pair[0] != pair[1]), (len(names), len(theirs)))
            raise RuntimeError(
                f"The ranks of the job have different models: rank {world.rank} has {odd[0]} where rank {rank} has {odd[1]};"
                " every rank must run the same script."
            )
    values = [np.ascontiguousarray(v) for v in variables]
    digests = [hashlib.sha256(value.tobytes()).digest() for value in values]
    everybody = world.gather_objects(digests)
    different = [k for k, ours in enumerate(zip(*everybody, strict=True)) if len(set(ours)) > 1]
    for k in different:
        variables[k].assign(world.broadcast(values[k]))
    if different and world.rank == 0:
        first = names[different[0]][0]
        _log.info("%d variables began differently on the ranks, %s first; all have the first rank's values now.", len(different), first)
    return different
