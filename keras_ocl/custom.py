"""A user's own OpenCL kernel as a differentiable Keras operation."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras.src import backend
from keras.src.ops.operation import Operation
from keras.src.saving import object_registration, serialization_lib

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Primitive
from keras_ocl.core.tensor import Tensor
from keras_ocl.kernels.spec import Args, KernelSpec
from keras_ocl.ops.conversion import convert_to_tensor

ShapeRule = Callable[..., Sequence[int]]
Extents = Callable[..., int | tuple[int, ...]]

_numbers = itertools.count()

_BYTES = {"char": 1, "short": 2, "half": 2, "int": 4, "float": 4, "long": 8, "double": 8}
_SIZES = re.compile(r"get_(global_size|num_groups)\b")  # where a source asks for the number of work-items, or groups
_KERNELS_OWN = re.compile(r"i|[pn]\d+")  # names in the kernel around a source: the work-item's index, and parameters (Args)
_C_TYPE = re.compile(r"u?(char|short|int|long)(2|4|8|16)?|(half|float|double)(2|4|8|16)?")


@object_registration.register_keras_serializable("keras_ocl")
class CustomOp(Operation):
    """An operation made by `custom_op`: call it with one tensor per input, in eager code, in layers and in Functional models.

    Model files hold the source of an op that was made without functions (`shape`, `items`, `gradient`, `group`). As the source is code,
    such files can only be loaded with `safe_mode=False`.
    """

    def __init__(
        self,
        source: str,
        inputs: str | Sequence[str],
        output: str = "out",
        shape: ShapeRule | None = None,
        dtype: Any = None,
        items: Extents | None = None,
        gradient: Callable[..., Any] | None = None,
        name: str | None = None,
        group: Extents | None = None,
        local: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(name=name)
        self.source, self.output_name = source, output
        self.inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self._shape, self._dtype, self._items, self._gradient = shape, dtype, items, gradient
        self._group, self._local = group, dict(local or {})
        names = (*self.inputs, output, *self._local)
        if len(set(names)) != len(names) or not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise ValueError(f"custom_op {self.name}: inputs, output and local arrays need distinct names for OpenCL C, not {names}.")
        if taken := [name for name in names if _KERNELS_OWN.fullmatch(name)]:
            raise ValueError(f"custom_op {self.name}: {taken[0]!r} is a name of the kernel's own, as are i, p0 and n1; choose another.")
        if not isinstance(source, str):
            raise TypeError(f"custom_op {self.name}: `source` must be a string of OpenCL C, not {type(source).__name__}.")
        for what, function in (("shape", shape), ("items", items), ("gradient", gradient), ("group", group)):
            if function is not None and not callable(function):
                raise TypeError(f"custom_op {self.name}: `{what}` must be a function (see help(custom_op)), not {function!r:.60}.")
        for array, declared in self._local.items():
            ctype, elements = declared if isinstance(declared, tuple) and len(declared) == 2 else (None, None)
            if not (isinstance(ctype, str) and _C_TYPE.fullmatch(ctype) and isinstance(elements, int) and elements > 0):
                raise TypeError(f"custom_op {self.name}: local array {array} must be (C type, number of elements), not {declared!r:.60}.")
        self._sized = _SIZES.search(source) is not None
        # Ops with the same name may differ, and the compiler tells primitives apart by their names.
        name = f"{self.name}_{next(_numbers)}"
        self._primitive = Primitive(name, self._results, self._vjp, kernels=self._kernels, multiple_results=True, registered=False)

    def call(self, *inputs: Any) -> Any:
        """Runs the kernel, or records it in a compiled function.

        Args:
            *inputs: Tensors, or values that convert to one, in the order of the op's inputs.

        Returns:
            The output, a Tensor.

        Raises:
            ValueError: the number of inputs is wrong, or for a reason that `custom_op` lists.
        """
        if len(inputs) != len(self.inputs):
            raise ValueError(f"custom_op {self.name} takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), but got {len(inputs)}.")
        return self._primitive(*(convert_to_tensor(x) for x in inputs))[0]

    def compute_output_spec(self, *inputs: Any) -> Any:
        """Infers the output's shape and dtype, for Functional models.

        Args:
            *inputs: KerasTensors.

        Returns:
            A KerasTensor.
        """
        return backend.compute_output_spec(self.call, *inputs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CustomOp":
        """Makes the op that a model file describes.

        Args:
            config: a result of `get_config`, or the same read from a file.

        Returns:
            A `CustomOp`.

        Raises:
            ValueError: Keras is reading a file or a configuration in safe mode, as it does unless it is told otherwise.
        """
        if serialization_lib.in_safe_mode():  # None where no file is read: `clone_model` copies a program's own op this way
            raise ValueError(
                f"custom_op {config.get('name')} is OpenCL C that would run on this machine, so it is not loaded by default: if you "
                "trust its author, pass `safe_mode=False` to the loading function or call `keras.config.enable_unsafe_deserialization()`."
            )
        local = config.get("local") or {}
        return cls(**{**config, "local": {name: tuple(declared) for name, declared in local.items()}})  # files hold lists

    def _results(self, *inputs: Tensor) -> list[tuple[tuple[int, ...], str]]:
        shape = inputs[0].shape if self._shape is None else self._shape(*(x.shape for x in inputs))
        return [(tuple(shape), inputs[0].dtype if self._dtype is None else dtypes.canonical(self._dtype))]

    def _vjp(self, cotangents: Sequence[Tensor], outputs: Sequence[Tensor], *inputs: Tensor) -> tuple[Tensor | None, ...]:
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

    def _kernels(self, builder: Any, node: Any, sinks: Any) -> list[KernelSpec]:
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
        lines += [f"__local {ctype} {name}[{elements}];" for name, (ctype, elements) in self._local.items()]
        items, group = self._geometry(builder.traits, sink.shape, [x.shape for x in node.inputs])
        body = "".join(f"  {line}\n" for line in [*lines, "{", *self.source.splitlines(), "}"])
        return [args.kernel("", body, items, group, scalar=True, sized=self._sized, title="a custom operation")]

    def _geometry(
        self, traits: Any, shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """(work-items, work-items of a work-group or None), tuples of the same length, for an output and inputs of these shapes."""
        items = product(shape) if self._items is None else self._items(*shapes)
        items = items if isinstance(items, tuple) else (items,)
        if not 1 <= len(items) <= 3 or not all(isinstance(n, int) for n in items):
            what = "an int, the number of work-items, or up to three in a tuple"
            raise TypeError(f"custom_op {self.name}: `items` must return {what}, not {items if items[1:] else items[0]!r:.60}.")
        group = None if self._group is None else self._group(*shapes)
        if group is not None:
            group = tuple(int(n) for n in (group if isinstance(group, tuple) else (group,)))
            if len(group) != len(items) or any(n < 1 or all_items % n for all_items, n in zip(items, group, strict=True)):
                rule = "the same number of extents, each of which divides its number of work-items"
                sizes = f"items are {tuple(map(int, items))} and the group is {group}"
                raise ValueError(f"custom_op {self.name}: `group` must have {rule}, but {sizes}.")
            if math.prod(group) > traits.max_group:
                limit = f"{math.prod(group)} work-items, but the device allows {traits.max_group} in a group"
                raise ValueError(f"custom_op {self.name}: the work-group {group} has {limit}.")
        nbytes = sum(elements * _nbytes(ctype) for ctype, elements in self._local.values())
        if nbytes > traits.local_memory:
            limit = f"{nbytes} bytes, but the device has {traits.local_memory} per group"
            raise ValueError(f"custom_op {self.name}: its local arrays take {limit}.")
        return items, group


def _nbytes(ctype: str) -> int:
    """Bytes of one value of an OpenCL C type."""
    found = _C_TYPE.fullmatch(ctype)
    assert found is not None  # checked when the op was made
    return _BYTES[found[1] or found[3]] * int(found[2] or found[4] or 1)


def custom_op(
    source: str,
    inputs: str | Sequence[str],
    output: str = "out",
    shape: ShapeRule | None = None,
    dtype: Any = None,
    items: Extents | None = None,
    gradient: Callable[..., Any] | None = None,
    name: str | None = None,
    group: Extents | None = None,
    local: Mapping[str, tuple[str, int]] | None = None,
) -> CustomOp:
    """Makes a Keras operation from a kernel written in OpenCL C.

        swish = keras_ocl.custom_op(
            "out[i] = x[i] / (1.0f + exp(-x[i]));",
            inputs="x",
            gradient=lambda cotangent, out, x: cotangent * (out + keras.ops.sigmoid(x) * (1 - out)),
        )
        model = keras.Sequential([keras.layers.Dense(10), keras.layers.Activation(swish)])

    Args:
        source: OpenCL C 1.2 statements that run once per work-item. They may use `i`, the work-item's index; each input and the
            output by name, as a `__global` pointer to its elements in row-major order; and for tensors of at least one dimension the
            int array `NAME_shape`. Elements have the C type of the dtype: bool is uchar, float16 half (`vload_half`), bfloat16 ushort.
        inputs: the inputs' names in `source`, in the order of the call's arguments (a string if there is only one).
        output: the output's name in `source`. Work-items must write each of its elements.
        shape: a function from the inputs' shapes to the output's; by default the first input's shape.
        dtype: the output's dtype; by default the first input's.
        items: a function from the inputs' shapes to the number of work-items, or a tuple of up to three for `get_global_id(0)` to
            `get_global_id(2)`; by default the output's number of elements.
        gradient: a function from the output's cotangent, the output and the inputs to the gradient for each input (None where there is
            none), computed by Keras ops or further custom ops. Without it the op cannot be differentiated.
        name: the op's name in errors and profiles.
        group: a function from the inputs' shapes to the work-items of a work-group, with as many extents as `items` has, each of which
            must divide its number of work-items; by default any size may be used. Needed if `source` uses `barrier` or `get_local_id`.
        local: arrays in local memory, shared by a work-group: a dict from the name in `source` to (C type, number of elements).

    Returns:
        A `CustomOp`.

    Raises:
        TypeError: `source` is no string, `shape`, `items`, `group` or `gradient` is no function, `local` does not declare arrays, or
            (on a call) `items` does not return ints.
        ValueError: names are not distinct identifiers, or are the kernel's own (`i`, `p0`, `n0`); or (on a call) the number of inputs
            is wrong, the work-group does not divide the work-items, or it or its local arrays are larger than the device allows.
        KernelBuildError: (on a call) the source does not compile; holds the compiler's log and the source.
    """
    return CustomOp(source, inputs, output, shape, dtype, items, gradient, name, group, local)
