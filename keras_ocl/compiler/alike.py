"""Regions that compute the same of other operands, as those of equal layers: what is worked out for one of them serves all."""

import dataclasses

from keras_ocl.compiler.ir import hashable
from keras_ocl.kernels.spec import Buffer, KernelSpec


class Form:
    """What a region computes, whatever lies where.

    Attributes:
        key: hashable, and equal for regions that are alike.
        operands: the nodes in memory that the region reads, in the order in which the key counts them.
    """

    def __init__(self, region, materialised):
        self._materialised, self._own, self._anchor = materialised, {*region.outputs}, region.anchor
        self.operands, self._numbers, self._rows = [], {}, []
        if region.anchor is not None:
            self._number(region.anchor, [self._operand(node) for node in region.anchor.inputs])
        outputs = tuple(self._of(node) for node in region.outputs)
        self.key = (hashable(region.space), outputs, region.anchor is None, tuple(self._rows))

    def _of(self, node):
        """The number of a node, which is counted with all that it is computed of."""
        if node in self._numbers:
            return self._numbers[node]
        if node.primitive is None or node in self._materialised and node not in self._own:
            return self._operand(node)
        return self._number(node, [self._of(i) for i in node.inputs])

    def _operand(self, node):
        if node not in self._numbers:
            self._numbers[node] = len(self._rows)
            self._rows.append((hashable(node.shape), node.dtype))
            self.operands.append(node)
        return self._numbers[node]

    def _number(self, node, inputs):
        self._numbers[node] = len(self._rows)
        self._rows.append((node.primitive, hashable(node.params), hashable(node.shape), node.dtype, *inputs))
        return self._numbers[node]


class Alike:
    """What is known of the regions of one graph, by their Form. `materialised`: the nodes that are in memory."""

    def __init__(self, materialised):
        self._materialised, self._buffers = materialised, {node.buffer for node in materialised}
        self._forms, self._in_place, self._specs = {}, {}, {}

    def form(self, region):
        """The Form of a region; None of one whose kernels are made in a way that depends on more."""
        if region not in self._forms:
            node = region.anchor
            plain = node is None or node.results is None and node.primitive.host is None and not region.fetched
            self._forms[region] = Form(region, self._materialised) if plain else None
        return self._forms[region]

    def reads_in_place(self, region, entry, find):
        """Whether a region reads the node `entry` only where it stores; `find()` is the set of operands of which that holds."""
        form = self.form(region)
        if form is None:
            return entry in find()
        if form.key not in self._in_place:
            found = find()
            self._in_place[form.key] = [node in found for node in form.operands]
        return entry not in form.operands or self._in_place[form.key][form.operands.index(entry)]

    def kernels(self, region, alias, make):
        """The KernelSpecs of a region, made by `make()` or after those of one that is alike. alias: as for lower_graph's results."""
        form = self.form(region)
        if form is None:
            return make()
        nodes = (*form.operands, *region.outputs)
        places = [place.buffer for node in nodes for place in (node, alias.get(node, node))]  # templates know of no alias
        if any(buffer.slice is not None for buffer in places):
            return make()
        order = {}
        key = form.key, tuple(order.setdefault(buffer, len(order)) for buffer in places)
        if key not in self._specs:
            specs = make()
            if all(type(spec) is KernelSpec and spec.provenance is None and self._touches_only(order, spec) for spec in specs):
                self._specs[key] = list(order), [_with_buffers(spec, {}) for spec in specs]
            return specs
        before, specs = self._specs[key]
        now = dict(zip(before, order, strict=True))
        return [_with_buffers(spec, now, _another) for spec in specs]

    def _touches_only(self, places, spec):
        """Whether a kernel accesses no nodes' memory but those in `places`; the rest is memory between the kernels of the region."""
        return self._buffers.isdisjoint(a.value for a in spec.args if a.is_pointer and a.value not in places)


def _another(buffer):
    """A Buffer like one between the kernels of a region."""
    return Buffer(buffer.elements, buffer.dtype)


def _with_buffers(spec, now, other=lambda buffer: buffer):
    """A copy of a KernelSpec with other Buffers: those in `now`, to which others are added as they are met."""
    args = []
    for a in spec.args:
        if a.is_pointer and a.value not in now:
            now[a.value] = other(a.value)
        args.append(dataclasses.replace(a, value=now[a.value] if a.is_pointer else a.value, parts=dict(a.parts)))
    return dataclasses.replace(spec, args=args)
