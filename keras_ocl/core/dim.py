"""Dim: an extent that came from an unknown dimension (batch, sequence length) of an input.

A Dim is an int, so every shape rule is plain integer arithmetic. Beside its value it carries two
shadows on which the same arithmetic runs: a `hint` (the value the dimension had when its function
was first traced; tuning decisions use it, so another batch size makes the same decisions) and
probes (large numbers standing for the unknown). A result on which value and shadows agree does not
depend on the unknown and collapses to a plain int: `(Dim(32) * 10) // Dim(32)` is the int 10. This
is randomised identity testing (Schwartz 1980, Zippel 1979) with a few samples.

Whether two Dims are the same extent is told by their keys: hint, probe, and the value modulo a prime of the formula, in which a
quotient or remainder that is not exact, and an extreme that is now one operand and now the other, count as unknowns of their own. (Two
paddings may both be 0 or 1 by the parity of different unknowns; their hints and probes alone would often agree.)

Kernels print plain ints as literals and Dims as arguments. A computed Dim also remembers how it was `made`: exported graphs and compiled
functions compute it again for other values of the unknowns. Whatever Python code learns about a value, by comparing it or by making it a
plain int, is noted as a fact inside `noting` (core/facts.py): a trace is only valid for values for which its facts hold.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

_PROBES = (1000003, 1299709, 1500450271, 2038074743, 1190494759, 1870414469, 2123456789)
_PRIME = 2**61 - 1
_RESIDUES = ((7, 10), (11, 35), (13, 25))  # (divisor of the probe, remainder by 48) of other probes: even, odd, distinct modulo 4, 8 and 16
_FUNCTIONS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")
_fresh = itertools.count()
_nameless: contextvars.ContextVar[bool] = contextvars.ContextVar("the values of unknown extents mean nothing", default=False)
_notes: contextvars.ContextVar[Notes | None] = contextvars.ContextVar("where facts about unknown extents are noted", default=None)

Key = int | tuple[str, int, int, int]  # see key()


class Notes(Protocol):
    """What facts are noted in, such as core.facts.Facts."""

    def note(self, function: str, a: Extent, b: Extent, outcome: bool) -> None: ...


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Context in which Dims stand for unknown numbers: they print as None, as in Keras, and one limited by a number is not that number."""
    token = _nameless.set(True)
    try:
        yield
    finally:
        _nameless.reset(token)


@contextlib.contextmanager
def noting(facts: Notes | None) -> Iterator[Notes | None]:
    """Context that calls `facts.note(function, a, b, outcome)` for each fact about values that code inside finds out.

    function: the comparison of a and b, "eq", "lt" or "le".
    """
    token = _notes.set(facts)
    try:
        yield facts
    finally:
        _notes.reset(token)


def note_again(facts: Iterable[tuple[str, Extent, Extent, bool]]) -> None:
    """Note facts that were found out before, by other code or in another process, where facts are noted now."""
    notes = _notes.get()
    if notes is not None:
        for fact in facts:
            notes.note(*fact)


def present(extent: Extent) -> int:
    """The present value of an extent as a plain int, noting no fact: for numbers that are computed again when it changes."""
    return int.__int__(extent) if isinstance(extent, int) else int(extent)


