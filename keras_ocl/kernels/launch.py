"""Launch geometry: group sizes, grids within the device's limits, and the splitting of long kernels.

Kernels that leave their group size open get one here, and grids are folded to the device's limits on the number of groups. Long kernels are
split into several launches, since a driver's watchdog stops a kernel that blocks the display for seconds.
"""

from collections.abc import Sequence
from dataclasses import replace

from keras_ocl.core.dim import Dim, Extent, ceil_div, hint, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import ids
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec

_SLOWEST = 2  # operations per cycle that a compute unit does at least, however badly a kernel suits it
_CLOCK = 500  # MHz, assumed where the driver does not tell


def fitted(spec: KernelSpec, traits: Traits, all_arguments: bool = False) -> KernelSpec:
    """A KernelSpec of the same kernel, such that a device of such traits launches it well.

    An open group size is chosen here: the grid is rounded up to a multiple of it, and work-items beyond the original grid return at once.
    If a dimension has more groups than the device allows, the grid is folded into fewer dimensions and each group computes its original id;
    not in a user's kernel, whose text may ask for ids in any way.
    """
    if spec.sized:
        return spec  # a user's text that depends on the launch's size
    items = min(schedule_of(traits).open_group, traits.max_group)
    if spec.group is None and items:
        spec = _with_group(spec, items, all_arguments)
    if spec.group is not None and traits.max_groups and not spec.scalar:
        spec = _folded(spec, traits.max_groups, all_arguments)
    return spec


def open_group(grid: Sequence[Extent], items: int) -> tuple[int, ...]:
    """Group size, at most `items` work-items, for a grid: it fills the first extents first, in few shapes, so that few texts differ."""
    group = []
    for k, extent in enumerate(grid):
        n = hint(extent)
        side = 64 if n >= 32 else 8 if n >= 4 else 1
        rest = all(hint(other) == 1 for other in grid[k + 1 :])
        group.append(max(1, min(items, items if rest and n > 1 else side)))
        items //= group[-1]
    return tuple(group)


def _with_group(spec: KernelSpec, items: int, all_arguments: bool) -> KernelSpec:
    args = Args(all_arguments, list(spec.args))
    group, outside = open_group(spec.grid, items), []
    for k, (extent, side) in enumerate(zip(spec.grid, group, strict=True)):
        if side > 1 and (all_arguments or isinstance(extent, Dim) or extent % side):
            place = ids.function(("global", k)) if spec.scalar else args.place("global", k)  # a user's text may have any names
            outside.append(f"{place} >= {args.int(extent, index_type(extent))}")
    grid = tuple(ceil_div(n, side) * side for n, side in zip(spec.grid, group, strict=True))
    guards, places = (*spec.guards, *outside), spec.places | args.places
    return replace(spec, args=tuple(args.args), grid=grid, group=group, guards=guards, places=places)


def _folded(spec: KernelSpec, limits: tuple[int, ...], all_arguments: bool) -> KernelSpec:
    assert spec.group is not None
    group = (*spec.group, 1, 1)[:3]
    counts = [ceil_div(n, side) for n, side in zip((*spec.grid, 1, 1)[:3], group, strict=True)]
    if all(count <= limit for count, limit in zip(counts, limits, strict=True)):
        return spec
    args, total, guards = Args(all_arguments, list(spec.args)), product(counts), spec.guards
    i = index_type(total)
    across, down = (total, 1) if total <= limits[0] else (limits[0], ceil_div(total, limits[0]))
    number = "{0}"
    if not is_one(down):
        number += f" + ({i})({{1}}) * {limits[0]}"
        guards = (f"launch >= {args.int(total, i)}", *guards)
    fold = ids.Fold(i, number, (args.int(counts[0], i), args.int(counts[1], i)), group)
    grid = (across * group[0], down * group[1], group[2])
    return replace(spec, args=tuple(args.args), ids=replace(spec.ids, fold=fold), grid=grid, group=group, guards=guards)


def pieces(spec: KernelSpec, traits: Traits, work: float, all_arguments: bool = False) -> list[KernelSpec]:
    """KernelSpecs, all with one text, that each do a part of the `work` operations of `spec`; cautiously estimated, none takes a second."""
    count = int(work // (traits.compute_units * (traits.clock or _CLOCK) * 1e6 * _SLOWEST)) + 1
    if count == 1 or spec.group is None or spec.scalar or not traits.max_groups:
        return [spec]
    sides = (*spec.group, 1, 1)
    groups = [ceil_div(n, side) for n, side in zip(spec.grid, sides, strict=False)]
    d = max(range(len(groups)), key=lambda k: hint(groups[k]))
    of_each = ceil_div(groups[d], min(count, max(1, hint(groups[d]))))
    starts = [0]
    while starts[-1] + of_each < groups[d]:
        starts.append(starts[-1] + of_each)
    found = []
    for start in starts:
        args = Args(all_arguments, list(spec.args))
        moved = spec.ids.beginning(d, args.scalar(start, "int"), sides[d])
        mine = of_each if start is not starts[-1] else groups[d] - start
        grid = (*spec.grid[:d], mine * sides[d], *spec.grid[d + 1 :])
        operations = None if spec.operations is None else spec.operations // len(starts)
        found.append(replace(spec, args=tuple(args.args), ids=moved, grid=grid, operations=operations))
    return found
