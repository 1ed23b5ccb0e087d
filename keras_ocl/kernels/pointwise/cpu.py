"""Pointwise loops for CPUs: a work-item covers a chunk of rows (the outer loops) or of one long row, in explicit vectors."""

import math

from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise.unflatten import unflatten


def write(traits, gen, nest, cost, shared, evaluate):
    """(grid, group) of loops over `nest` around `evaluate`; see Schedule.pointwise."""
    *outer, inner = nest.groups
    rows = product(nest.extents[i] for g in outer for i in g)
    length = product(nest.extents[i] for i in inner)
    width = gen.lane_width(length) if nest.vectorisable else 1
    total = hint(rows) * hint(length) * (1 + cost)
    items = max(1, min(4 * traits.compute_units, math.ceil(total / tuning_of(traits).pointwise.chunk)))
    row_chunk = max(1, math.ceil(hint(rows) / items))
    ctype = gen.ctype
    limits, grid_inner = None, None
    shareable = isinstance(length, Dim) and not outer  # short lengths take this form too, so that all lengths have the same text
    if shareable or 2 * hint(rows) <= items and hint(length) > width:
        chunk = max(1, math.ceil(hint(length) / math.ceil(items / max(1, hint(rows))) / width)) * width
        if chunk < hint(length) or isinstance(length, Dim):
            gen.emit(f"const {ctype} begin = {gen.args.place('global', 1 if outer else 0)} * {gen.int(chunk)};")
            gen.emit(f"const {ctype} end = min(begin + {gen.int(chunk)}, ({ctype}){gen.int(length)});")
            limits, grid_inner = ("begin", "end"), ceil_div(length, chunk)
    variables = []
    if outer:
        first = f"({ctype}){gen.args.place('global', 0)} * {gen.int(row_chunk)}"
        gen.emit(f"const {ctype} first = {first};")
        gen.emit(f"const {ctype} last = min(first + {gen.int(row_chunk)}, ({ctype}){gen.int(rows)});")
        variables = _rows(gen, nest, outer, ("first", "last"))
    parts = gen.parts(length, width, limits)
    if limits and width > 1 and gen.known(length) and length % width == 0:
        parts.pop()  # chunks are whole vectors
    for part in parts:
        gen.in_part(nest, inner, part, lambda indices: evaluate(variables + indices))
    if outer:
        gen.close_loop()
    if not outer:
        grid = (grid_inner or 1,)
    else:
        grid = (ceil_div(rows, row_chunk), grid_inner) if grid_inner is not None else (ceil_div(rows, row_chunk),)
    return grid, (1, 1, 1)


def _rows(gen, nest, outer, bounds):
    """Open one loop over all outer dimension groups, flattened; return the Vars of their dimensions."""
    if len(outer) == 1:
        return gen.open_loop(nest, outer[0], gen.block, 0, bounds)
    flat = [i for g in outer for i in g]
    row = gen.open_loop(nest, flat, gen.block, 0, bounds)[-1]
    return unflatten(gen, nest, outer, row.name)
