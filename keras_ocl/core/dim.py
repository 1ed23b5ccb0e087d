"""Dim: an extent that came from an unknown dimension (batch, sequence length) of an input.

A Dim is an int, so every shape rule is plain integer arithmetic. Beside its value it carries two
shadows on which the same arithmetic runs: a `hint` (the value the dimension had when its function
was first traced; tuning decisions use it, so another batch size makes the same decisions) and a
`probe` (a large prime standing for the unknown). A result on which value and shadows agree does not
depend on the unknown and collapses to a plain int: `(Dim(32) * 10) // Dim(32)` is the int 10. This
is randomised identity testing (Schwartz 1980, Zippel 1979) with one sample.

Kernels print plain ints as literals and Dims as arguments.
"""

import itertools
import math

_PROBES = (1000003, 1299709, 1500450271, 2038074743, 1190494759, 1870414469, 2123456789)
_fresh = itertools.count()


class Dim(int):
    """An int with shadows. `Dim(value, hint=None, probe=None)`; see the module's docstring."""

    def __new__(cls, value, hint=None, probe=None):
        self = int.__new__(cls, value)
        self.hint = int(value if hint is None else hint)
        self.probe = int(_PROBES[next(_fresh) % len(_PROBES)] if probe is None else probe)
        return self

    def __reduce__(self):
        return Dim, (int(self), self.hint, self.probe)

    @property
    def key(self):
        """What identifies the unknown this extent is made of, whatever its present value."""
        return ("dim", self.hint, self.probe)

    def __repr__(self):
        return f"Dim({int(self)})"

    def __neg__(self):
        return 0 - self


def _make(value, hint, probe):
    if value == hint == probe:
        return value
    return Dim(value, hint, probe)


def _binary(name):
    method = getattr(int, name)

    def op(self, other):
        if not isinstance(other, int):
            return NotImplemented
        value = method(int(self), int(other))
        if isinstance(other, Dim):
            return _make(value, method(self.hint, other.hint), method(self.probe, other.probe))
        other = int(other)
        return _make(value, method(self.hint, other), method(self.probe, other))

    op.__name__ = name
    return op


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Dim, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(Dim, f"__r{_name}__", _binary(f"__r{_name}__"))


def hint(extent):
    """The extent that tuning decisions use: a Dim's value at first trace, else the value."""
    return extent.hint if isinstance(extent, Dim) else int(extent)


def key(extent):
    """A hashable that is equal for equal extents and, for Dims, whatever their present value."""
    return extent.key if isinstance(extent, Dim) else int(extent)


def same(a, b):
    """Whether two shapes are equal for every value of the unknowns. `==` only compares present values: no decision may rest on it."""
    return len(a) == len(b) and all(key(x) == key(y) for x, y in zip(a, b, strict=True))


def product(extents):
    """Product that keeps Dims."""
    result = 1
    for e in extents:
        result = result * e
    return result


def ceil_div(a, b):
    """Ceiling division that keeps Dims."""
    return -((0 - a) // b)


def minimum(a, b):
    """min that keeps Dims."""
    return _pointwise(min, a, b)


def maximum(a, b):
    """max that keeps Dims."""
    return _pointwise(max, a, b)


def _pointwise(function, a, b):
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return function(a, b)
    probe = [x.probe if isinstance(x, Dim) else int(x) for x in (a, b)]
    return _make(function(int(a), int(b)), function(hint(a), hint(b)), function(*probe))


def lcm(a, b):
    """Least common multiple of plain ints."""
    return math.lcm(int(a), int(b))
