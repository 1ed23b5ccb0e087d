"""Which tile a matrix product gets on a CPU: the least estimated time among those the registers hold.

The constants are cycles measured on a machine with AVX-512; only their ratios matter.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels.gemm_cpu import BLOCK, Tile, most_rows

ITEM = 1500  # start of a work-item, and its first cache misses
TILE = 20  # start of a tile: addresses, zeroing
FETCH = 0.35  # of a vector of B that comes from the second-level cache
SCALAR = 0.25  # of an element of A, mostly hidden
WHOLE, WHOLE_FAR = 0.05, 4  # of a vector of A; from beyond the second-level cache
CLOSE = 2**20  # bytes of A that a second-level cache holds
PACK = 0.25  # to transpose an element of B into a packed block
COPY, COPY_FAR = 3, 24  # of a vector of B into a packed block; from memory
NEAR = 2**24  # bytes of B that a last-level cache holds
LATENCY = 4  # a step of k cannot take less than an fma waits for the one before


def groups(problem, tile):
    """Number of work-items by the hints of the extents."""
    batch = 1 if problem.batch is None else hint(problem.batch)
    return -(-hint(problem.n) // _panel(problem, tile)) * -(-hint(problem.m) // tile.chunk) * batch


def choose(problem):
    """The Tile for `problem`, from the hints of its extents."""
    tiles = list(_eager(problem) if problem.all_arguments else _candidates(problem))
    return min(tiles, key=lambda tile: _cycles(problem, tile))


def _panel(problem, tile):
    return tile.vectors * (max(1, tile.block) if tile.kind == "dots" else problem.lanes)


def _shapes(problem):
    """Rows by vectors that fit the registers: 32 of them beside 64-byte vectors, 16 elsewhere."""
    return {1: 8, 2: 12, 3: 8, 4: 6} if problem.traits.vector_width >= 16 else {1: 8, 2: 6, 3: 4}


def _in_place(problem):
    """Whether B can be read without packing: unit stride, and near enough that rows do not evict each other."""
    if isinstance(problem.n, Dim) or isinstance(problem.b.column_stride, Dim) or problem.b.column_stride != 1:
        return False
    far = hint(problem.b.row_stride) * dtypes.itemsize(problem.b.dtype) >= 3072
    return not (far and hint(problem.m) > 12 and hint(problem.k) > 128)


def _dots(problem):
    p = problem
    return (
        not any(isinstance(e, Dim) for e in (p.n, p.k, p.a.column_stride, p.b.row_stride))
        and p.a.column_stride == 1
        and p.b.row_stride == 1
        and p.k >= p.lanes
    )


def _candidates(problem):
    m, n = max(1, hint(problem.m)), max(1, hint(problem.n))
    lanes, in_place = problem.lanes, _in_place(problem)
    for vectors, most in _shapes(problem).items():
        if vectors > 1 and (vectors - 1) * lanes >= n:
            continue
        direct = in_place and n >= vectors * lanes
        if in_place and not direct and n >= lanes:
            continue
        for rows in range(1, min(most, m) + 1):
            for chunk in _chunks(m, rows, None if direct else most_rows(rows, vectors)):
                yield Tile("rows", rows, vectors, chunk, 0 if direct else BLOCK)
    if _dots(problem):
        wide = ((4, 4), (2, 8), (8, 1)) if problem.traits.vector_width >= 16 else ()
        for rows, columns in (*wide, (2, 4), (1, 8), (1, 4), (4, 2), (4, 1), (2, 1), (1, 1)):
            if rows <= m and columns <= n:
                for chunk in _chunks(m, rows, None):
                    for groups in (2, 4, 8):
                        yield Tile("dots", rows, columns, chunk, groups)


def _chunks(m, rows, most):
    """Rows of a work-item: everything, or an even share of it, in whole tiles."""
    shares = {-(-m // (rows * parts)) * rows for parts in (1, 2, 3, 4, 6, 8, 12, 16)}
    limit = most or max(shares)
    return sorted({min(share, limit) for share in shares})


def _eager(problem):
    """Few tiles, so that few kernels exist: classes of m and n only."""
    m, n = max(1, hint(problem.m)), max(1, hint(problem.n))
    rows = next(r for r in (8, 4, 2, 1) if r <= m)
    if _dots(problem) and (m <= 128 or n == 1):
        rows = min(rows, 4)
        columns = 4 if n >= 4 else 1
        for chunk in _chunks(m, rows, None):
            yield Tile("dots", rows, columns, chunk, 8)
        return
    vectors = 2 if n >= 2 * problem.lanes else 1
    if problem.traits.vector_width < 16:
        rows = min(rows, 4)
    direct = _in_place(problem) and n >= vectors * problem.lanes
    for chunk in _chunks(m, rows, None if direct else most_rows(rows, vectors)):
        yield Tile("rows", rows, vectors, chunk, 0 if direct else 256)


def _cycles(problem, tile):
    """Estimated cycles until the last compute unit is done."""
    m, n, k, lanes = hint(problem.m), hint(problem.n), hint(problem.k), problem.lanes
    rows, vectors = tile.rows, tile.vectors
    step = max(rows * vectors / 2, (rows + vectors) / 2, LATENCY) + FETCH * vectors
    chunk = min(tile.chunk, m)
    tiles = -(-chunk // rows)
    if tile.kind == "dots":
        close = chunk * k * dtypes.itemsize(problem.a.dtype) <= CLOSE
        one = (step + rows * (WHOLE if close else WHOLE_FAR)) * -(-k // lanes) + TILE + 2 * rows * vectors
        item = tiles * min(tile.block, -(-n // vectors)) * one
    else:
        item = tiles * ((step + rows * SCALAR) * k + TILE + 2 * rows * vectors)
        if tile.block:
            near = k * n * dtypes.itemsize(problem.b.dtype) <= NEAR
            turned = 0 if problem.b.column_stride == 1 else PACK * lanes - COPY
            item += k * vectors * ((COPY if near else COPY_FAR) + turned)
    rounds = -(-groups(problem, tile) // problem.traits.compute_units)
    return rounds * (item + ITEM) + 0.1 * item
