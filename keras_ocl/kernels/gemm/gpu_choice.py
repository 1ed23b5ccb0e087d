"""The choice of a matrix product's tile on a GPU, and of the number of parts of k: both together, by the cost per compute unit.

A unit here is a share of the device with 65,536 registers: on most devices, a compute unit. Costs are the multiply-adds of all work-items
of a unit, added up as if they ran one after the other; only their ratios matter. A product takes the time of these or of its bytes,
whichever is longer, and too few work-items at once do not reach the memory's bandwidth: it is what decides where a matrix unit makes
multiply-adds cheap. The choice depends on traits and hints alone, so that results do not change from run to run, nor with the batch size
at hand.
"""

import functools
import itertools
import math
import operator
from dataclasses import replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, power_above, power_below
from keras_ocl.core.index import is_one
from keras_ocl.kernels.contraction import Contraction, Tile
from keras_ocl.kernels.gemm import rows_gpu
from keras_ocl.kernels.matrix.contraction import MatrixContraction, MatrixTile
from keras_ocl.kernels.matrix.units import Method, methods
from keras_ocl.kernels.overrides import chosen, not_counts, tuning_of

UNIT = 65536  # registers of a unit
_SHAPES = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1))  # rows x columns of an item


def choose(problem, tile=None, pixels=0, dtype=""):
    """(the Tile of a product, the steps of k that a part sums or 0 for all); `tile`: a given tile, None to choose, the device's own first.

    pixels: in convolutions, where rows of `a` are pixels whose image positions an item keeps in registers, the length of its vector loads
    along k; 0 for other products. dtype: in convolutions, that of the operands in memory.
    """
    if not tile and problem.a is not None and (own := _own(problem)):  # a convolution asks for its own tile itself
        return own
    return _cheapest(problem, tile, pixels, _methods(problem, dtype), dtype)[1:]


def gain(problem, dtype):
    """How many times faster the device's matrix units make a product; 1 where they do not. dtype: as for choose()."""
    ways = _methods(problem, dtype)
    return _cheapest(problem, None, 0, (), dtype)[0] / _cheapest(problem, None, 0, ways, dtype)[0] if ways else 1


def candidates(problem, pixels=0, dtype=""):
    """Yields (estimate, a dict of what own_tile() takes) of the tiles and numbers of parts worth trying, without slices of a group's items.

    The other arguments are as for choose().
    """
    ranked = _ranked(*_described(problem, None, pixels, _methods(problem, dtype), dtype))
    for (cost, *_), t, steps in sorted(ranked, key=operator.itemgetter(0)):  # of equal costs the first one counts
        fields = {"across": t.across, "down": t.down, "rows": t.rows, "columns": t.columns, "depth": t.depth}
        if isinstance(t, MatrixTile):
            fields |= {"unit": t.unit.name} | ({"terms": t.expansion.name} if t.expansion else {})
        yield cost, {**fields, "steps": steps} if steps else fields


def _cheapest(problem, tile, pixels, ways, dtype):
    """(cost, Tile, steps of k of a part) of the cheapest kernels of a product, of which Methods of matrix units are `ways`."""
    p = problem
    may_slice = p.a is not None and p.literal(p.k) and not p.longest and not tile
    return _best(may_slice, *_described(p, tile, pixels, ways, dtype))


def _described(problem, tile, pixels, ways, dtype):
    """The arguments of _ranked()."""
    p, size = problem, dtypes.itemsize(problem.accumulator)
    batch = 1 if p.batch is None else max(1, hint(p.batch))
    extents = batch, max(1, hint(p.m)), max(1, hint(p.n)), max(1, hint(p.k))
    apart = 0 if p.repeated else tuning_of(p.traits).product_apart
    return p.traits, *extents, size, p.all_arguments, tile, pixels, p.longest, _launch(p), ways, _moved(p, dtype, extents), apart


def _moved(problem, dtype, extents):
    """Bytes of a product's operands and results in memory, where the results are the accumulator's; dtype: as for choose()."""
    p, (batch, m, n, k) = problem, extents
    total = batch * m * n * dtypes.itemsize(p.accumulator)
    if p.read is not None:
        return total + sum(map(hint, p.read)) * dtypes.itemsize(dtype)
    for operand, elements in ((p.a, m * k), (p.b, k * n)):
        shared = operand is not None and hint(operand.batch_stride) == 0  # all of a batch read the same
        total += (1 if shared else batch) * elements * (operand.read if operand else dtypes.itemsize(dtype or p.accumulator))
    return total


