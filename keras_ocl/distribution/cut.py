"""Variables that are sharded ("cut") over a mesh of processes: each holds its rows; reading the whole value outside of steps gathers it."""

import weakref

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.variable import Owned
from keras_ocl.distribution.layout import Shard, bounds, local_shape
from keras_ocl.distribution.step import compile_parts


class Cut(Owned):
    """This process's part of a variable's value.

    Reading the whole value is a collective of all parts: each must read it at the same point of the same program.

    Args:
        shape, dtype: those of the whole value.
        storage: the memory of this part.
        layout: for each axis a Shard with blocks of one element, or None.
        shared: as for Owned.
    """

    __slots__ = ("layout", "_array")

    def __init__(self, shape, dtype, storage, layout, shared=False):
        super().__init__(shape, dtype, storage, shared)
        self.layout, self._array = layout, None

    @classmethod
    def of(cls, tensor, layout):
        """This process's part of a whole value, a Tensor."""
        part = P.slice(tensor, *zip(*bounds(tensor.shape, layout), strict=True))
        return cls(tensor.shape, tensor.dtype, part.storage, layout, shared=True)

    def in_storage(self, storage):
        return Cut(self.shape, self.dtype, storage, self.layout)

    def lend(self):
        """The whole value, gathered anew each time, since whether somebody still holds it may differ between parts."""
        return Tensor(self.shape, self.dtype, self.storage.device.upload(self.array()))

    def array(self, shown=False):
        """The whole value as a NumPy array, gathered from all parts.

        Args:
            shown: whether later calls on this part return the same array, without asking the others, while that array is held.
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
        """Compile a trace that reads this value outside of steps on divided batches: all its arguments are whole."""
        return compile_parts(None, trace, result, call, name, unknowns)


def layout_of(shape, axes):
    """The layout of a variable whose axes are cut along `axes` (an Axis or None for each); None if nothing is cut."""
    layout = tuple(Shard(axis, n) if axis is not None and axis.size > 1 else None for axis, n in zip(axes, shape, strict=True))
    return layout if any(layout) else None
