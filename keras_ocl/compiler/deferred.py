"""Broadcast operands in eager code: written where something reads them that is no elementwise operation.

An elementwise operation's kernel reads what was broadcast, a number above all, where it lies: so that takes no memory and no kernel of its
own. What an operation of Keras returns is written.
"""

from keras_ocl.core.tensor import Tensor


class Deferred:
    """Stands for a tensor's Storage: what is asked of it beside `device` is that of the written one.

    Args:
        primitive, params: what makes the tensor of `source`, which has `extents` and a `dtype`; that is kept, and so not overwritten.
        shape: of the result.
        write: function of (this object, the source) that returns the Storage of the result.
    """

    __slots__ = ("__weakref__", "_source", "_storage", "_write", "device", "dtype", "extents", "params", "primitive", "shape")

    def __init__(self, primitive, params, source, extents, dtype, shape, write):
        self.primitive, self.params, self.extents, self.dtype, self.shape = primitive, params, extents, dtype, shape
        self.device, self._source, self._storage, self._write = source.device, source, None, write

    def source(self):
        """The source's Storage, or None when the result was written."""
        source = self._source  # before the look: another thread may write it meanwhile
        return source if self._storage is None else None

    def written(self):
        """A Storage that holds the result."""
        source = self.source()
        if source is not None:
            self._storage = self._write(self, source)
            self._source = None
        return self._storage

    def __getattr__(self, name):
        return getattr(self.written(), name)


def is_deferred(tensor):
    """Whether a concrete tensor's elements are not written yet."""
    return type(tensor.storage) is Deferred and tensor.storage.source() is not None


def written(result):
    """What an operation returns, tensors or lists of them, all written."""
    for tensor in result if type(result) in (list, tuple) else (result,):
        if type(tensor) is Tensor and type(tensor.storage) is Deferred:
            tensor.storage = tensor.storage.written()
    return result
