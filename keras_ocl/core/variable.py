"""What a variable must offer to traces, tapes and compiled functions."""

from typing import Protocol

from keras_ocl.core.tensor import Tensor


class Variable(Protocol):
    """State that functions read and assign; Keras's variables on this backend are such.

    Attributes:
        trainable: whether tapes record what depends on it without being told.
        path: its name, for errors and profiles.
        shape, dtype: of its value.
    """

    trainable: bool
    path: str
    shape: tuple
    dtype: str
    _value: Tensor  # concrete; compiled functions set it, or overwrite its storage

    def _tape_value(self) -> Tensor:
        """The value here and now: concrete, or of the current trace."""


def is_variable(x):
    """Whether `x` is a Variable. Asked for each argument of a step: one look-up, where isinstance of a Protocol takes microseconds."""
    return hasattr(x, "_tape_value")
