"""Lowering: the launches that a model's steps become, on any device with a record of its traits.

Neither a device nor an OpenCL library is needed: the model is built and traced on a `runtime.RecordDevice`, where nothing runs.
"""

import contextlib
import functools
import importlib.util
import operator
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch.provenance import Share
from keras_ocl.compiler.launch.work import works
from keras_ocl.compiler.run.binding import size_of
from keras_ocl.compiler.run.program import HostCall, KernelLaunch, Local, Loop, Pointer, Scalar, value, values
from keras_ocl.core import dtypes
from keras_ocl.step_memory import StepMemory, step_memory

_BATCH = 32  # examples per batch unless the batch size is given


@dataclass(frozen=True)
class Launch:
    """One launch of a step.

    Attributes:
        name: what it computes, as in profiles. kernel: the name of the OpenCL function, a hash of its text; "" for a host operation.
        shares: the operations and layers that it computes, each with its fraction of the work.
        grid, group: work-items in total and per work-group (None: the OpenCL runtime chooses).
        read, written: bytes of memory; for gathered operands at most the bytes gathered, in a loop the bytes of one step.
        operations: arithmetic operations of one region of the graph. If several launches share it, the one that moves the most bytes
            has them all; launches of Winograd convolutions have their own, without those of a fused epilogue.
        loops: the loops that repeat it, outermost first, as (name, number of steps or None where a condition ends it).
        local: bytes of local memory of a work-group.
        steps: how often a persistent launch repeats all that its amounts state, in `stages` successive parts; each work-group rereads
            the same `reread` bytes in every step.
        by_units: operations of a step that matrix units do, as (unit's name, its instructions for each product of fragments, operations).
        arguments: for each parameter its number, or "global" or "local" for memory; step numbers of loops are 1.
        source, helpers: its OpenCL C, and the texts of functions that it calls.
    """

    name: str
    kernel: str
    shares: tuple[Share, ...]
    grid: tuple[int, ...]
    group: tuple[int, ...] | None
    read: int
    written: int
    operations: int
    loops: tuple[tuple[str, int | None], ...]
    local: int
    arguments: tuple = field(repr=False)
    source: str = field(repr=False)
    helpers: tuple[str, ...] = field(repr=False)
    steps: int = 1
    stages: int = 1
    reread: int = 0
    by_units: tuple[tuple[str, int, int], ...] = ()

    def rate(self, rates):
        """Its operations in the time of one of a work-item; more than 1 if matrix units do some.

        rates: dict from a matrix unit's name to its multiply-adds in the time of one of a work-item.
        """
        time = self.operations + sum(n * (instructions / rates[unit] - 1) for unit, instructions, n in self.by_units)
        return self.operations / time if time else 1


@dataclass(frozen=True)
class Step:
    """A compiled function.

    Attributes:
        name: "train" or "predict".
        launches: its launches in order.
        arena_bytes: bytes of the arena for its intermediate results. live_bytes: the most of them alive at once, which no arena goes below.
        memory: which these are, and which of them the forward part keeps for the gradient.
    """

    name: str
    launches: tuple[Launch, ...]
    arena_bytes: int
    live_bytes: int
    memory: StepMemory

    def program(self):
        """The OpenCL C of all its kernels, with each kernel once."""
        helpers = dict.fromkeys(text for launch in self.launches for text in launch.helpers)
        kernels = {launch.kernel: f"// {launch.name}\n{launch.source}" for launch in reversed(self.launches) if launch.kernel}
        return "\n".join([*helpers, *reversed(kernels.values())])


def lower(make, traits, train=True, name="record"):
    """Lowers a model's steps to launches for a device.

    Args:
        make: function that returns a model, or (model, x, y), or (model, x, y, batch size), with arrays `x` and `y` of which only
            shapes and dtypes matter. Without arrays, zeros are made for the model's inputs, outputs and losses.
        traits: the device's `runtime.Traits`, for instance from `runtime.read_record`.
        train: whether to lower the training step too, for which the model must be compiled; None: if it is.
        name: the device's name in errors.

    Returns:
        A list of Steps, "train" first.

    Raises:
        RuntimeError: building or tracing the model reads a value.
        ValueError: the model's inputs have unknown extents besides the batch, and no arrays were given.
    """
    with runtime.device_scope(runtime.RecordDevice(name, traits)):
        made = make()
        model, x, y, batch = (*made, *(None,) * (4 - len(made))) if isinstance(made, tuple) else (made, None, None, None)
        size = batch or _BATCH
        x, y = _inputs(model, size) if x is None else _batch(x, size), _batch(y, size)
        steps = []
        if train or train is None and model.compiled:
            if not model.compiled:
                raise ValueError("lower: the model is not compiled, so it has no training step; compile it, or lower predict alone.")
            data = (x, y if y is not None else _targets(model, size))
            model._symbolic_build(data_batch=data)
            steps.append(_step("train", model, model.train_step, data, traits))
        steps.append(_step("predict", model, model.predict_step, (x,), traits))
    return steps


