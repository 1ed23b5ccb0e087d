"""Tiles, on GPUs: a group of work-items computes a square of results if an operand is contiguous along another axis than the last.

The group loads such an operand's tile along the operand's own rows to local memory, from which each item reads its elements: consecutive
items access adjacent memory both times. A row of local memory is one element longer than the tile, so that a column lies in different
banks. An operand whose index depends on other loops too, as in a sum, is read where it is needed, in smaller tiles: the group's items then
share cache lines, which the first-level cache holds.
"""

from dataclasses import dataclass, field

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint, power_below, product
from keras_ocl.core.index import Affine, is_one
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise.unflatten import unflatten


@dataclass
class Tile:
    """How a group's items share a tile.

    Attributes:
        down: index of the nest's dimension group that runs down the tile; the last group runs across.
        side: elements of the tile in each direction.
        items: work-items of a group: each step of a loop covers some of the tile's rows.
        room: bytes of local memory left for operands; 0: operands are not copied to local memory.
        turned: dict from a dimension's position to its Var in the loads to local memory, where down and across are exchanged.
        kept: dict from an operand's pointer and offset to its name in local memory. fetches: statements that load them.
    """

    down: int
    side: int
    items: int
    room: int
    turned: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)
    fetches: list = field(default_factory=list)

    @property
    def pitch(self):
        """Elements of a row in local memory."""
        return self.side + 1

    @property
    def rounds(self):
        """Header of the C loop over the rows of the tile that an item computes."""
        return f"for (int k = 0; k < {self.side}; k += {self.items // self.side})"

    def keep(self, gen, dtype, ctype, pointer, offset, fetch):
        """C text of an operand's element in local memory; None if it must be read from global memory.

        ctype: C type of its elements in registers. offset: its index expression. fetch: function from an index expression to the C text
        of its load.
        """
        nest = gen.nests["root"]
        name = self.kept.get((pointer, offset.key))
        if name is None:
            size = max(4, dtypes.itemsize(dtype))  # bytes: at least a bank's word
            need = self.side * self.pitch * size
            if need > self.room or not _crosses(nest, offset, self.down):
                return None
            self.room -= need
            name = gen.args.local("int" if dtypes.is_integer(dtype) and dtypes.itemsize(dtype) < size else ctype, self.side * self.pitch)
            self.kept[pointer, offset.key] = name
            turned = Affine({self.turned.get(v.position, v): c for v, c in offset.terms.items()}, offset.constant)
            self.fetches.append(f"{name}[(y + k) * {self.pitch} + x] = {fetch(turned)};")
        return f"{name}[x * {self.pitch} + y + k]"


def choose(traits, nest):
    """The Tile of a kernel, None if no operand is contiguous along another dimension than the last, or that is short."""
    tuning = tuning_of(traits)
    if not nest.groups or hint(nest.length(nest.groups[-1])) < tuning.tile_least:
        return None
    side, least = tuning.tile, tuning.tile_least
    down = [k for k, group in enumerate(nest.groups[:-1]) if hint(nest.length(group)) >= least]
    room = min(tuning.tile_bytes, traits.local_memory)
    for place in nest.places:
        if side * (side + 1) * max(4, dtypes.itemsize(place.dtype)) <= room and traits.max_group >= side:
            for k in down:
                if place.offset is not None and _crosses(nest, place.offset, k):
                    return Tile(k, side, min(tuning.tile_items, power_below(traits.max_group)), room)
    if least**2 > traits.max_group:
        return None
    for use, load in zip(nest.uses, nest.loads, strict=True):
        for k in down:
            if load is True and _turned(nest, use, k):
                return Tile(k, least, least**2, 0)
    return None


def _crosses(nest, offset, k):
    """Whether an index expression depends on the nest's loops only, and is contiguous along their group `k` but not the last."""
    if any(v.nest is not nest for v in offset.terms):
        return False
    coefficients = [0] * len(nest.extents)
    for v, c in offset.terms.items():
        coefficients[v.position] = c
    return _turned(nest, coefficients, k)


def _turned(nest, coefficients, k):
    step = coefficients[nest.groups[-1][-1]]
    return is_one(coefficients[nest.groups[k][-1]]) and not is_one(step) and (step != 0 or isinstance(step, Dim))


def write(gen, nest, tile, evaluate):
    """(grid, group) of loops over tiles around `evaluate`."""
    t, side, top = gen.ctype, tile.side, gen.block
    down, across = nest.groups[tile.down], nest.groups[-1]
    rest = [g for k, g in enumerate(nest.groups[:-1]) if k != tile.down]
    height, width = nest.length(down), nest.length(across)
    rows, columns = ceil_div(height, side), ceil_div(width, side)
    gen.emit(f"const {t} tile = {gen.args.place('group', 0)}, tiles = tile / {gen.int(columns)};")
    gen.emit(f"const {t} left = (tile - tiles * {gen.int(columns)}) * {side};")
    gen.emit(f"const {t} item = tiles / {gen.int(rows)};")
    gen.emit(f"const {t} above = (tiles - item * {gen.int(rows)}) * {side};")
    gen.emit(f"const int x = {gen.args.place('local', 0)} % {side}, y = {gen.args.place('local', 0)} / {side};")
    found = unflatten(gen, nest, rest, "item") if rest else []
    tile.turned = {v.position: v for v in gen.group_vars(nest, down, "line", top) + gen.group_vars(nest, across, "column", top)}
    before = len(top.lines)
    inside = gen.open(tile.rounds)
    gen.emit(f"const {t} line = above + y + k, column = left + x;")
    edges = [(name, n) for name, n in (("line", height), ("column", width)) if not gen.known(n) or n % side]
    if edges:
        inside = gen.open(f"if ({' && '.join(f'{name} < {gen.int(n)}' for name, n in edges)})")
    found += gen.group_vars(nest, down, "line", inside) + gen.group_vars(nest, across, "column", inside)
    evaluate(sorted(found, key=lambda v: v.position))
    while gen.block is not top:
        gen.close_loop()
    if tile.fetches:
        # Beyond an edge the last element is loaded again, so that no load waits for a condition.
        lines = []
        for name, place in (("line", "above + x"), ("column", "left + y + k")):
            last = [f"({t}){gen.int(n)} - 1" for edge, n in edges if edge == name]
            lines.append(f"const {t} {name} = {f'min({place}, {last[0]})' if last else place};")
        gen.open(tile.rounds).lines = lines + tile.fetches
        gen.close_loop()
        top.lines.insert(before, top.lines.pop())
        top.lines.insert(before + 1, gen.args.barrier())
    count = product(nest.length(g) for g in rest)
    return (count * rows * columns * tile.items,), (tile.items,)
