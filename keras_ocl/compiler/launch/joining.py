"""Helpers for joining kernels, in vertical chains (chain.py, group_chain.py) and by horizontal fusion (horizontal.py).

The work of each part becomes a function, and its arguments become arguments of the joined kernel, which has every buffer and extent once.
"""

import hashlib

from keras_ocl.core.dim import key
from keras_ocl.core.index import is_one
from keras_ocl.kernels import ids
from keras_ocl.kernels.spec import STEP

ARGUMENTS = 96  # most arguments of a kernel: an OpenCL device takes 1,024 bytes of them
REGISTERS = 64  # most arguments of a joined kernel of a GPU: where pointers take two of a hundred scalar registers each, more are spilled
SOURCE = 1 << 16  # characters of the bodies of a joined kernel of a GPU: it needs as many registers as the largest of them


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


def is_flat(spec):
    """Whether a kernel along one axis uses global ids alone, so that groups of any size may run it."""
    line = all(map(is_one, (*spec.group[1:], *spec.grid[1:])))
    return line and not (spec.barriers or any(kind != "global" for kind, _ in spec.places) or any(a.kind == "local" for a in spec.args))


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


def of_an_item(spec, qualifiers="", restrict=True):
    """`function` for a kernel that uses global ids alone, or whose groups are one work-item each; they become three parameters."""
    groups = {place: ids.name(item) for place, item in zip(ids.GROUPS, ids.ITEMS, strict=True)}
    return function(spec, ids.ITEMS, groups, qualifiers, restrict)


def of_a_group(spec, restrict=True):
    """`function` for a kernel whose items ask for their group's ids, which become three parameters, and for their own in it.

    The joined kernel's groups have as many items along one axis, in the same order.
    """
    (across, down, deep), own = (*spec.group, 1, 1)[:3], ids.function(("local", 0))
    if down * deep == 1:
        within = [own, "0", "0"]
    elif deep == 1:
        within = [f"{own} % {across}", f"{own} / {across}", "0"]
    else:
        within = [f"{own} % {across}", f"{own} / {across} % {down}", f"{own} / {across * down}"]
    places = {("local", k): text for k, text in enumerate(within)}
    places |= {
        ("global", k): f"group_{k} * {side} + {text}" for k, (side, text) in enumerate(zip((across, down, deep), within, strict=True))
    }
    return function(spec, ids.GROUPS, places, restrict=restrict)


class Local:
    """The arrays in local memory of a joined kernel, which its parts share: for each C type as many, and as long, as any part needs."""

    def __init__(self, specs):
        self._sizes, self._names = {}, {}
        for spec in specs:
            for which, a in self._arrays(spec):
                self._sizes[which] = max(a.value, self._sizes.get(which, 0))

    @staticmethod
    def _arrays(spec):
        """Pairs ((C type, number of the array among the part's arrays of this type), Arg)."""
        counts = {}
        for a in spec.args:
            if a.kind == "local":
                counts[a.dtype] = counts.get(a.dtype, 0) + 1
                yield (a.dtype, counts[a.dtype]), a

    def declare(self, args):
        """Makes the arrays parameters of the joined kernel, with these Args."""
        self._names = {which: args.local(which[0], size) for which, size in self._sizes.items()}

    def given(self, spec):
        """Dict from the name of an argument in local memory to the name of its array."""
        return {a.name: self._names[which] for which, a in self._arrays(spec)}
