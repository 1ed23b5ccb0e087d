"""Variables that are cut over several devices of this process: each device holds its part, and what reads the whole value gathers it."""

import weakref

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.compiler.eager import on_device
from keras_ocl.core import dtypes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.variable import Owned
from keras_ocl.distribution.cut import Cut
from keras_ocl.distribution.layout import bounds, local_shape
from keras_ocl.distribution.step import compile_parts


class Piece:
    """One device's part: a Variable (core/variable.py) for that device's part of a step."""

    trainable = False

    def __init__(self, path, owned):
        self.path, self.shape, self.dtype, self._owned = path, owned.shape, owned.dtype, owned

    def _tape_value(self):
        return self._owned.lend()


class Spread(Owned):
    """The value of a variable of which each device has a Cut.

    Args:
        placement: the LocalPlacement.
        pieces: a Piece for each of its devices.
    """

    __slots__ = ("placement", "pieces", "layout")

    def __init__(self, placement, pieces):
        self.placement, self.pieces = placement, pieces
        first = pieces[0]._owned
        self.shape, self.dtype, self.layout = first.shape, first.dtype, first.layout

    @classmethod
    def of(cls, tensor, placement, path, layouts):
        """The parts of a whole value, in memory of their own.

        Args:
            layouts: for each device how it is cut.
        """
        pieces = []
        for device, layout in zip(placement.devices, layouts, strict=True):
            part = P.slice(tensor, *zip(*bounds(tensor.shape, layout), strict=True))
            storage = device.allocate_state(part.storage.nbytes, path)
            device.copy(on_device(part, device), storage)
            pieces.append(Piece(path, Cut(tensor.shape, tensor.dtype, storage, layout)))
        return cls(placement, pieces)

    @property
    def storage(self):
        return self.pieces[0]._owned.storage

    def lend(self):
        """The whole value, which is gathered anew each time."""
        return Tensor(self.shape, self.dtype, self.storage.device.upload(self.array()))

    def is_held(self):
        return False  # nobody gets the memory itself

    def array(self, shown=False):
        """The whole value as a NumPy array; `shown` is as for Cut, which others are not asked about here."""
        dtype = dtypes.numpy_dtype(self.dtype)
        whole = np.empty(self.shape, dtype)
        with self.placement.lock:
            for piece, device in zip(self.pieces, self.placement.devices, strict=True):
                owned = piece._owned
                place = tuple(slice(*ends) for ends in bounds(self.shape, owned.layout))
                with device.state_lock:
                    whole[place] = device.download(owned.storage, dtype, local_shape(self.shape, owned.layout))
        return whole

    def compiled(self, trace, result, call, name, unknowns):
        """A trace that reads this value outside of steps on shared batches, compiled: all its arguments are whole."""
        return compile_parts(self.placement, trace, result, call, name, unknowns)


class Pieces:
    """A variable's Pieces, the same whatever is assigned to it; they do not keep it alive."""

    def __init__(self, variable):
        self._variable = weakref.ref(variable)
        self.each = [Piece(variable.path, piece._owned) for piece in variable._owned.pieces]

    def refresh(self):
        """They are what the variable has now."""
        owned = self._variable()._owned
        if owned.pieces is not self.each:
            for mine, piece in zip(self.each, owned.pieces, strict=True):
                mine._owned = piece._owned
            owned.pieces = self.each

    def release(self):
        """Nothing is to be done: all devices have updated their parts or none has."""
