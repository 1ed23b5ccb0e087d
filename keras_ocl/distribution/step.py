"""A compiled step of which this process computes its part."""

from keras_ocl import primitives as P
from keras_ocl.compiler import checking
from keras_ocl.compiler.jit import Compiled, Jitted
from keras_ocl.core import checks, tree
from keras_ocl.core.facts import formulas
from keras_ocl.core.tensor import Tensor
from keras_ocl.distribution.partition import batch_layouts, partition
from keras_ocl.primitives import collective


class DistributedStep(Jitted):
    """A function of whole batches, of which each part of a mesh computes its rows.

    Every part calls it with the same arguments, of which it takes its rows, and gets whole results.

    Args:
        function, settings: as for Jitted; it is traced with the whole batch.
        placement: a Placement, or the LocalPlacement of several devices.
    """

    def __init__(self, function, placement, **settings):
        super().__init__(function, **settings)
        self._placement = placement

    def _compile(self, trace, result, call, unknowns):
        return compile_parts(self._placement, trace, result, call, self.name, unknowns)


def compile_parts(placement, trace, result, call, name, unknowns):
    """What this process computes of a trace on whole values, compiled; without a placement all its arguments stay whole."""
    collective.check_unused(trace)
    sites = checking.instrumented(trace, result, name) if checks.active() else None
    if sites is not None:
        result = result, sites.found
    kind = Part if placement is None else placement.kind
    compiled = kind(placement, trace, result, call.device, name, call.variables, unknowns)
    compiled.sites = sites
    return compiled


class Part(Compiled):
    """One part of a trace, compiled. `run` takes the whole arrays, whose first axes are cut as batches are where there is a placement.

    Args:
        device: that computes it.
        held: a function that returns what this part has as the Variable in the place of one of the trace.
        updates: None where every part returns the results and assigns its variables; where one does so for all, whether it is this one.

    Attributes:
        sites: what the trace was instrumented with (compiler/checking.py), or None.
    """

    sites = None

    def __init__(self, placement, trace, result, device, name, variables, unknowns, held=lambda variable: variable, updates=None):
        batch_axis = None if placement is None else placement.batch_axis
        self._drift = None if placement is None else placement.drift
        self._changed = [slot.variable for slot in trace.assigned() if slot.variable._owned.layout is None]
        leaves, structure = tree.flatten(result)
        places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        layouts = batch_layouts([x.shape for x in trace.inputs], batch_axis)
        assigns = updates is not False
        local, outputs, token = partition(trace, [leaves[k] for k in places], layouts, batch_axis, held, assigns)
        for k, output in zip(places, outputs, strict=True):
            leaves[k] = output
        bounds = [n for layout in layouts if any(layout) for n in layout[0].bounds()]
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

    def launch(self, arrays, values):
        bounds = iter(self._bounds(*values))
        rows = [_rows(x, next(bounds), next(bounds)) if cut else x for x, cut in zip(arrays, self._cut, strict=True)]
        return super().launch(rows, values)

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
    if type(x) is not Tensor:
        return x[begin:end]
    rest = x.shape[1:]
    return P.slice(x, (begin, *(0 for _ in rest)), (end, *rest))
