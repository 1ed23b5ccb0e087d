"""How exact products of float32 are where a device's matrix units multiply in fewer bits: which precision is asked for.

Each product and convolution that is recorded carries the precision of its place in the program, and its gradients inherit it.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

PRECISIONS = ("float32", "tf32", "bfloat16")  # the most exact first


def checked(name: str, setting: str) -> str:
    """`name`, one of PRECISIONS; ValueError that names the `setting` where it is not."""
    if name not in PRECISIONS:
        *rest, last = (f'"{known}"' for known in PRECISIONS)
        raise ValueError(f"{setting}={name!r}: it is {', '.join(rest)} or {last}")
    return name


_USUAL = checked(os.environ.get("KERAS_OCL_PRECISION") or PRECISIONS[0], "KERAS_OCL_PRECISION")
_asked = ContextVar("keras_ocl_precision", default=_USUAL)


def active() -> str:
    """The precision asked for here; a function traced with another one is compiled separately."""
    return _asked.get()


def of_operands(asked: str | None, *dtypes: str) -> str:
    """The precision of a product of operands of these dtypes: the one `asked` for (None: active()) of float32 alone, others have none."""
    if any(dtype != "float32" for dtype in dtypes):
        return PRECISIONS[0]
    return asked or active()


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Context in which float32 matrix products and convolutions, and their gradients, may be computed from operands of fewer bits.

        with keras_ocl.precision("tf32"):
            model.fit(x, y)

    It matters on devices with matrix units (``python -m keras_ocl devices`` lists them); others compute all of it in float32. Variables,
    sums, elementwise operations and attention are float32 in any case, and so is the memory that a step takes. The setting is this
    thread's; ``KERAS_OCL_PRECISION`` sets it for the whole process.

    Args:
        name: "float32" (the default): results are at least as exact as sums of float32 multiply-adds. "tf32": operands keep 11 bits or more
            of 24, as by default in TensorFlow and JAX on NVIDIA's GPUs, and as PyTorch's "high": by units for TF32, else by three products
            of bfloat16 parts, which keep 16 bits. "bfloat16": operands keep 8 bits, as PyTorch's "medium".

    Yields:
        Nothing.

    Raises:
        ValueError: there is no precision of that name.
    """
    token = _asked.set(checked(name, "precision"))
    try:
        yield
    finally:
        _asked.reset(token)
