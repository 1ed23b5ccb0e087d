"""What a variable must offer to traces, tapes and compiled functions, and who holds its value.

A compiled step overwrites a variable's memory only while nobody else can see it. To know that, an Owned keeps its Storage to itself and
lends it through one handle, a view of it, which is shared by everything made from the value (tensors, their reshapes, constants of other
traces, arguments of a call). The Owned has only a weak reference to the handle: while the handle lives, somebody holds the value.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

from keras_ocl.core.dim import Shape
from keras_ocl.core.tensor import Tensor


class Owned:
    """A variable's value.

    Args:
        shape, dtype: those of the value.
        storage: its Storage (device memory). Only compiled functions read or write it, under the device's `state_lock`.
        shared: whether others hold `storage` itself, as after the assignment of a tensor: it is then never overwritten.

    Attributes:
        layout: how the value is sharded over a mesh of devices, `storage` being a shard; None where it is whole. A value with a layout has
            `compiled(trace, result, call, name, unknowns)`, which compiles this device's part of a trace that reads it.
    """

    __slots__ = ("shape", "dtype", "storage", "_shared", "_handle", "_lent")
    layout: Sequence[Any] | None = None
    _handle: weakref.ref[Any] | None
    _lent: weakref.ref[Tensor] | None

    def __init__(self, shape: Shape, dtype: str, storage: Any, shared: bool = False) -> None:
        self.shape, self.dtype, self.storage, self._shared = shape, dtype, storage, shared
        self._handle = self._lent = None  # weak references to the storage and to the Tensor that were lent last

    @classmethod
    def sharing(cls, tensor: Tensor) -> Owned:
        """The value of a variable to which `tensor` was assigned; `lend` returns that tensor as long as somebody holds it."""
        owned = cls(tensor.shape, tensor.dtype, tensor.storage, shared=True)
        owned._lent = weakref.ref(tensor)
        return owned

    def in_storage(self, storage: Any) -> Owned:
        """The same variable's value in other memory, which nobody else holds."""
        return Owned(self.shape, self.dtype, storage)

    def lend(self) -> Tensor:
        """The value as a Tensor for others, whose contents never change: the same one as long as somebody holds it."""
        with self.storage.device.state_lock:
            tensor = None if self._lent is None else self._lent()
            if tensor is None:
                tensor = Tensor(self.shape, self.dtype, self.storage if self._shared else self._lent_storage())
                self._lent = weakref.ref(tensor)
            return tensor

    def _lent_storage(self) -> Any:
        handle = self._handle and self._handle()
        if handle is None:
            handle = self.storage.view(0, self.storage.nbytes)
            self._handle = weakref.ref(handle)
        return handle

    def is_held(self) -> bool:
        """Whether somebody else may see the value, so that it must not be overwritten. The caller holds the device's `state_lock`."""
        return self._shared or (self._handle is not None and self._handle() is not None)


class Variable(Protocol):
    """State that functions read and assign; Keras's variables on this backend are Variables in this sense.

    Attributes:
        trainable: whether tapes record operations that depend on it without being told to.
        path: its name in errors and profiles.
        shape, dtype: those of its value.
    """

    trainable: bool
    path: str
    shape: Shape
    dtype: str
    _owned: Owned  # compiled functions set it, or overwrite its storage

    def _tape_value(self) -> Tensor:
        """The current value, a Tensor: concrete, or that of the current trace."""


def is_variable(x: object) -> TypeGuard[Variable]:
    """Whether `x` is a Variable. Asked for each argument of a step: one look-up, where isinstance of a Protocol takes microseconds."""
    return hasattr(x, "_tape_value")
