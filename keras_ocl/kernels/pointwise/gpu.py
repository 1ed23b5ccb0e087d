"""Pointwise loops for GPUs: a work-item computes one element; where there is a reduction, a team of them computes one, or a row.

Neighbouring items compute neighbouring elements. Where they would read a transposed operand from as many places of memory, a group computes
a square tile: what its items read lies in lines of memory that they all use, and the first-level cache holds those.
"""

from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels.pointwise import team
from keras_ocl.kernels.pointwise.unflatten import unflatten
from keras_ocl.kernels.schedule import schedule_of


def write(traits, gen, nest, cost, shared, evaluate):
    """(grid, group) of loops over `nest` around `evaluate`; see Schedule.pointwise."""
    tuning = schedule_of(traits).tuning
    if gen.team is not None:
        return team.write(gen, nest, gen.team, evaluate)
    groups = nest.groups
    down = None if shared or tuning.tile**2 > traits.max_group else _across(nest, tuning.tile)
    if down is not None:
        return _tiles(gen, nest, down, tuning.tile, evaluate)
    items = groups[:-1] if shared else groups
    count = product(nest.extents[i] for g in items for i in g)
    size = min(tuning.pointwise_group, traits.max_group)
    gen.emit(f"const {gen.ctype} item = get_global_id(0);")
    gen.emit(f"if (item >= {gen.int(count)}) return;")
    variables = unflatten(gen, nest, items, "item") if items else []
    if shared:
        vs = gen.open_loop(nest, groups[-1], gen.block)
        evaluate(variables + vs)
        gen.close_loop()
    else:
        evaluate(variables)
    return (ceil_div(count, size) * size,), (size,)


def _across(nest, tile):
    """Which of the nest's groups an operand is contiguous along that the last one strides over, if both are longer than a tile."""
    *outer, inner = nest.groups
    if hint(nest.length(inner)) < tile:
        return None
    for use, load in zip(nest.uses, nest.loads, strict=True):
        step = use[inner[-1]]
        if load is True and not is_one(step) and (step != 0 or isinstance(step, Dim)):
            for k, group in enumerate(outer):
                if is_one(use[group[-1]]) and hint(nest.length(group)) >= tile:
                    return k
    return None


def _tiles(gen, nest, down, tile, evaluate):
    """Tiles of the last group of dimensions and of the group `down`."""
    t, groups = gen.ctype, nest.groups
    rest = [g for k, g in enumerate(groups[:-1]) if k != down]
    height, width = (gen.int(nest.length(g)) for g in (groups[down], groups[-1]))
    rows, columns = (ceil_div(nest.length(g), tile) for g in (groups[down], groups[-1]))
    gen.emit(f"const {t} tile = get_group_id(0), tiles = tile / {gen.int(columns)};")
    gen.emit(f"const {t} column = (tile - tiles * {gen.int(columns)}) * {tile} + get_local_id(0) % {tile};")
    gen.emit(f"const {t} item = tiles / {gen.int(rows)};")
    gen.emit(f"const {t} line = (tiles - item * {gen.int(rows)}) * {tile} + get_local_id(0) / {tile};")
    gen.emit(f"if (line >= {height} || column >= {width}) return;")
    found = unflatten(gen, nest, rest, "item") if rest else []
    found += gen.group_vars(nest, groups[down], "line", gen.block) + gen.group_vars(nest, groups[-1], "column", gen.block)
    evaluate(sorted(found, key=lambda v: v.position))
    count = product(nest.length(g) for g in rest)
    return (count * rows * columns * tile**2,), (tile**2,)
