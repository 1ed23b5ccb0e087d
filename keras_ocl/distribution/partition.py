"""Partitioning: turns a traced step on the whole batch into the computation of one part of a mesh (SPMD).

The rules of core/factors.py tell along which axes an equation can be divided. Shardings ("cuts") propagate with the data: each equation
computes what its operands' layouts allow, what must be whole is gathered, and a value that every part has whole is cut for free. Sums
over cut axes are pending until everything that does not need them is done; then all pending ones are reduced in one collective. All
decisions depend on the whole step, never on the part, so all parts run the same collectives in the same order. (After GSPMD: Xu et
al., 2021.)
"""

import itertools
from typing import NamedTuple

from keras_ocl import primitives as P
from keras_ocl.compiler.launch import overlap
from keras_ocl.compiler.trace.equations import expanded, merged
from keras_ocl.core.body import needed
from keras_ocl.core.dim import hint, key, product
from keras_ocl.core.dtypes import itemsize
from keras_ocl.core.factors import Factors, Seen, of
from keras_ocl.core.origin import scope
from keras_ocl.core.primitive import Kind, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.distribution.layout import Shard, layout_key, local_shape, reshaped, whole
from keras_ocl.distribution.loops import CollectiveInLoop, partition_scan
from keras_ocl.primitives.collective import all_gather_p, all_reduce_p, reduce_scatter_p
from keras_ocl.primitives.movement import inverse_permutation

_BUCKET = 4 * 2**20  # least bytes to reduce together; their transfer takes hundreds of times a collective's latency
_DEEPEST = 40  # longest chain of equations that is recomputed for a part alone, instead of cutting its result


class Value(NamedTuple):
    """A tensor's part and layout. `pending` is (axes of the mesh, kind) if the parts' values must still be reduced, else None."""

    tensor: Tensor
    layout: tuple
    pending: tuple | None = None


