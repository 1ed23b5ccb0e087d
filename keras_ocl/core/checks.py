"""Checks of indices and for NaN and infinity, off by default: whether they are on, and the index checks that a trace has noted.

When they are off, nothing is recorded and nothing runs. When they are on, ops note their indices while they are traced (or check them at
once, in eager code), and the compiler adds equations to a trace that find the first NaN or infinity (compiler/trace/checking.py).
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_ocl.core import origin
from keras_ocl.core.tensor import Tensor

_contexts = 0  # how many contexts are open, in all threads; the environment counts as one


def active() -> bool:
    """Whether checks are on; a function traced with them is compiled separately."""
    return _contexts > 0


@contextlib.contextmanager
def checks() -> Iterator[None]:
    """Context in which an index out of range, a NaN and an infinity raise, in every thread, compiled steps included.

        with keras_ocl.checks():
            model.fit(x, y)

    Compiled functions are traced once more, with checks in them, and each run waits for the device. When an error is raised, the run in
    which it arose is complete: variables hold the values after it. ``KERAS_OCL_CHECK=1`` turns checks on for the whole process.

    Yields:
        Nothing.

    Raises:
        IndexError: (from what runs inside) an index is out of range. The error names the operation, the layer, the index and the range.
        FloatingPointError: (likewise) an operation made a NaN or an infinity of finite numbers, or was given one. The error names the
            operation and the layer.
    """
    global _contexts
    _contexts += 1
    try:
        with origin.kept_in_eager_code():
            yield
    finally:
        _contexts -= 1


class IndexCheck(NamedTuple):
    """A check of indices that a trace has noted.

    op, layer: the operation that uses the indices, and its layer. wraps: whether negative ones count from the end.
    found: int64 tensor (..., 3 + rank): the position of the first bad index among the flattened ones (-1: there is none), that index,
        the extent, and the indices' shape. Leading axes are steps of loops.
    """

    op: str
    layer: str
    wraps: bool
    found: Tensor


def index_error(op: str, layer: str, wraps: bool, found: Sequence[int]) -> IndexError | None:
    """The IndexError for an IndexCheck whose `found` has this row of integers; None where no index is bad."""
    place, index, extent, *shape = found
    if place < 0:
        return None
    position: list[int] = []
    for n in reversed(shape):
        place, along = divmod(place, max(n, 1))
        position.insert(0, along)
    where = f" in {layer}" if layer else ""
    at = f" at {tuple(position)}" if shape else ""
    allowed = f"from {-extent if wraps else 0} to {extent - 1}" if extent else "none, for there are no elements"
    return IndexError(f"{op}{where}: index {index}{at} is out of range; allowed are {allowed}.")


if os.environ.get("KERAS_OCL_CHECK", "0") not in ("", "0"):
    _always = checks()  # never left
    _always.__enter__()
