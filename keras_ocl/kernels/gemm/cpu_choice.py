"""The tile of a matrix product on a CPU: the one with the least estimated cycles, of those that fit the registers."""

import math
from operator import itemgetter

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels.gemm.cpu import Tile, most_rows
from keras_ocl.kernels.overrides import chosen, not_counts, tuning_of

FEW = 8  # most rows of a product whose tiles have all rows
# Least rows that a left operand along k packs into strips (CpuProduct.strips_stride), which costs what a prologue of the right one saves. A
# work-item has more rows whatever its tile.
_WIDE = 512
_PANEL = 64  # most columns of a tile
_PRIVATE = 1 << 20  # most bytes of private memory that a device's own tile may take: twice what estimated tiles do


def packs_computed(m, n, k):
    """Whether kernels compute the right operand of a product of these extents in the blocks that they pack, each element once.

    Fewer rows compute it where they load it.
    """
    return not any(isinstance(e, Dim) for e in (m, n)) and FEW < m < _WIDE and n >= _PANEL and hint(k) > 0


def groups(problem, tile):
    """Number of work-items with `tile`, by the hints of the extents."""
    return _Estimate(problem).groups(tile)


def choose(problem):
    """The Tile for `problem`: the device's own, else by the hints of its extents."""
    if own := chosen(problem.traits, "product", lambda: problem.key, Tile, lambda tile: _unfit(problem, tile)):
        return own
    return min(candidates(problem), key=itemgetter(0))[1]


def candidates(problem):
    """Yields (estimate, Tile) of the tiles worth trying for `problem`; the least estimate is the choice without the device's own.

    Estimates are CPU cycles until the last compute unit is done.
    """
    yield from _streamed(problem)
    cycles = _Estimate(problem).cycles
    for tile in _eager(problem) if problem.all_arguments else _tiles(problem):
        yield cycles(tile), tile


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit a CPU's registers, as a clause; "" where it fits."""
    p, t, lanes = problem, tile, problem.lanes
    counts = not_counts(
        rows=t.rows, vectors=t.vectors, chunk=t.chunk, across=t.across, steps=t.steps, **({"block": t.block} if t.block else {})
    )
    if counts or t.kind not in ("rows", "dots"):
        return counts or f'kind = {t.kind!r} is neither "rows" nor "dots"'
    if t.rows > hint(p.m) or t.chunk % t.rows:
        return f"{t.rows} rows are more than the product's, or do not divide the chunk"
    registers = t.rows * t.vectors + (min(t.rows, t.vectors) if t.kind == "dots" else t.vectors) + 1
    if t.steps == 1 and registers > _registers(p):
        return f"it takes {registers} of {_registers(p)} registers"
    if t.kind == "dots":
        fits = _dots(p) and t.vectors <= p.n and not t.block and t.steps == 1
        return "" if fits else "for lanes along k both operands must be contiguous along it, and k at least a vector and n a tile"
    private = (t.block * t.panel(lanes) + t.chunk * t.across * t.vectors * lanes) * dtypes.itemsize(p.accumulator)
    if t.block:
        most = most_rows(_tuning(p).kept, t.rows, t.vectors, t.across)
        if _in_place(p) and p.b.source or t.chunk > most or private > _PRIVATE:
            return f"a packed block is of operands in memory, of at most {most} rows, and takes at most {_PRIVATE} bytes of private memory"
        wide = t.across == 1 or (not p.all_arguments and not isinstance(p.n, Dim) and t.panel(lanes) <= p.n)
        return "" if wide and t.steps == 1 else "a panel of several tiles must be narrower than n, which may not vary"
    if t.across > 1 or isinstance(p.n, Dim) or t.panel(lanes) > p.n or not (p.b.source or _literal(p.b.column_stride, 1)):
        return "without packing the right operand's rows must be contiguous, and at least one tile long"
    if t.steps > 1 and (p.all_arguments or not _literal(p.m, t.rows) or t.chunk != t.rows or private > _PRIVATE):
        return "passes over a panel are for products of as many rows as a tile, which may not vary"
    return ""


def _literal(extent, value):
    """Whether an extent that may not vary has this value."""
    return not isinstance(extent, Dim) and extent == value


def _registers(problem):
    """Number of vector registers: CPUs with 64-byte vectors have 32, others 16."""
    return 32 if problem.traits.vector_width >= 16 else 16


