"""Pointwise loops for CPUs: a work-item covers a chunk of rows (the outer loops) or of one long row, in explicit vectors."""

import math
from dataclasses import dataclass, field

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise.unflatten import unflatten
from keras_ocl.kernels.spec import Buffer

_SHORT = 32  # most elements of a loop that is worth another one around it
_ALIGNED = 32  # elements: 128 bytes or more, two cache lines, which some CPUs fetch together


@dataclass
class Rows:
    """What a work-item computes once for each row: reductions, and results with one value per row.

    Attributes:
        level: number of outer dimensions of the index space that count the rows; the others run along a row.
        block: the block of code that is executed once for each row.
        first: C conditions that the item has the first part of its row.
        items: work-items that the rows are distributed to.
        staged: dict from a value that items keep a row of in scratch memory to the C name of an item's row.
    """

    level: int
    block: object = None
    first: list = field(default_factory=list)
    items: object = 1
    staged: dict = field(default_factory=dict)

    def once(self, _, statement):
        """Emit a statement that one item per row executes; the parts of a row's loop, such as its last vector, ask for it again."""
        text = f"if ({' && '.join(self.first)}) {statement}" if self.first else statement
        if text not in self.block.lines:
            self.block.lines.append(text)

    def row(self, gen, value, length, dtype):
        """C name of the item's row of `length` elements in scratch memory."""
        name = self.staged.get(value)
        if name is None:
            stride = ceil_div(length, _ALIGNED) * _ALIGNED  # items write to no common cache line
            pointer = gen.args.pointer(Buffer(self.items * stride, dtype), dtype, out=True)
            name = self.staged[value] = gen.name("row")
            ctype = dtypes.storage_ctype(dtype)
            item = gen.args.place("global", 0)
            gen.top.lines.append(f"__global {ctype}* {name} = {pointer} + (long){item} * {gen.args.int(stride, 'long')};")
        return name


def choose(_, nests, level):
    """The Rows of a kernel with these Nests, None where its outer loops are all one; see Schedule.team."""
    root = nests["root"]
    if level is not None:
        return Rows(level)
    levels = [at for nest in nests.values() for at in nest.levels if at is not None and at < len(root.extents)]
    level = max(levels, default=0)
    return Rows(level) if level and level < root.groups[-1][0] else None  # loops inside a row must not repeat its reductions


def write(traits, gen, nest, cost, shared, evaluate):
    """(grid, group) of loops over `nest` around `evaluate`; see Schedule.pointwise."""
    *outer, inner = nest.groups
    rows = gen.team or Rows(len(nest.extents))
    cut = next((k for k, g in enumerate(outer) if g[0] >= rows.level), len(outer))
    if gen.team is None and _runs(nest):
        cut -= 1
    outer, middle = outer[:cut], outer[cut:]  # middle: loops inside a row, around the one over its vectors
    count, between, length = (product(nest.extents[i] for g in groups for i in g) for groups in (outer, middle, [inner]))
    width = gen.lane_width(length) if nest.vectorisable else 1
    total = hint(count) * hint(between) * hint(length) * (1 + cost)
    items = max(1, min(4 * traits.compute_units, math.ceil(total / tuning_of(traits).pointwise.chunk)))
    row_chunk = max(1, math.ceil(hint(count) / items))
    ctype = gen.ctype
    limits, grid_inner = None, None
    along, unit = (between, 1) if middle else (length, width)  # the loop that the items of a row share
    shareable = isinstance(along, Dim) and not outer  # short lengths take this form too, so that all lengths have the same text
    rows.items = ceil_div(count, row_chunk)
    shareable = shareable or 2 * hint(count) <= items and hint(along) > unit
    if shareable and not gen.staged:  # one item alone can stage a row
        chunk = max(1, math.ceil(hint(along) / math.ceil(items / max(1, hint(count))) / unit)) * unit
        if chunk < hint(along) or isinstance(along, Dim):
            gen.emit(f"const {ctype} begin = {gen.args.place('global', 1 if outer else 0)} * {gen.int(chunk)};")
            gen.emit(f"const {ctype} end = min(begin + {gen.int(chunk)}, ({ctype}){gen.int(along)});")
            limits, grid_inner = ("begin", "end"), ceil_div(along, chunk)
            rows.first.append("begin == 0")
    variables = []
    if outer:
        first = f"({ctype}){gen.args.place('global', 0)} * {gen.int(row_chunk)}"
        gen.emit(f"const {ctype} first = {first};")
        gen.emit(f"const {ctype} last = min(first + {gen.int(row_chunk)}, ({ctype}){gen.int(count)});")
        variables = _flat(gen, nest, outer, ("first", "last"))
    rows.block = gen.block
    if middle:
        variables += _flat(gen, nest, middle, limits or ("0", gen.int(between)))
        limits = None
    parts = gen.parts(length, width, limits)
    if limits and width > 1 and gen.known(length) and length % width == 0:
        parts.pop()  # chunks are whole vectors
    for part in parts:
        gen.in_part(nest, inner, part, lambda indices: evaluate(variables + indices))
    for loops in (middle, outer):
        if loops:
            gen.close_loop()
    if not outer:
        grid = (grid_inner or 1,)
    else:
        grid = (rows.items, grid_inner) if grid_inner is not None else (rows.items,)
    return grid, (1, 1, 1)


def _runs(nest):
    """Whether the innermost loop, and the one around it, are short, and values have one element per step of the latter.

    As of group normalisation's gradient. A loop of its own then costs less than the divisions that tell the steps from one flat index.
    """
    if len(nest.groups) < 3 or max(hint(nest.length(group)) for group in nest.groups[-2:]) > _SHORT:
        return False
    (*_, run), (*_, inner) = nest.groups[-2:]
    return any(load is True and use[run] != 0 and use[inner] == 0 for use, load in zip(nest.uses, nest.loads, strict=True))


def _flat(gen, nest, groups, bounds):
    """Open one loop over several dimension groups, flattened; return the Vars of their dimensions."""
    if len(groups) == 1:
        return gen.open_loop(nest, groups[0], gen.block, 0, bounds)
    flat = [i for g in groups for i in g]
    row = gen.open_loop(nest, flat, gen.block, 0, bounds)[-1]
    return unflatten(gen, nest, groups, row.name)
