"""Teams: work-items of a group that compute a reduction together, on GPUs.

The items of a team take the elements of a reduction in turn, and combine their partial results by a tree in local memory, so that the order
of a sum depends on extents and traits only. Afterwards all of them have the result: the first item stores values computed from it, or each
item stores a part of the row to which it belongs.
"""

from dataclasses import dataclass

from keras_ocl.core.dim import ceil_div, hint, power_above, power_below, product, size_hint
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise import packed
from keras_ocl.kernels.pointwise.unflatten import unflatten


@dataclass
class Team:
    """How a kernel's groups consist of teams.

    Attributes:
        count: work-items of a team, a power of two.
        teams: teams of a group, a power of two.
        along: whether consecutive items are of one team, because memory is contiguous along the reduction; else of adjacent results.
        level: number of outer dimensions of the index space that teams iterate over: one team per point, which computes its inner points.
        chunk: inner points per team, if several teams share a row and each repeats the reduction; 0: all.
        block: the block of code that all items of a group execute. end: the line number in it after the last fold.
        first: C condition that the item stores the results with one value per row.
        together: whether all items leave a shared loop around other loops at the same step.
        local: dict from a C type to the name of a local-memory array with one element per item.
    """

    count: int
    teams: int
    along: bool
    level: int
    chunk: int = 0
    block: object = None
    end: int = 0
    first: str = "part == 0"
    together: bool = True

    def __post_init__(self):
        self.local = {}

    @property
    def size(self):
        """Work-items of a group."""
        return self.count * self.teams

    @property
    def stride(self):
        """Difference of local ids between consecutive items of a team."""
        return 1 if self.along else self.teams

    def fold(self, gen, register, ctype, combine):
        """The register with the team's values of `register`, of C type `ctype`, combined; `combine(a, b)`: C expression for two of them."""
        name = self.local.get(ctype)
        barrier = gen.args.barrier()
        if name is None:
            name = self.local[ctype] = gen.args.local(ctype, self.size)
        else:
            gen.emit(barrier)  # until all items have read the previous fold's result
        gen.emit(f"{name}[own] = {register.text};\n{barrier}")
        distance = self.count // 2
        while distance:
            mine, other = f"{name}[own]", f"{name}[own + {distance * self.stride}]"
            gen.emit(f"if (part < {distance}) {mine} = {combine(mine, other)};\n{barrier}")
            distance //= 2
        total = gen.define(register.dtype, 1, f"{name}[{'own - part' if self.along else f'own % {self.teams}'}]", [self.block])
        self.end = len(self.block.lines)
        return total

    def once(self, gen, statement):
        """Emit a statement that one item per row executes."""
        inner, gen.block = gen.block, self.block
        gen.emit(f"if ({self.first}) {statement}")
        gen.block = inner