def _batch(arrays, size):
    """The first `size` examples of arrays in any nest, as NumPy arrays."""
    from keras import tree

    return None if arrays is None else tree.map_structure(lambda a: np.asarray(a)[:size], arrays)


def _inputs(model, size):
    """A batch of zeros for a model's symbolic inputs: of `size` examples where the model does not say how many."""
    from keras import tree

    def zeros(t):
        if None in t.shape[1:]:
            raise ValueError(
                f"lower: the input {t.name!r} has the shape {t.shape}, in which more than the batch is unknown; let a function return"
                " (model, x, y) and name it as SCRIPT:FUNCTION."
            )
        return np.zeros((t.shape[0] or size, *t.shape[1:]), dtypes.numpy_dtype(t.dtype))

    if not getattr(model, "inputs", None):
        raise ValueError("lower: the model has no symbolic inputs; let a function return (model, x, y) and name it as SCRIPT:FUNCTION.")
    return tree.map_structure(zeros, model._inputs_struct if hasattr(model, "_inputs_struct") else model.inputs[0])


def _targets(model, size):
    """A batch of zeros with the outputs' shapes; for a sparse loss, labels without the last axis."""
    from keras import tree

    losses = iter(tree.flatten(model.loss) * len(model.outputs))

    def zeros(t):
        loss = next(losses)
        sparse = "sparse" in (loss if isinstance(loss, str) else type(loss).__name__).lower()
        shape = (t.shape[0] or size, *(t.shape[1:-1] if sparse else t.shape[1:]))
        return np.zeros(shape, "int32" if sparse else "float32")

    outputs = [zeros(t) for t in model.outputs]
    return outputs[0] if len(outputs) == 1 else outputs


def _step(name, model, step, data, traits):
    model._refresh_trace_context()
    function = model._step_function(step)
    if not isinstance(function, Jitted):
        raise ValueError("lower: the model runs eagerly (run_eagerly=True or jit_compile=False), so it has no compiled steps.")
    executable = function.compiled(data).executable
    program = executable.program
    numbers = program.numbers()(*program.extents)
    launches = tuple(_launches(program.launches, executable, numbers, traits, ()))
    return Step(name, launches, executable.arena_bytes, executable.live_bytes, step_memory(executable))


def _launches(launches, executable, numbers, traits, loops):
    for launch, work in zip(launches, works([executable.sources[launch.number] for launch in launches]), strict=True):
        if isinstance(launch, Loop):
            length = None if launch.length is None else value(launch.length, numbers)
            yield from _launches(launch.body, executable, numbers, traits, (*loops, (launch.name, length)))
        elif isinstance(launch, HostCall):
            yield Launch(launch.name, "", work.shares, (), None, work.read, work.written, work.operations, loops, 0, (), "", ())
        elif isinstance(launch, KernelLaunch):
            kernel, local = executable.program.kernels[launch.kernel], [a for a in launch.arguments if isinstance(a, Local)]
            arguments = [_argument(a, numbers) for a in launch.arguments]
            if not traits.sub_buffers:
                arguments += [0 for a in launch.arguments if isinstance(a, Pointer)]
            yield Launch(
                launch.name,
                launch.kernel,
                work.shares,
                values(launch.grid, numbers),
                launch.group,
                work.read,
                work.written,
                work.operations,
                loops,
                sum(value(a.elements, numbers) * size_of(a.ctype) for a in local),
                tuple(arguments),
                kernel.source,
                kernel.helpers,
                work.steps,
                work.stages,
                work.reread,
                work.by_units,
            )


def _argument(a, numbers):
    match a:
        case Pointer():
            return "global"
        case Local():
            return "local"
        case Scalar():
            return value(a.value, numbers)
    return 1  # a step


def load(target):
    """The function that makes the model named on a command line: a saved model's file, or SCRIPT:FUNCTION.

    Raises:
        ValueError: there is no such file or function.
    """
    path, colon, function = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        if not Path(target).exists():
            raise ValueError(f"{target}: there is no such file; name a saved model, or a function as SCRIPT.py:FUNCTION")
        import keras

        return functools.partial(keras.saving.load_model, target)
    if not Path(path).is_file():
        raise ValueError(f"{path}: there is no such script")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    with _importing_beside(path):
        spec.loader.exec_module(module)
    try:
        return operator.attrgetter(function)(module)
    except AttributeError:
        raise ValueError(f"{path} has no function {function!r}") from None


@contextlib.contextmanager
def _importing_beside(path):
    """Context manager in which modules beside a script can be imported, as when Python runs the script."""
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        yield
    finally:
        sys.path.pop(0)
