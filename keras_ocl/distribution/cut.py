"""Variables that are cut over a mesh of processes: each part holds its rows, and what reads the whole value outside of steps gathers it."""

import weakref

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.variable import Owned
from keras_ocl.distribution.layout import Shard, bounds, local_shape
from keras_ocl.distribution.step import compile_parts


class Cut(Owned):
    """This part of a variable's value.

    Reading the whole value is a collective of all parts: each reads it at the same place of the same program.

    Args:
        shape, dtype: of the whole value.
        storage: memory of this part of it.
        layout: for each axis a Shard of one row an element, or None.
        shared: as for Owned.
    """

    __slots__ = ("layout", "_array")

    def __init__(self, shape, dtype, storage, layout, shared=False):
        super().__init__(shape, dtype, storage, shared)
        self.layout, self._array = layout, None

    @classmethod
    def of(cls, tensor, layout):
        """This part of a whole value."""
        part = P.slice(tensor, *zip(*bounds(tensor.shape, layout), strict=True))
        return cls(tensor.shape, tensor.dtype, part.storage, layout, shared=True)

    def in_storage(self, storage):
        return Cut(self.shape, self.dtype, storage, self.layout)

    def lend(self):
        """The whole value, which is gathered anew each time: whether somebody still holds it is not the same on all parts."""
        return Tensor(self.shape, self.dtype, self.storage.device.upload(self.array()))

    def array(self, shown=False):
        """The whole value as a NumPy array, gathered from all parts.

        Args:
            shown: whether this part reads it without asking the others as long as the returned array is held.
        """
        kept = self._array and self._array()
        if kept is not None:
            return kept
        with self.storage.device.state_lock:
            shape = local_shape(self.shape, self.layout)
            array = self.storage.device.download(self.storage, dtypes.numpy_dtype(self.dtype), shape)
        for i, shard in enumerate(self.layout):
            if shard is not None:
                array = shard.axis.group.all_gather(np.ascontiguousarray(array), i, shard.extents())
        self._array = weakref.ref(array) if shown else None
        return array

    def compiled(self, trace, result, call, name, unknowns):
        """A trace that reads this value outside of steps on shared batches, compiled: all its arguments are whole."""
        return compile_parts(None, trace, result, call, name, unknowns)


def layout_of(shape, axes):
    """The layout of a variable whose axes are cut along these (Axis or None for each); None where nothing is cut."""
    layout = tuple(Shard(axis, n) if axis is not None and axis.size > 1 else None for axis, n in zip(axes, shape, strict=True))
    return layout if any(layout) else None