def choose(traits, nests, level):
    """The Team of a kernel with these Nests, None if each item computes its reductions alone. Sets the Nests' `spread`.

    level: number of dimensions of the results with one value per row; None if there are none.
    """
    root, tuning = nests["root"], tuning_of(traits)
    rank = len(root.extents)
    found = [(level, nest) for nest in nests.values() for level in nest.levels if level is not None]
    rows = [entry for entry in found if entry[0] < rank]
    forced = level is not None
    if not forced:
        level = max((at for at, _ in rows), default=rank)
    shared = [nest for at, nest in found if at <= level]
    if not shared and not forced:
        return None
    along = level < rank or any(nest.unit for nest in shared) and not any(nest.strided for nest in shared)
    for nest in shared:
        lengths = [hint(nest.length(group)) for group in nest.groups]
        contiguous = along and lengths and lengths[-1] >= tuning.team
        chosen = len(lengths) - 1 if contiguous else max(range(len(lengths)), key=lengths.__getitem__, default=None)
        nest.spread = None if chosen is None or lengths[chosen] < 2 * tuning.team_elements else chosen
    terms = max((hint(nest.length(nest.groups[nest.spread])) for nest in shared if nest.spread is not None), default=0)
    count, length = (max(1, size_hint(extents)) for extents in (root.extents[:level], root.extents[level:]))
    wanted = traits.compute_units * tuning.unit_items
    group = power_below(min(tuning.team, traits.max_group))
    size, chunk = min(group, power_below(max(1, terms, length if level < rank else 1) // tuning.team_elements)), 0
    if not along:
        lanes = min(tuning.team_lanes, group, power_above(count))
        size = min(size, group // lanes, power_above(-(-wanted // count)))
    if size == 1 and not forced:
        return None
    if count == 1 and level == rank:
        size = group  # a single group has as many items as others have, so that it can be joined with them
    if along and size <= tuning.team_lanes // tuning.team_elements:  # single elements of such short rows use 1/4 of a cache line or less
        for nest in shared:
            nest.pack = _pack(nest, root)
    if level < rank:
        cuts = max(1, min(wanted // (count * size), length // max(terms, size * tuning.team_elements)))
        chunk = -(-length // cuts) if cuts > 1 else 0
    together = "divergent_loops" in traits.quirks
    return Team(size, group // size, along, level, chunk, together=together)


def _pack(nest, root):
    """Elements of a row that an item of a team loads at once: those of an aligned vector, 1 if alignment is not known."""
    if nest.spread is None or nest.spread < len(nest.groups) - 1 or root.masked or not nest.vectorisable or nest.strided:
        return 1
    inner, count = nest.groups[-1], packed.widest(root.places)
    fits = not any(i in nest.chunks for i in inner) and packed.multiple(nest.length(inner), count)
    return count if fits and all(packed.aligned(place, nest, inner, count) for place in root.places) else 1


def write(gen, nest, team, evaluate):
    """(grid, group) of loops over teams around `evaluate`."""
    cut = next((k for k, g in enumerate(nest.groups) if g[0] >= team.level), len(nest.groups))
    rows, inner = nest.groups[:cut], nest.groups[cut:]
    count, length = (product(nest.extents[i] for g in groups for i in g) for groups in (rows, inner))
    t = gen.ctype
    gen.emit(f"const int own = {gen.args.place('local', 0)};")
    whole = team.teams == 1
    if whole:
        gen.emit("const int part = own;")
    elif team.along:
        gen.emit(f"const int part = own % {team.count};")
    else:
        gen.emit(f"const int part = own / {team.teams};")
    place = "" if whole else f" + own / {team.count}" if team.along else f" + own % {team.teams}"
    team.block, outside, variables = gen.block, [], []
    if rows:
        scale = "" if whole else f" * {team.teams}"
        gen.emit(f"const {t} row = ({t}){gen.args.place('group', 0)}{scale}{place};")
        gen.emit(f"const {t} item = min(row, ({t}){gen.int(count)} - 1);")
        variables = unflatten(gen, nest, rows, "item")
        if not whole:
            outside.append(f"row >= {gen.int(count)}")
            team.first += f" && row < {gen.int(count)}"
    grid, group, limits = [ceil_div(count, team.teams) * team.size], [team.size], None
    if team.chunk:
        size = gen.int(team.chunk)
        gen.emit(f"const {t} begin = ({t}){gen.args.place('group', 1)} * {size};")
        gen.emit(f"const {t} end = min(begin + {size}, ({t}){gen.int(length)});")
        limits = ("begin", "end")
        team.first += f" && {gen.args.place('group', 1)} == 0"
        grid.append(ceil_div(length, team.chunk))
        group.append(1)
    team.end = len(team.block.lines)
    if inner:
        flat = [i for g in inner for i in g]
        own = gen.open_loop(nest, flat, gen.block, 0, limits, team)
        evaluate(variables + (own if len(inner) == 1 else unflatten(gen, nest, inner, own[-1].name)))
        gen.close_loop()
    else:
        outside.append("part > 0")
        evaluate(variables)
    if outside:
        team.block.lines.insert(team.end, gen.args.leave(" || ".join(outside)))
    return tuple(grid), tuple(group)
