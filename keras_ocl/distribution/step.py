"""A compiled step of which this process computes its part."""

import functools

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
    """What this process computes of a trace on whole values, compiled; without a Division all its arguments stay whole, and the placement
    is None where it has one device."""
    collective.check_unused(trace)
    sites = checking.instrumented(trace, result, name) if checks.active() else None
    if sites is not None:
        result = result, sites.found
    kind = Part if placement is None else placement.kind
    compiled = kind(placement, trace, result, call.device, name, call.variables, unknowns, division)
    compiled.sites = sites
    return compiled


class Part(Compiled):
    """One part of a trace, compiled. `run` takes the whole arrays, whose first axes are cut as batches are where there is a Division.

    Args:
        device: that computes it.
        division: a Division, of a step on shared batches.
        held: a function that returns what this part has as the Variable in the place of one of the trace.
        updates: None where every part returns the results and assigns its variables; where one does so for all, whether it is this one.

    Attributes:
        meets: whether a run begins when all parts have the memory that they need for it.
        sites: what the trace was instrumented with (compiler/checking.py), or None.
    """

    sites = None
    meets = False

    def __init__(
        self, placement, trace, result, device, name, variables, unknowns, division=None, held=lambda variable: variable, updates=None
    ):
        self._place, self._division = placement, division
        batch_axis = None if division is None else placement.batch_axis
        self._drift = None if division is None else placement.drift
        self._changed = [slot.variable for slot in trace.assigned() if slot.variable._owned.layout is None]
        leaves, structure = tree.flatten(result)
        places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        rows, origin, assigns = None, 0, updates is not False  # of results; where the given arrays begin
        if division is not None and division.own:
            layouts, rows = own_rows.layouts(trace.inputs, batch_axis, placement.ranks, division.shares or batch_axis.shares)
            origin, _ = rows.bounds()
        else:
            layouts = batch_layouts([x.shape for x in trace.inputs], batch_axis, division and division.shares)
        local, outputs, token = partition(trace, [leaves[k] for k in places], layouts, batch_axis, held, rows, assigns)
        for k, output in zip(places, outputs, strict=True):
            leaves[k] = output
        bounds = [n - origin for layout in layouts if any(layout) for n in layout[0].bounds()]
        self._cut = [any(layout) for layout in layouts]
        self._bounds = formulas(unknowns, bounds)
        # Parts that need different results of collectives still meet in all of them.
        met = () if updates is None or token is None else (token,)
        result = tree.unflatten(structure, leaves) if assigns else ()
        super().__init__(local, result, device, name, variables=variables, unknowns=unknowns, besides=met)

    @property
    def reads(self):
        """The Variables whose values it needs, of those that it has."""
        return tuple(self._states)

    def _assign(self, results):
        if self.meets:
            self._place.communicator.barrier()
        return super()._assign(results)

    def launch(self, arrays, values):
        bounds = self._bounds(*values)
        ends = iter(bounds)
        rows = [_rows(x, next(ends), next(ends)) if cut else x for x, cut in zip(arrays, self._cut, strict=True)]
        run, count = functools.partial(super().launch, rows, values), bounds[1] - bounds[0] if bounds else 0
        return run() if self._division is None else self._division.run(self._place, self.device, count, run)

    def run(self, arrays, bound):
        result = super().run(arrays, bound)
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
