"""Facts about unknown extents that a trace relies on, and numbers that are computed again when unknown extents change."""

import contextlib
import functools
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


class _Code:
    """A Python function of the unknowns' values under construction, in which each formula is computed once."""

    _lines: list[str]

    def __init__(self, unknowns: Iterable[Extent]) -> None:
        self._names: dict[Key, str] = {key(u): f"u{k}" for k, u in enumerate(unknowns)}
        self._parameters, self._lines = ", ".join(self._names.values()), []

    def name(self, extent: Extent) -> str:
        """The Python text for an int or Dim. KeyError for a Dim that depends on other unknowns than the function's own."""
        if not isinstance(extent, Dim):
            return str(extent)
        found = self._names.get(extent.key)
        if found is None:
            if extent.made is None:
                raise KeyError(f"an unknown extent ({present(extent)}) that is none of the function's own")
            function, *operands = extent.made
            text = _ARITHMETIC[function].format(*map(self.name, operands))
            found = self._names[extent.key] = f"v{len(self._lines)}"
            self._lines.append(f"{found} = {text}")
        return found

    def function(self, result: str) -> Callable[..., Any]:
        """The function that returns the expression `result`."""
        body = "\n".join(f"    {line}" for line in [*self._lines, f"return {result}"])
        scope: dict[str, Any] = {}
        exec(f"def formulas({self._parameters}):\n{body}\n", scope)
        return scope["formulas"]


def formulas(unknowns: Iterable[Extent], extents: Iterable[Extent]) -> Callable[..., tuple[int, ...]]:
    """A function from the values of the Dims `unknowns`, as its arguments, to a tuple of the values of `extents` (ints and Dims)."""
    code = _Code(unknowns)
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
            code = _Code(self.unknowns)
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


class Changing:
    """Functions that are called with the new values when extents change.

    Args:
        unknowns: Dims from which all other extents are computed; without any, nothing ever changes.

    Attributes:
        values: the unknowns' present values, a tuple of ints; None while a change is under way.
    """

    values: tuple[int, ...] | None
    _formulas: Callable[..., tuple[int, ...]] | None
    _results: tuple[int | None, ...]

    def __init__(self, unknowns: Sequence[Extent]) -> None:
        self._unknowns, self.values = tuple(unknowns), tuple(map(present, unknowns))
        self._uses: dict[Key, tuple[Dim, list[Callable[[int], object]]]] = {}  # key -> (extent, functions)
        self._formulas, self._results = None, ()

    def use(self, extent: Extent, function: Callable[[int], object]) -> None:
        """Calls function(value) for the extent's value, and again with the new one after each change."""
        function(present(extent))
        if self._unknowns and isinstance(extent, Dim):
            self._uses.setdefault(extent.key, (extent, []))[1].append(function)

    def use_all(self, extents: Sequence[Extent], function: Callable[[tuple[int, ...]], object]) -> None:
        """Calls function(values) likewise, with the values of several extents; it is called once for each extent that changed."""
        now = [present(n) for n in extents]

        def changed(position: int, value: int) -> None:
            now[position] = value
            function(tuple(now))

        function(tuple(now))
        for position, extent in enumerate(extents):
            if self._unknowns and isinstance(extent, Dim):
                self._uses.setdefault(extent.key, (extent, []))[1].append(functools.partial(changed, position))

    def set(self, values: tuple[int, ...]) -> None:
        """Calls the functions for all extents that change with these values; the caller stores them in `values` when all is done."""
        if self._formulas is None:
            extents = [extent for extent, _ in self._uses.values()]
            self._formulas = formulas(self._unknowns, extents)
            self._results = tuple(map(present, extents))
        results, before = self._formulas(*values), self._results
        self.values, self._results = None, (None,) * len(results)  # if this is interrupted, all is done again
        for old, new, (_, functions) in zip(before, results, self._uses.values(), strict=True):
            if old != new:
                for function in functions:
                    function(new)
        self._results = results
