"""Matrix product for GPUs: tiles of both operands in local memory, a register tile of results per work-item."""

from keras_ocl.core.dim import ceil_div
from keras_ocl.kernels import prelude
from keras_ocl.kernels.contraction import Computed, Strided
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.spec import Args


def kernel(problem, tile):
    """The KernelSpec of `problem` with `tile`."""
    args = Args(problem.all_arguments)
    names = Names(problem, args, tile.sliced(problem.k) if tile.slices > 1 else 0)
    splits = ceil_div(problem.k, problem.split) if problem.split else 1
    groups = ceil_div(problem.n, tile.width), ceil_div(problem.m, tile.height), splits * (1 if problem.batch is None else problem.batch)
    body = _body(problem, tile, args, names, groups)
    block = f"{tile.height} rows x {tile.width} columns per work-group, {tile.rows} x {tile.columns} per work-item"
    block += f", {tile.slices} slices of k" if tile.slices > 1 else ""
    return args.kernel(
        name="matrix product",
        body=body,
        grid=(groups[0] * tile.across, groups[1] * tile.down, groups[2] * tile.slices),
        group=(tile.across, tile.down, tile.slices),
        helpers=frozenset(problem.helpers) | frozenset(problem.sink.helpers),
        title=f"matrix product: {block}{tile.manner}",
        attributes=tile.attributes,
    )


def _body(p, t, args, n, groups):
    i = n.index
    contraction, until = t.contraction(args, p.register, p.fma, i, p.a.dtype), ""
    if t.slices > 1:
        until = f"{t.sliced(p.k)}"
    else:
        contraction.cut(p.accumulator, groups, p.split or p.k)
    rows, steps = ("i_first", p.m, n.m, t.height, p.a.row_stride, n.a_row), (p.a.column_stride, n.a_column)
    a = _loader(p, t, args, p.a, "a", rows, steps, n.k_start)
    rows, steps = ("j_first", p.n, n.n, t.width, p.b.column_stride, n.b_column), (p.b.row_stride, n.b_row)
    b = _loader(p, t, args, p.b, "b", rows, steps, n.k_start)
    vectors = p.divides(t.beside, p.n)
    store = p.sink.store(args, (*n.coordinates, "row", "column"), "value", t.beside if vectors else 1)
    results = contraction.each("i_first", n.m, "j_first", n.n, store, vectors=vectors)
    return "".join(
        [
            *n.lines,
            contraction.head(),
            f"const {i} i_first = ({i}){args.place('group', 1)} * {t.height}, j_first = ({i}){args.place('group', 0)} * {t.width};\n",
            contraction.results(),
            contraction.walk("0", n.k, a, b, exact=p.literal(p.k) and p.k % (t.slices * t.depth) == 0, until=until),
            _added(t, args, p.register, results) if t.slices > 1 else results,
        ]
    )


def _added(t, args, register, results):
    """Statements by which the items of the first slice add the slices' sums, in order, and go on with `results` (C text)."""
    sums = args.local(register, (t.slices - 1) * t.height * t.width)
    registers = [(f"s{r}_{c}", (r * t.columns + c) * t.items) for r in range(t.rows) for c in range(t.columns)]
    size = t.height * t.width
    kept = "".join(f"{sums}[(slice - 1) * {size} + {place} + me] = {name};\n" for name, place in registers)
    added = "".join(f"{name} += {sums}[{part * size + place} + me];\n" for part in range(t.slices - 1) for name, place in registers)
    return f"if (slice > 0) {{\n{kept}}}\n{args.barrier()}\nif (slice == 0) {{\n{added}{results}}}\n"


def _loader(p, t, args, operand, name, rows, steps, k_start):
    """The Loader of an operand.

    rows: of the rows of `a` or columns of `b`: (the block's first (C text), their number, its C text, the number in a tile, their stride,
    its C text). steps: (the stride along k, its C text). k_start: C text of the first step of k.
    """
    (first, extent, limit, side, stride, stride_text), (k_stride, k_text) = rows, steps
    along_k = k_text == "1" and stride_text != "1"
    length, of_tile, across = (p.k, t.depth, stride) if along_k else (extent, side, k_stride)
    joined = k_text == "1" if along_k else stride_text == "1"
    widths = (4,) if p.all_arguments else (4, 2)  # eager kernels serve all sizes, so that they are few
    widths = (t.fragment, *widths) if t.fragment > 4 else widths
    fits = [v for v in widths if joined and of_tile % v == 0 and p.divides(v, length, across, operand.batch_stride, operand.offset)]
    if operand.source and not (fits and operand.source.in_lanes(p.shape(operand))):
        fits = []
    vector, exact = min(t.fragment, fits[0]) if fits else 1, p.literal(extent) and extent % side == 0

    def compute(at, k):
        place = (at, summed(k_start, k))
        return p.computed(args, operand, *(place if operand is p.a else place[::-1]), vector, stored=t.stored)

    if operand.source:
        return Computed(first, limit, along_k, compute, None, exact, vector)

    def load(where):
        if t.stored:
            return prelude.load_stored(operand.dtype, vector, name, where)
        return p.load(operand, vector, name, where, aligned=True)

    def offset(at, k):
        return summed(scaled(at, stride_text), scaled(k, k_text))

    return Strided(first, limit, along_k, load, offset, exact, vector)
