"""Affine index expressions over loop variables, and proofs of their bounds."""

from keras_ocl.core.dim import Dim, hint, key, probe


class Var:
    """A C integer with 0 <= value < extent: one dimension of a loop nest, or a computed index (`block`: where it is defined)."""

    __slots__ = ("name", "extent", "block", "nest", "position")

    def __init__(self, name, extent, block=None, nest=None, position=0):
        self.name, self.extent, self.block, self.nest, self.position = name, extent, block, nest, position

    def __repr__(self):
        return self.name


class Affine:
    """The expression constant + sum of coefficient * Var. Coefficients are ints or Dims, never zero."""

    __slots__ = ("terms", "constant")

    def __init__(self, terms=None, constant=0):
        self.terms = terms or {}
        self.constant = constant

    @classmethod
    def of(cls, x):
        if isinstance(x, Affine):
            return x
        return cls({x: 1}, 0) if isinstance(x, Var) else cls({}, x)

    def __add__(self, other):
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

    def __mul__(self, factor):
        if _zero(factor):
            return Affine()
        return Affine({v: c * factor for v, c in self.terms.items()}, self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + (-Affine.of(other))

    def __rsub__(self, other):
        return Affine.of(other) - self

    @property
    def key(self):
        """Hashable identity."""
        return (key(self.constant), *sorted(((id(v), key(c)) for v, c in self.terms.items()), key=lambda t: t[0]))

    def bounds(self):
        """(least, greatest) value for variables in their ranges; ints or Dims."""
        low = high = self.constant
        for v, c in self.terms.items():
            reach = c * (v.extent - 1)
            if at_least(c, 0):
                high = high + reach
            else:
                low = low + reach
        return low, high

    def __repr__(self):
        return " + ".join([f"{c}*{v}" for v, c in self.terms.items()] + [str(self.constant)])


def _zero(x):
    return x == 0 and not isinstance(x, Dim)


def at_least(a, b):
    """Whether a >= b for all values of unknown extents (as far as hint, probe and value tell)."""
    return hint(a) >= hint(b) and probe(a) >= probe(b) and a >= b


def is_one(extent):
    """Whether an extent is a plain 1; an unknown extent that happens to be 1 now is not."""
    return not isinstance(extent, Dim) and extent == 1


def linear(index, shape):
    """Row-major offset, in elements, of `index` in an array of `shape`: an Affine."""
    offset, stride = Affine(), 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        offset = offset + Affine.of(i) * stride
        stride = stride * n
    return offset
