"""Which tile a matrix product gets on a CPU: the least estimated time among those the registers hold.

The constants are cycles measured on a machine with AVX-512; only their ratios matter.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels.gemm.cpu import BLOCK, Tile, most_rows

ITEM = 1500  # start of a work-item, and its first cache misses
TILE = 20  # start of a tile: addresses, zeroing
FETCH = 0.35  # of a vector of B that comes from the second-level cache
SCALAR = 0.25  # of an element of A, mostly hidden
WHOLE, WHOLE_FAR = 0.05, 4  # of a vector of A; from beyond the second-level cache
CLOSE = 2**20  # bytes of A that a second-level cache holds
SPILLED = 0.3  # of a vector of either operand where a tile's rows and columns do not fit the first-level cache
FIRST = 3 * 2**13  # bytes that one holds beside all else
TURN = 0.5  # to transpose an element of B into a packed block
READ, READ_FAR = 1.5, 4  # of a vector of B that is contiguous in k, by an item's first rows; from memory
COPY, COPY_FAR = 3, 24  # of a vector of B into a packed block; from memory
NEAR = 2**24  # bytes of B that a last-level cache holds
_ACROSS = 2  # tiles that a panel of a far B is wide: it is read in longer runs, and a tile's rows of A twice from the first-level cache
LATENCY = 4  # a step of k cannot take less than an fma waits for the one before


def groups(problem, tile):
    """Number of work-items by the hints of the extents."""
    batch = 1 if problem.batch is None else hint(problem.batch)
    return -(-hint(problem.n) // tile.panel(problem.lanes)) * -(-hint(problem.m) // tile.chunk) * batch


def choose(problem):
    """The Tile for `problem`, from the hints of its extents."""
    tiles = list(_eager(problem) if problem.all_arguments else _candidates(problem))
    return min(tiles, key=lambda tile: _cycles(problem, tile))


def _bytes(operand, elements):
    return elements * dtypes.itemsize(operand.dtype)


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
    m, n, k = max(1, hint(problem.m)), max(1, hint(problem.n)), hint(problem.k)
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
            if not direct and not isinstance(problem.n, Dim) and n >= _ACROSS * vectors * lanes and _bytes(problem.b, k * n) > NEAR:
                for chunk in _chunks(m, rows, most_rows(rows, vectors, _ACROSS)):
                    yield Tile("rows", rows, vectors, chunk, BLOCK, _ACROSS)
    if _dots(problem):
        wide = ((4, 4), (2, 8), (8, 1)) if problem.traits.vector_width >= 16 else ()
        for rows, columns in (*wide, (2, 4), (1, 8), (1, 4), (4, 2), (4, 1), (2, 1), (1, 1)):
            if rows <= m and columns <= n:
                for chunk in _chunks(m, rows, None):
                    for across in (2, 4, 8):
                        yield Tile("dots", rows, columns, chunk, across=across)


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
            yield Tile("dots", rows, columns, chunk, across=8)
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
    near = _bytes(problem.b, k * n) <= NEAR
    step = max(rows * vectors / 2, (rows + vectors) / 2, LATENCY) + FETCH * vectors
    chunk = min(tile.chunk, m)
    tiles = -(-chunk // rows)
    if tile.kind == "dots":
        across, steps = min(tile.across, -(-n // vectors)), -(-k // lanes)
        whole = WHOLE if _bytes(problem.a, chunk * k) <= CLOSE else WHOLE_FAR
        spilled = SPILLED if _bytes(problem.a, (rows + vectors) * k) > FIRST else 0
        one = (step + rows * whole + (rows + vectors) * spilled) * steps + TILE + 2 * rows * vectors
        item = across * (tiles * one + vectors * steps * (READ if near else READ_FAR))
    else:
        item = tile.across * tiles * ((step + rows * SCALAR) * k + TILE + 2 * rows * vectors)
        if tile.block:
            copy = COPY if near else COPY_FAR
            item += k * tile.across * vectors * (copy if problem.b.column_stride == 1 else TURN * lanes)
    rounds = -(-groups(problem, tile) // problem.traits.compute_units)
    return rounds * (item + ITEM) + 0.1 * item
