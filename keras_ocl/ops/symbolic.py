"""Shape inference: running a function on symbolic tensors in a trace that is thrown away."""

from keras.src import tree
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.symbolic_scope import SymbolicScope

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import Trace, tracing

# The value that stands for an unknown extent: divisible by what shapes are commonly split into, larger than common windows. All
# unknown extents of one call are the same one, so that inputs that must agree on one do.
_STAND_IN = 1680


def compute_output_spec(fn, *args, **kwargs):
    """KerasTensors of the shapes and dtypes that fn(*args, **kwargs) returns for KerasTensors. Does not touch the device."""
    unknown = Dim(_STAND_IN)
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
