"""Matrix product of few rows, or few columns, for GPUs: bound by reading the large operand, which is loaded once, straight to registers.

A work-group's items form a grid of lanes along k and places along the columns; consecutive items read adjacent memory. Each item sums its
steps of k for all rows at once; the lanes' sums are then reduced in local memory by a tree, in the same order each time.
"""

from dataclasses import dataclass, replace

from keras_ocl.core.dim import ceil_div
from keras_ocl.kernels import summation
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.spec import Args


@dataclass(frozen=True)
class Shape:
    """A work-group of `lanes` items along k x `places` items along the columns, each with `rows` rows; lanes and rows are powers of two.

    along_k: whether adjacent memory runs along the lanes, else along the places. vector: adjacent elements that an item loads as one
    vector. turned: whether rows and columns are exchanged, for few columns. ahead: software pipelining: steps of k that an item loads
    before it multiplies the steps loaded before; 0 for none, if other groups keep the unit busy meanwhile.
    """

    lanes: int
    places: int
    rows: int
    along_k: bool
    vector: int
    turned: bool
    ahead: int = 0

    @property
    def columns(self):
        """Number of an item's columns, which are adjacent."""
        return 1 if self.along_k else self.vector


def turned(problem):
    """The same product with rows and columns exchanged."""
    p = problem
    return replace(p, m=p.n, n=p.m, a=p.b.transposed(), b=p.a.transposed())


def kernel(problem, shape):
    """The KernelSpec of a product `problem` with the Shape `shape`."""
    s, p, args = shape, turned(problem) if shape.turned else problem, Args(problem.all_arguments)
    n = Names(p, args)
    body = _body(p, s, args, n)
    splits, across = ceil_div(p.k, p.split) if p.split else 1, ceil_div(p.n, s.places * s.columns)
    return args.kernel(
        name="matrix product",
        body=body,
        grid=(across * s.lanes * s.places, ceil_div(p.m, s.rows), splits * (1 if p.batch is None else p.batch)),
        group=(s.lanes * s.places, 1, 1),
        helpers=frozenset(p.helpers) | frozenset(p.sink.helpers),
        title=f"matrix product: {s.rows} {'columns' if s.turned else 'rows'}, {s.lanes} lanes along the sum per result",
    )


def _body(p, s, args, n):
    i, width, v = n.index, s.places * s.columns, s.vector
    kind, rows = p.vector(v), range(s.rows)
    local = args.local(p.register, s.rows * s.lanes * width)
    lane, place = ("me % {0}", "me / {0}") if s.along_k else ("me / {1}", "me % {1}")
    text = [
        *n.lines,
        f"const int me = {args.place('local', 0)}, lane = {lane.format(s.lanes, s.places)}, place = {place.format(s.lanes, s.places)};\n",
        f"const {i} column = ({i}){args.place('group', 0)} * {width} + place * {s.columns}, "
        f"first = ({i}){args.place('group', 1)} * {s.rows};\n",
        # Beyond the edges, the last rows and columns are computed again, and not stored.
        f"const {i} at = min(column, ({i})({n.n} - {s.columns}));\n",
    ]
    for r in rows:
        text.append(f"const {i} row{r} = min(first + {r}, ({i})({n.m} - 1));\n{kind} sum{r} = 0;\n")
    step = s.lanes * (v if s.along_k else 1)
    begin = f"lane * {v}" if s.along_k and v > 1 else "lane"
    text.append((_ahead if s.ahead else _one_by_one)(p, s, n, args, begin, step))
    own = f"(lane * {width} + place * {s.columns})"
    size = s.lanes * width
    for r in rows:
        if s.along_k:
            total = " + ".join(f"sum{r}.s{c:x}" for c in range(v)) if v > 1 else f"sum{r}"
            text.append(f"{local}[{r * size} + {own}] = {total};\n")
        else:
            values = [f"sum{r}.s{c:x}" for c in range(v)] if v > 1 else [f"sum{r}"]
            text += [f"{local}[{r * size + c} + {own}] = {value};\n" for c, value in enumerate(values)]
    if s.lanes > 1:
        mine = [f"{r * size + c} + {own}" for r in rows for c in range(s.columns)]
        add = "".join(f"{local}[{at}] += {local}[{at} + fold * {width}];\n" for at in mine)
        text.append(f"for (int fold = {s.lanes // 2}; fold > 0; fold /= 2) {{\n{args.barrier()}\nif (lane < fold) {{\n{add}}}\n}}\n")
    text.append(f"if (lane == 0 && column < {n.n}) {{\n")
    vectors = not s.turned and p.divides(s.columns, p.n)
    for r in rows:
        text.append(f"if (first + {r} < {n.m}) {{\n")
        for c in range(0, s.columns, s.columns if vectors else 1):
            lanes = s.columns if vectors else 1
            values = ", ".join(f"{local}[{r * size + c + x} + {own}]" for x in range(lanes))
            values = f"({p.vector(lanes)})({values})" if lanes > 1 else values
            where = (f"(first + {r})", f"(column + {c})")
            store = p.sink.store(args, (*n.coordinates, *(where[::-1] if s.turned else where)), "value", lanes)
            text.append(f"{{\nconst {p.vector(lanes)} value = {values};\n{store}}}\n")
        text.append("}\n")
    text.append("}\n")
    return "".join(text)


