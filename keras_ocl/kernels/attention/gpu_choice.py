"""The choice of the tile of an attention kernel on a GPU, by its cost per compute unit in multiply-adds (gemm/gpu_choice.py).

Products are computed by work-items (`Tile`) or, of operands for which the device has one, by a matrix unit (`UnitTile`).
"""

import functools
import itertools
import math
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, power_above
from keras_ocl.kernels import contraction
from keras_ocl.kernels.attention.parts import FORWARD, KEY_VALUE_GRADIENT, QUERY_GRADIENT
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.matrix.contraction import MatrixTile
from keras_ocl.kernels.matrix.unit import MatrixUnit
from keras_ocl.kernels.matrix.units import fitting, rate
from keras_ocl.kernels.overrides import tuning_of

_GRADIENTS = QUERY_GRADIENT, KEY_VALUE_GRADIENT
_AHEAD = 32  # registers that NVIDIA's compiler uses beyond the estimate of registers()
_MET = 128  # most other positions in a block of a UnitTile
_ADDRESSES = 24  # registers for addresses in kernels with a UnitTile
_SPARE = 1.2  # for compilers that use more registers of a UnitTile than is estimated


@dataclass(frozen=True)
class Tile:
    """A group of side x side work-items that loops over other positions in blocks.

    rows, others: own and other positions of an item's logits. columns: result columns of an item. depth: steps of k of the logits'
    products in local memory. fragment: adjacent elements that are loaded from there as one vector.
    """

    side: int
    rows: int
    others: int
    columns: int
    depth: int
    fragment: int = 1

    @property
    def group(self):
        """Work-items of a group, across and down."""
        return self.side, self.side

    @property
    def items(self):
        """Work-items of a group."""
        return self.side * self.side

    @property
    def block(self):
        """Own positions of a group."""
        return self.rows * self.side

    @property
    def met(self):
        """Other positions of one block of the loop."""
        return self.others * self.side

    @property
    def width(self):
        """Result columns of a group."""
        return self.columns * self.side

    @property
    def logits(self):
        """The contraction.Tile of the product of own and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.others, self.depth, self.fragment)

    @property
    def results(self):
        """The contraction.Tile of the product of factors (weights or slopes) and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.columns, self.met, self.fragment)

    @property
    def shared(self):
        """Elements of local memory that the operands of both products use in turn; the factors have their own."""
        logits, results = self.logits, self.results
        return max(logits.elements(logits.height) + logits.elements(logits.width), results.elements(results.width))

    def local_bytes(self, size):
        """Bytes of local memory of a group, with elements of `size` bytes."""
        return (self.shared + self.results.elements(self.block)) * size


@dataclass(frozen=True)
class UnitTile:
    """A group of `waves` waves, each with `tall` instructions of `unit` below one another for its own positions; loops as Tile.

    beside, wide: instructions side by side for other positions and for result columns. depth: steps of k of the logits' products, a power
    of two: all of them are in local memory at once. kept: operands whose own rows stay there.
    """

    unit: MatrixUnit
    waves: int
    tall: int
    beside: int
    wide: int
    depth: int
    kept: int

    @property
    def group(self):
        """Work-items of a group, across and down."""
        return self.logits.across, self.logits.down

    @property
    def items(self):
        """Work-items of a group."""
        return self.waves * self.unit.lanes

    @property
    def rows(self):
        """Own positions of an item."""
        return self.tall * self.unit.lane_rows

    @property
    def others(self):
        """Other positions of an item's logits."""
        return self.beside * self.unit.lane_columns

    @property
    def columns(self):
        """Result columns of an item."""
        return self.wide * self.unit.lane_columns

    @property
    def block(self):
        """Own positions of a group."""
        return self.waves * self.tall * self.unit.rows

    @property
    def met(self):
        """Other positions of one block of the loop."""
        return self.beside * self.unit.columns

    @property
    def width(self):
        """Result columns of a group."""
        return self.wide * self.unit.columns

    @functools.cached_property
    def logits(self):
        """The MatrixTile of the product of own and other rows."""
        return MatrixTile.of(self.unit, self.waves, 1, self.tall, self.beside, self.depth)

    @functools.cached_property
    def results(self):
        """The MatrixTile of the product of factors (weights or slopes) and other rows."""
        return MatrixTile.of(self.unit, self.waves, 1, self.tall, self.wide, self.met)

    @property
    def shared(self):
        """Elements of local memory that the other positions' rows use in turn."""
        return max(self.logits.elements(self.met), self.results.elements(self.width))

    def local_bytes(self, size):
        """Bytes of local memory of a group, whatever the `size` of a sum's elements."""
        own = self.kept * self.logits.elements(self.block) + self.results.elements(self.block)
        return (own + self.shared + self.waves * self.unit.exchange) * self.unit.size


