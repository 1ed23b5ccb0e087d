"""A compiled step of which this process computes its part."""

from keras_ocl import primitives as P
from keras_ocl.compiler import checking
from keras_ocl.compiler.jit import Compiled, Jitted
from keras_ocl.core import checks, tree
from keras_ocl.core.facts import formulas
from keras_ocl.core.tensor import Tensor
from keras_ocl.distribution import own_rows
from keras_ocl.distribution.partition import batch_layouts, partition
from keras_ocl.primitives import collective


class DistributedStep(Jitted):
    """A function of whole batches, of which each part of a mesh computes its rows.

    Every part calls it with the same batch, of which it takes its rows, and gets whole results. Or each rank calls it with an OwnRows, and
    gets its own rows of results that have as many rows as the whole batch.

    Args:
        function, settings: as for Jitted; it takes a batch and is traced with the whole one.
        placement: a Placement, or the LocalPlacement of several devices.
        own: whether batches are OwnRows.
    """

    def __init__(self, function, placement, own=False, **settings):
        super().__init__((lambda data, *_: function(data)) if own else function, **settings)
        self._placement, self._own = placement, own

    def __call__(self, data):
        if not self._own:
            return super().__call__(data)
        bound, _ = self.find(data.arguments(), {})
        return bound.compiled.run(data.arrays(), bound)

    def _compile(self, trace, result, call, unknowns):
        return compile_parts(self._placement, trace, result, call, self.name, unknowns, self._own)


def compile_parts(placement, trace, result, call, name, unknowns, own=False):
    """What this process computes of a trace on whole values, compiled; without a placement all its arguments stay whole."""
    collective.check_unused(trace)
    sites = checking.instrumented(trace, result, name) if checks.active() else None
    if sites is not None:
        result = result, sites.found
    kind = Part if placement is None else placement.kind
    compiled = kind(placement, trace, result, call.device, name, call.variables, unknowns, own)
    compiled.sites = sites
    return compiled


class Part(Compiled):
    """One part of a trace, compiled. `run` takes the whole arrays, whose first axes are cut as batches are where there is a placement.

    Args:
        device: that computes it.
        own: whether the arrays are those of OwnRows.
        held: a function that returns what this part has as the Variable in the place of one of the trace.

    Attributes:
        sites: what the trace was instrumented with (compiler/checking.py), or None.
    """

    sites = None

    def __init__(self, placement, trace, result, device, name, variables, unknowns, own=False, held=lambda variable: variable):
        batch_axis = None if placement is None else placement.batch_axis
        self._drift = None if placement is None else placement.drift
        self._changed = [slot.variable for slot in trace.assigned() if slot.variable._owned.layout is None]
        leaves, structure = tree.flatten(result)
        places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        rows, origin = None, 0  # of results, and where the given arrays begin
        if own:
            layouts, rows = own_rows.layouts(trace.inputs, batch_axis, placement.ranks, batch_axis.shares)
            origin, _ = rows.bounds()
        else:
            layouts = batch_layouts([x.shape for x in trace.inputs], batch_axis)
        local, outputs = partition(trace, [leaves[k] for k in places], layouts, batch_axis, held, rows)
        for k, output in zip(places, outputs, strict=True):
            leaves[k] = output
        bounds = [n - origin for layout in layouts if any(layout) for n in layout[0].bounds()]
        self._cut = [any(layout) for layout in layouts]
        self._bounds = formulas(unknowns, bounds)
        super().__init__(local, tree.unflatten(structure, leaves), device, name, variables=variables, unknowns=unknowns)

    def run(self, arrays, bound):
        bounds = iter(self._bounds(*bound.values))
        rows = [_rows(x, next(bounds), next(bounds)) if cut else x for x, cut in zip(arrays, self._cut, strict=True)]
        result = super().run(rows, bound)
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