def _streamed(problem):
    """candidates() for few rows of A and a large B that is read in place, memory-bound: wide panels are read in long runs.

    Their estimates are vectors of B per compute unit, which is less than the cycles of any other tile.
    """
    p, t = problem, _tuning(problem)
    if p.all_arguments or any(isinstance(e, Dim) for e in (p.m, p.n)) or not _in_place(p):
        return
    size = _bytes(p.b, hint(p.k) * p.n)
    # Long runs gain more on a narrow operand, such as int8 weights: twice as many rows of A if B is large.
    rows = t.streamed_rows * (2 if p.b.source and size >= t.streamed_computed else 1)
    if p.m > rows or size < t.streamed or p.n < p.traits.compute_units * min(t.streamed_vectors) * p.lanes:
        return
    for vectors in t.streamed_vectors:
        if vectors * p.lanes <= p.n:
            per_unit = vectors * -(-p.n // (vectors * p.lanes * p.traits.compute_units))
            yield per_unit, Tile("rows", p.m, vectors, p.m, steps=t.streamed_steps)


def _tuning(problem):
    return tuning_of(problem.traits).product


def _bytes(operand, elements):
    return elements * dtypes.itemsize(operand.dtype)


def _shapes(problem):
    """{vectors: most rows} of register tiles."""
    return {1: 8, 2: 12, 3: 8, 4: 6} if _registers(problem) == 32 else {1: 8, 2: 6, 3: 4}


def _in_place(problem):
    """Whether B can be read without packing: its columns have unit stride, and its rows are so close that they do not evict each other."""
    if problem.b.source:
        return hint(problem.m) <= FEW
    if isinstance(problem.n, Dim) or isinstance(problem.b.column_stride, Dim) or problem.b.column_stride != 1:
        return False
    far = hint(problem.b.row_stride) * dtypes.itemsize(problem.b.dtype) >= 3072
    return not (far and hint(problem.m) > 12 and hint(problem.k) > 128)


def _dots(problem):
    p = problem
    return (
        not p.b.source
        and not any(isinstance(e, Dim) for e in (p.n, p.k, p.a.column_stride, p.b.row_stride))
        and p.a.column_stride == 1
        and p.b.row_stride == 1
        and p.k >= p.lanes
    )


def _tiles(problem):
    m, n, k = max(1, hint(problem.m)), max(1, hint(problem.n)), hint(problem.k)
    lanes, in_place, t = problem.lanes, _in_place(problem), _tuning(problem)
    for vectors, most in _shapes(problem).items():
        if vectors > 1 and (vectors - 1) * lanes >= n:
            continue
        direct = in_place and n >= vectors * lanes
        if in_place and not direct and n >= lanes:
            continue
        # A prologue's operand is computed only once if a tile has all rows, or a work-item has and packs it.
        for rows in range(m if problem.b.source and in_place else 1, min(most, m) + 1):
            if direct:
                yield from (Tile("rows", rows, vectors, chunk) for chunk in _chunks(m, rows, None))
                if problem.b.source or rows < min(most, m) - 1:  # packing pays where many rows read the block: only high tiles are worth it
                    continue
            all_rows = [-(-m // rows) * rows] if problem.b.source else []
            for chunk in all_rows or _chunks(m, rows, most_rows(t.kept, rows, vectors)):
                yield Tile("rows", rows, vectors, chunk, t.block)
            if not direct and not isinstance(problem.n, Dim) and n >= t.across * vectors * lanes and _bytes(problem.b, k * n) > t.near:
                for chunk in all_rows or _chunks(m, rows, most_rows(t.kept, rows, vectors, t.across)):
                    yield Tile("rows", rows, vectors, chunk, t.block, t.across)
    if _dots(problem):
        wide = ((4, 4), (2, 8), (8, 1)) if problem.traits.vector_width >= 16 else ()
        for rows, columns in (*wide, (2, 4), (1, 8), (1, 4), (4, 2), (4, 1), (2, 1), (1, 1)):
            if rows <= m and columns <= n:
                for chunk in _chunks(m, rows, None):
                    for across in (2, 4, 8):
                        yield Tile("dots", rows, columns, chunk, across=across)


def _chunks(m, rows, most):
    """Candidate numbers of rows per work-item: all m rows, or an even share of them, in whole tiles, at most `most`."""
    shares = {-(-m // (rows * parts)) * rows for parts in (1, 2, 3, 4, 6, 8, 12, 16)}
    limit = most or max(shares)
    return sorted({min(share, limit) for share in shares})


def _eager(problem):
    """Candidate tiles in eager code: few, by size classes of m and n, so that few kernels exist."""
    m, n = max(1, hint(problem.m)), max(1, hint(problem.n))
    rows, t = next(r for r in (8, 4, 2, 1) if r <= m), _tuning(problem)
    if _dots(problem) and (m <= 128 or n == 1):
        rows = min(rows, 4)
        columns = 4 if n >= 4 else 1
        for chunk in _chunks(m, rows, None):
            yield Tile("dots", rows, columns, chunk, across=8)
        return
    vectors = 2 if n >= 2 * problem.lanes else 1
    if problem.traits.vector_width < 16:
        rows = min(rows, 4)
    direct = _in_place(problem) and n >= vectors * problem.lanes
    for chunk in _chunks(m, rows, None if direct else most_rows(t.kept, rows, vectors)):
        yield Tile("rows", rows, vectors, chunk, 0 if direct else 256)


class _Estimate:
    """Estimates of what tiles cost for one problem, by the hints of its extents. What all tiles share is computed once."""

    def __init__(self, problem):
        p, t, k, n = problem, _tuning(problem), hint(problem.k), hint(problem.n)
        self._problem, self._tuning, self._m, self._n, self._k, self._lanes = p, t, hint(p.m), n, k, p.lanes
        self._batch = 1 if p.batch is None else hint(p.batch)
        self._near, self._direct = _bytes(p.b, k * n) <= t.near, p.b.column_stride == 1
        self._registers, self._uniform = _registers(p), min(p.sink.uniform - 1, t.uniform)
        # Rows that lie a multiple of cache lines apart share sets of the first-level cache: every `_shared`th set holds them.
        self._apart = _bytes(p.b, hint(p.b.row_stride))
        self._shared = 1 if self._apart % t.line else math.gcd(self._apart // t.line, t.sets)

    def groups(self, tile):
        """Number of work-items."""
        return -(-self._n // tile.panel(self._lanes)) * -(-self._m // tile.chunk) * self._batch

    def cycles(self, tile):
        """CPU cycles until the last compute unit is done."""
        k, lanes, p, t = self._k, self._lanes, self._problem, self._tuning
        rows, vectors = tile.rows, tile.vectors
        step = max(rows * vectors / 2, (rows + vectors) / 2, t.latency) + self._fetch(tile) * vectors
        chunk = min(tile.chunk, self._m)
        tiles = -(-chunk // rows)
        if tile.kind == "dots":
            across, steps = min(tile.across, -(-self._n // vectors)), -(-k // lanes)
            whole = t.whole if _bytes(p.a, chunk * k) <= t.close else t.whole_far
            spilled = t.spilled if _bytes(p.a, (rows + vectors) * k) > t.first else 0
            one = (step + rows * whole + (rows + vectors) * spilled) * steps + t.tile + 2 * rows * vectors
            item = across * (tiles * one + vectors * steps * (t.read if self._near else t.read_far))
        else:
            step += t.crowded * self._crowded(tile)
            item = tile.across * tiles * ((step + rows * t.scalar) * k + t.tile + (t.keep if tile.block else 2) * rows * vectors)
            if tile.block:
                copy = t.copy if self._near else t.copy_far
                item += k * tile.across * vectors * (copy if self._direct else t.turn * lanes)
        rounds = -(-self.groups(tile) // p.traits.compute_units)
        return rounds * (item + t.item) + 0.1 * item

    def _fetch(self, tile):
        """CPU cycles in which a tile loads a vector of B, one of many along its rows."""
        p, t = self._problem, self._tuning
        if tile.kind == "dots" or tile.block or p.b.source:
            return t.fetch
        width = _bytes(p.b, tile.vectors * self._lanes)
        if self._apart <= max(width, t.line):  # prefetchers follow rows that touch
            return t.fetch_near
        lines = self._k * -(-width // t.line)
        return t.fetch_near if lines * t.line * self._shared <= t.first else t.fetch_apart

    def _crowded(self, tile):
        """How many registers a tile lacks for what the epilogue keeps in them; compilers then move sums to memory in the innermost loop."""
        return max(0, self._uniform - (self._registers - (tile.rows + 1) * tile.vectors - 1))
