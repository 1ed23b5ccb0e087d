"""Regions that compute the same function of different operands, as in equal layers: analysis and kernels of one of them serve all."""

import dataclasses

from keras_ocl.compiler.trace.ir import hashable
from keras_ocl.kernels.spec import Buffer, KernelSpec


class Form:
    """The function that a region computes, regardless of the buffers in which its operands and results lie.

    Attributes:
        key: hashable, and equal for regions that are alike.
        operands: the nodes in memory that the region reads, in the order in which the key counts them.
    """

    def __init__(self, region, materialised):
        self._materialised, self._own, self._anchor = materialised, {*region.outputs}, region.anchor
        self.operands, self._numbers, self._rows = [], {}, []
        if region.anchor is not None:
            inputs = [self._loaded(node, region.prologues.get(node)) for node in region.anchor.inputs]
            self._number(region.anchor, inputs)
        outputs = tuple(self._of(node) for node in region.outputs)
        places = tuple(map(_place, region.outputs))
        self.key = (hashable(region.space), outputs, places, region.anchor is None, tuple(self._rows))

    def _of(self, node):
        """The number of a node, given to it after all nodes that the region computes it from."""
        if node in self._numbers:
            return self._numbers[node]
        if node.primitive is None or node in self._materialised and node not in self._own:
            return self._operand(node)
        return self._number(node, [self._of(i) for i in node.inputs])

    def _loaded(self, node, prologue):
        """The number of an operand of the anchor, which a prologue may compute; other code may load what that computes."""
        if prologue is None:
            return self._operand(node)
        inside, _ = prologue
        others, own = self._numbers, self._materialised
        self._numbers, self._materialised = {n: k for n, k in others.items() if n not in inside}, own - inside
        number = self._of(node)
        self._numbers = {**{n: k for n, k in self._numbers.items() if n not in inside}, **others}
        self._materialised = own
        return number

    def _operand(self, node):
        if node not in self._numbers:
            self._numbers[node] = len(self._rows)
            self._rows.append((hashable(node.shape), node.dtype, _place(node)))
            self.operands.append(node)
        return self._numbers[node]

    def _number(self, node, inputs):
        self._numbers[node] = len(self._rows)
        self._rows.append((node.form, *inputs))
        return self._numbers[node]


def _place(node):
    """Hashable, and equal for nodes whose elements lie at the same offsets in their buffers."""
    part = node.part
    return None if part is None else hashable((part.split, part.row, part.start, part.concat.shape))


class Alike:
    """A cache of results about the regions of one graph, by their Form.

    `materialised`: the nodes that are in memory. `parts`: as in partition.Partition.
    """

    def __init__(self, materialised, parts):
        self._materialised, self._buffers = materialised, {node.buffer for node in materialised}
        self._copied = {n for n, (_, own) in parts.items() if own}
        self._forms, self._in_place, self._specs = {}, {}, {}

    def form(self, region):
        """The Form of a region; None if its kernels depend on more: a node with several results or places, or a host operation."""
        if region not in self._forms:
            node = region.anchor
            plain = node is None or node.results is None and node.primitive.host is None
            plain = plain and self._copied.isdisjoint(region.outputs)
            self._forms[region] = Form(region, self._materialised) if plain else None
        return self._forms[region]

    def reads_in_place(self, region, entry, find):
        """Whether a region reads `entry` only at the index that it stores; `find()` returns the set of operands for which that holds."""
        form = self.form(region)
        if form is None:
            return entry in find()
        if form.key not in self._in_place:
            found = find()
            self._in_place[form.key] = [node in found for node in form.operands]
        return entry not in form.operands or self._in_place[form.key][form.operands.index(entry)]

    def kernels(self, region, alias, make):
        """The KernelSpecs of a region, made by `make()` or copied from a region that is alike. alias: as in lower.Lowered."""
        form = self.form(region)
        if form is None:
            return make()
        nodes = (*form.operands, *region.outputs)
        places = [place.buffer for node in nodes for place in (node, alias.get(node, node))]  # templates use a node's own buffer
        if any(buffer.slice is not None for buffer in places):
            return make()
        order = {}
        key = form.key, tuple(order.setdefault(buffer, len(order)) for buffer in places)
        if key not in self._specs:
            specs = make()
            if all(type(spec) is KernelSpec and spec.provenance is None and self._touches_only(order, spec) for spec in specs):
                self._specs[key] = list(order), specs
            return specs
        before, specs = self._specs[key]
        now = dict(zip(before, order, strict=True))
        return [_with_buffers(spec, now) for spec in specs]

    def _touches_only(self, places, spec):
        """Whether a kernel accesses no node's memory except the Buffers `places`; others may be scratch between the region's kernels."""
        return self._buffers.isdisjoint(a.value for a in spec.args if a.is_pointer and a.value not in places)


def _with_buffers(spec, now):
    """The KernelSpec with its Buffers replaced by the dict `now`, to which scratch between the kernels of a region is added."""
    for a in spec.args:
        if a.is_pointer and a.value not in now:
            now[a.value] = Buffer(a.value.elements, a.value.dtype)
    return dataclasses.replace(spec, args=tuple([dataclasses.replace(a, value=now[a.value]) if a.is_pointer else a for a in spec.args]))
