"""The tile of a matrix product on a CPU: the one with the least estimated cycles, of those that fit the registers."""

import math

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels.gemm.cpu import Tile, most_rows
from keras_ocl.kernels.schedule import schedule_of


def groups(problem, tile):
    """Number of work-items with `tile`, by the hints of the extents."""
    return _Estimate(problem).groups(tile)


def choose(problem):
    """The Tile for `problem`, from the hints of its extents."""
    if streamed := _streamed(problem):
        return streamed
    return min(_eager(problem) if problem.all_arguments else _candidates(problem), key=_Estimate(problem).cycles)


def _streamed(problem):
    """The tile for few rows of A and a large B that is read in place, memory-bound: wide panels are read in long runs. Else None."""
    p, t = problem, _tuning(problem)
    if p.all_arguments or any(isinstance(e, Dim) for e in (p.m, p.n)) or not _in_place(p):
        return None
    size = _bytes(p.b, hint(p.k) * p.n)
    # Long runs gain more on a narrow operand, such as int8 weights: twice as many rows of A if B is large.
    rows = t.streamed_rows * (2 if p.b.source and size >= t.streamed_computed else 1)
    if p.m > rows or size < t.streamed or p.n < p.traits.compute_units * min(t.streamed_vectors) * p.lanes:
        return None

    def rounds(vectors):
        return vectors * -(-p.n // (vectors * p.lanes * p.traits.compute_units))

    fits = [v for v in t.streamed_vectors if v * p.lanes <= p.n]
    return Tile("rows", p.m, min(fits, key=rounds), p.m, steps=t.streamed_steps)


def _tuning(problem):
    return schedule_of(problem.traits).tuning.product


def _bytes(operand, elements):
    return elements * dtypes.itemsize(operand.dtype)


def _shapes(problem):
    """{vectors: most rows} of register tiles: CPUs with 64-byte vectors have 32 registers, others 16."""
    return {1: 8, 2: 12, 3: 8, 4: 6} if problem.traits.vector_width >= 16 else {1: 8, 2: 6, 3: 4}


def _in_place(problem):
    """Whether B can be read without packing: its columns have unit stride, and its rows are so close that they do not evict each other."""
    if problem.b.source:
        return True
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


def _candidates(problem):
    m, n, k = max(1, hint(problem.m)), max(1, hint(problem.n)), hint(problem.k)
    lanes, in_place, t = problem.lanes, _in_place(problem), _tuning(problem)
    for vectors, most in _shapes(problem).items():
        if vectors > 1 and (vectors - 1) * lanes >= n:
            continue
        direct = in_place and n >= vectors * lanes
        if in_place and not direct and n >= lanes:
            continue
        # A prologue's operand is computed only once if a tile has all rows.
        for rows in range(m if problem.b.source else 1, min(most, m) + 1):
            if direct:
                yield from (Tile("rows", rows, vectors, chunk) for chunk in _chunks(m, rows, None))
                if problem.b.source or rows < min(most, m) - 1:  # packing pays where many rows read the block: only high tiles are worth it
                    continue
            for chunk in _chunks(m, rows, most_rows(t.kept, rows, vectors)):
                yield Tile("rows", rows, vectors, chunk, t.block)
            if not direct and not isinstance(problem.n, Dim) and n >= t.across * vectors * lanes and _bytes(problem.b, k * n) > t.near:
                for chunk in _chunks(m, rows, most_rows(t.kept, rows, vectors, t.across)):
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
        self._registers, self._uniform = 32 if p.traits.vector_width >= 16 else 16, min(p.sink.uniform - 1, t.uniform)
        # Rows that lie a multiple of cache lines apart share sets of the first-level cache: every `_shared`th set holds them.
        apart = _bytes(p.b, hint(p.b.row_stride))
        self._shared = 1 if apart % t.line else math.gcd(apart // t.line, t.sets)

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
        lines = self._k * -(-_bytes(p.b, tile.vectors * self._lanes) // t.line)
        return t.fetch_near if lines * t.line * self._shared <= t.first else t.fetch_apart

    def _crowded(self, tile):
        """How many registers a tile lacks for what the epilogue keeps in them; compilers then move sums to memory in the innermost loop."""
        return max(0, self._uniform - (self._registers - (tile.rows + 1) * tile.vectors - 1))
