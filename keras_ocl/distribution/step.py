"""A compiled step, of which this process computes its part."""

import functools

from keras_ocl import primitives as P
from keras_ocl.compiler.jit import Compiled, Jitted
from keras_ocl.compiler.trace import checking
from keras_ocl.core import checks, tree
from keras_ocl.core.facts import formulas
from keras_ocl.core.tensor import Tensor
from keras_ocl.distribution import own_rows
from keras_ocl.distribution.division import Division
from keras_ocl.distribution.partition import batch_layouts, partition
from keras_ocl.primitives import collective


class DistributedStep(Jitted):
    """A function of whole batches, of which each part of a mesh computes its rows.

    Every part calls it with the same batch, computes its own rows, and gets whole results. Or each rank calls it with an OwnRows, and of
    results with as many rows as the whole batch it gets its own rows.

    Args:
        function, context, settings: as for Jitted; the function takes a batch, and is traced with the whole batch.
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
            self._compiled.clear()  # they are for other shares
        return result

    def _compile(self, trace, result, call, unknowns):
        return compile_parts(self._placement, trace, result, call, self.name, unknowns, self._division)


def compile_parts(placement, trace, result, call, name, unknowns, division=None):
    """Compile this process's part of a trace on whole values. Without a Division all arguments stay whole; `placement` is then None if the
    process has one device."""
    collective.check_unused(trace)
    sites = checking.instrumented(trace, result, name) if checks.active() else None
    if sites is not None:
        result = result, sites.found
    kind = Part if placement is None else placement.kind
    compiled = kind(placement, trace, result, call.device, name, call.variables, unknowns, division)
    compiled.sites = sites
    return compiled


class Part(Compiled):
    """One part of a trace, compiled. `run` takes whole arrays; with a Division their first axes are cut as batches are.

    Args:
        device: the Device that computes it.
        division: the Division of a step on divided batches, or None.
        held: a function from a Variable of the trace to this part's own Variable.
        updates: None if every part returns the results and assigns its variables; else whether this is the one part that does so.

    Attributes:
        meets: whether a run waits until all parts have the memory that they need.
        sites: the checks that the trace was instrumented with (compiler/trace/checking.py), or None.
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
        rows, origin, assigns = None, 0, updates is not False  # Shard of the results' rows; the first row of the given arrays
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
        # Parts that need different results of collectives still take part in all of them.
        met = () if updates is None or token is None else (token,)
        result = tree.unflatten(structure, leaves) if assigns else ()
        super().__init__(local, result, device, name, variables=variables, unknowns=unknowns, besides=met)

    @property
    def reads(self):
        """Those of this part's Variables whose values it needs."""
        return tuple(self._states)

    def _assign(self, results):
        if self.meets:
            self._place.communicator.barrier()
        return super()._assign(results)

    def launch(self, arrays, values):
        """Enqueue this part's rows of the whole `arrays`; `values` are those of the unknown extents."""
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
