"""Deferred broadcasts in eager code: their results are written only when an operation that is not elementwise reads them.

The kernel of an elementwise operation reads the broadcast's source, as a rule a number, instead, so the broadcast takes no memory and no
kernel of its own. Results that an operation of Keras returns are always written.
"""

from keras_ocl.core.tensor import Tensor


class Deferred:
    """Stands for a tensor's Storage: reading any attribute of a Storage other than `device` writes the tensor.

    Args:
        primitive, params: the operation that makes the tensor from `source`, a Storage of shape `extents` and a `dtype`, which is kept
            alive and so not overwritten.
        shape: the result's shape.
        write: function of (this object, the source) that returns the Storage of the result.
    """

    __slots__ = ("__weakref__", "_source", "_storage", "_write", "device", "dtype", "extents", "params", "primitive", "shape")

    def __init__(self, primitive, params, source, extents, dtype, shape, write):
        self.primitive, self.params, self.extents, self.dtype, self.shape = primitive, params, extents, dtype, shape
        self.device, self._source, self._storage, self._write = source.device, source, None, write

    def source(self):
        """The source's Storage, or None if the result has been written."""
        source = self._source  # read first: another thread may write the result meanwhile
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
    """`result`, the tensor or list of tensors that an operation returns, after all Deferred ones are written."""
    for tensor in result if type(result) in (list, tuple) else (result,):
        if type(tensor) is Tensor and type(tensor.storage) is Deferred:
            tensor.storage = tensor.storage.written()
    return result