def choose(problem, scheme):
    """The fastest Tile or UnitTile by estimate for a scheme of `problem`, of those that fit the device."""
    p = problem
    extents = tuple(max(1, hint(n)) for n in (p.depth, p.value_depth, p.time, p.source, p.batch * p.heads, p.batch * p.key_heads))
    # Both gradient kernels get the same group size, so that they can be fused horizontally if short (compiler/launch/horizontal.py).
    schemes = (FORWARD,) if scheme is FORWARD else _GRADIENTS
    near = ("bias" in p.operands) + ("mask" in p.operands)
    units = fitting(p.traits.matrix_units, p.dtype, p.wide)
    padded = (power_of_two(p.depth), power_of_two(p.value_depth)) if units else ()
    return _best(p.traits, schemes, near, dtypes.itemsize(p.wide), *extents, p.all_arguments, units, padded)[schemes.index(scheme)]


def by_unit(traits, query, key):
    """Whether a matrix unit multiplies in the attention of tensors like `query` and `key`, and in its gradients."""
    batch, time, heads, depth = (max(1, hint(n)) for n in query.shape)
    source, key_heads = (max(1, hint(n)) for n in key.shape[1:3])
    wide = dtypes.accumulator(query.dtype)
    units, size = fitting(traits.matrix_units, query.dtype, wide), dtypes.itemsize(wide)
    extents, padded = (depth, depth, time, source, batch * heads, batch * key_heads), (power_of_two(depth),) * 2
    tiles = [_best(traits, schemes, 0, size, *extents, False, units, padded) for schemes in ((FORWARD,), _GRADIENTS)] if units else []
    return bool(tiles) and all(isinstance(tile, UnitTile) for of in tiles for tile in of)


@functools.lru_cache(4096)
def _best(traits, schemes, near, size, depth, value_depth, time, source, heads, key_heads, shared, units, padded):
    """A tile for each of the schemes.

    near: number of bias and mask operands. shared: whether the kernel serves all sizes. units: those that multiply such operands. padded:
    both depths as powers of two that are no less.
    """
    found = []
    candidates = [functools.partial(_tiles, traits, side) for side in _sides(traits)]
    candidates += [functools.partial(_unit_tiles, traits, unit, waves, padded) for unit in units for waves in _waves(traits, unit)]
    for candidate in candidates:
        total, tiles = 0, []
        for scheme in schemes:
            asking, widths = scheme.own == "query", lengths(scheme, depth, value_depth)
            extents = (time, source, heads) if asking else (source, time, key_heads)
            costs = {t: _cost(traits, scheme, near, t, widths, size, *extents, shared) for t in candidate(scheme, near, widths, size)}
            if not costs:
                break
            best = min(costs, key=costs.get)
            total, tiles = total + costs[best], [*tiles, best]
        else:
            found.append((total, tiles))
    return min(found, key=lambda pair: pair[0])[1]


def power_of_two(depth):
    """The least power of two that is no less than a depth, which may be a Dim."""
    n = 1
    while n < depth:
        n *= 2
    return n


def lengths(scheme, depth, value_depth):
    """([lengths that the products sum over], [row lengths of the results])."""

    def width(name):
        return depth if name in ("query", "key") else value_depth

    return [width(name) for name in scheme.kept], [width(name) for _, name in scheme.sums]


def _sides(traits):
    """Candidate sides of groups: with fewer than 8 x 8 work-items, lanes of a hardware wave are idle."""
    fit = [side for side in (16, 8, 4, 2, 1) if side * side <= min(traits.max_group, tuning_of(traits).product_items)]
    return [side for side in fit if side >= 8] or fit[:1]


def _tiles(traits, side, scheme, near, widths, size):
    depth, found = tuning_of(traits).depth, []
    most = power_above(ceil_div(max(widths[1]), 8))
    for rows, others, columns in itertools.product((8, 4, 2), (4, 2), (8, 4, 2, 1)):
        tile = Tile(side, rows, others, columns, depth, gpu_choice.fragment(size))
        # 1.6: spare registers for loads that compilers hoist.
        fits = 1.6 * registers(tile, scheme, near) * size <= traits.item_registers * 4 and tile.local_bytes(size) <= traits.local_memory
        if fits and columns <= most:
            found.append(tile)
    return found or [Tile(min(side, 2), 2, 2, 1, depth)]


def _waves(traits, unit):
    """Candidate numbers of waves of a group."""
    return [n for n in (8, 4, 2, 1) if n * unit.lanes <= min(traits.max_group, tuning_of(traits).product_items)]