class Dim(int):
    """An int with shadows. `Dim(value, hint=None, probe=None)`; see the module's docstring.

    `probes`: a tuple of the probe and further ones.
    `made` is (function, a, b) with one of "add", "sub", "mul", "floordiv", "mod", "min" and "max" and its two operands (ints or Dims),
    or None for an unknown itself. `mark` is the formula's value modulo a prime.
    """

    hint: int
    probe: int
    probes: tuple[int, ...]
    made: tuple[str, Extent, Extent] | None
    mark: int

    def __new__(
        cls,
        value: Extent,
        hint: Extent | None = None,
        probe: Extent | None = None,
        made: tuple[str, Extent, Extent] | None = None,
        mark: int | None = None,
        probes: tuple[int, ...] | None = None,
    ) -> Dim:
        self = int.__new__(cls, value)
        self.hint = present(value if hint is None else hint)
        self.probe = present(_PROBES[next(_fresh) % len(_PROBES)] if probe is None else probe)
        # Not the probe itself: unknowns whose probes and hints differ by the same number would be taken for one another, plus that number.
        self.made, self.mark = made, pow(self.probe, 3, _PRIME) if mark is None else mark
        self.probes = probes or (self.probe, *(self.probe // part // 48 * 48 + rest for part, rest in _RESIDUES))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (present(self), self.hint, self.probe, self.made, self.mark, self.probes)

    @property
    def key(self) -> Key:
        """A hashable that identifies the extent's formula in the unknowns, whatever its present value."""
        return ("dim", self.hint, self.probe, self.mark)

    def __repr__(self) -> str:
        return "None" if _nameless.get() else str(present(self))

    def __neg__(self) -> int:
        return 0 - self

    def __pos__(self) -> int:
        return self

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    def __bool__(self) -> bool:
        return not _compare("eq", self, 0)

    __hash__ = int.__hash__


Extent = int | Dim  # a Dim where it depends on unknowns
Shape = tuple[Extent, ...]

_SHADOW_DIVISION: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}  # as second operands
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {"eq": operator.eq, "lt": operator.lt, "le": operator.le}


def _compare(name: str, a: Extent, b: Any) -> Any:
    """How the present values of a Dim and another number compare: a fact, unless they are the same extent."""
    if not isinstance(b, int):
        return getattr(int, f"__{name}__")(a, b)
    outcome = _COMPARISONS[name](present(a), present(b))
    notes = _notes.get()
    if notes is not None and key(a) != key(b):
        notes.note(name, a, b, outcome)
    return outcome


def _comparison(name: str, opposite: bool) -> Callable[[Dim, Any], Any]:
    """A method that compares by `_compare`, or tells the opposite."""

    def op(self: Dim, other: Any) -> Any:
        found = _compare(name, self, other)
        return not found if opposite and found is not NotImplemented else found

    return op


# Types whose arithmetic with a Dim uses its present value.
_READERS: tuple[type[Any], ...] = (float, complex, str, bytes, list, tuple, np.ndarray, np.generic)


def _pin(n: object) -> None:
    """Note that Python code reads the value of `n` itself: the fact that it equals that value."""
    notes = _notes.get()
    if notes is not None and isinstance(n, Dim):
        notes.note("eq", n, present(n), True)


def _pinned(name: str) -> Callable[..., Any]:
    """A method of int that reads the value itself."""
    method = getattr(int, name)

    def op(self: Dim, *others: Any) -> Any:
        for n in (self, *others):
            _pin(n)
        return method(present(self), *(present(n) if isinstance(n, Dim) else n for n in others))

    return op


def _apply(name: str, function: Callable[[int, int], int], a: Extent, b: Extent) -> Extent:
    """The extent function(a, b), computed on values and shadows; a plain int where all agree."""
    if type(b) is int and b == _NEUTRAL.get(name):
        return a
    av, ah, aps, am = _shadows(a)
    bv, bh, bps, bm = _shadows(b)
    value = function(av, bv)
    if name in ("floordiv", "mod"):  # a divisor's shadow may be 0 though its value is not
        function = _SHADOW_DIVISION[name]
    hinted, probed = function(ah, bh), tuple(map(function, aps, bps))
    notes, agree = _notes.get(), value == hinted and probed.count(value) == len(probed)
    if agree and notes is None and not _nameless.get():
        return value
    greater = None  # (greater operand, smaller one) of a min or max that is one of its operands in the value and all shadows
    if name == "add":
        mark = (am + bm) % _PRIME
    elif name == "sub":
        mark = (am - bm) % _PRIME
    elif name == "mul":
        mark = am * bm % _PRIME
    elif name == "mod":
        mark = (am - bm * _unknown("floordiv", am, bm)) % _PRIME
    elif name == "floordiv":
        exact = bm and av % bv == ah % (bh or 1) == 0 == max(map(_SHADOW_DIVISION["mod"], map(abs, aps), map(abs, bps)))
        mark = am * pow(bm, -1, _PRIME) % _PRIME if exact else _unknown(name, am, bm)
        remainder = _apply("mod", operator.mod, a, b) if exact and notes is not None else 0
        if isinstance(remainder, Dim):
            assert notes is not None  # else the remainder is 0
            notes.note("eq", remainder, 0, True)
    elif not agree and (av, ah, aps) == (value, hinted, probed):
        mark, greater = am, (a, b) if name == "max" else (b, a)
    elif not agree and (bv, bh, bps) == (value, hinted, probed):
        mark, greater = bm, (b, a) if name == "max" else (a, b)
    else:
        mark = _unknown(name, am, bm)
    if agree and mark == value % _PRIME:
        return value
    result = _made(value, hinted, probed, (name, a, b), mark)
    if notes is not None and greater is not None:
        notes.note("le", greater[1], greater[0], True)
    elif notes is not None and agree and not _nameless.get():
        notes.note("eq", result, value, True)
        return value
    return result


def _made(value: int, hinted: int, probes: tuple[int, ...], made: tuple[str, Extent, Extent], mark: int) -> Dim:
    """A computed Dim of plain ints, without the conversions of Dim(...)."""
    result = int.__new__(Dim, value)
    result.hint, result.probe, result.probes, result.made, result.mark = hinted, probes[0], probes, made, mark
    return result


def _shadows(n: Extent) -> tuple[int, int, tuple[int, ...], int]:
    if isinstance(n, Dim):
        return int.__int__(n), n.hint, n.probes, n.mark
    n = present(n)
    return n, n, (n,) * (1 + len(_RESIDUES)), n % _PRIME


def _unknown(name: str, a: int, b: int) -> int:
    """The mark of a function of two marks that is no polynomial, which counts as an unknown of its own."""
    return hash((_FUNCTIONS.index(name), a, b)) % _PRIME


def _binary(name: str, swapped: bool) -> Callable[[Dim, Any], Any]:
    method = getattr(int, f"__{name}__")

    def op(self: Dim, other: Any) -> Any:
        if not isinstance(other, int):
            if isinstance(other, _READERS):
                _pin(self)
            return NotImplemented
        return _apply(name, method, other, self) if swapped else _apply(name, method, self, other)

    return op


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Dim, f"__{_name}__", _binary(_name, False))
    setattr(Dim, f"__r{_name}__", _binary(_name, True))
