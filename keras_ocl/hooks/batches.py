"""The batches of fit, evaluate and predict, and errors where there are none."""

import itertools

import numpy as np
from keras.src import tree
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_ocl.core import dtypes
from keras_ocl.distribution import own_rows
from keras_ocl.hooks.distribution import own_ranks, whole_batches


class Batches(EpochIterator):
    """Keras's iterator over lists of `steps_per_execution` batches. As on JAX, a shorter list at the end does not mean that data ran out.

    Where each rank gives its own rows, batches are OwnRows, and all ranks have equally many.

    Raises:
        ValueError: there is not a single batch; the message names `caller`. (With None Keras only warns, as when data run out later.)
            Or the ranks are given different numbers of steps.
        TypeError: arrays hold strings or other values that are not numbers.
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
        """Make all ranks run as many steps as the rank with the most batches."""
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
            # Keras knows the number of batches after a pass. With steps_per_epoch, data that sufficed for one epoch may also end here.
            if begin == 0 and self._num_batches is None and not self.steps_per_epoch and self._told:
                raise ValueError(self._told) from None
            with self.catch_stop_iteration():
                raise
            raise
        return begin, end, [first, *itertools.islice(iterator, self.steps_per_execution - 1)]


def check_rows(caller, x, what="x"):
    """Raises ValueError where `x`, a nest of arrays or another source of data, holds no arrays or an array without rows."""
    leaves = tree.flatten(x)
    if not leaves:
        raise ValueError(f"{caller}: {what} holds no arrays; pass at least one.")
    for leaf in leaves:
        shape = getattr(leaf, "shape", None)
        if shape and shape[0] == 0:
            raise ValueError(f"{caller}: {what} has no rows (shape {tuple(shape)}); pass at least one.")


def check_numbers(caller, **given):
    """Raises TypeError where arrays, in nests of any kind, hold strings or other values that are not numbers."""
    for name, nest in given.items():
        for leaf in tree.flatten(nest):
            dtype = type(leaf) if isinstance(leaf, (str, bytes)) else getattr(leaf, "dtype", None)
            dtype = getattr(dtype, "as_numpy_dtype", dtype)  # for TensorFlow's dtypes
            dtypes.check_numbers(f"{caller}: {name}", np.dtype(dtype) if isinstance(dtype, type) else dtype)


def checked(iterator):
    """The lists of batches, each checked by `check_numbers`."""
    for begin, end, batches in iterator:
        check_numbers("fit", **{"a batch": batches})
        yield begin, end, batches