def _unit_tiles(traits, unit, waves, padded, scheme, near, widths, size):
    """UnitTiles that fit the device."""
    found, depth = [], max(unit.steps, 16 // unit.size, *lengths(scheme, *padded)[0])
    most = max(unit.columns, power_above(max(widths[1])))
    for tall, beside, wide in itertools.product((1, 2, 4), (16, 8, 4, 2, 1), (32, 16, 8, 4, 2, 1)):
        tile = UnitTile(unit, waves, tall, beside, wide, depth, len(scheme.kept))
        fits = unit.steps <= tile.met <= _MET and tile.width <= most and tile.local_bytes(size) <= traits.local_memory
        if fits and _SPARE * registers(tile, scheme, near) * size <= traits.item_registers * unit.room * 4:
            found.append(tile)
    return found


def registers(tile, scheme, near=0):
    """Estimated registers of a work-item: the maximum over the product of rows, the softmax of its logits, and the sums.

    near: number of bias and mask operands.
    """
    t = tile
    sums, cells = t.rows * t.columns * len(scheme.sums), t.rows * t.others * len(scheme.kept)
    if isinstance(t, UnitTile):
        u = t.unit
        fragments = (t.tall * u.registers(u.a) + 2 * u.registers(u.b)) * u.copies
        flying = t.met * max(t.depth, t.width) // (t.items * t.unit.packed)
        stages = cells + fragments, 7 * cells // 4, (len(scheme.sums) - 1) * cells // 2 + fragments
        return sums + max(stages) + flying + (3 + 2 * near) * t.rows + _ADDRESSES
    product = cells + t.rows + t.others + t.depth * (t.block + t.met) // t.items
    summed = cells // 2 + max(t.rows + t.columns, t.met * t.width // t.items)
    places = len(scheme.kept) * (t.block + t.met) * t.depth // (2 * t.items)  # addresses of rows
    always = 3 * t.rows + 2 * near * t.rows + places  # statistics, and addresses in bias and mask
    return sums + max(product, 7 * cells // 4, summed) + always


def _block(tuning, tile, summed, wide):
    """An item's cost per block of other positions: logits, products of lengths `summed`, weights, and sums of rows of lengths `wide`."""
    t = tile

    def step(columns, fetched):
        """An item's cost per step of k: arithmetic or loads from local memory, whichever is longer, plus loads to local memory."""
        return max(t.rows * columns, tuning.attention_local * (t.rows + columns)) + tuning.product_fetch * fetched / t.items

    steps = sum(ceil_div(n, t.depth) * t.depth for n in summed)
    logits = steps * (step(t.others, t.block + t.met) + tuning.product_turn / t.depth) + t.rows * t.others * tuning.attention_weight
    return logits + len(wide) * (t.met * step(t.columns, t.width) + tuning.product_turn)


def _unit_block(traits, tile, summed, wide):
    """(what _block() returns, an item's cost of loading its group's own rows) of a UnitTile."""
    t, tuning = tile, tuning_of(traits)
    fetch, together = tuning.product_fetch / (t.items * t.unit.packed), rate(traits, t.unit)

    def step(columns, operands):
        return max(t.rows * columns / together, tuning.attention_local * operands / t.unit.steps)

    logits = sum(ceil_div(n, t.unit.steps) * t.unit.steps for n in summed) * step(t.others, t.logits.operands)
    logits += t.rows * t.others * tuning.attention_weight
    sums = len(wide) * t.met * (step(t.columns, t.results.operands) + fetch * t.width)
    turns = len(summed) * fetch * t.met * t.depth + (len(summed) + len(wide)) * tuning.product_turn
    return logits + sums + turns, fetch * t.kept * t.block * t.depth


def _cost(traits, scheme, near, tile, widths, size, own, others, heads, shared):
    """Cost per unit in multiply-adds, summed over its work-items (gemm/gpu_choice.py).

    If the kernel is `shared` by all sizes: the cost per logit of an item, for a unit that is full.
    """
    t, tuning, (summed, wide) = tile, tuning_of(traits), widths
    start = tuning.product_start
    if isinstance(t, UnitTile):
        block, kept = _unit_block(traits, t, summed, wide)
        start += kept
    else:
        block = _block(tuning, t, summed, wide)
    chunks = ceil_div(max(wide), t.width)
    if shared:
        return chunks * block / (t.rows * t.others)
    blocks = ceil_div(others, t.met)
    work = blocks * block + start + tuning.product_store * t.rows * t.columns * len(wide)
    groups = math.ceil(chunks * ceil_div(own, t.block) * heads / gpu_choice.units(traits))
    room = 2 * traits.local_memory // t.local_bytes(size)  # NVIDIA's and AMD's units have at least twice the limit of a group
    resident = max(1, min(room, gpu_choice.UNIT // ((registers(t, scheme, near) + _AHEAD) * t.items)))
    waits = blocks * (len(summed) + len(wide)) * tuning.attention_wait * groups / min(groups, resident)
    return work * (groups * t.items + tuning.product_hiding * math.ceil(groups / resident)) + waits
