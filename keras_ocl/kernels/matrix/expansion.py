"""Elements of float32 as sums of terms of fewer bits, which matrix units multiply.

Of several terms the first is the element cut off, which is never larger, and each of the others what those before it leave, rounded.
Products of terms, added up, give the product of the elements (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype for Higher-Precision Computations", 2019). Units round sums towards zero, so the sums of several products of terms leave the unit
after each step of its k, and are added in float32 from there on (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores
while surpassing the FP32 theoretical peak performance", 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_ocl.kernels.matrix.unit import TF32 as TF32_OPERAND
from keras_ocl.kernels.prelude import vector_type

_FRACTION = 23  # bits of a float32's fraction
_NAN = 0x7FC00000
_OPERATIONS = 4  # of a work-item for each term of an element


@dataclass(frozen=True)
class Expansion:
    """How elements of float32 become terms.

    Attributes:
        name: as papers and other libraries call it.
        bits: of a term, the leading one included.
        dtype: of a term, one of a unit's dtypes.
        terms: their number. Three of 8 bits are the element itself, but for one below 2 ** -110, whose last terms are subnormal.
        pairs: (term of the left operand, term of the right one) of the products that are added, the smallest first. Only the last of them
            is right of infinities and NaN: an infinity times a further term of a number may be NaN.
    """

    name: str
    bits: int
    dtype: str
    terms: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def operations(self) -> int:
        """Operations of a work-item that expands an element."""
        return _OPERATIONS * self.terms

    def text(self, value: str, lanes: int, names: Sequence[str], kind: str) -> str:
        """Statements that declare the terms `names`, vectors of `lanes` of the C type `kind`, of `value` (C text), the bits of floats.

        The first term of an infinity or NaN is the same; the others may then be anything.
        """
        uints, floats, kinds = (vector_type(ctype, lanes) for ctype in ("uint", "float", kind))
        drop = _FRACTION + 1 - self.bits
        half, mask, shift = f"{1 << (drop - 1):#x}u", f"{(1 << 32) - (1 << drop):#x}u", 0 if self.dtype == TF32_OPERAND else drop
        text, rest, last = "", value, self.terms - 1
        for n, name in enumerate(names):
            bits = f"({rest} + {half}) & {mask}" if n or last == 0 else f"{rest} & {mask}"
            if n == 0:  # the bits of NaN may become those of a number
                bits = f"select({bits}, ({uints}){_NAN:#x}u, isnan(as_{floats}({rest})))"
            text += f"const {uints} bits{n} = {bits};\n"
            text += f"const {kinds} {name} = {f'convert_{kinds}(bits{n} >> {shift})' if shift else f'bits{n}'};\n"
            if n < last:
                text += f"const {uints} rest{n} = as_{uints}(as_{floats}({rest}) - as_{floats}(bits{n}));\n"
                rest = f"rest{n}"
        return text


_ALL = ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))  # of three terms, without those below float32's last bit
BF16X6 = Expansion("bf16x6", 8, "bfloat16", 3, _ALL)
BF16X3 = Expansion("bf16x3", 8, "bfloat16", 2, _ALL[3:])
BF16 = Expansion("bf16", 8, "bfloat16", 1, _ALL[5:])
TF32 = Expansion("tf32", 11, TF32_OPERAND, 1, _ALL[5:])

# Precision (core/precision.py) -> the expansions that keep as many bits or more.
EXPANSIONS = {"float32": (BF16X6,), "tf32": (TF32, BF16X3, BF16X6), "bfloat16": (BF16, TF32, BF16X3, BF16X6)}


def named(name: str) -> Expansion:
    """The expansion of that name."""
    return next(expansion for expansion in EXPANSIONS["bfloat16"] if expansion.name == name)
