"""What joins of kernels share, chains (chain.py) and those side by side (horizontal.py): each part's work becomes a function, and its
arguments become the whole kernel's, in which every buffer and every extent is there once.
"""

import hashlib

from keras_ocl.core.dim import key
from keras_ocl.kernels.launch import PLACE
from keras_ocl.kernels.spec import STEP

ARGUMENTS = 96  # of a kernel: an OpenCL device takes 1,024 bytes of them


def arguments(parts):
    """The arguments of a kernel of these parts, as a set: each buffer and each extent is one, each array in local memory another."""
    return {_argument(a) for part in parts for a in part.args}


def _argument(a):
    if a.kind == "local":
        return id(a)
    return (a.kind, key(a.value)) if isinstance(a.value, int) else a.value


def given(args, a):
    """C text of the argument `a` of a part, as the whole passes it on; not for local memory."""
    if a.is_pointer:
        return args.pointer(a.value, a.dtype, out=a.kind == "out")
    if a.value is STEP:
        return args.step()
    return args.scalar(a.value, a.kind) if a.kind in ("float", "double") else args.int(a.value, a.kind)


def function(spec, parameters, place, qualifiers="", again=False):
    """(name, text) of the function that does the work of one work-item of `spec`; equal ones have equal names.

    Args:
        parameters: those behind the kernel's own. place: function (a match of PLACE) -> what the body says instead.
        again: whether a loop calls it, and what it reads has changed in between: compilers of LLVM before 12, as NVIDIA's may be, take a
            parameter's `restrict` for a promise that outlasts the call where they unroll the loop.
    """
    signature = spec.signature().replace("restrict ", "") if again else spec.signature()
    text = f"({', '.join(filter(None, (signature, *parameters)))}) {{\n{PLACE.sub(place, spec.text())}}}\n"
    name = "part_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    return name, f"// {spec.title}\nstatic {qualifiers}void {name}{text}"


def of_an_item(spec, qualifiers=""):
    """`function` for a kernel that asks for its place among all work-items alone: it is told the three numbers of that."""
    return function(spec, [f"const size_t item_{k}" for k in range(3)], lambda found: f"item_{found[2]}", qualifiers)
