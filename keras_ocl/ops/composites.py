"""Operations of several primitives in eager code: called again and again, each runs as one compiled graph.

The first calls run primitive by primitive, whose kernels all sizes and operations share. What is compiled then takes extents as arguments
too, so that other sizes reuse its kernels.
"""

import functools
from collections import Counter

from keras.src.backend import config

from keras_ocl import runtime
from keras_ocl.compiler import eager
from keras_ocl.compiler.deferred import is_deferred, written
from keras_ocl.compiler.jit import eager_graph
from keras_ocl.core import checks, precision, tree
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import NotTraced

HOT = 16  # calls with the same signature before it is compiled
_MANY = 8  # tensors given or returned: of more, a graph's kernels would grow with their number, and each number would take its own
_MOST = 4096  # signatures of a function that are counted
_NUMBERS = 8  # compiled signatures that differ in numbers alone: some are constants of kernels, and a loop's counter would compile many
_REFUSED = -1


def composite(function):
    """`function`, an operation on tensors and plain values, so that it is compiled for signatures that come again and again."""
    views = set()  # types of arguments with which it ran nothing, as a reshape does
    calls = {}  # signature -> number of calls, or _REFUSED
    compiled = Counter()  # signature without its numbers -> how many signatures are compiled

    @functools.wraps(function)
    def run(*args, **kwargs):
        if current_trace.get() is not None:
            return function(*args, **kwargs)
        types = (*map(type, args), *kwargs)
        if types in views or active_tapes.get() or checks.active():
            return written(function(*args, **kwargs))
        signature, tensors = _signature(args, kwargs)
        number = _REFUSED if signature is None else calls.get(signature, 0)
        if number == HOT:
            device = tensors[0].storage.device
            try:
                bound = eager.compiled_once((device, function, signature), lambda: _compiled(function, device, tensors, args, kwargs))
            except NotTraced as error:
                calls[signature] = _REFUSED
                result = written(function(*args, **kwargs))
                error.told(function.__name__)
                return result
            return bound.compiled.run(tensors, bound)
        before = eager.executed()
        result = written(function(*args, **kwargs))
        if eager.executed() == before:
            views.add(types)
        elif number != _REFUSED:
            if len(calls) >= _MOST:
                calls.clear()
                compiled.clear()
            number += 1
            if number == HOT:
                compiled[signature[0]] += 1
            many = isinstance(result, (list, tuple)) and len(result) > _MANY
            calls[signature] = _REFUSED if many or compiled[signature[0]] > _NUMBERS else number
        return result

    return run


def _signature(args, kwargs):
    """((hashable of all but numbers that an operation's trace depends on, the numbers), the tensors); None first if that cannot be said."""
    key, numbers, tensors = [len(args), config.floatx(), config.epsilon(), config.image_data_format(), precision.active()], [], []
    if kwargs:
        key.append(tuple(kwargs))
        args = (*args, *kwargs.values())
    if not _add(args, key, numbers, tensors) or not 0 < len(tensors) <= _MANY:
        return None, ()
    if any(t.storage.device is not tensors[0].storage.device for t in tensors):
        return None, ()
    return (tuple(key), tuple(numbers)), tensors


def _add(leaves, key, numbers, tensors):
    """Adds what tells arguments apart to `key` and `numbers`, the tensors to `tensors`; False where there is a value of another kind."""
    for leaf in leaves:
        kind = type(leaf)
        if kind is Tensor:
            # Keras marks tensors with masks and logits, which an operation may look at.
            marked = getattr(leaf, "_keras_mask", None) is not None or getattr(leaf, "_keras_logits", None) is not None
            if leaf.storage is None or marked or is_deferred(leaf):  # for a graph it would be written
                return False
            tensors.append(leaf)
            key.append(leaf.shape)
            key.append(leaf.dtype)
        elif leaf is None:
            key.append(None)
        elif kind is bool or kind is str:
            key.append(kind)
            key.append(leaf)
        elif kind is int:
            key.append(kind)
            numbers.append(leaf)
        elif kind is float:
            key.append(kind)
            numbers.append(leaf.hex())  # 0.0 is not -0.0
        elif isinstance(leaf, (tuple, list, dict)):
            parts, structure = tree.flatten(leaf)
            key.append(structure)
            if not _add(parts, key, numbers, tensors):
                return False
        else:
            return False
    return True


def _compiled(function, device, tensors, args, kwargs):
    leaves, structure = tree.flatten((args, kwargs))

    def call(symbolic, _):
        rest = iter(symbolic)
        args, kwargs = tree.unflatten(structure, [next(rest) if type(leaf) is Tensor else leaf for leaf in leaves])
        try:
            return function(*args, **kwargs)
        except runtime.FAILURES:
            raise
        except Exception as error:
            raise NotTraced from error

    return eager_graph(function.__name__, device, tensors, call)
