"""Matrix product for GPUs: tiles of both operands in local memory, a block of results in each work-item's registers."""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.spec import Args, KernelSpec


@dataclass(frozen=True)
class Tile:
    """A work-group of across x down items, each with rows x columns results; `depth` steps of k in local memory."""

    across: int
    down: int
    rows: int
    columns: int
    depth: int = 16
    splits = True

    @property
    def height(self):
        return self.down * self.rows

    @property
    def width(self):
        return self.across * self.columns


def choose(problem):
    """The Tile for `problem`: the cheapest by work per round of work-groups, within the device's limits."""
    traits, size = problem.traits, dtypes.itemsize(problem.accumulator)
    m, n = max(1, hint(problem.m)), max(1, hint(problem.n))
    batch = 1 if problem.batch is None else max(1, hint(problem.batch))
    items = 1 << (max(1, min(256, traits.max_group)).bit_length() - 1)
    best = None
    for down in (1, 2, 4, 8, 16, 32):
        across = items // down
        if not 1 <= across <= 64:
            continue
        for rows, columns in ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1)):
            tile = Tile(across, down, rows, columns)
            depth = 16
            while depth > 1 and local_bytes(tile, depth, size) > traits.local_memory:
                depth //= 2
            groups = -(-m // tile.height) * -(-n // tile.width) * batch
            rounds = -(-groups // traits.compute_units)
            steps = rows * columns + rows + columns + (tile.height + tile.width) / items + 8 / depth
            cost = (rounds * steps, depth != 16, abs(across - 16))
            if local_bytes(tile, depth, size) <= traits.local_memory and (best is None or cost < best[0]):
                best = (cost, Tile(across, down, rows, columns, depth))
    return best[1] if best else Tile(1, 1, 1, 1, 1)


def local_bytes(tile, depth, size):
    return depth * (tile.height + 1 + tile.width + 1) * size


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
    )


def _body(p, t, args, n):
    i, register = n.index, p.register
    # One more than the tile's rows or columns, so that consecutive k lie in different banks.
    pitch_a, pitch_b = t.height + 1, t.width + 1
    local_a = args.local(register, t.depth * pitch_a)
    local_b = args.local(register, t.depth * pitch_b)
    rows, columns = range(t.rows), range(t.columns)
    lines = [
        *n.lines,
        "const int across = get_local_id(0), down = get_local_id(1);\n",
        f"const int me = down * {t.across} + across;\n",
        f"const {i} i_first = ({i})get_group_id(1) * {t.height}, j_first = ({i})get_group_id(0) * {t.width};\n",
        f"{register} " + ", ".join(f"s{r}_{c} = 0" for r in rows for c in columns) + ";\n",
        f"for ({i} k0 = 0; k0 < {n.k}; k0 += {t.depth}) {{\n",
        *_fill(p, p.a, "a", local_a, t, t.height, pitch_a, ("i_first", n.m, n.a_row), (n.k, n.a_column), n.a_column == "1", i),
        *_fill(p, p.b, "b", local_b, t, t.width, pitch_b, ("j_first", n.n, n.b_column), (n.k, n.b_row), n.b_column != "1", i),
        "barrier(CLK_LOCAL_MEM_FENCE);\n",
        f"for (int q = 0; q < {t.depth}; ++q) {{\n",
        *(f"const {register} y{c} = {local_b}[q * {pitch_b} + across + {c * t.across}];\n" for c in columns),
    ]
    for r in rows:
        lines.append(f"{{ const {register} e = {local_a}[q * {pitch_a} + down + {r * t.down}];\n")
        lines += [f"s{r}_{c} = {p.fma('e', f'y{c}', f's{r}_{c}')};\n" for c in columns]
        lines.append("}\n")
    lines.append("}\nbarrier(CLK_LOCAL_MEM_FENCE);\n}\n")
    lines.append(f"const {register} kept[{t.rows * t.columns}] = {{{', '.join(f's{r}_{c}' for r in rows for c in columns)}}};\n")
    lines += [
        f"for (int r = 0; r < {t.rows}; ++r)\nfor (int c = 0; c < {t.columns}; ++c) {{\n",
        f"const {i} row = i_first + down + r * {t.down}, column = j_first + across + c * {t.across};\n",
        f"if (row < {n.m} && column < {n.n}) {{\nconst {register} value = kept[r * {t.columns} + c];\n",
        p.sink.store(args, (*n.coordinates, "row", "column"), "value", 1),
        "}\n}\n",
    ]
    return "".join(lines)


def _fill(p, operand, name, local, t, extent, pitch, across, along, k_first, i):
    """Statements that copy one operand's tile to local memory, zeros beyond the edges, in the order memory has it."""
    first, limit, stride = across
    k, k_stride = along
    q, o = (f"e % {t.depth}", f"e / {t.depth}") if k_first else (f"e / {extent}", f"e % {extent}")
    offset = summed(scaled("at", stride), scaled("(k0 + q)", k_stride))
    return [
        f"for (int e = me; e < {t.depth * extent}; e += {t.across * t.down}) {{\n",
        f"const int q = {q}, o = {o};\nconst {i} at = {first} + o;\n",
        f"{local}[q * {pitch} + o] = at < {limit} && k0 + q < {k} ? {p.load(operand, 1, name, offset)} : 0;\n}}\n",
    ]
