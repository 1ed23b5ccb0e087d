"""Sibling fusion: regions that do not depend on one another become one kernel, which is one launch and reads what they share once.

They are small regions over the same index space, and reductions of the same array along the same axes, such as the sums for gradients of a
normalisation's scale and offset. Where kernels run side by side (launch/horizontal.py), such reductions do, which keeps more units busy.
"""

from keras_ocl.compiler.fuse import cost
from keras_ocl.core.dim import Dim, key, same, size_hint
from keras_ocl.core.primitive import Kind

_SMALL = 64  # most elements of an index space whose regions share a kernel, whatever they read


def merged(regions, placements, schedule):
    """`regions` with siblings merged, as the limits of `schedule` allow; the `placements` of results follow."""
    found, hosts = [], {}  # hosts: what siblings share -> bits of regions to join; a mask skips dependent ones, in a deep graph nearly all
    numbered = {region.bit: region for region in regions}
    for region in regions:
        target = None
        shared = _shared(region, placements, not schedule.joined)
        for share in shared:
            left = hosts.get(share, 0) & ~region.below
            while left and target is None:
                other = numbered[left & -left]
                left &= left - 1
                if len(other.maps) + len(region.maps) <= schedule.fusion.nodes and not other.reaches(region):
                    target = other
        if target is None:
            found.append(region)
            for share in shared:
                hosts[share] = hosts.get(share, 0) | region.bit
            continue
        target.absorb(region)
        for n in region.outputs:
            placements[n].producer = target
    return found


def _shared(region, placements, sums):
    """What a region's siblings share with it: keys, of which one is enough. sums: whether reductions of the same array are siblings."""
    if region.anchor is not None or region.staged or not all(same(n.shape, region.space) for n in region.outputs):
        return []
    if size_hint(region.space) <= _SMALL and not any(isinstance(n, Dim) for n in region.space):
        return [region.space]
    first, *others = region.outputs
    if not sums or others or first.kind is not Kind.REDUCTION or any(isinstance(v, Dim) for v in first.params.values()):
        return []
    x = first.inputs[0]
    along = first.primitive, tuple(map(key, x.shape)), tuple(sorted(first.params.items())), region.lanes
    arrays = [n for n in region.operands if placements[n].in_memory and cost.size(n) >= cost.size(x)]
    return [(*along, n) for n in sorted(arrays, key=lambda n: n.order)]


def same_parts(node, region):
    """Whether `node` and the reductions that `region` stores are of the same parts of one array, which a cache holds after the first."""
    reductions = [n for n in region.outputs if n.kind is Kind.REDUCTION]
    alike = all(n.primitive.stored and n.inputs[0] is node.inputs[0] and n.params == node.params for n in reductions)
    return bool(reductions) and node.primitive.stored and alike


def with_parts(node, readers, users, placements):
    """Regions with the same parts as `node` that read it, or what it reads besides the array, such as the parts' means."""
    around = {r for u in users[node.inputs[0]] for r in placements[u].regions if same_parts(node, r)}
    return sorted((r for r in around if r in readers or r.operands.intersection(node.inputs[1:])), key=lambda r: r.number)
