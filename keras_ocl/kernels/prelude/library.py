"""OpenCL C helper functions that generated kernels call: looked up by name, each printed for one type and vector width.

A helper's name is `<stem>_<width>`, where the stem is either a whole name ("to_bfloat16") or `<operation>_<C type>` ("mod_int").
Its text is a template (see integers.py), in which a placeholder stands for each call of another helper.
"""

import functools
import string
from typing import NamedTuple

from keras_ocl.kernels.prelude import draws, floats, integers, transcendentals

_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "float": 32, "double": 64}
_SIGNED = {8: "char", 16: "short", 32: "int", 64: "long"}


class Helper(NamedTuple):
    """A helper's OpenCL C text, and the names of the helpers that it calls."""

    text: str
    calls: tuple[str, ...]


class _Placeholders(dict):
    """What stands for a template's placeholders. One that is not given is a helper that the template calls, and is noted in `calls`."""

    def __init__(self, ctype, width, **given):
        super().__init__(given)
        self._ctype, self._width, self.calls = ctype, width, set()

    def __missing__(self, operation):
        stem = operation if operation in integers.SINGLE else f"{operation}_{self._ctype}"
        self.calls.add(f"{stem}_{self._width}")
        return f"{stem}_{self._width}"


def vector_type(ctype, width):
    """C type of a vector of `width` lanes: "float", 16 -> "float16"."""
    return ctype if width == 1 else f"{ctype}{width}"


def _template(stem):
    """(template text, C type) of a stem, None if there is no such helper."""
    if stem in integers.SINGLE:
        return integers.SINGLE[stem], "uint"
    operation, _, ctype = stem.rpartition("_")
    if ctype in ("float", "double"):
        single = (transcendentals.FLOAT, floats.FLOAT, draws.FLOAT)
        own = (floats.DOUBLE, draws.DOUBLE) if ctype == "double" else single
        tables = (*own, floats.BOTH, draws.BOTH)
    elif ctype in _BITS:
        tables = (integers.SIGNED, integers.BOTH)
    elif ctype.startswith("u") and ctype[1:] in _BITS:
        tables = (integers.UNSIGNED, integers.BOTH)
    else:
        return None
    return next(((table[operation], ctype) for table in tables if operation in table), None)


def exists(stem):
    """Whether there is a helper function with this stem."""
    return _template(stem) is not None


@functools.cache
def helper(name):
    """The Helper of this name. KeyError for an unknown one."""
    stem, _, width = name.rpartition("_")
    found = _template(stem)
    if found is None:
        raise KeyError(f"no OpenCL helper function is called {name!r}")
    (text, ctype), width = found, int(width)
    bits = _BITS[ctype.removeprefix("u")]
    signed = _SIGNED[bits]
    unsigned = "u" + signed
    promoted = unsigned if width > 1 or bits == 64 else "uint"
    suffix = "" if width == 1 else str(width)
    placeholders = _Placeholders(
        ctype,
        width,
        name=name,
        T=ctype + suffix,
        E=ctype,
        F="f" if ctype == "float" else "",
        I=signed + suffix,
        U=unsigned + suffix,
        P=promoted + suffix,
        ANY="" if width == 1 else "any",
        M="-" if width == 1 else f"convert_int{width}",
        B=str(bits),
        N=str(width),
        W=suffix,
    )
    text = "static " + string.Template(text).substitute(placeholders)
    return Helper(text, tuple(sorted(placeholders.calls)))


def ordered(helpers):
    """Names of `helpers` and all helpers that they call, each once, callees first, in an order that depends on the names only."""
    result = {}

    def visit(name):
        if name not in result:
            for called in helper(name).calls:
                visit(called)
            result[name] = None

    for name in sorted(helpers):
        visit(name)
    return list(result)
