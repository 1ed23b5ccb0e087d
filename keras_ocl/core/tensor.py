"""Tensor: a device array, or, inside a trace, a value of the graph being built."""

from keras_ocl.core.dim import product


class Tensor:
    """A contiguous row-major array of `shape` and `dtype`.

    Exactly one of two kinds:
        concrete: `storage` holds the device memory (opaque to core);
        symbolic: `trace` is the trace that produced it, and extents may be Dims.

    Operators (`+`, `@`, indexing…) follow Keras's promotion and are installed by `keras_ocl.ops`.
    """

    __slots__ = ("shape", "dtype", "storage", "trace", "__weakref__", "__dict__")

    def __init__(self, shape, dtype, storage=None, trace=None):
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.trace = trace

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return product(self.shape)

    def is_symbolic(self):
        return self.storage is None

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __hash__(self):
        return id(self)

    def __format__(self, spec):
        return format(self.item(), spec) if spec and not self.shape else repr(self)

    def __repr__(self):
        if self.is_symbolic():
            return f"<Tensor shape={tuple(self.shape)} dtype={self.dtype} (traced)>"
        return f"<Tensor shape={tuple(self.shape)} dtype={self.dtype} value={self.__array__()}>"
