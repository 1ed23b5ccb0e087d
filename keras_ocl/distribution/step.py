"""A compiled step of which this process computes its part."""

from keras_ocl import primitives as P
from keras_ocl.compiler import checking
from keras_ocl.compiler.jit import Compiled, Jitted
from keras_ocl.core import checks, tree
from keras_ocl.core.facts import formulas
from keras_ocl.core.tensor import Tensor
from keras_ocl.distribution import own_rows
from keras_ocl.distribution.division import Division
from keras_ocl.distribution.partition import batch_layouts, partition
from keras_ocl.primitives import collective


class DistributedStep(Jitted):
    """A function of whole batches, of which each part of a mesh computes its rows.

    Every part calls it with the same batch, of which it takes its rows, and gets whole results. Or each rank calls it with an OwnRows, and
    gets its own rows of results that have as many rows as the whole batch.

    Args:
        function, context, settings: as for Jitted; it takes a batch and is traced with the whole one.
        placement: a Placement, or the LocalPlacement of several devices.
        own: whether batches are OwnRows.
    """

    def __init__(self, function, placement, own=False, context=lambda: None, **settings):
        self._placement, self._division = placement, Division(placement, own)
        super().__init__(
            (lambda data, *_: function(data)) if own else function, context=lambda: (context(), self._division.shares), **settings
        )

    def __call__(self, data):
        division = self._division
        bound, arrays = self.find(data.arguments() if division.own else (data,), {})
        division.begin(arrays)
        result = bound.compiled.run(data.arrays() if division.own else arrays, bound)
        if division.end():
            self._compiled.clear()  # of other shares
        return result

    def _compile(self, trace, result, call, unknowns):
        return compile_parts(self._placement, trace, result, call, self.name, unknowns, self._division)


def compile_parts(placement, trace, result, call, name, unknowns, division=None):
    """What this process computes of a trace on whole values, compiled; without a placement all its arguments stay whole."""
    collective.check_unused(trace)
    sites = checking.instrumented(trace, result, name) if checks.active() else None
    if sites is not None:
        result = result, sites.found
    kind = Part if placement is None else placement.kind
    compiled = kind(placement, trace, result, call.device, name, call.variables, unknowns, division)
    compiled.sites = sites
    return compiled


class Part(Compiled):
    """One part of a trace, compiled. `run` takes the whole arrays, whose first axes are cut as batches are where there is a placement.

    Args:
        device: that computes it.
        division: a Division, where there is a placement.
        held: a function that returns what this part has as the Variable in the place of one of the trace.

    Attributes:
        sites: what the trace was instrumented with (compiler/checking.py), or None.
    """

    sites = None

    def __init__(self, placement, trace, result, device, name, variables, unknowns, division=None, held=lambda variable: variable):
        self._place, self._division = placement, division
        batch_axis = None if placement is None else placement.batch_axis
        self._drift = None if placement is None else placement.drift
        self._changed = [slot.variable for slot in trace.assigned() if slot.variable._owned.layout is None]
        leaves, structure = tree.flatten(result)
        places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        rows, origin = None, 0  # of results, and where the given arrays begin
        if division is not None and division.own:
            layouts, rows = own_rows.layouts(trace.inputs, batch_axis, placement.ranks, division.shares or batch_axis.shares)
            origin, _ = rows.bounds()
        else:
            layouts = batch_layouts([x.shape for x in trace.inputs], batch_axis, division and division.shares)
        local, outputs = partition(trace, [leaves[k] for k in places], layouts, batch_axis, held, rows)
        for k, output in zip(places, outputs, strict=True):
            leaves[k] = output
        bounds = [n - origin for layout in layouts if any(layout) for n in layout[0].bounds()]
        self._cut = [any(layout) for layout in layouts]
        self._bounds = formulas(unknowns, bounds)
        super().__init__(local, tree.unflatten(structure, leaves), device, name, variables=variables, unknowns=unknowns)

    def run(self, arrays, bound):
        bounds = self._bounds(*bound.values)
        ends = iter(bounds)
        rows = [_rows(x, next(ends), next(ends)) if cut else x for x, cut in zip(arrays, self._cut, strict=True)]
        if self._division is None:
            result = super().run(rows, bound)
        else:
            count = bounds[1] - bounds[0] if bounds else 0
            result = self._division.run(self._place, self.device, count, lambda: super(Part, self).run(rows, bound))
        if self._drift is not None and self._changed:
            self._drift.step_done(self._changed)
        if self.sites is None:
            return result
        result, found = result
        self.sites.judge(found)
        return result


def _rows(x, begin, end):
    if end - begin == x.shape[0]:
        return x
    if type(x) is not Tensor:
        return x[begin:end]
    rest = x.shape[1:]
    return P.slice(x, (begin, *(0 for _ in rest)), (end, *rest))
