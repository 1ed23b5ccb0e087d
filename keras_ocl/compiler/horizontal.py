"""Horizontal fusion: kernels that do not depend on one another become one, in which each group does a group's work of one of them.

A launch takes a GPU several microseconds, in which most kernels of a training step leave it idle: the updates of variables, the sums of
what was summed in parts. What waits for nothing that comes later moves behind it, to the next kernel that it can join (Appleyard, Kocisky
and Blunsom, "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, do it by hand; NVIDIA's Apex calls it multi-tensor apply).

A group chooses by its number, as a whole, so bodies may have barriers. Equal bodies are written, and compiled, once: the group chooses
their arguments. Kernels only ever move back, so nothing is overwritten earlier than it was; and what came before the first that overwrites
a state still does.
"""

import re

from keras_ocl.compiler import joining
from keras_ocl.compiler.provenance import JoinedProvenance
from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels.launch import SIZES
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec

_SOURCE = 1 << 15  # characters of a joined kernel's bodies: registers are those of the one that takes the most
ARGUMENTS = 64  # of a joined kernel: where pointers take two of a hundred scalar registers each, more of them are spilled
_LEAVES = re.compile(r"\breturn\b")
_GROUPED = re.compile(r"get_(local_id|local_size|group_id)\b|\bbarrier\b")


def side_by_side(launches, traits, resolve):
    """`launches` in an order and with the joins that serve the device, if its schedule asks for any.

    Args:
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
    """
    joined = schedule_of(traits).joined
    if not joined:
        return launches
    found, segment = [], []
    for launch in [*launches, None]:
        if isinstance(launch, KernelSpec):
            segment.append(launch)
        else:  # what is behind a loop or a host operation stays there
            found += [_joined(slot, traits) for slot in _slots(segment, traits, joined, resolve)] + [launch]
            segment = []
    return found[:-1]


class _Part:
    """A kernel, with the resolved Buffers that it reads and writes, and how it may be joined.

    Attributes:
        joins: whether it may. flat: whether its items may be those of any groups. group: its group otherwise. source: characters.
    """

    def __init__(self, spec, items, resolve):
        self.spec, text = spec, spec.text()
        self.reads = {resolve(a.value) for a in spec.args if a.kind == "in"}
        self.writes = {resolve(a.value) for a in spec.args if a.kind == "out"}
        self.source = len(text)
        self.joins = (
            spec.group is not None
            and not (spec.scalar or spec.attributes or spec.functions or SIZES.search(text))
            and not any(isinstance(n, Dim) for n in [*spec.group, *(a.value for a in spec.args if a.kind == "local")])
            and 0 < hint(product(spec.grid)) <= items
            and self.source <= _SOURCE
        )
        self.group = (*(spec.group or ()), 1, 1, 1)[:3]
        # PoCL 3.1 runs on behind a return of some items in a branch with barriers, where groups have several dimensions.
        self.joins = self.joins and (all(map(is_one, self.group[1:])) or not _LEAVES.search(text))
        line = all(map(is_one, (*self.group[1:], *spec.grid[1:])))
        self.flat = line and not _GROUPED.search(text) and all(a.kind != "local" for a in spec.args)


class _Slot:
    """Parts that become one launch, or one alone. Its number counts from the last of a segment's to the first."""

    def __init__(self, number, part):
        self.number, self.parts = number, [part]
        self.group = None if part.flat else part.group  # None: of parts that go with any
        self.arguments, self.bodies = joining.arguments([part.spec]), {part.spec.body: part.source}

    def takes(self, part):
        """Whether `part` may join, as far as the kernel goes."""
        if not self.parts[0].joins:
            return False
        if part.flat:
            fits = self.group is None or is_one(self.group[1] * self.group[2])
        else:
            fits = self.group == part.group or self.group is None and is_one(part.group[1] * part.group[2])
        source = part.source if part.spec.body not in self.bodies else 0
        if not fits or sum(self.bodies.values()) + source > _SOURCE:
            return False
        # Where a number of groups depends on a Dim it is one more, and so are the extents and sums that are made of it.
        parts = [*self.parts, part]
        more = sum(4 for p in parts if isinstance(product(p.spec.grid), Dim))
        return len(self.arguments | joining.arguments([part.spec])) + more <= ARGUMENTS

    def add(self, part):
        self.parts.append(part)
        self.group = self.group if part.flat else part.group
        self.arguments |= joining.arguments([part.spec])
        self.bodies[part.spec.body] = part.source


def _slots(segment, traits, joined, resolve):
    """The Slots of kernels, in order."""
    parts = [_Part(spec, joined * traits.compute_units, resolve) for spec in segment]
    before = _dependencies(parts)
    overwriting = next((k for k, part in enumerate(parts) if part.spec.overwrites), len(parts))
    slots, bounds, first = [], [-1] * len(parts), -1  # bounds: of each part the number of the first slot that depends on it
    for k in reversed(range(len(parts))):
        part = parts[k]
        bound = bounds[k] if k >= overwriting else max(bounds[k], first)
        slot = _choose(slots, bound, part) if part.joins else None
        if slot is None:
            slot = _Slot(len(slots), part)
            slots.append(slot)
        else:
            slot.add(part)
        if part.spec.overwrites:
            first = max(first, slot.number)
        for other in before[k]:
            bounds[other] = max(bounds[other], slot.number)
    return slots[::-1]


def _choose(slots, bound, part):
    """Of the slots before the one of number `bound` one that takes the part; None if none does.

    The last of them for elements, so that few slots take many: nothing large waits for them. The next for all others, whose operands do.
    """
    order = slots[bound + 1 :]
    return next((slot for slot in (order if part.flat else reversed(order)) if slot.takes(part)), None)


