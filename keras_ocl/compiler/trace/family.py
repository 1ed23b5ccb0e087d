"""Families: the signatures of a function that differ in extents alone, and which of their axes are unknown extents.

The extent of an axis is a plain number until a second one is seen there; from then on it is a Dim. Axes that always had equal extents share
one unknown. A trace is valid where the facts that it noted hold, within the range of values for which it was verified: tracing again with
other values must give the same equations. Uses of a value that go unnoticed (`range(n)`) are monotonic in nearly all cases, so two values
with equal equations vouch for all between.
"""

import itertools
import weakref
from functools import partial

from keras_ocl.core.dim import Dim, present

_FAR = 8  # times the hint: beyond that, kernels made for the hint are so slow that new ones pay
_PROBES = (1500450271, 1190494759, 1870414469, 2123456789, 1299709037, 2038074743, 1000003861, 1548586373)  # numbers without a pattern
_LARGE, _SMALL = (64, 40, 24, 16), (1, 2, 4, 6)  # eighths of the hint at which a trace is verified


def _probe(k):
    """The probe of unknown number k."""
    return _PROBES[k % len(_PROBES)] + 7919 * (k // len(_PROBES)) ** 3


class Family:
    """The extents of a function's arrays seen so far, and the traces that serve them.

    Args:
        shapes: the shapes of the arrays of the first signature.
        dynamic: as for jit.
        hints: dict from (number of the array, axis) to the hint of its unknown extent, shared by the function's families.
    """

    def __init__(self, shapes, dynamic, hints):
        self._hints, self._places = hints, [(k, a) for k, shape in enumerate(shapes) for a in range(len(shape))]
        axes = [a for _, a in self._places]
        self._generalises = dynamic is not False
        self._varies = [dynamic is True or a in dynamic for a in axes] if dynamic else [False] * len(axes)
        self._first = [n for shape in shapes for n in shape]
        # Batch and sequence may happen to be equal at first; equal extents of first axes are one batch.
        self._classes = [(n, dynamic is not True and varies) for n, varies in zip(self._first, self._varies, strict=True)]
        self._members = []
        self._is_symbolic = True  # until a trace at other extents had other equations

    def see(self, extents):
        """Notes a signature's extents (those of all arrays in one tuple). Returns whether more axes vary than before."""
        before = list(self._varies)
        if self._generalises:
            self._varies = [v or n != first for v, n, first in zip(self._varies, extents, self._first, strict=True)]
        numbers = {}
        for position, n in enumerate(extents):
            self._classes[position] = numbers.setdefault((self._classes[position], n), len(numbers))
        return self._varies != before

    def unknowns(self, extents):
        """(list of the extents, with Dims in place of those that vary; list of the Dims)."""
        found, result = {}, []
        for position, n in enumerate(extents):
            if not self._varies[position]:
                result.append(n)
                continue
            name = self._classes[position]
            if name not in found:
                place = self._places[position]
                if n > _FAR * self._hints.get(place, -1):
                    self._hints[place] = n
                found[name] = Dim(n, self._hints[place], _probe(len(found)))
            result.append(found[name])
        return result, list(found.values())

    def add(self, member, compiled, identity_at=None):
        """Keeps a member as long as its Compiled is in use; with `identity_at`, verifies it for a wide range of values."""
        member.compiled = weakref.ref(compiled, lambda _: self._members.remove(member))
        self._members.append(member)
        if identity_at is not None and self._is_symbolic:
            member.verify_widely(partial(identity_at, member))

    def find(self, extents, identity_at):
        """(the Compiled that is valid for these extents, the values of its unknowns), or None.

        identity_at(member, values): the Identity of a trace with other values of the member's unknowns; None where tracing fails.
        """
        for member in reversed(self._members):
            values, compiled = member.values(extents), member.compiled()
            if values is None or compiled is None or not member.facts.hold(values):
                continue
            if member.is_verified(values):
                return compiled, values
            if self._is_symbolic:
                if member.verify(values, partial(identity_at, member)):
                    return compiled, values
                self._is_symbolic = False
        return None


class Member:
    """One trace of a family.

    Args:
        extents: the extents of its arrays, ints and Dims.
        facts: the comparisons that it relies on (core.facts.Facts).
        identity: its Identity.
    """

    def __init__(self, extents, facts, identity):
        self.facts, self.identity = facts, identity
        places = {n.key: k for k, n in enumerate(facts.unknowns)}
        self._pattern = [(places[n.key], None) if isinstance(n, Dim) else (None, n) for n in extents]
        self._low = self._high = tuple(map(present, facts.unknowns))
        self._extended = False

    def values(self, extents):
        """The values of the unknowns at these extents, a tuple; None where the extents do not fit the trace."""
        found = [None] * len(self.facts.unknowns)
        for (unknown, literal), n in zip(self._pattern, extents, strict=True):
            if unknown is None:
                if n != literal:
                    return None
            elif found[unknown] is None:
                found[unknown] = n
            elif found[unknown] != n:
                return None
        if any(n > _FAR * unknown.hint for n, unknown in zip(found, self.facts.unknowns, strict=True)):
            return None
        return tuple(found)

    def extents_at(self, values):
        """The extents of its arrays with other values of the unknowns, for another trace."""
        now = [Dim(n, unknown.hint, unknown.probe) for n, unknown in zip(values, self.facts.unknowns, strict=True)]
        return [literal if unknown is None else now[unknown] for unknown, literal in self._pattern]

    def is_verified(self, values):
        """Whether `values` lie between values at which traces had the same equations."""
        return all(low <= n <= high for low, n, high in zip(self._low, values, self._high, strict=True))

    def verify(self, values, identity_at):
        """Tries to extend the verified range to `values`, from the second time on as far as possible. Returns whether they are in it now.

        identity_at: function from values to the Identity of a trace with them; None where tracing fails.
        """
        if self._extended and not self.is_verified(values):
            self.verify_widely(identity_at)
        self._extended = True
        if not self.is_verified(values):
            self._extend_by([values], identity_at)
        return self.is_verified(values)

    def verify_widely(self, identity_at):
        """Tries values far from the hints, so that most values need no verification when they are seen."""
        self._extend_by(self._far_values(max, self._high, _LARGE), identity_at)
        self._extend_by(self._far_values(min, self._low, _SMALL), identity_at)

    def _far_values(self, extreme, known, parts):
        """Candidate values, different for different unknowns: odd and even ones, then ones that can be halved four times (by poolings)."""
        unknowns, sign = self.facts.unknowns, -1 if extreme is max else 1
        for first in (unknowns[0].hint * parts[0] // 8, known[0]):  # as a rule the first is the batch, which can be anything
            for step, eighths in itertools.product((1, 16), parts):
                values = [n.hint * eighths // 8 // step * step + sign * step * k for k, n in enumerate(unknowns)]
                if len(unknowns) > 1:
                    values[0] = first
                yield tuple(other if n == other else extreme(max(2, n), other) for n, other in zip(values, known, strict=True))

    def _extend_by(self, candidates, identity_at):
        for values in candidates:
            if self.is_verified(values) or not self.facts.hold(values):
                continue
            found = identity_at(values)
            if found is not None and found == self.identity:
                self._low, self._high = tuple(map(min, self._low, values)), tuple(map(max, self._high, values))
                return