def _methods(problem, dtype=""):
    """The Methods of the device's matrix units for this product; dtype: as for choose()."""
    p = problem
    if p.a is not None:
        if p.a.dtype != p.b.dtype:
            return ()
        dtype = p.a.dtype
    return methods(p.traits.matrix_units, dtype, p.accumulator, p.precision)


def own_tile(traits, accumulator, kind, key, unfit=None, multiplying=None):
    """What choose() returns, of the device's own choices of a kind; None where it has none.

    key: returns the text that describes the problem. unfit(tile, steps): why they do not fit the problem, as a clause; "" where they fit.
    multiplying: returns the Methods of the device's matrix units for such operands.
    """
    size = dtypes.itemsize(accumulator)

    def make(across, down, rows, columns, depth, steps=0, unit="", terms=""):
        if not unit:
            return Tile(across, down, rows, columns, depth, fragment(size)), steps
        ways = multiplying() if multiplying else ()
        found = next((way for way in ways if (way.unit.name, way.expansion.name if way.expansion else "") == (unit, terms)), None)
        if found is None:
            raise TypeError(f"the device multiplies its operands with no matrix unit {unit!r}" + (f" as {terms!r}" if terms else ""))
        one, expansion = found
        return MatrixTile(across, down, rows, columns, depth, fragment(one.size), unit=one, expansion=expansion), steps

    return chosen(traits, kind, key, make, lambda own: _unfit(traits, size, *own) or (unfit(*own) if unfit else ""))


def _own(problem):
    """own_tile() of a product."""
    p = problem

    def unfit(tile, steps):
        return f"a part sums more than {int(p.longest)} steps" if p.longest and (steps or hint(p.k)) > p.longest else ""

    return own_tile(p.traits, p.accumulator, "product", lambda: p.key, unfit, lambda: _methods(p))


def _unfit(traits, size, tile, steps):
    """Why `tile`, for elements of `size` bytes, and `steps` of k per part would be wrong or would not fit the device; "" where they fit."""
    t = tile
    sides = {"across": t.across, "down": t.down, "rows": t.rows, "columns": t.columns, "depth": t.depth}
    if counts := not_counts(**sides, **({"steps": steps} if steps else {})):
        return counts
    if uneven := [f"{name} = {n}" for name, n in sides.items() if n != power_below(n)]:
        return f"{uneven[0]} is no power of two"
    if isinstance(t, MatrixTile) and t.partial:
        return t.partial
    deepest = tuning_of(traits).depth * (t.unit.packed if isinstance(t, MatrixTile) else 1)
    if t.depth > deepest or steps % t.depth:
        return f"depth = {t.depth} is more than {deepest}, or does not divide the {steps} steps of a part"
    if t.items > traits.max_group:
        return f"its {t.items} work-items are more than a group's {traits.max_group}"
    if _crowded(traits, t, size):
        return f"its {registers(t)} registers of {size} bytes are too many for {traits.item_registers} of 4"
    if t.local_bytes(size) > traits.local_memory:
        return f"its {t.local_bytes(size)} bytes of local memory are more than the group's {traits.local_memory}"
    return ""


def _launch(problem):
    """Cost of launching the kernel that sums parts, in multiply-adds of a unit: more in a loop's step, where nothing overlaps it."""
    tuning = tuning_of(problem.traits)
    return tuning.launch if problem.repeated else tuning.product_launch


def units(traits):
    """Number of units (of 65,536 registers) of a device, a float."""
    return max(1, traits.compute_units * traits.unit_registers / UNIT)


@functools.lru_cache(4096)
def _best(may_slice, traits, batch, m, n, k, size, shared, tile, pixels, longest, launch, ways, moved, apart):
    described = traits, batch, m, n, k, size, shared, tile, pixels, longest, launch, ways, moved, apart
    best, tuning = min(_ranked(*described), key=operator.itemgetter(0)), tuning_of(traits)
    # Slices that save little are not worth it: without them more kernels keep groups of the same size.
    saved = 0 if best[2] else max(tuning.product_saved, best[0][0] / 10)
    for t in _sliced(traits, _tiles_of(traits, size, shared, pixels, ways), k, size) if may_slice else ():
        found = _rank(traits, t, costs(traits, t, batch, m, n, k, 0, launch, moved)(0), apart)
        if found[0] + saved < best[0][0]:
            best, saved = (found, t, 0), 0
    return best[0][0], *best[1:]


def _ranked(traits, batch, m, n, k, size, shared, tile, pixels, longest, launch, ways, moved, apart):
    """Yields (rank, tile, steps of k of a part) of all tiles, or of the given one: the least rank is the choice."""
    held, parts = tuning_of(traits).convolution_places if pixels else 0, _parts(traits, k, longest)
    for t in (tile,) if tile else _tiles_of(traits, size, shared, pixels, ways):
        cost = costs(traits, t, batch, m, n, k, held, launch, moved)
        for steps in parts:
            yield _rank(traits, t, cost(steps), apart), t, steps


