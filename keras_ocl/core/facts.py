"""Facts about unknown extents that a trace relies on, and formulas as Python code, to compute extents for other values of the unknowns."""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras_ocl.core.dim import Dim, Extent, Key, key, present

Fact = tuple[str, Extent, Extent, bool]  # (function, a, b, outcome), see Facts.note

_ARITHMETIC = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "floordiv": "{} // {}",
    "mod": "{} % {}",
    "min": "min({}, {})",
    "max": "max({}, {})",
}
_COMPARISONS = {("eq", True): "==", ("eq", False): "!=", ("lt", True): "<", ("lt", False): ">=", ("le", True): "<=", ("le", False): ">"}


class Code:
    """Python code that computes formulas of unknowns, which it calls u0, u1, ... in their order.

    Attributes:
        lines: an assignment for each formula that is no unknown itself, to v0, v1, ...; each formula is computed once.
    """

    lines: list[str]

    def __init__(self, unknowns: Iterable[Extent]) -> None:
        self._names: dict[Key, str] = {key(u): f"u{k}" for k, u in enumerate(unknowns)}
        self._count, self.lines = len(self._names), []

    def name(self, extent: Extent) -> str:
        """The Python text for an int or Dim. KeyError for a Dim that depends on other unknowns than the code's own."""
        if not isinstance(extent, Dim):
            return str(extent)
        found = self._names.get(extent.key)
        if found is None:
            if extent.made is None:
                raise KeyError(f"an unknown extent ({present(extent)}) that is none of the function's own")
            function, *operands = extent.made
            text = _ARITHMETIC[function].format(*map(self.name, operands))
            found = self._names[extent.key] = f"v{len(self.lines)}"
            self.lines.append(f"{found} = {text}")
        return found

    def function(self, result: str) -> Callable[..., Any]:
        """The function of the unknowns' values that returns the expression `result`."""
        return function_of(self._count, self.lines, result)


def function_of(count: int, lines: Sequence[str], result: str = "locals()") -> Callable[..., Any]:
    """The function of `count` unknowns, u0, u1, ..., that runs a Code's lines and returns the expression `result`.

    By default it returns a dict from all names, the unknowns' own too, to their values.
    """
    body = "\n".join(f"    {line}" for line in [*lines, f"return {result}"])
    scope: dict[str, Any] = {}
    exec(f"def formulas({', '.join(f'u{k}' for k in range(count))}):\n{body}\n", scope)
    return scope["formulas"]


def formulas(unknowns: Iterable[Extent], extents: Iterable[Extent]) -> Callable[..., tuple[int, ...]]:
    """A function from the values of the Dims `unknowns`, as its arguments, to a tuple of the values of `extents` (ints and Dims)."""
    code = Code(unknowns)
    return code.function("(" + "".join(f"{code.name(n)}, " for n in extents) + ")")


class Facts:
    """Comparisons of extents and their outcomes, as core.dim.noting notes them. `unknowns`: the Dims that the extents depend on."""

    def __init__(self, unknowns: Iterable[Extent]) -> None:
        self.unknowns = tuple(unknowns)
        self._found: dict[tuple[str, Key, Key], Fact] = {}
        self._holds: Callable[..., bool] | None = None
        for n in self.unknowns:
            self.note("eq", n, 0, present(n) == 0)

    def note(self, function: str, a: Extent, b: Extent, outcome: bool) -> None:
        """Keep the outcome of a comparison ("eq", "lt" or "le") of the extents a and b."""
        self._found.setdefault((function, key(a), key(b)), (function, a, b, outcome))
        self._holds = None

    def __iter__(self) -> Iterator[Fact]:
        """Iterates over (function, a, b, outcome)."""
        return iter(self._found.values())

    def hold(self, values: Iterable[int]) -> bool:
        """Whether all comparisons have the noted outcomes when the unknowns have these values."""
        if self._holds is None:
            code = Code(self.unknowns)
            tests = [f"{code.name(a)} {_COMPARISONS[function, outcome]} {code.name(b)}" for function, a, b, outcome in self]
            self._holds = code.function(" and ".join(tests) or "True")
        try:
            return self._holds(*values)
        except ZeroDivisionError:
            return False

    def broken(self, values: Iterable[int]) -> frozenset[int]:
        """A frozenset of the positions of the comparisons that have other outcomes when the unknowns have these values."""
        comparisons = [(function, formulas(self.unknowns, (a, b)), outcome) for function, a, b, outcome in self]
        found = set()
        for k, (function, pair, outcome) in enumerate(comparisons):
            with contextlib.suppress(ZeroDivisionError):
                if getattr(operator, function)(*pair(*values)) == outcome:
                    continue
            found.add(k)
        return frozenset(found)
