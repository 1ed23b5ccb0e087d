"""The batches of fit, evaluate and predict, and what is told where there are none."""

import itertools

import numpy as np
from keras.src import tree
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_ocl.core import dtypes
from keras_ocl.distribution import own_rows
from keras_ocl.hooks.distribution import own_ranks, whole_batches


class Batches(EpochIterator):
    """Keras's iterator over lists of `steps_per_execution` batches. As on JAX, that a pass ends with a shorter list is no lack of data.

    Where each rank gives rows of its own, batches are OwnRows, as many on all ranks.

    Raises:
        ValueError: there is not a single batch, which is told in the name of `caller`; with None Keras warns, as when data run out later.
            Or ranks are given different numbers of steps.
        TypeError: arrays hold strings, or what else is no number.
    """

    def __init__(self, caller, x, **settings):
        check_numbers(caller or "fit", x=x, y=settings.get("y"), sample_weight=settings.get("sample_weight"))
        if caller is not None:
            check_rows(caller, x)
        with whole_batches():
            super().__init__(x, **settings)
        self._told = f"{caller}: x ({type(x).__name__}) has no batches; pass at least one." if caller is not None else None
        if self._num_batches == 0 and self._told:
            raise ValueError(self._told)
        self._ranks = own_ranks()
        if self._ranks is not None:
            self._agree()

    def _agree(self):
        """All ranks make as many steps as the one with most batches."""
        known = self._ranks.gather_objects((self.steps_per_epoch, self.steps_per_execution, self._num_batches))
        for rank, (*steps, _) in enumerate(known):
            if steps != [self.steps_per_epoch, self.steps_per_execution]:
                raise ValueError(
                    f"auto_shard_dataset=False: rank {rank} has {steps[0]} steps per epoch and {steps[1]} per execution, where rank"
                    f" {self._ranks.rank} has {self.steps_per_epoch} and {self.steps_per_execution}; all ranks need the same."
                )
        numbers = [number for *_, number in known]
        self._num_batches = None if None in numbers else max(numbers)

    def _get_iterator(self):
        iterator = super()._get_iterator()
        return iterator if self._ranks is None else own_rows.batches(self._ranks, iterator)

    def reset(self):
        super().reset()
        if self._ranks is not None:
            self._agree()

    def __next__(self):
        begin, end, iterator = next(self._epoch_iterator)
        try:
            first = next(iterator)
        except StopIteration:
            # After a pass Keras knows the number; with steps_per_epoch, data that were enough for the first epoch may end here too.
            if begin == 0 and self._num_batches is None and not self.steps_per_epoch and self._told:
                raise ValueError(self._told) from None
            with self.catch_stop_iteration():
                raise
            raise
        return begin, end, [first, *itertools.islice(iterator, self.steps_per_execution - 1)]


def check_rows(caller, x, what="x"):
    """Raises ValueError where `x`, a nest of arrays or any other source of data, holds no arrays or one without rows."""
    leaves = tree.flatten(x)
    if not leaves:
        raise ValueError(f"{caller}: {what} holds no arrays; pass at least one.")
    for leaf in leaves:
        shape = getattr(leaf, "shape", None)
        if shape and shape[0] == 0:
            raise ValueError(f"{caller}: {what} has no rows (shape {tuple(shape)}); pass at least one.")


def check_numbers(caller, **given):
    """Raises TypeError where arrays, in nests of any kind, hold strings or what else is no number."""
    for name, nest in given.items():
        for leaf in tree.flatten(nest):
            dtype = type(leaf) if isinstance(leaf, (str, bytes)) else getattr(leaf, "dtype", None)
            dtype = getattr(dtype, "as_numpy_dtype", dtype)  # of TensorFlow's
            dtypes.check_numbers(f"{caller}: {name}", np.dtype(dtype) if isinstance(dtype, type) else dtype)


def checked(iterator):
    """The lists of batches, looked at by `check_numbers`."""
    for begin, end, batches in iterator:
        check_numbers("fit", **{"a batch": batches})
        yield begin, end, batches
