"""C text of indices: their type, and splitting a flat index into coordinates."""

from collections.abc import Sequence
from typing import Protocol

from keras_ocl.core.dim import Extent, hint
from keras_ocl.core.index import is_one


class Printer(Protocol):
    """What the functions here ask of an Args (kernels/spec.py): how an extent prints."""

    def int(self, extent: Extent, /) -> str: ...


def index_type(*counts: Extent) -> str:
    """C type of indices into buffers of `counts` elements (ints or Dims): 64 bits if any needs them, now or by the first trace's hint."""
    return "int" if all(-(2**31) < n < 2**31 and abs(hint(n)) < 2**31 for n in counts) else "long"


def wide_literal(index: str, text: str) -> str:
    """C text of an extent, converted to the C type `index`, for functions such as min(): a plain literal is an int."""
    return text if index == "int" else f"({index}){text}"


def unflattened(args: Printer, flat: str, extents: Sequence[Extent]) -> list[str]:
    """C expressions of the row-major coordinates in `extents` of the index `flat` (a name or a parenthesised expression).

    Results are names, literals or in parentheses; divisions are printed only where there are several extents above 1.
    """
    result, rest = ["0"] * len(extents), flat
    real = [i for i, n in enumerate(extents) if not is_one(n)]
    for i in reversed(real[1:]):
        n = args.int(extents[i])
        result[i], rest = f"({rest} % {n})", f"({rest} / {n})"
    if real:
        result[real[0]] = rest
    return result


def decode(name: str, extents: Sequence[Extent], prefix: str, args: Printer, index: str = "int", rest: str = "") -> str:
    """C statements that split the row-major index `name` over `extents` into `prefix`0, `prefix`1, ..., of the C type `index`.

    rest: prefix of the names of the quotients, `prefix`r unless given.
    """
    text, outer, rest = "", name, rest or f"{prefix}r"
    for i in range(len(extents) - 1, 0, -1):
        extent = args.int(extents[i])
        text += f"const {index} {prefix}{i} = {outer} % {extent}; const {index} {rest}{i} = {outer} / {extent};\n"
        outer = f"{rest}{i}"
    return text + f"const {index} {prefix}0 = {outer};\n"
