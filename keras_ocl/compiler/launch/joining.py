"""Helpers for joining kernels, in vertical chains (chain.py) and by horizontal fusion (horizontal.py).

The work of each part becomes a function, and its arguments become arguments of the joined kernel, which has every buffer and extent once.
"""

import hashlib

from keras_ocl.core.dim import key
from keras_ocl.kernels.launch import PLACE
from keras_ocl.kernels.spec import STEP

ARGUMENTS = 96  # most arguments of a kernel: an OpenCL device takes 1,024 bytes of them


def arguments(parts):
    """The set of arguments of a kernel joined of these specs: one for each buffer, each extent and each array in local memory."""
    return {_argument(a) for part in parts for a in part.args}


def _argument(a):
    if a.kind == "local":
        return id(a)
    return (a.kind, key(a.value)) if isinstance(a.value, int) else a.value


def given(args, a):
    """C text by which the joined kernel passes the argument `a` to a part; not for local memory."""
    if a.is_pointer:
        return args.pointer(a.value, a.dtype, out=a.kind == "out")
    if a.value is STEP:
        return args.step()
    return args.scalar(a.value, a.kind) if a.kind in ("float", "double") else args.int(a.value, a.kind)


def function(spec, parameters, place, qualifiers="", again=False):
    """(name, text) of the C function that does the work of one work-item of `spec`; equal functions have equal names.

    Args:
        parameters: further parameters, after the kernel's own. place: function from a match of PLACE to the C text that replaces it.
        again: whether a loop calls it and the memory that it reads changes between calls: compilers of LLVM before 12, as NVIDIA's may be,
            take a parameter's `restrict` for a promise that outlasts the call where they unroll the loop.
    """
    signature = spec.signature().replace("restrict ", "") if again else spec.signature()
    text = f"({', '.join(filter(None, (signature, *parameters)))}) {{\n{PLACE.sub(place, spec.text())}}}\n"
    name = "part_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    return name, f"// {spec.title}\nstatic {qualifiers}void {name}{text}"


def of_an_item(spec, qualifiers=""):
    """`function` for a kernel that uses global ids alone, which become three parameters."""
    return function(spec, [f"const size_t item_{k}" for k in range(3)], lambda found: f"item_{found[2]}", qualifiers)
