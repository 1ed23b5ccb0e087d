"""Affine index expressions over loop variables, and proofs of their bounds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from keras_ocl.core.dim import Dim, Extent, hint, key, probe


class Var:
    """A C integer with 0 <= value < extent: one dimension of a loop nest, or a computed index (`block`: where it is defined)."""

    __slots__ = ("name", "extent", "block", "nest", "position")

    def __init__(self, name: str, extent: Extent, block: Any = None, nest: Any = None, position: int = 0) -> None:
        self.name, self.extent, self.block, self.nest, self.position = name, extent, block, nest, position

    def __repr__(self) -> str:
        return self.name


class Affine:
    """The expression constant + sum of coefficient * Var. Coefficients are ints or Dims, never zero."""

    __slots__ = ("terms", "constant")

    def __init__(self, terms: dict[Var, Extent] | None = None, constant: Extent = 0) -> None:
        self.terms = terms or {}
        self.constant = constant

    @classmethod
    def of(cls, x: Index) -> Affine:
        if isinstance(x, Affine):
            return x
        return cls({x: 1}, 0) if isinstance(x, Var) else cls({}, x)

    def __add__(self, other: Index) -> Affine:
        other = Affine.of(other)
        terms = dict(self.terms)
        for v, c in other.terms.items():
            total = terms.get(v, 0) + c
            if _zero(total):
                terms.pop(v, None)
            else:
                terms[v] = total
        return Affine(terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: Extent) -> Affine:
        if _zero(factor):
            return Affine()
        return Affine({v: c * factor for v, c in self.terms.items()}, self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Index) -> Affine:
        return self + (-Affine.of(other))

    def __rsub__(self, other: Index) -> Affine:
        return Affine.of(other) - self

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Hashable identity."""
        return (key(self.constant), *sorted(((id(v), key(c)) for v, c in self.terms.items()), key=lambda t: t[0]))

    def bounds(self) -> tuple[Extent, Extent]:
        """(least, greatest) value for variables in their ranges; ints or Dims."""
        low = high = self.constant
        for v, c in self.terms.items():
            reach = c * (v.extent - 1)
            if at_least(c, 0):
                high = high + reach
            else:
                low = low + reach
        return low, high

    def __repr__(self) -> str:
        return " + ".join([f"{c}*{v}" for v, c in self.terms.items()] + [str(self.constant)])


Index = Affine | Var | Extent  # what Affine.of takes


def _zero(x: Extent) -> bool:
    return x == 0 and not isinstance(x, Dim)


def at_least(a: Extent, b: Extent) -> bool:
    """Whether a >= b for all values of unknown extents (as far as hint, probe and value tell)."""
    return hint(a) >= hint(b) and probe(a) >= probe(b) and a >= b


def is_one(extent: Extent) -> bool:
    """Whether an extent is a plain 1; an unknown extent that happens to be 1 now is not."""
    return not isinstance(extent, Dim) and extent == 1


def linear(index: Sequence[Index], shape: Sequence[Extent]) -> Affine:
    """Row-major offset, in elements, of `index` in an array of `shape`: an Affine."""
    offset, stride = Affine(), 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        offset = offset + Affine.of(i) * stride
        stride = stride * n
    return offset
