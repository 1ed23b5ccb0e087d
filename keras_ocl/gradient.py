"""Gradients of Python functions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from keras.src import backend, tree

from keras_ocl.core.autodiff import GradientTape, differentiable
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy.elementwise import copy

P = ParamSpec("P")
R = TypeVar("R")


def value_and_grad(
    function: Callable[P, R], argnums: int | Sequence[int] = 0, has_aux: bool = False, variables: Any = None
) -> Callable[P, tuple[R, Any]]:
    """Makes a function that returns what `function` returns and its gradient.

    Args:
        function: returns a scalar Tensor; with `has_aux` a pair of one and any other value.
        argnums: the position, or the tuple of positions, of the arguments to differentiate by. Each is an array, Tensor or Variable of
            a floating-point dtype, or a nest of them.
        has_aux: whether `function` returns a pair.
        variables: Variables, in any nest, to differentiate by instead of arguments, such as `model.trainable_variables`.

    Returns:
        A function with the arguments of `function` that returns a pair: its result, and the gradient in the structure of the argument (a
        tuple of them when `argnums` is a tuple) or of `variables`. The gradient is zero where the result does not depend on a value.

    Raises:
        TypeError: `function` cannot be called.
        ValueError: (from the made function) the result is not a scalar, or an argument is not of a floating-point dtype or not passed by
            position.
    """
    if not callable(function):
        raise TypeError(f"keras_ocl.grad and value_and_grad take a function, not {type(function).__name__}.")

    @functools.wraps(function)
    def with_gradient(*given: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
        args: list[Any] = list(given)
        sources = variables
        if variables is None:
            positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
            if not all(-len(args) <= position < len(args) for position in positions):
                raise ValueError(
                    f"The gradient of {_name(function)} is by argnums={argnums}, but {len(args)} arguments came by position:"
                    " pass what is differentiated by position, or change argnums."
                )
            for position in positions:
                args[position] = tree.map_structure(functools.partial(_source, function, position), args[position])
            sources = args[argnums] if isinstance(argnums, int) else tuple(args[position] for position in positions)
        with GradientTape(watch_accessed_variables=False) as tape:
            for source in tree.flatten(sources):
                tape.watch(source)
            result: Any = function(*args, **kwargs)
            value = convert_to_tensor(result[0] if has_aux else result)
        if tuple(value.shape) != ():
            raise ValueError(f"The gradient of {_name(function)} needs a scalar result, but its shape is {tuple(value.shape)}.")
        flat = tape.gradient(value, tree.flatten(sources), unconnected_gradients="zero")
        return result, tree.pack_sequence_as(sources, flat)

    return with_gradient


def grad(function: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, variables: Any = None) -> Callable[P, Any]:
    """Makes a function that returns the gradient of `function`.

    Args:
        function: returns a scalar Tensor; with `has_aux` a pair of one and any other value.
        argnums: the position, or the tuple of positions, of the arguments to differentiate by.
        has_aux: whether `function` returns a pair.
        variables: Variables, in any nest, to differentiate by instead of arguments.

    Returns:
        A function with the arguments of `function` that returns the gradient, or with `has_aux` the pair of gradient and auxiliary result.

    Raises:
        TypeError, ValueError: as `value_and_grad` and the function that it makes.
    """
    with_gradient = value_and_grad(function, argnums, has_aux, variables)

    @functools.wraps(function)
    def gradient(*args: P.args, **kwargs: P.kwargs) -> Any:
        result, gradients = with_gradient(*args, **kwargs)
        return (gradients, result[1]) if has_aux else gradients

    return gradient


def _source(function: Callable[..., Any], position: int, value: Any) -> Any:
    # A copy, since the same Tensor may also be passed as another argument, by which the function is not differentiated.
    source = value if isinstance(value, backend.Variable) else copy(convert_to_tensor(value))
    if not differentiable(source.dtype):
        raise ValueError(f"The gradient of {_name(function)} by argument {position} needs a floating-point dtype, not {source.dtype}.")
    return source


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