def _one_by_one(p, s, n, args, begin, step):
    """C text of the loop along k, of which the compiler unrolls some steps."""
    kind, rows = p.vector(s.vector), range(s.rows)
    statements, right = _right(p, s, n, args)
    lefts = [(r, *_left(p, s, n, args, f"row{r}")) for r in rows]
    sums = "".join(f"{{\n{before}const {kind} x = {left};\nsum{r} = {p.fma('x', 'y', f'sum{r}')};\n}}\n" for r, before, left in lefts)

    def walk(start, stop):
        first = begin if start == "0" else f"{start} + {begin}"
        header = f"for ({n.index} k = {first}; k < {stop}; k += {step})"
        return f"#pragma unroll 4\n{header} {{\n{statements}const {kind} y = {right};\n{sums}}}\n"

    steps = ceil_div(p.split or p.k, step)
    return summation.cut(p.accumulator, kind, [f"sum{r}" for r in rows], walk, "0", n.k, steps, step)


def _ahead(p, s, n, args, begin, step):
    """C text of the loop along k in blocks of `s.ahead` steps: the next block is loaded while one is multiplied.

    NVIDIA's compiler gives the items of a large group few registers, and so delays loads until registers are free; it cannot delay loads
    that the next iteration needs.
    """
    kind, i, steps = p.vector(s.vector), n.index, range(s.ahead)
    whole = p.divides(s.ahead * step, p.k)
    statements, right = _right(p, s, n, args)
    lefts = [_left(p, s, n, args, f"row{r}") for r in range(s.rows)]
    names = [(q, f"y{q}", [f"x{q}_{r}" for r in range(s.rows)]) for q in steps]

    def read(first, guarded):
        text = []
        for q, y, xs in names:
            at = f"const {i} k = {first} + {q * step};\n"
            loads = f"{statements}{y} = {right};\n"
            for x, (before, left) in zip(xs, lefts, strict=True):
                loads += f"{{\n{before}{x} = {left};\n}}\n" if before else f"{x} = {left};\n"
            zeros = "".join(f"{name} = 0;\n" for name in (y, *xs))
            text.append(f"{{\n{at}" + (f"if (k < {n.k}) {{\n{loads}}} else {{\n{zeros}}}\n}}\n" if guarded else f"{loads}}}\n"))
        return "".join(text)

    def sums(form):
        return "".join(f"sum{r} = {p.fma(form.format(x), form.format(y), f'sum{r}')};\n" for _, y, xs in names for r, x in enumerate(xs))

    declared = "".join(f"{kind} {', '.join((y, *xs))};\n" for _, y, xs in names)
    first = f"{declared}{i} begin = {begin};\n{read('begin', not whole)}"
    block = s.ahead * step
    if p.literal(p.k) and p.k <= block:
        return first + sums("{}")
    now = "".join(f"const {kind} {', '.join(f'{name}_now = {name}' for name in (y, *xs))};\n" for _, y, xs in names)
    following = f"if (begin + {block} < {n.k}) {{\n{read(f'begin + {block}', not whole)}}}\n"
    return f"{first}#pragma unroll 1\nfor (; begin < {n.k}; begin += {block}) {{\n{now}{following}{sums('{}_now')}}}\n"


def _right(p, s, n, args):
    """(statements, C text) of the vector of `b` at step k and column `at`."""
    if p.b.source:
        return p.computed(args, p.b, summed(n.k_start, "k"), "at", s.vector)
    return "", p.load(p.b, s.vector, "b", summed(scaled("at", n.b_column), scaled("k", n.b_row)), aligned=True)


def _left(p, s, n, args, row):
    """(statements, C text) of the elements of row `row` of `a` that multiply a vector of `b` (one element is broadcast)."""

    def element(x, width=1):
        if p.a.source:
            return p.computed(args, p.a, row, summed(n.k_start, "k", str(x)), width)
        k = f"(k + {x})" if x else "k"
        return "", p.load(p.a, width, "a", summed(scaled(row, n.a_row), scaled(k, n.a_column)), aligned=width > 1)

    if s.along_k and s.vector > 1:
        joined = n.a_column == "1" and p.divides(s.vector, p.a.row_stride, p.a.batch_stride, p.a.offset)
        if joined and (not p.a.source or p.a.source.in_lanes(p.shape(p.a))):
            return element(0, s.vector)
        parts, text = [], ""
        for x in range(s.vector):
            before, value = element(x)
            text += f"{p.register} left{x};\n{{\n{before}left{x} = {value};\n}}\n" if before else ""
            parts.append(f"left{x}" if before else value)
        return text, f"({p.vector(s.vector)})({', '.join(parts)})"
    before, value = element(0)
    return before, f"({p.vector(s.vector)})({value})" if s.vector > 1 else value
