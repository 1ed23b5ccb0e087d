"""Running sums, products and extremes by groups of work-items, on GPUs.

If rows are contiguous in memory, a group scans a row block by block: its items load and store adjacent elements by way of local memory,
where each item scans a few elements; the items' totals are then scanned. If rows are too few to fill the device they are cut into pieces,
in three launches (Blelloch, "Prefix Sums and Their Applications", 1990; Sengupta et al., "Scan Primitives for GPU Computing", 2007; the
totals first, as Merrill & Grimshaw, "Parallel Scan for Stream Architectures", 2009): the totals of pieces, the scan of the totals, and the
scan of each piece from there. If adjacent elements belong to different scans (columns), an item scans one column, or one piece of it.

The order of every sum depends on extents and traits only. Floating-point products carry their exponent separately, as an integer: when
partial products of pieces are combined, one that overflows would give 0 * inf where the sequential product is 0. So a product that
overflows on the way, but not at the end, is finite.
"""

from collections.abc import Callable
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, ceil_div, hint, power_above, power_below, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import unflattened, wide_literal
from keras_ocl.kernels.cumulative import Scan
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec


def kernels(scan: Scan) -> list[KernelSpec] | None:
    """KernelSpecs of a cumulative.Scan; None if a work-item should scan each row alone."""
    if scan.kind == "linear_recurrence" or dtypes.is_complex(scan.dtype) and scan.kind == "cumprod":
        return None
    found, tuning = _Kernels(scan), tuning_of(scan.traits)
    n, walks = hint(scan.shape[scan.axis]), max(1, hint(found.walks))
    wanted = scan.traits.compute_units * tuning.unit_items
    if is_one(found.inner):
        if n < tuning.scan_least:
            return None
        shape = found.shape(n, walks)
        blocks, groups = -(-n // shape.block), -(-walks // shape.rows)
        pieces = min(blocks // tuning.scan_blocks, wanted // (groups * shape.lanes * shape.rows))
        return found.rows(shape, -(-blocks // pieces) * shape.block if pieces > 1 else 0)
    pieces = min(n // tuning.scan_steps, wanted // walks)
    return found.columns(-(-n // pieces)) if pieces >= tuning.scan_pieces else None


@dataclass(frozen=True)
class _Shape:
    """A group: `rows` rows with `lanes` work-items each, which scan `each` elements per block."""

    lanes: int
    rows: int
    each: int

    @property
    def block(self) -> int:
        return self.lanes * self.each

    @property
    def pitch(self) -> int:
        """Elements of local memory for a row's block."""
        return self.block + self.block // 32

    def place(self, row: str, at: str) -> str:
        """C text of an element's index in local memory: padded by one per 32, as items that read adjacent runs would conflict in banks."""
        return f"{row} * {self.pitch} + ({at}) + (({at}) >> 5)"


class _Kernels:
    def __init__(self, scan: Scan) -> None:
        self.scan, self.dtype, self.index = scan, scan.dtype, scan.ctype
        self.before, self.after = scan.shape[: scan.axis], scan.shape[scan.axis + 1 :]
        self.outer, self.inner, self.n = product(self.before), product(self.after), scan.shape[scan.axis]
        self.walks = self.outer * self.inner
        self.register = prelude.register_type(self.dtype, 1)
        self.scaled = scan.kind == "cumprod" and dtypes.is_float(self.dtype)
        self.carried = f"{'long' if self.register == 'double' else 'int'}2" if self.scaled else self.register
        self.start = self.lift(scan.start)

    def lift(self, x: str) -> str:
        """C text of an element `x` in the carried form (for products, mantissa and exponent)."""
        return self._scaled("scaled", x) if self.scaled else x

    def lower(self, x: str) -> str:
        """C text of the element from its carried form `x`."""
        return self._scaled("unscaled", x) if self.scaled else x

    def combine(self, a: str, b: str) -> str:
        """C text of the combination of two carried values."""
        return self._scaled("scaled_mul", a, b) if self.scaled else self.scan.apply(a, b)

    def _scaled(self, stem: str, *operands: str) -> str:
        name = f"{stem}_{self.register}_1"
        self.scan.helpers.add(name)
        return f"{name}({', '.join(operands)})"

    def memory(self, args: Args, buffer: Buffer, out: bool = False) -> str:
        """C text of a pointer to carried values."""
        if not self.scaled:
            return args.pointer(buffer, self._total_dtype, out=out)
        return f"((__global {'' if out else 'const '}{self.carried}*){args.pointer(buffer, self._total_dtype, out=out)})"

    @property
    def _total_dtype(self) -> str:
        """Dtype of a buffer of carried values, as wide as registers."""
        if self.scaled:
            return "int64" if self.register == "double" else "int32"
        return "float32" if self.register == "float" else self.dtype

    def totals(self, count: Extent) -> Buffer:
        """A Buffer for `count` totals per row or column, in the carried form."""
        return Buffer(count * self.walks * (2 if self.scaled else 1), self._total_dtype)

    def shape(self, n: int, rows: int) -> _Shape:
        """The _Shape for rows of `n` elements (hints)."""
        traits, tuning = self.scan.traits, tuning_of(self.scan.traits)
        most = power_below(min(tuning.scan_group, traits.max_group))
        size = dtypes.itemsize(self._total_dtype) * (2 if self.scaled else 1)
        each = tuning.scan_each if n > most * tuning.scan_each // 2 and size <= 4 else tuning.scan_each // 2
        lanes = min(most, max(8, power_above(-(-n // each))))
        return _Shape(lanes, max(1, min(most // 2 // lanes, power_above(rows))), each)

    def rows(self, shape: _Shape, piece: int) -> list[KernelSpec]:
        """KernelSpecs of contiguous rows: each scanned by one group, or cut into pieces of `piece` elements."""
        if not piece:
            return [self._row(shape)]
        count = ceil_div(self.n, piece)
        return self._three(count, lambda *options: self._row(shape, piece, count, *options))

    def columns(self, piece: int) -> list[KernelSpec]:
        """KernelSpecs of columns, adjacent ones adjacent in memory, cut into pieces of `piece` elements."""
        count = ceil_div(self.n, piece)
        return self._three(count, lambda *options: self._column(piece, count, *options))

    def _three(self, count: Extent, kernel: Callable[[Buffer | None, Buffer | None], KernelSpec]) -> list[KernelSpec]:
        totals, starts = self.totals(count), self.totals(count)
        over = self._row(self.shape(hint(count), hint(self.walks)), source=totals, target=starts, count=count)
        return [kernel(totals, None), over, kernel(None, starts)]

    def _at(self, i: str, n: str) -> str:
        """C text of the position along the axis of the `i`th of `n` scanned elements (C texts)."""
        return f"{n} - 1 - {i}" if self.scan.reverse else i

    def _row(
        self,
        shape: _Shape,
        piece: int = 0,
        count: Extent = 1,
        target: Buffer | None = None,
        offsets: Buffer | None = None,
        source: Buffer | None = None,
    ) -> KernelSpec:
        """The kernel in which groups scan rows.

        piece: elements per piece, one group each, 0 for whole rows. target: the Buffer for each piece's total. offsets: the Buffer of the
        scanned totals from which pieces start. source: the Buffer of totals, `count` per row, to be scanned into `target`.
        """
        args, t, lanes = self.scan.args(), self.index, shape.lanes
        n, rows = args.int(count if source else self.n, t), args.int(self.walks, t)
        counted = args.int(count, t) if piece else ""
        lift: Callable[[str], str]
        lower: Callable[[str], str]
        text = f"const int own = {args.place('local', 0)}, team = {args.place('local', 1)};\n"
        text += f"const {t} row = ({t}){args.place('group', 1)} * {shape.rows} + team;\n"
        begin, end = "0", n
        if piece:
            size, begin, end = args.int(piece, t), "begin", "end"
            text += (
                f"const {t} piece = {args.place('group', 0)}, begin = piece * {size}, end = min(begin + {size}, {wide_literal(t, n)});\n"
            )
        if source:
            assert target is not None
            read, held, lift, lower = self.memory(args, source), self.carried, str, str
            element = f"{read}[row * {n} + i]"
            stored = f"{self.memory(args, target, out=True)}[row * {n} + i] = value;\n"
        else:
            read, held, lift, lower = args.pointer(self.scan.handles[0], self.dtype), self.register, self.lift, self.lower
            element = self.scan.load(read, f"row * {n} + {self._at('i', n)}")
            stored = ""
        text += f"{self.carried} state = {self.start};\n"
        if target is not None and source is None:
            step = self.combine("state", lift(element))
            text += f"if (row < {rows}) for ({t} i = {begin} + own; i < {end}; i += {lanes}) state = {step};\n"
            text += self._fold(args, shape)
            place = f"row * {counted} + piece"
            text += f"if (own == 0 && row < {rows}) {self.memory(args, target, out=True)}[{place}] = state;\n"
            return self._spec("totals of pieces", args, text, shape, count)
        if offsets:
            before = f"{self.memory(args, offsets)}[row * {counted} + piece - 1]"
            text += f"if (piece > 0 && row < {rows}) state = {before};\n"
        barrier = f"{args.barrier()}\n"
        tile, sums = args.local(held, shape.rows * shape.pitch), args.local(self.carried, 2 * shape.rows * lanes)
        across = f"{tile}[{shape.place('team', f'k * {lanes} + own')}]"
        text += (
            f"for ({t} first = {begin}; first < {end}; first += {shape.block}) {{\n"
            f"for (int k = 0; k < {shape.each}; ++k) {{\nconst {t} i = first + k * {lanes} + own;\n"
            f"{across} = row < {rows} && i < {end} ? {element} : {self.start if source else self.scan.start};\n}}\n{barrier}"
        )
        places = [f"{tile}[{shape.place('team', f'own * {shape.each} + {k}')}]" for k in range(shape.each)]
        for k, place in enumerate(places):
            text += f"const {self.carried} x{k} = {self.combine(f'x{k - 1}', lift(place)) if k else lift(place)};\n"
        mine, other = f"{sums}[here + team * {lanes} + own", f"{sums}[{shape.rows * lanes} - here + team * {lanes} + own]"
        text += (  # the items' totals, scanned between the two halves of the array (Hillis & Steele 1986)
            f"int here = 0;\n{mine}] = x{shape.each - 1};\n{barrier}"
            f"for (int apart = 1; apart < {lanes}; apart *= 2) {{\n"
            f"{other} = own >= apart ? {self.combine(f'{mine} - apart]', f'{mine}]')} : {mine}];\n"
            f"here = {shape.rows * lanes} - here;\n{barrier}}}\n"
            f"const {self.carried} before = own > 0 ? {self.combine('state', f'{mine} - 1]')} : state;\n"
            f"state = {self.combine('state', f'{sums}[here + team * {lanes} + {lanes - 1}]')};\n"
        )
        text += "".join(f"{place} = {lower(self.combine('before', f'x{k}'))};\n" for k, place in enumerate(places)) + barrier
        if not source:
            coordinates = (*unflattened(args, "row", self.before), "at", *("0" for _ in self.after))
            stored = f"const {t} at = {self._at('i', n)};\n{self.scan.sink.store(args, coordinates, 'value', 1)}"
        text += (
            f"for (int k = 0; k < {shape.each}; ++k) {{\nconst {t} i = first + k * {lanes} + own;\n"
            f"if (row < {rows} && i < {end}) {{\nconst {held} value = {across};\n{stored}}}\n}}\n}}\n"
        )
        return self._spec("totals" if source else "", args, text, shape, count if piece else 1)

    def _fold(self, args: Args, shape: _Shape) -> str:
        """Statements that reduce the items' `state` of each row by a tree, into the first item's."""
        sums, barrier = args.local(self.carried, shape.rows * shape.lanes), f"{args.barrier()}\n"
        mine = f"{sums}[team * {shape.lanes} + own"
        return (
            f"{mine}] = state;\n{barrier}for (int apart = {shape.lanes // 2}; apart > 0; apart /= 2) {{\n"
            f"if (own < apart) {mine}] = state = {self.combine('state', f'{mine} + apart]')};\n{barrier}}}\n"
        )

    def _spec(self, name: str, args: Args, text: str, shape: _Shape, count: Extent) -> KernelSpec:
        grid = (count * shape.lanes, ceil_div(self.walks, shape.rows) * shape.rows)
        what = name or f"{shape.rows} rows, {shape.block} elements of each, per work-group"
        helpers = frozenset(self.scan.helpers | self.scan.sink.helpers)
        return args.kernel(name, text, grid, (shape.lanes, shape.rows), helpers, title=f"{self.scan.kind}: {what}")

    def _column(self, piece: int, count: Extent, totals: Buffer | None, offsets: Buffer | None) -> KernelSpec:
        """The kernel in which work-items scan a piece of a column; arguments as for _row()."""
        args, t = self.scan.args(), self.index
        read = args.pointer(self.scan.handles[0], self.dtype)
        n, inner, size, counted = args.int(self.n, t), args.int(self.inner, t), args.int(piece, t), args.int(count, t)
        place = f"(outer * {inner} + column) * {counted} + piece"
        text = (
            f"const {t} column = {args.place('global', 0)}, outer = {args.place('global', 1)}, piece = {args.place('global', 2)};\n"
            f"const {t} begin = piece * {size}, end = min(begin + {size}, {wide_literal(t, n)});\n{self.carried} state = {self.start};\n"
        )
        if offsets:
            text += f"if (piece > 0) state = {self.memory(args, offsets)}[{place} - 1];\n"
        element = self.lift(self.scan.load(read, f"(outer * {n} + at) * {inner} + column"))
        at, stored = f"const {t} at = {self._at('i', n)};\n", ""
        if offsets:
            coordinates = (*unflattened(args, "outer", self.before), "at", *unflattened(args, "column", self.after))
            stored = self.scan.sink.store(args, coordinates, "value", 1)
        if self.scan.long(piece):
            text += self.scan.in_blocks(self.carried, "begin", "end", f"{at}own += {element};\n", stored)
        else:
            value = f"const {self.register} value = {self.lower('state')};\n" if stored else ""
            text += f"for ({t} i = begin; i < end; ++i) {{\n{at}state = {self.combine('state', element)};\n{value}{stored}}}\n"
        if totals:
            text += f"{self.memory(args, totals, out=True)}[{place}] = state;\n"
        name = "" if offsets else "totals of pieces"
        helpers = frozenset(self.scan.helpers | self.scan.sink.helpers)
        title = f"{self.scan.kind}: {name or 'a walk along a piece per work-item'}"
        return args.kernel(name, text, (self.inner, self.outer, count), self.scan.schedule.group, helpers, title=title)
