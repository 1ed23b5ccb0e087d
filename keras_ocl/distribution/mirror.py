"""Mirrored variables: several devices of this process hold a copy each, and their parts of a step update all copies alike."""

import weakref

from keras_ocl.compiler.eager import on_device
from keras_ocl.core.variable import Owned


class Mirror:
    """One device's copy of a variable, as a Variable (core/variable.py) for that device's part of a step; at first without memory.

    Attributes:
        shown: the Tensor that the variable lent and that was copied here, or None. While it is held nobody overwrites it, so the
            copy is valid as long as the variable lends the same Tensor.
    """

    trainable = False

    def __init__(self, variable):
        self.path, self.shape, self.dtype = variable.path, variable._owned.shape, variable._owned.dtype
        self.release()

    def release(self):
        """Drop the copy, and its memory unless somebody else holds it."""
        self._owned, self.shown = Owned(self.shape, self.dtype, None), None

    def _tape_value(self):
        return self._owned.lend()


class Mirrored(Owned):
    """The value of a variable that is equal on all devices; reading it gives the first device's copy.

    Code that overwrites it or assigns another value makes it an Owned, and the other devices' copies become invalid.
    """

    __slots__ = ("mirrors",)

    def __init__(self, mirrors):
        first = mirrors[0]._owned
        self.shape, self.dtype, self.mirrors = first.shape, first.dtype, mirrors

    @property
    def storage(self):
        return self.mirrors[0]._owned.storage

    def lend(self):
        return self.mirrors[0]._owned.lend()

    def is_held(self):
        return True


class Mirrors:
    """The Mirrors of one variable, one per device; they do not keep the variable alive."""

    def __init__(self, variable, devices):
        self._variable, self._devices = weakref.ref(variable), devices
        self.each = [Mirror(variable) for _ in devices]

    def refresh(self):
        """Copy the variable's value to all devices, unless they have it."""
        variable = self._variable()
        owned = variable._owned
        if isinstance(owned, Mirrored) and owned.mirrors is self.each:
            return
        for mirror, device in zip(self.each, self._devices, strict=True):
            mirror._owned = owned
            if owned.storage.device is not device or isinstance(owned, Mirrored):
                storage = device.allocate_state(owned.storage.nbytes, mirror.path)
                device.copy(on_device(owned, device), storage)
                mirror._owned = Owned(owned.shape, owned.dtype, storage)
        variable._owned = Mirrored(self.each)

    def release(self):
        """Give the variable the first device's value; the other copies become invalid."""
        self._variable()._owned = self.each[0]._owned