class Partition:
    """Computes one part of a trace's equations.

    Args:
        equations: the equations of the whole step.
        known: dict from the id of a Tensor that they start from to its Value.
        states: ids of those Tensors that are values of variables.
        wanted: dict from the id of a Tensor to the layout of the variable whose new value follows from it.
        batch_axis: the mesh axis along which batches are cut, or None.
        collective: whether collectives may be used; in the bodies of loops they may not.

    Attributes:
        token: the token of the last collective, None before the first.
    """

    def __init__(self, equations, known, states=(), wanted=None, batch_axis=None, collective=True):
        equations = merged(expanded(equations))  # a scan and its gradient's scan can be merged only while they share a body
        self._equations, self.values, self._states = equations, dict(known), set(states)
        self._wanted, self._batch_axis, self._collective = wanted or {}, batch_axis, collective
        self._makers = {id(o): eq for eq in equations for o in eq.outputs}
        self._parts = {}  # (id of a tensor, key of a layout) -> the tensor's part in that layout
        self.token, self._begin = None, P.constant(0, "int32") if collective else None  # the first collective's token

    def run(self, outputs):
        """Compute the Values of `outputs`, none of them pending, in the trace that is being recorded."""
        waiting = needed(self._equations, outputs)
        while waiting:
            later = []
            for eq in waiting:
                if not self._ready(eq) or not self._apply(eq):
                    later.append(eq)
            if len(later) == len(waiting):
                self._reduce([x for eq in later for x in eq.inputs])
            waiting = later
        self._reduce(outputs)
        return [self.value(t) for t in outputs]

    def value(self, t):
        """The Value of a Tensor; one that is neither known nor an equation's result, such as a constant, is whole on all parts."""
        found = self.values.get(id(t))
        return Value(t, whole(len(t.shape))) if found is None else found

    def _ready(self, eq):
        return all(id(x) in self.values or id(x) not in self._makers for x in eq.inputs)

    # ---- one equation

    def _apply(self, eq):
        """Compute the equation's part; False if it must wait for a pending sum."""
        operands = [self.value(x) for x in eq.inputs]
        pending = {v.pending for v in operands if v.pending}
        if pending:
            alike = eq.primitive.name == "add" and len(pending) == 1 and all(v.pending for v in operands)
            if not alike or {kind for _, kind in pending} != {"sum"} or len({layout_key(v.layout) for v in operands}) > 1:
                return False
        current_trace.get().tag = eq.tag
        with scope(eq.origin):
            if eq.primitive.kind is Kind.SCAN:
                results = partition_scan(self, eq, Partition, Value)
            elif eq.primitive.name == "reshape":
                results = [self._reshape(eq)]
            else:
                results = self._split(eq)
        if id(eq.inputs[0] if eq.inputs else None) in self._states and _same_elements(eq):
            self._states.add(id(eq.outputs[0]))
        for o, value in zip(eq.outputs, results, strict=True):
            self.values[id(o)] = value if not pending else value._replace(pending=next(iter(pending)))
        return True

    def _reshape(self, eq):
        (x,), new = eq.inputs, eq.params["shape"]
        value = self.value(x)
        layout = reshaped(x.shape, value.layout, new)
        if layout is None:
            return Value(P.reshape(self.part(x, whole(len(x.shape))), new), whole(len(new)))
        return Value(P.reshape(value.tensor, local_shape(new, layout)), layout)

    def _seen(self, eq):
        return Seen(eq.inputs, eq.outputs, eq.params, self._counting)

    def _counting(self, t):
        """The axis along which the values of `t` are 0, 1, 2, ...; None if they are not, or if that is unknown."""
        eq = self._makers.get(id(t))
        if eq is None:
            return None
        if eq.primitive.name == "iota":
            return eq.params["axis"]
        if eq.primitive.name == "broadcast":
            inner = self._counting(eq.inputs[0])
            return None if inner is None else eq.params["dims"][inner]
        if eq.primitive.name == "convert":
            return self._counting(eq.inputs[0])
        return None

    def _split(self, eq):
        seen = self._seen(eq)
        factors = of(eq.primitive, seen)
        if factors is None:
            factors = Factors(tuple(whole(len(x.shape)) for x in eq.inputs), tuple(whole(len(o.shape)) for o in eq.outputs))
        return self._computed(eq, factors, self._chosen(eq, factors))

    def _chosen(self, eq, factors):
        """label -> Shard of the labels that are cut, following the operands; each mesh axis cuts at most one label.

        If operands are cut differently, data prevail along the batch axis. Along other axes the layout of the variable whose new value
        follows prevails, then that of an operand that is a variable, since the user asked for these layouts; else the first operand's.
        """
        shown = {label for labels in factors.results for label in labels} | set(factors.sums)
        cuts = [
            (-1, shard, label)
            for o, labels in zip(eq.outputs, factors.results, strict=True)
            for shard, label in zip(self._wanted.get(id(o), ()), labels, strict=False)
            if shard is not None and label is not None and shard.axis is not self._batch_axis
        ]
        cuts += [
            ((shard.axis is self._batch_axis) is (id(x) in self._states), shard, label)
            for x, labels in zip(eq.inputs, factors.operands, strict=True)
            for shard, label in zip(self.value(x).layout, labels, strict=True)
            if shard is not None and label is not None and label in shown
        ]
        if self._updates_whole(eq):
            cuts = [cut for cut in cuts if cut[1].axis is self._batch_axis]
        chosen, used = {}, set()
        ranges = set(factors.rebased.values())
        for _, shard, label in sorted(cuts, key=lambda cut: cut[0]):
            if label not in chosen and shard.axis.name not in used and (shard.contiguous or label not in ranges):
                chosen[label] = shard
                used.add(shard.axis.name)
        return chosen

    def _updates_whole(self, eq):
        """Whether the equation uses, element by element, a variable that every part has whole, as optimizers do with its gradient."""
        return eq.primitive.kind is Kind.ELEMENTWISE and any(
            id(x) in self._states and len(x.shape) and not any(self.value(x).layout) for x in eq.inputs
        )

    def _computed(self, eq, factors, chosen):
        """The equation's Values with the labels in `chosen` cut."""
        operands = []
        for position, (x, labels) in enumerate(zip(eq.inputs, factors.operands, strict=True)):
            value = self.value(x)
            layout = tuple(chosen.get(label) for label in labels)
            part = value.tensor if value.pending else self.part(x, layout)
            along = chosen.get(factors.rebased.get(position))
            operands.append(part if along is None else P.sub(part, P.full(part.shape, along.bounds()[0], part.dtype)))
        layouts = [tuple(chosen.get(label) for label in labels) for labels in factors.results]
        params = eq.params
        if factors.resized is not None and any(layouts[0]):
            params = factors.resized(params, local_shape(eq.outputs[0].shape, layouts[0]))
        results = eq.primitive(*operands, **params)
        results = results if eq.primitive.multiple_results else (results,)
        summed = sorted((shard.axis for label, shard in chosen.items() if label in factors.sums), key=lambda axis: axis.name)
        pending = None
        if summed:
            (kind,) = {factors.sums[label] for label in chosen if label in factors.sums}
            pending = tuple(summed), kind
        return [Value(r, layout, pending) for r, layout in zip(results, layouts, strict=True)]

    # ---- other layouts

    def part(self, t, layout):
        """The part of a Tensor, which must not be pending, in this layout."""
        value = self.value(t)
        identity = id(t), layout_key(layout)
        if layout_key(value.layout) == identity[1]:
            return value.tensor
        found = self._parts.get(identity)
        if found is None:
            found = self._parts[identity] = self._moved(t, value, layout)
        return found

    def _moved(self, t, value, layout, depth=0):
        if not any(value.layout) and depth < _DEEPEST:
            again = self._again(t, layout, depth)
            if again is not None:
                return again
        x, held = value.tensor, list(value.layout)
        for i, (shard, wanted) in enumerate(zip(value.layout, layout, strict=True)):
            if shard is not None and (wanted is None or shard.key != wanted.key):
                x, held[i] = self._gathered(x, i, shard), None
        for i, (shard, wanted) in enumerate(zip(held, layout, strict=True)):
            if shard is None and wanted is not None:
                x = _cut(x, i, wanted)
        return x

    def _again(self, t, layout, depth):
        """The part of a whole Tensor, recomputed for this part alone (rematerialisation) if that is cheap; None if cutting is better."""
        eq = self._makers.get(id(t))
        if eq is None or eq.primitive.kind not in (Kind.ELEMENTWISE, Kind.SOURCE) and eq.primitive.name != "broadcast":
            return None
        factors = of(eq.primitive, self._seen(eq))
        if factors is None or any(s is not None and label is None for s, label in zip(layout, factors.results[0], strict=True)):
            return None
        cut = {label: shard for label, shard in zip(factors.results[0], layout, strict=True) if shard is not None}
        operands = []
        for x, labels in zip(eq.inputs, factors.operands, strict=True):
            inner = tuple(cut.get(label) for label in labels)
            identity = id(x), layout_key(inner)
            if identity not in self._parts:
                value = self.value(x)
                same = layout_key(value.layout) == identity[1]
                self._parts[identity] = value.tensor if same else self._moved(x, value, inner, depth + 1)
            operands.append(self._parts[identity])
        shape = local_shape(t.shape, layout)
        params = eq.params if factors.resized is None else factors.resized(eq.params, shape)
        with scope(eq.origin):
            return eq.primitive(*operands, **params)

    # ---- collectives

    def _next_token(self):
        if not self._collective:
            raise CollectiveInLoop
        return self._begin if self.token is None else self.token

    def _gathered(self, x, i, shard):
        group, extents, shape = shard.axis.group, tuple(shard.extents()), x.shape
        if not shard.contiguous:
            x, i = P.reshape(x, (*shape[:i], shard.outer, shard.extent() // shard.outer, *shape[i + 1 :])), i + 1
        y, self.token = all_gather_p(x, self._next_token(), group=group, axis=i, extents=extents)
        return y if shard.contiguous else P.reshape(y, (*shape[: i - 1], shard.outer * y.shape[i], *shape[i:]))

    def _reduce(self, tensors):
        """Reduce all pending `tensors`. Those that are wanted cut are reduce-scattered; others with the same kind and mesh axes are reduced
        in one collective, except large sums, which are reduced while later ones are computed."""
        waiting = {}
        for t in {id(t): t for t in tensors}.values():
            if self.value(t).pending is not None:
                self._scatter(t)
            pending = self.value(t).pending
            if pending is not None:
                waiting.setdefault(pending, {})[id(t)] = t
        for (axes, kind), found in waiting.items():
            for bucket in self._buckets(list(found.values()), axes[0].group.overlaps):
                parts = [self.value(t) for t in bucket]
                reduced = [v.tensor for v in parts]
                for axis in axes:
                    *reduced, self.token = all_reduce_p(*reduced, self._next_token(), group=axis.group, kind=kind)
                for t, v, y in zip(bucket, parts, reduced, strict=True):
                    self.values[id(t)] = Value(y, v.layout)

    def _buckets(self, tensors, overlaps):
        """Lists of Tensors to reduce together: all in one; or large ones in the order of computation, the others with the last of them."""
        if not overlaps:
            return [tensors]
        made = {t: k for k, t in enumerate(self._makers)}
        large = [t for t in tensors if _bytes(t) > overlap.WORTH]
        found, bucket = [], []
        for t in sorted(large, key=lambda t: made[id(t)]):
            bucket.append(t)
            if sum(map(_bytes, bucket)) >= _BUCKET:
                found.append(bucket)
                bucket = []
        bucket += [t for t in tensors if _bytes(t) <= overlap.WORTH]
        return [*found, bucket] if bucket else found

    def _scatter(self, t):
        """Reduce-scatter a pending Tensor along those mesh axes along which it is wanted cut."""
        (axes, kind), layout, x = self.value(t).pending, list(self.value(t).layout), self.value(t).tensor
        for i, shard in enumerate(self._wanted.get(id(t), ())):
            if shard is not None and shard.axis in axes and shard.contiguous and layout[i] is None:
                extents = tuple(shard.extents())
                x, self.token = reduce_scatter_p(x, self._next_token(), group=shard.axis.group, axis=i, extents=extents, kind=kind)
                layout[i], axes = shard, tuple(axis for axis in axes if axis is not shard.axis)
        self.values[id(t)] = Value(x, tuple(layout), (axes, kind) if axes else None)


def _wanted(equations, slots, layout_of):
    """id of a Tensor -> layout of the variable whose new value follows from it element by element, if that variable is cut."""
    found = {id(slot.value): layout_of[id(slot)] for slot in slots if any(layout_of[id(slot)])}
    for eq in reversed(equations):
        layout = found.get(id(eq.outputs[0]))
        for x in eq.inputs if layout is not None else ():
            before = None
            if eq.primitive.kind is Kind.ELEMENTWISE and len(x.shape) == len(layout):
                before = layout
            elif eq.primitive.name == "reshape":
                before = reshaped(eq.outputs[0].shape, layout, x.shape)
            elif eq.primitive.name == "transpose":
                before = tuple(layout[k] for k in inverse_permutation(eq.params["perm"]))
            if before is not None:
                found.setdefault(id(x), before)
    return found


def _bytes(t):
    """Bytes of the whole Tensor, so that the number is equal on all parts."""
    return product(map(hint, t.shape)) * itemsize(t.dtype)


def _same_elements(eq):
    """Whether the result has the elements of its first operand, each once."""
    return eq.primitive.name in ("reshape", "transpose", "convert", "stop_gradient")


def _cut(x, i, shard):
    """This part of `x` along axis i, as `shard` divides it."""
    shape, run = x.shape, shard.rows * shard.block
    if not shard.contiguous:
        x = P.reshape(x, (*shape[:i], shard.outer, run, *shape[i + 1 :]))
    at, bounds = i if shard.contiguous else i + 1, shard.bounds()
    starts = [bounds[0] if k == at else 0 for k in range(len(x.shape))]
    x = P.slice(x, starts, [bounds[1] if k == at else n for k, n in enumerate(x.shape)])
    return x if shard.contiguous else P.reshape(x, (*shape[:i], shard.extent(), *shape[i + 1 :]))


def partition(trace, results, layouts, batch_axis, held, rows=None, assigns=True):
    """(local Trace, Tensors in the place of `results`, token of the last collective or None) of one part.

    Args:
        trace: the trace of the whole step.
        results: Tensors of the trace to return; each part gets them whole.
        layouts: the layouts of the trace's inputs.
        batch_axis: the mesh axis along which batches are cut, or None.
        held: a function from a Variable of the trace to the part's own Variable.
        rows: the Shard of the rows to return of results with that many rows, or None to return all.
        assigns: whether the part assigns the variables.
    """
    local, known, states = Trace(), {}, set()
    layout_of = {id(slot): held(slot.variable)._owned.layout or whole(len(slot.entry.shape)) for slot in trace.states.values()}
    for t, layout in zip(trace.inputs, layouts, strict=True):
        known[id(t)] = Value(local.input(local_shape(t.shape, layout), t.dtype), layout)
    for slot in trace.states.values():
        layout = layout_of[id(slot)]
        known[id(slot.entry)] = Value(local.enter(held(slot.variable), local_shape(slot.entry.shape, layout)), layout)
        states.add(id(slot.entry))
    slots = trace.assigned()
    with tracing(local):
        whole_step = Partition(trace.equations, known, states, _wanted(trace.equations, slots, layout_of), batch_axis)
        targets = [*results, *(s.value for s in slots)]
        whole_step.run(targets)
        outputs = [whole_step.part(t, _result_layout(t, rows)) for t in results]
        values = [whole_step.part(slot.value, layout_of[id(slot)]) for slot in slots]
        for slot, value in zip(slots, values, strict=True) if assigns else ():
            local.assign(held(slot.variable), value)
    return local, outputs, whole_step.token


def _result_layout(t, rows):
    if rows is None or not len(t.shape) or key(t.shape[0]) != key(rows.rows):
        return whole(len(t.shape))
    return rows, *whole(len(t.shape) - 1)


def batch_layouts(shapes, axis, shares=None):
    """Layouts for arrays whose first axes are cut along `axis` of a mesh.

    Arrays without axes or with one row stay whole; so do all if `axis` is None or has one part.

    Args:
        shares: relative numbers of rows of the parts; by default those of the axis.
    """
    if axis is None or axis.size == 1:
        return [whole(len(s)) for s in shapes]
    before = shares and (0, *itertools.accumulate(shares))
    found = []
    for shape in shapes:
        if len(shape) == 0 or key(shape[0]) == 1:
            found.append(whole(len(shape)))
        else:
            ends = before and tuple(shape[0] * n // before[-1] for n in before)
            found.append((Shard(axis, shape[0], ends=ends), *whole(len(shape) - 1)))
    return found
