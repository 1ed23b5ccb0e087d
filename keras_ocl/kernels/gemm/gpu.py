"""Matrix product for GPUs: tiles of both operands in local memory, a block of results in each work-item's registers."""

from dataclasses import replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint
from keras_ocl.kernels.contraction import Contraction, Strided, Tile
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec


def choose(problem):
    """The Tile for `problem`: the cheapest by work per round of work-groups, within the device's limits."""
    traits, size = problem.traits, dtypes.itemsize(problem.accumulator)
    tuning = schedule_of(traits).tuning
    m, n = max(1, hint(problem.m)), max(1, hint(problem.n))
    batch = 1 if problem.batch is None else max(1, hint(problem.batch))
    items = 1 << (max(1, min(tuning.product_items, traits.max_group)).bit_length() - 1)
    best = None
    for down in (1, 2, 4, 8, 16, 32):
        across = items // down
        if not 1 <= across <= 64:
            continue
        for rows, columns in ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1)):
            if 2 * rows * columns > traits.item_registers:  # results may have half of them
                continue
            tile = Tile(across, down, rows, columns, tuning.depth)
            while tile.depth > 1 and tile.local_bytes(size) > traits.local_memory:
                tile = replace(tile, depth=tile.depth // 2)
            groups = -(-m // tile.height) * -(-n // tile.width) * batch
            rounds = -(-groups // traits.compute_units)
            steps = rows * columns + rows + columns + (tile.height + tile.width) / items + 8 / tile.depth
            cost = (rounds * steps, tile.depth != tuning.depth, abs(across - 16))
            if tile.local_bytes(size) <= traits.local_memory and (best is None or cost < best[0]):
                best = (cost, tile)
    return best[1] if best else Tile(1, 1, 1, 1, 1)


def groups(problem, tile):
    """Number of work-groups by the hints of the extents."""
    batch = 1 if problem.batch is None else hint(problem.batch)
    return -(-hint(problem.m) // tile.height) * -(-hint(problem.n) // tile.width) * batch


def kernel(problem, tile):
    """The KernelSpec of `problem` with `tile`."""
    args = Args(problem.all_arguments)
    names = Names(problem, args)
    body = _body(problem, tile, args, names)
    splits = ceil_div(problem.k, problem.split) if problem.split else 1
    return KernelSpec(
        name="matrix product",
        args=args.args,
        body=body,
        grid=(
            ceil_div(problem.n, tile.width) * tile.across,
            ceil_div(problem.m, tile.height) * tile.down,
            splits * (1 if problem.batch is None else problem.batch),
        ),
        group=(tile.across, tile.down, 1),
        helpers=frozenset(problem.helpers) | frozenset(problem.sink.helpers),
        title=f"matrix product: {tile.height} rows x {tile.width} columns per work-group, {tile.rows} x {tile.columns} per work-item",
    )


def _body(p, t, args, n):
    i = n.index
    contraction = Contraction(args, t, p.register, p.fma, i)

    def strided(operand, name, first, limit, stride, k_stride, along_k):
        def offset(at, k):
            return summed(scaled(at, stride), scaled(k, k_stride))

        return Strided(first, limit, along_k, lambda where: p.load(operand, 1, name, where), offset)

    a = strided(p.a, "a", "i_first", n.m, n.a_row, n.a_column, n.a_column == "1")
    b = strided(p.b, "b", "j_first", n.n, n.b_column, n.b_row, n.b_column != "1")
    return "".join(
        [
            *n.lines,
            contraction.head(),
            f"const {i} i_first = ({i})get_group_id(1) * {t.height}, j_first = ({i})get_group_id(0) * {t.width};\n",
            contraction.results(),
            contraction.walk("0", n.k, a, b),
            contraction.each("i_first", n.m, "j_first", n.n, p.sink.store(args, (*n.coordinates, "row", "column"), "value", 1)),
        ]
    )
