"""Dtypes: Keras's names, their NumPy and OpenCL C types, and the C type in which each is computed."""

from typing import Any

import ml_dtypes
import numpy as np

Number = bool | int | float  # a Python number of a real dtype

_TABLE: dict[str, tuple[Any, str, str]] = {
    # name: (NumPy dtype, storage type in OpenCL C, type in registers)
    "bool": (np.bool_, "uchar", "int"),  # registers hold 0 or -1, as OpenCL's vector comparisons give
    "uint8": (np.uint8, "uchar", "uchar"),
    "uint16": (np.uint16, "ushort", "ushort"),
    "uint32": (np.uint32, "uint", "uint"),
    "uint64": (np.uint64, "ulong", "ulong"),
    "int8": (np.int8, "char", "char"),
    "int16": (np.int16, "short", "short"),
    "int32": (np.int32, "int", "int"),
    "int64": (np.int64, "long", "long"),
    "float16": (np.float16, "half", "float"),
    "bfloat16": (ml_dtypes.bfloat16, "ushort", "float"),
    "float32": (np.float32, "float", "float"),
    "float64": (np.float64, "double", "double"),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "uchar", "float"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "uchar", "float"),
    "complex64": (np.complex64, "float2", "float2"),
    "complex128": (np.complex128, "double2", "double2"),
}

NAMES = tuple(_TABLE)
_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(row[0]) for name, row in _TABLE.items()}
_FROM_NUMPY: dict[np.dtype[Any], str] = {dtype: name for name, dtype in _NUMPY.items()}

_TO_NUMBERS = "turn them into numbers before the model, by tf.data or a preprocessing layer such as StringLookup or TextVectorization"
_NO_NUMBERS: dict[str | None, str] = {  # kind of a NumPy dtype -> what its elements are
    **dict.fromkeys("UST", f"strings, and tensors of strings are not supported; {_TO_NUMBERS}"),
    "O": f"Python objects, which are not supported in tensors; if they are numbers, use .astype('float32'), if strings, {_TO_NUMBERS}",
    **dict.fromkeys("Mm", "points or spans of time, and tensors of such are not supported; turn them into numbers first"),
}


def check_numbers(what: str, dtype: Any) -> None:
    """Raises a TypeError that begins with `what` if elements of this NumPy dtype are not numbers."""
    told = _NO_NUMBERS.get(getattr(dtype, "kind", None))
    if told:
        raise TypeError(f"{what} holds {told} (dtype {dtype}).")


def canonical(dtype: Any) -> str:
    """The name of `dtype` (a name, a NumPy dtype or type). Raises a TypeError if the backend has no such dtype."""
    if isinstance(dtype, str) and dtype in _TABLE:
        return dtype
    try:
        return _FROM_NUMPY[np.dtype(dtype)]
    except (KeyError, TypeError):
        check_numbers("an array", dtype)
        raise TypeError(f"dtype {dtype!r} is not supported by the ocl backend; supported: {', '.join(NAMES)}") from None


def numpy_dtype(name: str) -> np.dtype[Any]:
    return _NUMPY[name]


def itemsize(name: str) -> int:
    return _NUMPY[name].itemsize


def storage_ctype(name: str) -> str:
    """The OpenCL C type of one stored element."""
    return _TABLE[name][1]


def register_ctype(name: str) -> str:
    """The OpenCL C type an element has once loaded; 16- and 8-bit floats compute in float."""
    return _TABLE[name][2]


def is_float(name: str) -> bool:
    return "float" in name


def is_signed(name: str) -> bool:
    return name.startswith("int") or is_float(name)


def is_integer(name: str) -> bool:
    return name.startswith(("int", "uint"))


def is_complex(name: str) -> bool:
    return name.startswith("complex")


def part(name: str) -> str:
    """The dtype of a number's real part: a complex dtype's component, any other dtype itself."""
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def least(name: str) -> Number:
    """The least number of a real dtype, the initial value of a maximum: -inf (or the least finite float), the least integer, False."""
    if is_float(name):
        return -greatest(name)
    return False if name == "bool" else int(np.iinfo(numpy_dtype(name)).min)


def greatest(name: str) -> Number:
    """The greatest number of a real dtype, the initial value of a minimum: inf (or the greatest finite float), greatest integer, True."""
    if is_float(name):
        return float(ml_dtypes.finfo(numpy_dtype(name)).max) if name == "float8_e4m3fn" else float("inf")  # float8_e4m3fn has no infinities
    return True if name == "bool" else int(np.iinfo(numpy_dtype(name)).max)


def accumulator(name: str) -> str:
    """The dtype in which sums and products of `name` are formed: at least 32 bits, of its own kind; int32 for bool."""
    if itemsize(name) >= 4:
        return name
    if is_float(name):
        return "float32"
    return "int32" if is_signed(name) or name == "bool" else "uint32"


def neutral(kind: str, name: str) -> Number:
    """The neutral element of a reduction ("sum", "prod", "max", "min", "and", "or") of a dtype: its accumulator's initial value."""
    if kind in ("max", "min"):
        return least(name) if kind == "max" else greatest(name)
    return {"sum": 0, "prod": 1, "and": True, "or": False}[kind]


def needs_double(name: str) -> bool:
    """Whether only devices with double precision have the dtype."""
    return part(name) == "float64"