for _name, _opposite in (("eq", "ne"), ("lt", "ge"), ("le", "gt")):
    setattr(Dim, f"__{_name}__", _comparison(_name, False))
    setattr(Dim, f"__{_opposite}__", _comparison(_name, True))
for _name in ("int", "float", "trunc", "floor", "ceil", "round", "invert", "format"):
    setattr(Dim, f"__{_name}__", _pinned(f"__{_name}__"))
for _name in ("truediv", "pow", "divmod", "lshift", "rshift", "and", "or", "xor"):
    setattr(Dim, f"__{_name}__", _pinned(f"__{_name}__"))
    setattr(Dim, f"__r{_name}__", _pinned(f"__r{_name}__"))
for _name in ("bit_length", "bit_count", "to_bytes"):
    setattr(Dim, _name, _pinned(_name))


def hint(extent: Extent) -> int:
    """The extent that tuning decisions use: a Dim's value at first trace, else the value."""
    return extent.hint if isinstance(extent, Dim) else int(extent)


def probe(extent: Extent) -> int:
    """A Dim's first probe, the large number that stands for the unknown, else the value."""
    return extent.probe if isinstance(extent, Dim) else int(extent)


def key(extent: Extent) -> Key:
    """A hashable that is equal for equal extents; of Dims, whatever their present values."""
    return extent.key if isinstance(extent, Dim) else int(extent)


def same(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    """Whether two shapes are equal for every value of the unknowns. `==` only compares present values: no decision may rest on it."""
    return len(a) == len(b) and all(key(x) == key(y) for x, y in zip(a, b, strict=True))


def product(extents: Iterable[Extent]) -> Extent:
    """Product of extents, a Dim where it depends on unknowns."""
    result: Extent = 1
    for e in extents:
        result = result * e
    return result


def size_hint(extents: Iterable[Extent]) -> int:
    """The hint of the product of extents: the elements of a shape, as tuning decisions count them."""
    return math.prod(map(hint, extents))


def ceil_div(a: Extent, b: Extent) -> Extent:
    """Ceiling division of extents, a Dim where the result depends on unknowns."""
    return 0 - (0 - a) // b


def power_above(n: float) -> int:
    """The least power of two that is not below the number `n`; 1 for numbers below 1."""
    return 1 << max(0, int(n) - 1).bit_length()


def power_below(n: float) -> int:
    """The greatest power of two that is not above the number `n`; 1 for numbers below 1."""
    return 1 << max(1, int(n)).bit_length() - 1


def minimum(a: Extent, b: Extent) -> Extent:
    """The minimum of two extents, a Dim where it depends on unknowns."""
    return _apply("min", min, a, b) if isinstance(a, Dim) or isinstance(b, Dim) else min(a, b)


def maximum(a: Extent, b: Extent) -> Extent:
    """The maximum of two extents, a Dim where it depends on unknowns."""
    return _apply("max", max, a, b) if isinstance(a, Dim) or isinstance(b, Dim) else max(a, b)


def lcm(a: Extent, b: Extent) -> int:
    """Least common multiple of plain ints."""
    return math.lcm(int(a), int(b))