def _dependencies(parts):
    """For each part the positions of those that it has to come behind, which write what it reads or writes, or read what it writes."""
    writer, readers, found = {}, {}, []
    for k, part in enumerate(parts):
        mine = {writer[b] for b in part.reads | part.writes if b in writer}
        for b in part.writes:
            mine.update(readers.pop(b, ()))
            writer[b] = k
        for b in part.reads - part.writes:
            readers.setdefault(b, []).append(k)
        found.append(mine - {k})
    return found


def _joined(slot, traits):
    """The KernelSpec of a slot."""
    specs = [part.spec for part in reversed(slot.parts)]
    if len(specs) == 1:
        return specs[0]
    group = slot.group or (max(part.group[0] for part in slot.parts), 1, 1)
    args, local, functions, runs = Args(), _Local(specs), {}, {}
    for part in reversed(slot.parts):
        name, text = _function(part)
        functions[name] = text
        runs.setdefault(name, []).append(part)
    local.declare(args)
    text, start = "const int group = get_group_id(0);\n", 0
    for k, (name, parts) in enumerate(runs.items()):
        block, start = _run(args, local, name, parts, start, group)
        text += f"{'else ' if k else ''}{f'if (group < {args.int(start)}) ' if k < len(runs) - 1 else ''}{{\n{block}}}\n"
    return KernelSpec(
        f"{specs[0].name} and {len(specs) - 1} more",
        args.args,
        text,
        (start * group[0], *group[1:]),
        group,
        helpers=frozenset().union(*(spec.helpers for spec in specs)),
        title=f"{len(specs)} kernels, side by side",
        provenance=JoinedProvenance(specs),
        overwrites=any(spec.overwrites for spec in specs),
        functions=tuple(functions.values()),
    )


def _function(part):
    """(name, text) of the function that does the work of one of the part's work-items."""
    if part.flat:
        return joining.of_an_item(part.spec)

    def place(found):
        kind, k = found[1], int(found[2])
        return f"group_{k}" if kind == "group" else f"(group_{k} * {part.group[k]} + get_local_id({k}))"

    return joining.function(part.spec, [f"const size_t group_{k}" for k in range(3)], place)


class _Local:
    """The arrays in local memory of a joined kernel, which its parts share: for each C type as many, and as long, as one part needs."""

    def __init__(self, specs):
        self._sizes, self._names = {}, {}
        for spec in specs:
            for key, a in self._arrays(spec):
                self._sizes[key] = max(a.value, self._sizes.get(key, 0))

    @staticmethod
    def _arrays(spec):
        """Pairs of ((C type, number of the array among the part's), Arg)."""
        counts = {}
        for a in spec.args:
            if a.kind == "local":
                counts[a.dtype] = counts.get(a.dtype, 0) + 1
                yield (a.dtype, counts[a.dtype]), a

    def declare(self, args):
        self._names = {key: args.local(key[0], size) for key, size in self._sizes.items()}

    def given(self, spec):
        """dict from the id of an Arg of local memory to C text."""
        return {id(a): self._names[key] for key, a in self._arrays(spec)}


def _run(args, local, name, parts, start, group):
    """(text, end) of the groups from `start` to `end`, which call one function for all `parts`."""
    size, flat, rows, starts = product(group), parts[0].flat, [], []
    kinds = [a.ctype for a in parts[0].spec.args]
    guarded = flat and any(part.group[0] != size for part in parts)
    for part in parts:
        spec, arrays = part.spec, local.given(part.spec)
        row = [arrays.get(id(a)) or joining.given(args, a) for a in spec.args]
        counts = [ceil_div(n, side) for n, side in zip((*spec.grid, 1, 1)[:3], (size, 1, 1) if flat else group, strict=True)]
        if flat:
            row += [args.int(spec.grid[0], "long")] if guarded else []
        else:
            row += [args.int(n) for n in counts[:2]]
        rows.append(row)
        starts.append(args.int(start))
        start = start + product(counts)
    kinds += (["const long"] if guarded else []) if flat else ["const int"] * 2
    text, chosen = _choice([*kinds, "const int"], [[*row, first] for row, first in zip(rows, starts, strict=True)], starts)
    *chosen, first = chosen
    passed = chosen[: len(parts[0].spec.args)]
    text += f"const int own = {'group' if first == '0' else f'group - {first}'};\n"
    if flat:
        text += f"const size_t item = (size_t)own * {size} + get_local_id(0);\n"
        call = f"{name}({', '.join((*passed, 'item', '0', '0'))});\n"
        return text + (f"if (item < {chosen[-1]}) {call}" if guarded else call), start
    across, down = chosen[-2:]
    if all(is_one(n) for part in parts for n in part.spec.grid[1:]):
        places = ("own", "0", "0")
    else:
        places = (f"own % {across}", f"own / {across} % {down}", f"own / {across} / {down}")
    return text + f"{name}({', '.join((*passed, *places))});\n", start


def _choice(kinds, rows, starts):
    """Statements that choose a row of arguments of these C types by the group's number, and the text of each of the chosen."""
    columns = [set(column) for column in zip(*rows, strict=True)]
    text, chosen, vary = "", [], []
    for k, (kind, column) in enumerate(zip(kinds, columns, strict=True)):
        if len(column) == 1:
            chosen.append(rows[0][k])
            continue
        chosen.append(f"chosen_{k}")
        vary.append(k)
        text += f"{kind.removeprefix('const ')} chosen_{k} = {rows[0][k]};\n"
    for row, start in zip(rows[1:], starts[1:], strict=True):
        if vary:
            text += f"if (group >= {start}) {{ {' '.join(f'chosen_{k} = {row[k]};' for k in vary)} }}\n"
    return text, chosen