def _rank(traits, tile, cost, apart):
    """What a tile with such costs() is compared by; apart: the price of groups of another size than most kernels have."""
    dearer = tuning_of(traits).product_terms if isinstance(tile, MatrixTile) and tile.apart else 1
    first, *others = (dearer * n for n in cost)
    return first + (apart if tile.items * tile.slices != _most_items(traits) else 0), *others, abs(tile.across - 16)


@functools.lru_cache(256)
def _tiles_of(traits, size, shared, pixels, ways):
    """All tiles that may be chosen: `pixels` as for choose(), the others as for _tiles() and _matrix_tiles()."""
    tiles = [*_tiles(traits, size, shared), *(t for way in ways for t in _matrix_tiles(traits, way, size, shared))]
    if pixels:
        tiles = [t for t in tiles if t.height * t.depth <= tuning_of(traits).convolution_rows * pixels * t.items]
    return tuple(tiles)


def _sliced(traits, tiles, k, size):
    """The tiles whose groups can share `k` steps among slices of their own items, for each number of slices."""
    tuning = tuning_of(traits)
    for t, slices in itertools.product(tiles, _SLICES):
        sliced = replace(t, slices=slices)
        items, steps = t.items * slices, sliced.sliced(k)
        block = (MatrixContraction if isinstance(t, MatrixTile) else Contraction).block
        fits = items <= min(tuning.product_sliced, traits.max_group) and registers(t) * items <= traits.unit_registers
        enough = k >= slices * tuning.product_slice and (slices - 1) * steps < k and steps <= block
        if fits and enough and sliced.local_bytes(size) <= traits.local_memory:
            yield sliced


