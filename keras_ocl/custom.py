"""A user's own OpenCL kernel as a differentiable Keras operation."""

import itertools

from keras.src import backend
from keras.src.ops.operation import Operation

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Primitive
from keras_ocl.core.tensor import Tensor
from keras_ocl.kernels.spec import Args, KernelSpec

_numbers = itertools.count()


class CustomOp(Operation):
    """What `custom_op` returns: call it with one tensor for each input, in eager code, in layers and in Functional models alike."""

    def __init__(self, source, inputs, output="out", shape=None, dtype=None, items=None, gradient=None, name=None):
        super().__init__(name=name)
        self.source, self.inputs, self.output_name = source, (inputs,) if isinstance(inputs, str) else tuple(inputs), output
        self._shape, self._dtype, self._items, self._gradient = shape, dtype, items, gradient
        names = (*self.inputs, output)
        if len(set(names)) != len(names) or not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise ValueError(f"custom_op {self.name}: inputs and output need distinct names that OpenCL C accepts, not {names}.")
        if not isinstance(source, str):
            raise TypeError(f"custom_op {self.name}: `source` must be a string of OpenCL C, not {type(source).__name__}.")
        for what, function in (("shape", shape), ("items", items), ("gradient", gradient)):
            if function is not None and not callable(function):
                raise TypeError(f"custom_op {self.name}: `{what}` must be a function (see help(custom_op)), not {function!r:.60}.")
        # Ops of one name may differ, and the compiler tells primitives apart by their names.
        self._primitive = Primitive(f"{self.name}_{next(_numbers)}", self._results, self._vjp, kernels=self._kernels, several=True)

    def call(self, *inputs):
        if len(inputs) != len(self.inputs):
            raise ValueError(f"custom_op {self.name} takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), but got {len(inputs)}.")
        return self._primitive(*(backend.convert_to_tensor(x) for x in inputs))[0]

    def compute_output_spec(self, *inputs):
        return backend.compute_output_spec(self.call, *inputs)

    def _results(self, *inputs):
        shape = inputs[0].shape if self._shape is None else self._shape(*(x.shape for x in inputs))
        return [(tuple(shape), inputs[0].dtype if self._dtype is None else dtypes.canonical(self._dtype))]

    def _vjp(self, cotangents, outputs, *inputs):
        if self._gradient is None:
            raise NotImplementedError(f"custom_op {self.name} has no gradient: pass `gradient=` when you make it.")
        gradients = self._gradient(cotangents[0], outputs[0], *inputs)
        gradients = (gradients,) if isinstance(gradients, Tensor) else tuple(gradients)
        if len(gradients) != len(inputs):
            raise ValueError(f"custom_op {self.name}: its gradient returned {len(gradients)} values for {len(inputs)} inputs.")
        for gradient, x, name in zip(gradients, inputs, self.inputs, strict=True):
            if gradient is not None and tuple(gradient.shape) != tuple(x.shape):
                shapes = f"the shape {tuple(gradient.shape)}, but {name} has {tuple(x.shape)}"
                raise ValueError(f"custom_op {self.name}: the gradient for {name} has {shapes}.")
        return gradients

    def _kernels(self, builder, node, sinks):
        args = Args(all_arguments=builder.all_arguments)
        (sink,) = sinks
        operands = [(name, x, x, x.shape, x.dtype) for name, x in zip(self.inputs, node.inputs, strict=True)]
        operands.append((self.output_name, sink.handle, None, sink.shape, sink.dtype))
        lines = ["const size_t i = get_global_id(0);"]
        for name, handle, is_input, shape, dtype in operands:
            pointer = args.pointer(handle, dtype, out=is_input is None)
            qualifier = "const " if is_input is not None else ""
            lines.append(f"__global {qualifier}{dtypes.storage_ctype(dtype)}* const {name} = {pointer};")
            if shape:
                extents = ", ".join(args.int(extent) for extent in shape)
                lines.append(f"const int {name}_shape[{len(shape)}] = {{{extents}}};")
        items = product(sink.shape) if self._items is None else self._items(*(x.shape for x in node.inputs))
        if not isinstance(items, int):
            raise TypeError(f"custom_op {self.name}: `items` must return an int, the number of work-items, not {items!r:.60}.")
        body = "".join(f"  {line}\n" for line in [*lines, "{", *self.source.splitlines(), "}"])
        return [KernelSpec("", args.args, body, (items,), None)]


def custom_op(source, inputs, output="out", shape=None, dtype=None, items=None, gradient=None, name=None):
    """Makes a Keras operation of a kernel written in OpenCL C.

        swish = keras_ocl.custom_op(
            "out[i] = x[i] / (1.0f + exp(-x[i]));",
            inputs="x",
            gradient=lambda cotangent, out, x: cotangent * (out + keras.ops.sigmoid(x) * (1 - out)),
        )
        model = keras.Sequential([keras.layers.Dense(10), keras.layers.Activation(swish)])

    Args:
        source: OpenCL C 1.2 statements that run once for each work-item. They may use `i`, the work-item's number; each input and the
            output by name, as a `__global` pointer to its elements in row-major order; and for tensors of at least one dimension the int
            array `NAME_shape`. Elements have the dtype's C type: bool is uchar, float16 half (use `vload_half`), bfloat16 ushort.
        inputs: the inputs' names in `source`, in the order of the call's arguments (a string for a single one).
        output: the output's name in `source`. Work-items must write each of its elements.
        shape: a function from the inputs' shapes to the output's; by default the first input's shape.
        dtype: the output's dtype; by default the first input's.
        items: a function from the inputs' shapes to the number of work-items; by default the output's number of elements.
        gradient: a function from the output's cotangent, the output and the inputs to the gradient for each input (None where there is
            none), made of Keras ops or further custom ops. Without one the op cannot be differentiated.
        name: what errors and profiles call it.

    Returns:
        A `CustomOp`.

    Raises:
        TypeError: `source` is no string, or `shape`, `items` or `gradient` no function, or (on a call) `items` does not return an int.
        ValueError: names are not distinct identifiers, or (on a call) the number of inputs is wrong.
        RuntimeError: (on a call) the source does not compile; holds the compiler's log and the source.
    """
    return CustomOp(source, inputs, output, shape, dtype, items, gradient, name)
