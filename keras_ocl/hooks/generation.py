"""Generation: KerasHub tasks run the function that makes their tokens or images compiled, as on TensorFlow and JAX."""

import warnings

from keras.src import tree

from keras_ocl.compiler.jit import Jitted
from keras_ocl.ops.conversion import convert_to_tensor


def compiled(task):
    """`task.generate_step` as a compiled function, or unchanged if the task runs eagerly."""
    if task.run_eagerly:
        return task.generate_step
    step = Jitted(task.generate_step, name=f"{task.name}: generate_step")

    def generate(*args, **kwargs):
        return step(*tree.map_structure(_tensor, args), **tree.map_structure(_tensor, kwargs))

    return generate


def _tensor(leaf):
    """Convert arrays of other libraries, such as a tokenizer's, to Tensors; Python values stay, as part of the signature."""
    return convert_to_tensor(leaf) if hasattr(leaf, "__array__") else leaf


_told = set()


def runs_eagerly(task):
    """Warn, once per class, that its functions run op by op."""
    kind = type(task).__name__
    if kind not in _told:
        _told.add(kind)
        package = type(task).__module__.partition(".")[0]
        warnings.warn(
            f"keras_ocl does not know how this version of {package} compiles {kind}.generate, so it runs op by op, which is slow.",
            stacklevel=3,
        )
