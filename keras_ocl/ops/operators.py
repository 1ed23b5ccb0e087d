"""Python's operators, conversions and NumPy-like methods of Tensor."""

import numpy as np
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.common.variables import standardize_dtype

from keras_ocl.core import dtypes
from keras_ocl.core.origin import current_origin
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import ConditionUnknown
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.conversion import convert_to_tensor, read
from keras_ocl.ops.indexing import getitem

_OPERANDS = (Tensor, bool, int, float, complex, np.ndarray, np.generic, list, tuple, KerasVariable)


def _forward(function):
    def method(self, other):
        if not isinstance(other, _OPERANDS):
            return NotImplemented  # a KerasTensor has operators of its own
        return function(self, other)

    return method


def _reflected(function):
    def method(self, other):
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return function(other, self)

    return method


_BINARY = {
    "add": knp.add,
    "sub": knp.subtract,
    "mul": knp.multiply,
    "truediv": knp.divide,
    "floordiv": knp.floor_divide,
    "mod": knp.mod,
    "pow": knp.power,
    "matmul": knp.matmul,
    "and": knp.bitwise_and,
    "or": knp.bitwise_or,
    "xor": knp.bitwise_xor,
    "lshift": knp.left_shift,
    "rshift": knp.right_shift,
}
_COMPARISONS = {
    "eq": knp.equal,
    "ne": knp.not_equal,
    "lt": knp.less,
    "le": knp.less_equal,
    "gt": knp.greater,
    "ge": knp.greater_equal,
}


def _scalar(self, kind):
    if self.size != 1:
        raise TypeError(f"only a tensor of one element can be converted to {kind}, got shape {tuple(self.shape)}.")
    return read(self).reshape(())[()]


def item(self):
    """The value of a tensor of one element, as a Python number. Waits for the device."""
    return _scalar(self, "a Python number").item()


def _bool(self):
    if self.is_symbolic():
        origin = current_origin.get().layer
        raise ConditionUnknown(
            f"A traced tensor (shape {tuple(self.shape)}, {self.dtype}){' in ' + origin if origin else ''} was used as a Python condition:"
            " its value exists only when the compiled function runs. Use keras.ops.cond or keras.ops.where, or run eagerly"
            " (run_eagerly=True)."
        )
    return bool(_scalar(self, "bool"))


def _index(self):
    if not (dtypes.is_integer(self.dtype) and self.ndim == 0):
        raise TypeError(f"only a 0-d integer tensor can be used as an index, got shape {tuple(self.shape)}, {self.dtype}.")
    return int(_scalar(self, "int"))


def _array(self, dtype=None, copy=None):
    value = read(self)
    return value if dtype is None else value.astype(dtype, copy=False)


def _iterate(self):
    if not self.shape:
        raise TypeError("iteration over a 0-d tensor")
    return (self[i] for i in range(int(self.shape[0])))


def astype(self, dtype):
    """The tensor converted to `dtype`."""
    return convert_to_tensor(self, standardize_dtype(dtype))


def reshape(self, *shape):
    """The elements in another shape; one extent may be -1."""
    return knp.reshape(self, shape[0] if len(shape) == 1 else shape)


def transpose(self, *axes):
    """Axes permuted; reversed by default."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (list, tuple))):
        axes = axes[0]
    return knp.transpose(self, axes or None)


def _reduction(name, function):
    """A method that NumPy's function of that name can call too: np.sum(tensor) is tensor.sum(axis=None, dtype=None, out=None)."""

    def method(self, axis=None, keepdims=False, dtype=None, out=None):
        if out is not None:
            raise TypeError(f"{name}: tensors are immutable, `out` is not supported; use the result.")
        return function(self if dtype is None else astype(self, dtype), axis, keepdims)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = function.__doc__
    return method


def _dlpack(self, **arguments):
    return read(self).__dlpack__(**arguments)


def _dlpack_device(self):
    return (1, 0)  # kDLCPU: what is exported is a copy in host memory


def _deep_copy(self, memo):
    return knp.copy(self)


def _reduce(self):
    return convert_to_tensor, (read(self), self.dtype)


def _refuse_assignment(self, key, value):
    raise TypeError("tensors are immutable: x[...] = value is not supported. Use keras.ops.slice_update or keras.ops.scatter_update.")


def install():
    """Give Tensor its operators and methods."""
    for name, function in _BINARY.items():
        setattr(Tensor, f"__{name}__", _forward(function))
        setattr(Tensor, f"__r{name}__", _reflected(function))
    for name, function in _COMPARISONS.items():
        setattr(Tensor, f"__{name}__", _forward(function))
    methods = {
        "__neg__": knp.negative,
        "__pos__": lambda self: self,
        "__abs__": knp.absolute,
        "__invert__": knp.bitwise_invert,
        "__round__": lambda self, digits=0: knp.round(self, digits or 0),
        "__getitem__": getitem,
        "__setitem__": _refuse_assignment,
        "__iter__": _iterate,
        "__bool__": _bool,
        "__int__": lambda self: int(_scalar(self, "int")),
        "__float__": lambda self: float(_scalar(self, "float")),
        "__complex__": lambda self: complex(_scalar(self, "complex")),
        "__index__": _index,
        "__array__": _array,
        "__dlpack__": _dlpack,
        "__dlpack_device__": _dlpack_device,
        "__deepcopy__": _deep_copy,
        "__copy__": lambda self: self,
        "__reduce__": _reduce,
        "__array_priority__": 100,  # array + tensor is a tensor
        "T": property(knp.transpose),
        "item": item,
        "tolist": lambda self: read(self).tolist(),
        "numpy": read,
        "astype": astype,
        "reshape": reshape,
        "transpose": transpose,
        **{name: _reduction(name, getattr(knp, name)) for name in ("sum", "mean", "max", "min", "any", "all")},
    }
    for name, method in methods.items():
        setattr(Tensor, name, method)
