"""Pointwise loops for GPUs: a work-item computes one element; with a reduction, a team of work-items (team.py) computes one element or row.

Consecutive items compute consecutive elements. If that would scatter the reads of a transposed operand over memory, a group computes a
square tile (tiles.py); if all memory is contiguous, an item computes a few elements (packed.py).
"""

from keras_ocl.core.dim import ceil_div, product
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise import packed, team, tiles
from keras_ocl.kernels.pointwise.unflatten import unflatten


def write(traits, gen, nest, cost, shared, evaluate):
    """(grid, group) of loops over `nest` around `evaluate`; see Schedule.pointwise."""
    tuning = tuning_of(traits)
    if gen.team is not None:
        return team.write(gen, nest, gen.team, evaluate)
    groups = nest.groups
    gen.tile = None if shared or "transposes" in traits.quarantine else tiles.choose(traits, nest)
    if gen.tile is not None:
        return tiles.write(gen, nest, gen.tile, evaluate)
    count = packed.lanes(traits, gen, nest)
    if count > 1:
        return packed.write(traits, gen, nest, count, evaluate)
    items = groups[:-1] if shared else groups
    count = product(nest.extents[i] for g in items for i in g)
    size = min(tuning.pointwise_group, traits.max_group)
    gen.emit(f"const {gen.ctype} item = {gen.args.place('global', 0)};")
    gen.emit(gen.args.leave(f"item >= {gen.int(count)}"))
    variables = unflatten(gen, nest, items, "item") if items else []
    if shared:
        vs = gen.open_loop(nest, groups[-1], gen.block)
        evaluate(variables + vs)
        gen.close_loop()
    else:
        evaluate(variables)
    return (ceil_div(count, size) * size,), (size,)
