"""Names for profiles: what a function of `keras.ops` records is marked as that operation, and what it calls within too."""

import functools
import inspect

from keras_ocl.core import checks
from keras_ocl.core.index import is_one
from keras_ocl.core.origin import Origin, current_origin, operation_name
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.trace import origins_kept
from keras_ocl.ops.bounds import check_numbers
from keras_ocl.ops.composites import composite
from keras_ocl.ops.integer_arguments import with_integers

_WITH_RANK = {
    "conv": "Conv{}D",
    "depthwise_conv": "DepthwiseConv{}D",
    "separable_conv": "SeparableConv{}D",
    "conv_transpose": "Conv{}DTranspose",
}
_CALL_BACK = {"vectorize", "jvp"}  # the operations are those of the function that they are given
_BY_VALUES = {"bincount"}  # the result's shape depends on values in eager code, and not in a trace


def named_operations(namespace, pure=True):
    """The operations of Keras among a module's `globals()`, each so that it marks what it records: a dict to update them by.

    Those that are `pure`, which depend on their arguments alone, are compiled where eager code repeats them.
    """
    ours = {n: f for n, f in namespace.items() if inspect.isfunction(f) and f.__module__.startswith("keras_ocl.") and not n.startswith("_")}
    ours = {name: with_integers(f) for name, f in ours.items()}
    repeated = {name: composite(f) if pure and name not in _BY_VALUES else f for name, f in ours.items() if name not in _CALL_BACK}
    return {name: named_operation(f) for name, f in repeated.items()}


def named_operation(function):
    """`function`, so that what it records is marked as the operation that it is called after."""
    name = function.__name__
    title = operation_name(name)

    @functools.wraps(function)
    def marked(*args, **kwargs):
        if not origins_kept():
            return function(*args, **kwargs)
        around = current_origin.get()
        if checks.active() and current_trace.get() is None:
            return check_numbers(function, title, args, kwargs)
        if around.operation:  # it is a part of what was called
            return function(*args, **kwargs)
        operation = title
        if name in _WITH_RANK:
            operation = _WITH_RANK[name].format(len(_shape(args, kwargs, 0, "inputs")) - 2)
        elif name == "add" and around.layer and _is_bias(_shape(args, kwargs, 0, "x1"), _shape(args, kwargs, 1, "x2")):
            operation = "BiasAdd"
        token = current_origin.set(Origin(around.layer, operation, around.gradient))
        try:
            return function(*args, **kwargs)
        finally:
            current_origin.reset(token)

    return marked


def _shape(args, kwargs, position, name):
    return getattr(args[position] if len(args) > position else kwargs.get(name), "shape", ())


def _is_bias(x, bias):
    """Whether `bias` is one number for each channel of `x`, in the shapes that Keras's layers give it."""
    return len(x) > 1 and 0 < len(bias) <= len(x) and sum(not is_one(n) for n in bias) <= 1 and sum(not is_one(n) for n in x) > 1