def fragment(size):
    """Elements, of `size` bytes each, of the widest vector (16 bytes)."""
    return max(1, 16 // size)


def _most_items(traits):
    """Most work-items of a group without slices."""
    return power_below(min(tuning_of(traits).product_items, traits.max_group))


@functools.cache
def _tiles(traits, size, shared):
    """Tiles that fit the device's groups, registers and local memory; few, if kernels are `shared` by all sizes (eager code)."""
    tuning, tiles, most = tuning_of(traits), [], _most_items(traits)
    for items, across, (rows, columns) in itertools.product({most} if shared else {most, most // 2, most // 4}, (64, 32, 16, 8), _SHAPES):
        if items < across or (shared and across not in (16, 64)):
            continue
        depth = max(1, min(tuning.depth, tuning.product_depth // (rows * columns)))
        tile = Tile(across, items // across, rows, columns, depth, fragment(size))
        while tile.depth > 1 and tile.local_bytes(size) > traits.local_memory:
            tile = replace(tile, depth=tile.depth // 2)
        if not _crowded(traits, tile, size) and tile.local_bytes(size) <= traits.local_memory:
            tiles.append(tile)
    return tiles or [Tile(1, 1, 1, 1, 1)]


@functools.cache
def _matrix_tiles(traits, way, size, shared):
    """MatrixTiles of a Method that fit the device, for sums of `size` bytes; few, if kernels are `shared` by all sizes."""
    unit, expansion = way
    tuning, tiles, room = tuning_of(traits), [], traits.max_group // unit.lanes
    most = min(max(1, tuning.product_items // unit.lanes), power_below(room)) if room else 0
    for waves, across, tall, wide in itertools.product({most} if shared else {most, most // 2, most // 4}, (1, 2, 4), _WAVES, _WAVES):
        if across > waves or (shared and tall * unit.rows != wide * unit.columns):
            continue
        # As many bytes of a row as of one of floats, and a multiple of what an instruction takes.
        tile = MatrixTile.of(unit, waves // across, across, tall, wide, max(unit.steps, tuning.depth * unit.packed), expansion)
        while tile.depth > unit.steps and tile.local_bytes(size) > traits.local_memory:
            tile = replace(tile, depth=tile.depth // 2)
        if not _crowded(traits, tile, size) and tile.local_bytes(size) <= traits.local_memory:
            tiles.append(tile)
    return tiles


_WAVES = (8, 4, 2, 1)  # a wave's instructions below one another, or side by side


def _crowded(traits, tile, size):
    """Whether a work-item needs too many registers, for elements of `size` bytes."""
    spare = 1.1  # a tenth, for compilers that use more than NVIDIA's
    return spare * registers(tile) * size > traits.item_registers * tile.room * 4


def _parts(traits, k, longest=0):
    """Candidate numbers of steps of k per part, at most `longest`: 0 for all, else multiples of 32, which all tile depths divide."""
    least = tuning_of(traits).product_split
    steps = dict.fromkeys(-(-k // count // 32) * 32 for count in _COUNTS if count * least <= k)
    if not longest or k <= longest:
        return [0, *steps]
    return [n for n in steps if n <= longest] or [max(1, longest // 32) * 32]


_SLICES = (2, 4, 8)
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # candidate numbers of parts


def few(problem):
    """(the rows_gpu.Shape of a product with few rows or columns, the steps of k that a part sums or 0 for all), else None."""
    p, turn = _turned(problem)
    if p is None or _own(problem):
        return None
    return _own_shape(problem, p, turn) or _shape_of(problem, p, turn)


def few_candidates(problem):
    """Yields (estimate, a dict of what a device may have of its own) of shapes of few(): its choice, and those of other sizes.

    Estimates are how many times as large, or as small, their numbers are.
    """
    p, turn = _turned(problem)
    if p is None or problem.longest:
        return
    shape, steps = _shape_of(problem, p, turn)
    for lanes, places, vector in itertools.product((1, 2, 4, 1 / 2, 1 / 4), (1, 2, 4, 1 / 2, 1 / 4), (1, 2, 4, 1 / 2, 1 / 4)):
        numbers = [max(1, int(n * factor)) for n, factor in ((shape.lanes, lanes), (shape.places, places), (shape.vector, vector))]
        other = replace(shape, lanes=numbers[0], places=numbers[1], vector=numbers[2])
        if not _unfit_shape(p, other, steps):
            fields = {"lanes": other.lanes, "places": other.places, "rows": other.rows, "vector": other.vector}
            estimate = sum(abs(math.log2(factor)) for factor in (lanes, places, vector))
            yield estimate, {**fields, "steps": steps} if steps else fields


def _turned(problem):
    """(a product with few rows, or the transpose of one with few columns, whether it is that); (None, False) for other products."""
    most = tuning_of(problem.traits).product_few
    turn = hint(problem.m) > most
    p = rows_gpu.turned(problem) if turn else problem
    return (p, turn) if hint(p.m) <= most else (None, False)


def _shape_of(problem, p, turn):
    """What few() returns where the device has no choice of its own; p: the problem, turned if `turn`."""
    tuning, rows, along_k = tuning_of(problem.traits), power_above(hint(p.m)), p.b.turned
    widths = (4, 1) if p.all_arguments else (4, 2, 1)
    vector = next(v for v in widths if _loadable(p, v) and v * rows <= 16)
    places, items = 8 if along_k else 32, power_below(min(tuning.product_items, problem.traits.max_group))
    if not p.all_arguments:  # eager kernels serve all sizes, so that they are few
        places = min(places, power_above(ceil_div(hint(p.n), 1 if along_k else vector)))
    lanes = max(1, items // places)
    if not p.all_arguments:
        lanes = min(lanes, power_above(ceil_div(hint(p.k), vector if along_k else 1)))
    size = dtypes.itemsize(p.accumulator) * rows * (1 if along_k else vector)
    while lanes > 1 and lanes * places * size > problem.traits.local_memory:
        lanes //= 2
    shape = rows_gpu.Shape(lanes, min(places, items), rows, along_k, vector, turn)
    return shape, _few_parts(p, shape)


def _loadable(p, vector):
    """Whether `vector` adjacent elements of `b` can be loaded, or computed, as one vector."""
    across, length = (p.b.column_stride, p.k) if p.b.turned else (p.b.row_stride, p.n)
    joined = p.b.turned or is_one(p.b.column_stride)
    fits = vector == 1 or (joined and p.divides(vector, length, across, p.b.batch_stride, p.b.offset))
    return fits and (vector == 1 or not p.b.source or p.b.source.in_lanes(p.shape(p.b)))


def _own_shape(problem, p, turn):
    """What few() returns, of the device's own choices; None where it has none. p: the problem, turned if `turn`."""

    def make(lanes, places, rows, vector, steps=0):
        return rows_gpu.Shape(lanes, places, rows, p.b.turned, vector, turn), steps

    return chosen(problem.traits, "few_rows", lambda: problem.key, make, lambda own: _unfit_shape(p, *own))


def _unfit_shape(p, shape, steps):
    """Why a kernel of `p` with `shape` and `steps` of k per part would be wrong or would not fit the device; "" where they fit."""
    s, traits, size = shape, p.traits, dtypes.itemsize(p.accumulator)
    powers = {"lanes": s.lanes, "rows": s.rows, "vector": s.vector}
    if counts := not_counts(**powers, places=s.places, **({"steps": steps} if steps else {})):
        return counts
    if uneven := [f"{name} = {n}" for name, n in powers.items() if n != power_below(n)]:
        return f"{uneven[0]} is no power of two"
    if s.rows > power_above(hint(p.m)):
        return f"rows = {s.rows} is more than the product's {hint(p.m)} take"
    if s.vector > 4 or not _loadable(p, s.vector):
        return f"{s.vector} adjacent elements of the large operand are no aligned vector"
    if steps % s.vector:
        return f"the vector of {s.vector} does not divide the {steps} steps of a part"
    if s.lanes * s.places > traits.max_group:
        return f"its {s.lanes * s.places} work-items are more than a group's {traits.max_group}"
    if 2 * s.rows * s.vector * size > traits.item_registers * 4:
        return f"its {s.rows * s.vector} sums of {size} bytes are too many for {traits.item_registers} registers of 4"
    local = size * s.rows * s.lanes * s.places * s.columns
    return f"its {local} bytes of local memory are more than the group's {traits.local_memory}" if local > traits.local_memory else ""


def _few_parts(p, shape):
    """Steps of k per part, 0 for one part: enough parts that all units read at the same time, if that outweighs adding the parts."""
    tuning, batch, m, n, k = tuning_of(p.traits), 1 if p.batch is None else hint(p.batch), hint(p.m), hint(p.n), hint(p.k)
    shares = units(p.traits)
    groups = ceil_div(n, shape.places * shape.columns) * ceil_div(m, shape.rows) * batch
    read = tuning.product_part / 2 * batch * n * k / shares

    def cost(steps):
        count = ceil_div(k, steps) if steps else 1
        total = read * max(1, tuning.product_readers * shares / (groups * count))
        return total + (_launch(p) + tuning.product_part * count * batch * m * n / shares if steps else 0)

    return min(_parts(p.traits, k), key=cost)


def registers(tile, held=0):
    """Estimated registers of a work-item: accumulators, factors, elements in flight, addresses, and `held` others."""
    loaded = tile.depth * (tile.height + tile.width) // (tile.items * tile.packed)
    return max(40, 4 * tile.rows * tile.columns // 3 + tile.holding + loaded + 10) + held  # as NVIDIA's compiler uses them


def costs(traits, tile, batch, m, n, k, held, launch, moved):
    """Function from the steps of k per part (0: all) to (a unit's cost, the part of it without memory), in multiply-adds.

    launch: cost of the summing kernel's launch. moved: bytes of the operands and results in memory.
    """
    t, tuning = tile, tuning_of(traits)
    shares = units(traits)
    tiles, results = ceil_div(m, t.height) * ceil_div(n, t.width) * batch, t.rows * t.columns
    resident = max(1, UNIT // (registers(t, held) * t.items * t.slices))
    multiplied, loaded = results, (t.height + t.width) / t.items
    fetched = tuning.product_fetch * loaded / t.packed
    if isinstance(t, MatrixTile):
        multiplied = results / Method(t.unit, t.expansion).rate(traits) + (2 * results / t.together if t.apart else 0)
        fetched += t.expansion.operations * loaded if t.expansion else 0
    step = multiplied + t.operands / t.together + fetched + tuning.product_turn / t.depth
    once = tuning.product_start + tuning.product_store * results * t.slices
    # A unit multiplies bytes too fast to hide the loads of few work-items, or the launch that sums parts.
    exposed = isinstance(t, MatrixTile) and t.unit.size == 1
    launch = tuning.launch if exposed else launch
    # By Little's law, bytes in flight are latency times bandwidth: `hiding` work-items have so many, and fewer do not reach the bandwidth.
    read, hiding = moved * traits.byte / shares, shares * tuning.product_latency / (traits.byte * tuning.product_flying)

    def cost(steps):
        count = ceil_div(k, steps) if steps else 1
        groups = math.ceil(tiles * count / shares)
        # In full, and half of it again that other loads hide.
        waited = fetched * max(0, 2 * tuning.unit_items / (min(groups, resident) * t.items) - 1) if exposed else 0
        work = t.sliced(steps or k) * (step + waited) + once
        total = work * (groups * t.items * t.slices + tuning.product_hiding * math.ceil(groups / resident))
        at_once = min(tiles * count, resident * shares) * t.items * t.slices
        added = launch + tuning.product_part * count * batch * m * n / shares if steps else 0
        return max(total, read * max(1, hiding / at_once)) + added, total + added

    return cost
