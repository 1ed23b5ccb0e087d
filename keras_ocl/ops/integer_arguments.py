"""Counts, extents, shifts and the like, which shapes and code depend on: whatever holds an integer becomes an int, or a Dim stays one."""

import functools
import inspect

import numpy as np
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import Variable as KerasVariable

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import ValueUnknown, tracing
from keras_ocl.ops.conversion import read

# Parameters of Keras's operations that hold an integer, by their names, and those that hold one or a sequence of such.
SINGLE = frozenset(
    "N M k n num num_classes num_segments num_samples minlength decimals offset kth block_size sequence_length sequence_stride fft_length"
    " length mask_index".split()
)
PARAMETERS = SINGLE | frozenset(
    "shift indices_or_sections repeats shape newshape size output_shape output_size noise_shape spatial_dims pool_size strides"
    " dilation_rate output_padding kernel_size stride dilation padding pad_width".split()
)
# What is called so but is none: it may be a value that exists only when the compiled function runs, an array, or a word.
_OPEN = {("tril", "k"), ("triu", "k"), ("batch_normalization", "offset")} | {
    (op, "padding") for op in ("conv", "conv_transpose", "depthwise_conv", "separable_conv", "average_pool", "max_pool")
}
_SOME = 48  # elements, where nobody knows how many


def with_integers(function):
    """`function`, an operation, so that those of its parameters that are in PARAMETERS get ints where they are given tensors or arrays."""
    names = list(inspect.signature(function).parameters)
    places = [(k, name) for k, name in enumerate(names) if name in PARAMETERS and (function.__name__, name) not in _OPEN]
    if not places:
        return function

    @functools.wraps(function)
    def call(*args, **kwargs):
        for k, name in places:
            if k < len(args):
                if type(args[k]) is not int:
                    args = (*args[:k], _integers(args[k], function.__name__, name), *args[k + 1 :])
            elif name in kwargs:
                kwargs[name] = _integers(kwargs[name], function.__name__, name)
        return function(*args, **kwargs)

    return call


def _integers(value, op, name):
    """`value` with ints in the place of all in it that is one number; where it may be a sequence, tensors and arrays of more stay."""
    if value is None:
        return None
    if name in SINGLE:
        return integer(value, op, name)
    if type(value) in (list, tuple):
        return type(value)(_integers(v, op, name) for v in value)
    if isinstance(value, (KerasVariable, Tensor, np.ndarray)):
        return integer(value, op, name) if not value.shape else value
    return integer(value, op, name) if isinstance(value, (float, np.generic)) else value


def integer(value, op, name):
    """The int, or Dim, that a caller gives as the argument `name` of an operation: `number`, which must be whole.

    Where it is not known yet and only shapes are inferred, so is the result; otherwise TypeError or RuntimeError.
    """
    if isinstance(value, Tensor) and value.is_symbolic() and in_symbolic_scope() and _known(value) is None:
        return Dim(_SOME)
    found = number(value, op, name)
    if found % 1 != 0:
        raise TypeError(f"{op}: `{name}` must be an integer. Received: {value!r:.80}")
    return found if isinstance(found, int) else int(found)


def number(value, op, name):
    """The Python number, or Dim, that a caller gives as such, or as a tensor, variable or array of one element.

    A traced tensor's is known where it is computed of numbers and extents alone. ValueUnknown where it is not, TypeError for no number.
    """
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return value
    given, value = value, value.value if isinstance(value, KerasVariable) else value
    if isinstance(value, Tensor):
        known = _known(value) if value.is_symbolic() else value
        if known is None:
            raise ValueUnknown(
                f"{op}: `{name}` must be known where the function is traced, but it is a traced tensor of shape {tuple(value.shape)}, whose"
                " value exists only when the compiled function runs. Compute it from shapes and Python numbers, or run eagerly"
                " (run_eagerly=True)."
            )
        value = read(known)
    array = np.asarray(value)
    if array.size != 1 or not (array.dtype.kind in "biu" or dtypes.is_float(array.dtype.name)):
        raise TypeError(f"{op}: `{name}` must be one number. Received: {given!r:.80}")
    return array.item()


def extents_of(shape, op="reshape", name="shape"):
    """A shape argument (an int, a sequence of ints and 0-d tensors, or a vector of ints) as a tuple of extents; a Dim stays one."""
    if isinstance(shape, (Tensor, np.ndarray)):
        shape = shape.tolist()
    if not isinstance(shape, (list, tuple)):
        shape = (shape,)
    return tuple(integer(n, op, name) for n in shape)


def _known(tensor):
    """A concrete tensor equal to a traced one, where that depends on no argument and no variable; else None.

    An unknown extent in it counts with the value that it has now, which is a fact from then on.
    """
    makers = {id(o): k for k, equation in enumerate(tensor.trace.equations) for o in equation.outputs}
    needed, waiting = set(), [tensor]
    while waiting:
        t = waiting.pop()
        if not t.is_symbolic():
            continue
        maker = makers.get(id(t))
        if maker is None:
            return None
        if maker not in needed:
            needed.add(maker)
            waiting.extend(tensor.trace.equations[maker].inputs)
    found, token = {}, active_tapes.set(())
    try:
        with tracing(None):
            for equation in (tensor.trace.equations[k] for k in sorted(needed)):
                inputs = [found.get(id(x), x) for x in equation.inputs]
                results = equation.primitive(*inputs, **{k: _plain(v) for k, v in equation.params.items()})
                found.update(zip(map(id, equation.outputs), results if isinstance(results, tuple) else (results,), strict=True))
    finally:
        active_tapes.reset(token)
    return found[id(tensor)]


def _plain(value):
    """A parameter with ints in the place of Dims."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, Dim) else value
