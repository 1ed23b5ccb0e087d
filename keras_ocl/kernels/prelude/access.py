"""C text of typed loads and stores, and of the OpenCL C helper functions that generated kernels call.

Registers: floats of 16 or 8 bits are float; bool is int lanes of 0 or -1 at every width, as in the results
of OpenCL's vector comparisons and in the masks of select().
"""

from keras_ocl.core import dtypes
from keras_ocl.kernels.prelude import library
from keras_ocl.kernels.prelude.library import vector_type


def register_type(dtype, width):
    """C type of a register of `width` lanes of `dtype`."""
    return vector_type(dtypes.register_ctype(dtype), width)


def pointer(dtype, name, start):
    """Statement that declares `name`, a pointer to elements of `dtype` that load() reads, from `start` (C text) on."""
    return f"__global const {dtypes.storage_ctype(dtype)}* {name} = {start};\n"


def load(dtype, width, pointer, offset, count=0, aligned=False):
    """Expression that loads `width` elements at `pointer + offset` into a register; only the first `count`, unless that is 0.

    aligned: whether the address is known to be aligned to the vector. Some devices load unaligned vectors element by element.
    """
    if count:
        parts = [load(dtype, lanes, pointer, f"{offset} + {at}") for at, lanes in runs(count)]
        return f"({register_type(dtype, width)})({', '.join(parts + ['0'] * (width - count))})"
    if dtype == "float16" and width == 1:
        return f"vload_half({offset}, {pointer})"
    if dtype == "float16" and aligned:
        return f"vloada_half{width}(0, {pointer} + {offset})"
    if dtype == "float16":
        return f"from_float16_{width}(vload{width}(0, (__global const ushort*)({pointer} + {offset})))"
    if width == 1:
        raw = f"{pointer}[{offset}]"
    elif aligned:
        raw = f"*(__global const {vector_type(dtypes.storage_ctype(dtype), width)}*)({pointer} + {offset})"
    else:
        raw = f"vload{width}(0, {pointer} + {offset})"
    if dtype == "bool":
        return f"-convert_{vector_type('int', width)}({raw})"
    if dtype == "bfloat16":
        return f"as_{vector_type('float', width)}(convert_{vector_type('uint', width)}({raw}) << 16)"
    if dtype.startswith("float8"):
        return f"from_{dtype}_{width}({raw})"
    return raw


def load_stored(dtype, width, pointer, offset):
    """Expression that loads `width` elements at `pointer + offset`, an aligned address, as they are stored.

    Floats of 16 or 32 bits are their bits, unsigned lanes; integers of 8 bits are themselves.
    """
    bits = {1: dtypes.storage_ctype(dtype), 2: "ushort", 4: "uint"}[dtypes.itemsize(dtype)]
    return f"*(__global const {vector_type(bits, width)}*)({pointer} + {offset})"


def stored(dtype, width, value):
    """(expression of a register as load_stored() gives its elements, names of the helpers that it calls)."""
    if dtypes.is_integer(dtype):
        return value, set()
    if dtypes.itemsize(dtype) == 4:
        return f"as_{vector_type('uint', width)}({value})", set()
    return f"to_{dtype}_{width}({value})", {f"to_{dtype}_{width}"}


def store(dtype, width, pointer, offset, value, count=0, aligned=False):
    """Statement that stores the register `value` (`width` lanes) at `pointer + offset`; only the first `count` lanes, unless that is 0.

    aligned: as for load().
    """
    if count:
        lanes = [(at, n, "".join(f"{k:x}" for k in range(at, at + n))) for at, n in runs(count)]
        parts = [store(dtype, n, pointer, f"{offset} + {at}", f"lanes.s{places}") for at, n, places in lanes]
        return f"{{ const {register_type(dtype, width)} lanes = {value}; {' '.join(parts)} }}"
    if dtype == "float16" and width == 1:
        return f"vstore_half_rte({value}, {offset}, {pointer});"
    if dtype == "float16":
        value = f"to_float16_{width}({value})"
    elif dtype == "bool":
        value = f"convert_{vector_type('uchar', width)}(-({value}))"
    elif dtype == "bfloat16":
        value = f"to_bfloat16_{width}({value})"
    elif dtype.startswith("float8"):
        value = f"to_{dtype}_{width}({value})"
    if width == 1:
        return f"{pointer}[{offset}] = {value};"
    ctype, place = dtypes.storage_ctype(dtype), f"{pointer} + {offset}"
    if dtype == "float16":
        ctype, place = "ushort", f"(__global ushort*)({place})"
    return f"*(__global {vector_type(ctype, width)}*)({place}) = {value};" if aligned else f"vstore{width}({value}, 0, {place});"


def runs(count):
    """[(start, length)] of the vectors, in descending powers of two, that make up `count` lanes; `count` is less than 32."""
    runs, start = [], 0
    for length in (16, 8, 4, 2, 1):
        if count & length:
            runs.append((start, length))
            start += length
    return runs


def helpers_for(dtype, width, count=0):
    """Names of the helper functions that load() and store() of this dtype and width call."""
    if count:
        return {name for _, lanes in runs(count) for name in helpers_for(dtype, lanes)}
    if dtype == "bfloat16":
        return {f"to_bfloat16_{width}"}
    if dtype.startswith("float8") or (dtype == "float16" and width > 1):
        return {f"to_{dtype}_{width}", f"from_{dtype}_{width}"}
    return set()


def pieces(helpers, options=()):
    """The head of a program, a tuple of texts: pragmas of the extensions `options`, then each helper after those that it calls.

    The heads of several kernels are joined by omitting repeated texts.
    """
    pragmas = [f"#pragma OPENCL EXTENSION {o} : enable\n" for o in options]
    return (*pragmas, *(library.helper(n).text for n in library.ordered(helpers)))
