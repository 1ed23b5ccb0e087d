"""Results that are written where an operand lies that nothing reads afterwards: new values of states, and large intermediate results."""

from functools import partial

from keras_ocl.compiler.fuse.order import overlaps
from keras_ocl.compiler.launch import region_kernels
from keras_ocl.core import dtypes
from keras_ocl.core.dim import same, size_hint
from keras_ocl.core.primitive import Kind

_LARGE = 1 << 20  # bytes from which an intermediate result takes its operand's memory: for less, equal layers share more kernels


def _overwrites(node):
    """Whether `node` is the result of a template that can leave an operand's elements where they are (Primitive's `overwrites`)."""
    return node.kind is Kind.PROJECTION and node.inputs[0].primitive.overwrites is not None


def rest_of(node):
    """The operand whose elements the template of `node` leaves where they are; None of other nodes."""
    return node.inputs[0].inputs[node.inputs[0].primitive.overwrites] if _overwrites(node) else None


def writer_of(node):
    """The node that a region computes where it computes the value `node` of a state: of a template's result the template's."""
    return node.inputs[0] if _overwrites(node) else node


def in_place(regions, materialised, updates, views, alike, rests, after=-1):
    """Which updated states may overwrite their old value: a dict from the new node to the entry node.

    Allowed when the kernel that computes the new value reads the old one only at the element it writes, or leaves it there,
    no later kernel reads the old value, and the new one is computed after region number `after`. `updates`: pairs (entry node, new node).
    `rests`: nodes whose elements templates of new nodes leave where they are: they too may overwrite the old value.
    """
    readers = {}
    for position, region in enumerate(regions):
        for n in region.operands:
            readers.setdefault(n, []).append(position)
            while n in views:
                n = views[n]
                readers.setdefault(n, []).append(position)
    producer = {n: (position, region) for position, region in enumerate(regions) for n in region.outputs}

    def fits(entry, new):
        if new not in producer or entry.primitive is not None:
            return False
        position, region = producer[new]
        if new in region.staged:  # stored before all operands have been read
            return False
        if max(readers.get(entry, [0])) > position or position <= after:
            return False
        if new.results is not None:
            return True
        if not same(entry.shape, new.shape) or entry.dtype != new.dtype or not same(new.shape, region.space):
            return False
        if region.anchor is not None and (
            entry in region.anchor.inputs or region.anchor.results is not None or region.anchor.primitive.host is not None
        ):
            return False
        if any(_base(n, views) is entry and n is not entry for n in region.operands):
            return False
        if entry not in region.operands:
            return True
        return not _computes(region) and alike.reads_in_place(region, entry, partial(_read_in_place, region, materialised))

    alias = {}
    taken = set()
    for entry, new in updates:
        if new in alias or entry in taken:
            continue
        rest = rest_of(new)
        if rest is not None and rest is not entry:
            position, _ = producer[writer_of(new)]
            if rest not in rests or rest in alias or max(readers[rest]) > position or not fits(entry, rest):
                continue
            alias[rest] = entry
        elif not fits(entry, writer_of(new)):
            continue
        alias[new] = entry
        taken.add(entry)
    return alias


def _computes(region):
    """Whether a prologue follows from intermediate results, as CPUs' do: such kernels were measured with results in memory of their own."""
    return any(n.kind is not Kind.INPUT for n in region.loaded)


def _base(node, views):
    while node in views:
        node = views[node]
    return node


def _read_in_place(region, materialised):
    """The set of the region's operands that it reads only at the index of the element that it computes."""
    reads, at = region_kernels.reads(region, materialised)
    root = [i.key for i in at]
    elsewhere = {n for n, read in reads.items() if any(index is None or [i.key for i in index] != root for index in read)}
    return region.operands - region.loaded - elsewhere


def reused(regions, found, alias, alike, results):
    """Which large intermediate results may lie in the memory of an operand, as a dict from the result to the node that the memory is for.

    Args:
        regions: in the order in which they run.
        found: the Partition.
        alias: the states' new values that overwrite the old ones.
        results: the graph's outputs, whose memory is not in the arena.
    """
    kept = {*results, *alias, *alias.values(), *found.parts, *(part.concat for parts, _ in found.parts.values() for part in parts)}
    last, owner = {}, {}
    for position, region in enumerate(regions):
        for n in region.operands:
            last[_base(n, found.views)] = position
        if overlaps(region.anchor):  # a thread may still read its operands while later regions run
            kept.update(_base(n, found.views) for n in region.operands)
    for position, region in enumerate(regions):
        anchor = region.anchor
        if anchor is not None and (anchor.results is not None or anchor.primitive.host is not None) or _computes(region):
            continue
        viewed = region.operands & found.views.keys()
        elsewhere = [*viewed, *(() if anchor is None else anchor.inputs)]
        free = (region.operands & found.materialised) - {*region.outputs, *viewed, *(_base(n, found.views) for n in elsewhere)}
        for n in region.outputs:
            if (
                n in kept
                or n in found.views
                or n in region.staged
                or size_hint(n.shape) * dtypes.itemsize(n.dtype) < _LARGE
                or not same(n.shape, region.space)
            ):
                continue
            for o in sorted(free, key=lambda o: o.order):
                fits = o.kind is not Kind.INPUT and o not in kept and same(o.shape, n.shape) and o.dtype == n.dtype and last[o] == position
                if fits and alike.reads_in_place(region, o, partial(_read_in_place, region, found.materialised)):
                    owner[n] = owner.get(o, o)
                    free.discard(o)
                    break
    return owner
