"""Collectives for custom training loops, in which each rank has its own data."""

import os
from typing import Any

from keras.src import backend, tree

from keras_ocl.core import dtypes
from keras_ocl.distribution import launcher, mpi, wire
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.primitives import collective


def all_reduce(x: Any, kind: str = "sum") -> Any:
    """Combines tensors elementwise over all ranks of an MPI job that `keras.distribution.initialize()` has joined.

        gradients = keras_ocl.all_reduce(tape.gradient(loss, model.trainable_variables))

    Every rank must make the same calls, in the same order, with the same structure, shapes, dtypes and `kind`; a difference ends the job
    with a message. All tensors of a call travel together, so one call with many is faster than many calls. In compiled functions the
    collective happens in each run, and in a loop in each step, in the order of the program, whether or not its result is used; it waits
    for the device. In a single process tensors are returned as they are.

    Args:
        x: a Tensor, Variable or array, or lists, tuples and dicts of them, of any shapes; None stays None, as among gradients.
        kind: "sum", "prod", "max" or "min" (NaN if a rank has NaN); "and" or "or", for bool and for the bits of integers. A mean is the
            sum divided by the number of ranks.

    Returns:
        The structure of `x` with Tensors of the same shapes and dtypes, equal on all ranks. Floats narrower than float32 are added in
        float32. A "sum" is differentiable: each rank's gradient is the sum over the gradients of all ranks' targets, and is itself a
        collective, so all ranks must compute it.

    Raises:
        ValueError: an unknown `kind`.
        TypeError: a dtype that `kind` does not support; the symbolic input of a Functional model.
        RuntimeError: it is called before `keras.distribution.initialize()` in a process that an MPI launcher started; or, when that is
            compiled, in a step that a Keras distribution divides among the ranks.
        NotImplementedError: the gradient of a `kind` other than "sum".
    """
    leaves = [leaf for leaf in tree.flatten(x) if leaf is not None]
    if any(isinstance(leaf, backend.KerasTensor) for leaf in leaves):
        raise TypeError("keras_ocl.all_reduce cannot take a KerasTensor: call it in the `call` method of a layer.")
    tensors = [convert_to_tensor(leaf) for leaf in leaves]
    for tensor in tensors:
        wire.carrier(dtypes.numpy_dtype(tensor.dtype), kind)
    group = mpi.world()
    if not mpi.joined() and launcher.started_by(os.environ):
        raise RuntimeError(
            "keras_ocl.all_reduce is called in a process that an MPI launcher started, but that does not know the others: call"
            " keras.distribution.initialize() first."
        )
    if tensors and group.size > 1:
        tensors = collective.all_reduce(tensors, group, kind)
    results = iter(tensors)
    return tree.map_structure(lambda leaf: leaf if leaf is None else next(results), x)
