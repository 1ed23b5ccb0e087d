"""Shape inference: running a function on symbolic tensors in a trace that is thrown away."""

from keras.src import tree
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.symbolic_scope import SymbolicScope

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, noting, without_values
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import Trace, tracing

# Values that stand for an unknown extent, tried in turn until the function accepts one: the first is divisible by what shapes are commonly
# split into and larger than common windows; smaller ones fit tables, 1 broadcasts with all, and larger ones have the rows asked for.
_STAND_INS = (1680, 360, 48, 12, 4, 1, 20160, 332640, 14414400)


def compute_output_spec(fn, *args, **kwargs):
    """KerasTensors of the shapes and dtypes that fn(*args, **kwargs) returns for KerasTensors. Does not touch the device.

    All unknown extents of one call are the same one, so that inputs that must agree on one do. `fn` runs again with another value for it
    where it refuses one.

    Raises:
        What `fn` raises for the first value, if it raises for all.
    """
    refused = None
    for value in _STAND_INS:
        try:
            with without_values(), noting(None):
                return _spec_for(value, fn, args, kwargs)
        except (ValueError, IndexError) as error:
            if not _has_unknown(args, kwargs):
                raise
            refused = refused or error
    raise refused


def _has_unknown(args, kwargs):
    """Whether a KerasTensor among the arguments has an extent that is None."""
    return any(isinstance(x, KerasTensor) and None in x.shape for x in tree.flatten((args, kwargs)))


def _spec_for(value, fn, args, kwargs):
    unknown = Dim(value)
    trace = Trace()

    def enter(x):
        if isinstance(x, KerasTensor):
            return trace.input(tuple(unknown if n is None else n for n in x.shape), dtypes.canonical(x.dtype))
        return x

    token = active_tapes.set(())
    try:
        with StatelessScope(), SymbolicScope(), tracing(trace):
            args, kwargs = tree.map_structure(enter, (args, kwargs))
            with StatelessScope():
                outputs = fn(*args, **kwargs)
    finally:
        active_tapes.reset(token)
    return tree.map_structure(_spec, outputs)


def _spec(x):
    if isinstance(x, Tensor):
        return KerasTensor(tuple(None if isinstance(n, Dim) else int(n) for n in x.shape), x.dtype)
    return x
