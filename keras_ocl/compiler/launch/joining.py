"""Helpers for joining kernels, in vertical chains (chain.py) and by horizontal fusion (horizontal.py).

The work of each part becomes a function, and its arguments become arguments of the joined kernel, which has every buffer and extent once.
"""

import hashlib

from keras_ocl.core.dim import key
from keras_ocl.kernels import ids
from keras_ocl.kernels.spec import STEP

ARGUMENTS = 96  # most arguments of a kernel: an OpenCL device takes 1,024 bytes of them


def arguments(parts):
    """The set of arguments of a kernel joined of these specs: one for each buffer and each extent; arrays in local memory are shared."""
    return {_argument(a) for part in parts for a in part.args}


def _argument(a):
    if a.kind == "local":
        return a.dtype, a.name
    return (a.kind, key(a.value)) if isinstance(a.value, int) else a.value


def possible(spec):
    """Whether the work of a kernel may become a function: not that of a user's, whose text may ask for its place in any way."""
    return not spec.scalar and spec.ids.plain  # kernels that compute their ids are too large to be joined


def given(args, a):
    """C text by which the joined kernel passes the argument `a` to a part; not for local memory."""
    if a.is_pointer:
        return args.pointer(a.value, a.dtype, out=a.kind == "out")
    if a.value is STEP:
        return args.step()
    return args.scalar(a.value, a.kind) if a.kind in ("float", "double") else args.int(a.value, a.kind)


def function(spec, parameters, places=None, qualifiers="", restrict=True):
    """(name, text) of the C function that does the work of one work-item of `spec`; equal functions have equal names.

    Args:
        parameters: the ids (kernels/ids.py) that are further parameters, after the kernel's own. places: dict from other ids to C texts of
            them, where a work-item function would not return them.
        restrict: whether its pointers keep their `restrict`.
    """
    given = {**(places or {}), **dict.fromkeys(parameters, "")}
    text = f"({', '.join(filter(None, (spec.signature(restrict=restrict), *map(ids.declared, parameters))))}) {{\n{spec.text(given)}}}\n"
    name = "part_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    return name, f"// {spec.title}\nstatic {qualifiers}void {name}{text}"


def of_an_item(spec, qualifiers=""):
    """`function` for a kernel that uses global ids alone, or whose groups are one work-item each; they become three parameters."""
    groups = {place: ids.name(item) for place, item in zip(ids.GROUPS, ids.ITEMS, strict=True)}
    return function(spec, ids.ITEMS, groups, qualifiers)
