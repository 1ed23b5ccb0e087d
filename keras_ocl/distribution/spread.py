"""Variables that are sharded ("spread") over several devices of this process: each holds its part; reading the whole value gathers it."""

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
    """One device's part of a variable, as a Variable (core/variable.py) for that device's part of a step."""

    trainable = False

    def __init__(self, path, owned):
        self.path, self.shape, self.dtype, self._owned = path, owned.shape, owned.dtype, owned

    def _tape_value(self):
        return self._owned.lend()


class Spread(Owned):
    """The value of a variable of which each device has a part (a Cut).

    Args:
        placement: the LocalPlacement of the devices.
        pieces: a list with one Piece per device.
    """

    __slots__ = ("placement", "pieces", "layout")

    def __init__(self, placement, pieces):
        self.placement, self.pieces = placement, pieces
        first = pieces[0]._owned
        self.shape, self.dtype, self.layout = first.shape, first.dtype, first.layout

    @classmethod
    def of(cls, tensor, placement, path, layouts):
        """The parts of a whole value, each in its own memory.

        Args:
            layouts: for each device the layout of its part.
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
        """The whole value, gathered anew each time."""
        return Tensor(self.shape, self.dtype, self.storage.device.upload(self.array()))

    def is_held(self):
        return False  # nobody else gets the memory itself

    def array(self, shown=False):
        """The whole value as a NumPy array; `shown` (see Cut) has no effect, as no other process is involved."""
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
        """Compile a trace that reads this value outside of steps on divided batches: all its arguments are whole."""
        return compile_parts(self.placement, trace, result, call, name, unknowns)


class Pieces:
    """A variable's Pieces, the same objects whatever is assigned to it; they do not keep it alive."""

    def __init__(self, variable):
        self._variable = weakref.ref(variable)
        self.each = [Piece(variable.path, piece._owned) for piece in variable._owned.pieces]

    def refresh(self):
        """Give the Pieces the variable's present values."""
        owned = self._variable()._owned
        if owned.pieces is not self.each:
            for mine, piece in zip(self.each, owned.pieces, strict=True):
                mine._owned = piece._owned
            owned.pieces = self.each

    def release(self):
        """Does nothing: either all devices have updated their parts, or none has."""
