"""Horizontal fusion: kernels that do not depend on one another become one, in which each work-group does the work of a group of one kernel.

A launch takes a GPU several microseconds, and most kernels of a training step are too small to fill it for so long: the updates of
variables, the final sums of split reductions. A kernel moves to a later place, where it joins one that does not depend on it (Appleyard,
Kocisky and Blunsom, "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, do it by hand; NVIDIA's Apex calls it multi-tensor
apply). One that depends on no other moves to the front first, so that it has all places to choose from.

Kernels first join later ones, from the last to the first. A launch is then given up where all of its kernels find places in others. There
a kernel that fills the device and moves much memory only joins its own code: beside other code, with the registers and the local memory of
both, it may lose more than a launch takes.

The branch is taken per work-group, by its id, so barriers inside a body stay legal. Equal bodies are written, and compiled, once: the group
selects their arguments. Every kernel that ran before the first update of a state still does.
"""

import itertools

from keras_ocl.compiler.launch import joining
from keras_ocl.compiler.launch.provenance import JoinedProvenance
from keras_ocl.core.dim import Dim, ceil_div, product, size_hint
from keras_ocl.core.dtypes import itemsize
from keras_ocl.core.index import is_one
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec

# Bytes of operands that stay in memory for longer where a kernel moves: more are worth a launch. Where many kernels move, and with a number
# a segment's peak of live bytes grows by more than a twentieth and the first number, the next one holds.
_HELD = (1 << 24, 1 << 21, 1 << 18, 0)
_GROWTH = 1.05
_LIGHT = 1 << 17  # the same of a kernel that costs no memory to speak of
_DETOURS = 2  # most times that parts next to one that has no place move first
_FLAT = 4  # so many times as many work-items of an elementwise kernel, which are short, take a launch's time


def side_by_side(launches, traits, resolve):
    """`launches` reordered and joined (horizontal fusion), if the device's schedule asks for it.

    Args:
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
    """
    if not schedule_of(traits).joined:
        return launches
    found, segment = [], []
    for launch in [*launches, None]:
        if isinstance(launch, KernelSpec):
            segment.append(launch)
        else:  # nothing moves across a loop or a host operation
            found += [_joined(slot, traits) for slot in _slots(segment, traits, resolve)] + [launch]
            segment = []
    return found[:-1]


class _Part:
    """A kernel, with the resolved Buffers that it reads and writes, and how it may be joined.

    Attributes:
        joins: whether it may be joined, if the bytes of its operands, `held`, may stay in memory for longer. flat: whether it uses global
        ids alone, so that groups of any size may run it. group: its work-group otherwise, of `size` items. line: whether they lie along one
        axis. light: whether it has so few operands and results that they may stay in memory for longer. text: its head and body.
        source: length of the body in characters.

    Args:
        items: most work-items of a kernel that may be joined.
        barriers: whether a kernel with barriers may be joined.
    """

    def __init__(self, spec, items, resolve, barriers):
        self.spec, self.text = spec, spec.text()
        self.reads = {resolve(a.value) for a in spec.args if a.kind == "in"}
        self.writes = {resolve(a.value) for a in spec.args if a.kind == "out"}
        self.light = _bytes(self.reads | self.writes) <= _LIGHT
        self.source = len(self.text) - len(spec.head())
        self.group = (*(spec.group or ()), 1, 1, 1)[:3]
        self.size = product(self.group)
        self.line = all(map(is_one, self.group[1:]))
        self.flat = spec.group is not None and joining.is_flat(spec)
        self.joins = (
            spec.group is not None
            and joining.possible(spec)
            and not any(isinstance(n, Dim) for n in [*spec.group, *(a.value for a in spec.args if a.kind == "local")])
            and 0 < size_hint(spec.grid) <= items * (_FLAT if self.flat else 1)
            and self.source <= joining.SOURCE
            and (barriers or not spec.barriers)
        )
        self.held = _bytes({a.value for a in spec.args if a.kind == "in"})


class _Slot:
    """Parts that become one launch, the last of them first. `number` counts a segment's slots from the last launch to the first."""

    def __init__(self, parts, number=0):
        self.number, self.parts = number, []
        self.size = None  # items of its groups; None while all parts are flat
        self.line, self.attributes = True, ""  # attributes: those of all parts that have any
        self.arguments, self.bodies = set(), {}
        for part in parts:
            self.add(part)

    def takes(self, part):
        """Whether `part` may join: its group, the length of the source and the number of arguments fit."""
        if not all(p.joins for p in (*self.parts[:1], part)):
            return False
        fits = (part.flat or self.size in (None, part.size)) and part.spec.attributes in ("", self.attributes or part.spec.attributes)
        source = part.source if part.text not in self.bodies else 0
        if not fits or sum(self.bodies.values()) + source > joining.SOURCE:
            return False
        # A number of groups that depends on a Dim is an argument too, and so are the extents and sums computed from it.
        parts = [*self.parts, part]
        more = sum(4 for p in parts if isinstance(product(p.spec.grid), Dim))
        return len(self.arguments | joining.arguments([part.spec])) + more <= joining.REGISTERS

    def add(self, part):
        self.parts.append(part)
        self.line = self.line and part.line
        self.attributes = self.attributes or part.spec.attributes
        self.size = self.size if part.flat else part.size
        self.arguments |= joining.arguments([part.spec])
        self.bodies[part.text] = part.source


def _slots(segment, traits, resolve):
    """The Slots of a segment's kernels, in the order in which they run."""
    barriers = "conditions_beside_barriers" not in traits.quirks
    schedule, units = schedule_of(traits), traits.compute_units
    parts = [_Part(spec, schedule.joined * units, resolve, barriers) for spec in segment]
    most = _GROWTH * _peak([[part] for part in parts]) + _HELD[0]
    slots: list[_Slot] = []
    for held in _HELD:
        slots = _arranged(parts, held)
        if _peak([slot.parts for slot in slots]) <= most:
            break
    heavy = {p for p in parts if size_hint(p.spec.grid) > schedule.filled * units and _bytes(p.reads | p.writes) > schedule.moved * units}
    return _Places(slots, parts, heavy).fewer(most)


def _peak(places):
    """The most bytes alive at once of what is first written among the parts at each of some places, until it is last read or written."""
    first, last = {}, {}
    for place, parts in enumerate(places):
        for part in parts:
            for buffer in part.reads - first.keys() - part.writes:
                first[buffer] = -1  # it was there before
            for buffer in part.reads | part.writes:
                first.setdefault(buffer, place)
                last[buffer] = place
    changes = [0] * (len(places) + 1)
    for buffer, place in first.items():
        if place >= 0:
            changes[place] += _bytes([buffer])
            changes[last[buffer] + 1] -= _bytes([buffer])
    return max(itertools.accumulate(changes))


def _arranged(parts, held):
    """The Slots of the parts, of which those with more than `held` bytes of operands do not move."""
    parts = _independent_first(parts, held)
    before = _dependencies(parts)
    overwriting = next((k for k, part in enumerate(parts) if part.spec.overwrites), len(parts))
    slots, bounds, first = [], [-1] * len(parts), -1  # bounds: for each part, the number of the first slot that depends on it
    for k in reversed(range(len(parts))):
        part = parts[k]
        bound = bounds[k] if k >= overwriting else max(bounds[k], first)
        slot = _choose(slots, bound, part) if part.joins and part.held <= held else None
        if slot is None:
            slot = _Slot([part], len(slots))
            slots.append(slot)
        else:
            slot.add(part)
        if part.spec.overwrites:
            first = max(first, slot.number)
        for other in before[k]:
            bounds[other] = max(bounds[other], slot.number)
    return slots[::-1]


def _independent_first(parts, held):
    """The parts, with those in front that depend on no others, as casts of weights do not: there all of them can join.

    They are flat, and their results, which stay in memory until they are read, are `held` bytes at most, all together. Light kernels that
    depend on none but those follow them, as those that sort the indices of an embedding.
    """
    before, written, front = _dependencies(parts), 0, []
    for k, part in enumerate(parts):
        if part.joins and part.held <= held and not part.spec.overwrites and before[k].issubset(front):
            if not part.light and (before[k] or not part.flat):
                continue
            written += _bytes(part.writes)
            if written > held:
                break
            front.append(k)
    return [parts[k] for k in (*front, *sorted({*range(len(parts))} - {*front}))]


def _bytes(buffers):
    """Bytes of all Buffers of a collection, at the hints of their extents."""
    return sum(size_hint((b.elements,)) * itemsize(b.dtype) for b in buffers)


def _choose(slots, bound, part):
    """Of the slots that run before slot number `bound`, one that takes the part; None if none does.

    For a flat or light part the last of them, so that few slots collect many parts: nothing large waits for it. For others the next, since
    their operands stay in memory until they run.
    """
    order = slots[bound + 1 :]
    if part.flat:  # beside other generated code, rather than in the kernel of a product that equal layers share
        order.sort(key=lambda slot: not slot.line)
    return next((slot for slot in (order if part.flat or part.light else reversed(order)) if slot.takes(part)), None)


def _dependencies(parts):
    """For each part, the positions of the parts that must run before it: they write what it reads or writes, or read what it writes."""
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


class _Places:
    """Slots in the order in which they run, and moves of parts among them by which some become empty.

    A part runs after those on which it depends, and before those that depend on it. No state is overwritten before a part that ran before
    all updates.

    Args:
        heavy: set of the parts that join only their own code.
    """

    def __init__(self, slots, parts, heavy):
        self._slots, self._order = slots, {part: k for k, part in enumerate(parts)}
        self._before = {part: [parts[k] for k in others] for part, others in zip(parts, _dependencies(parts), strict=True)}
        self._after = {part: [] for part in parts}
        for part, others in self._before.items():
            for other in others:
                self._after[other].append(part)
        self._updates = [part for part in parts if part.spec.overwrites]
        self._early = set(parts[: self._order[self._updates[0]]] if self._updates else ())
        self._place = {part: n for n, slot in enumerate(slots) for part in slot.parts}
        self._heavy = heavy

    def fewer(self, most):
        """The Slots, without those all of whose parts others take, where at most `most` bytes are then alive at once."""
        own = len(self._slots)
        while own:
            own -= 1
            slots, place = [*self._slots], {**self._place}
            if self._empties(own) and _peak([slot.parts for slot in self._slots]) <= most:
                self._slots = [slot for slot in self._slots if slot.parts]
                self._place = {part: n for n, slot in enumerate(self._slots) for part in slot.parts}
                own = min(own, len(self._slots))
            else:
                self._slots, self._place = slots, place
        return self._slots

    def _empties(self, own):
        """Moves all parts of the slot at place `own` to others; returns whether it could."""
        parts = self._slots[own].parts
        if not all(part.joins for part in parts):
            return False
        windows = {part: self._window(part) for part in parts}
        return all(self._moves(part, own, _DETOURS) for part in sorted(parts, key=lambda part: windows[part][1] - windows[part][0]))

    def _window(self, part):
        """The places (begin, end) at which a part may run."""
        begin, end = [self._place[other] + 1 for other in self._before[part]], [self._place[other] for other in self._after[part]]
        if part.spec.overwrites:
            begin.append(1 + max(map(self._place.__getitem__, self._early), default=-1))
        if part in self._early:
            end.append(min(map(self._place.__getitem__, self._updates)))
        return max(begin, default=0), min(end, default=len(self._slots))

    def _moves(self, part, emptied, detours):
        """Moves a part to another slot than that at place `emptied`, and first, if need be, those next to it; returns whether it could."""
        (begin, end), at = self._window(part), self._place[part]
        order = sorted(set(range(begin, end)) - {at, emptied}, key=lambda n: (part.flat and not self._slots[n].line, abs(n - at)))
        place = next((n for n in order if self._fits(part, self._slots[n])), None)
        if place is not None:
            self._put(part, place)
            return True
        later = [p for p in self._after[part] if self._place[p] == end]
        earlier = [p for p in self._before[part] if self._place[p] == begin - 1]
        for near in (later, earlier) if detours else ():
            if near and all(p.joins and self._moves(p, emptied, 0) for p in near) and self._moves(part, emptied, detours - 1):
                return True
        return False

    def _fits(self, part, slot):
        """Whether the slot takes the part, a heavy one beside its own code."""
        return slot.takes(part) and (part not in self._heavy or part.text in slot.bodies)

    def _put(self, part, place):
        own = self._place[part]
        self._slots[own] = _Slot([p for p in self._slots[own].parts if p is not part])
        self._slots[place] = _Slot(sorted([*self._slots[place].parts, part], key=self._order.__getitem__, reverse=True))
        self._place[part] = place


def _joined(slot, traits):
    """The KernelSpec of a slot."""
    specs = [part.spec for part in reversed(slot.parts)]
    if len(specs) == 1:
        return specs[0]
    size = slot.size or max(part.size for part in slot.parts)
    args, local, functions, runs = Args(), joining.Local(specs), {}, {}
    for part in reversed(slot.parts):
        name, text = _function(part)
        functions[name] = text
        runs.setdefault(name, []).append(part)
    local.declare(args)
    text, start = f"const int group = {args.place('group', 0)};\n", 0
    for k, (name, parts) in enumerate(runs.items()):
        block, start = _run(args, local, name, parts, start, size)
        text += f"{'else ' if k else ''}{f'if (group < {args.int(start)}) ' if k < len(runs) - 1 else ''}{{\n{block}}}\n"
    return args.kernel(
        f"{specs[0].name} and {len(specs) - 1} more",
        text,
        (start * size,),
        (size,),
        helpers=frozenset().union(*(spec.helpers for spec in specs)),
        title=f"{len(specs)} kernels, side by side",
        attributes=slot.attributes,
        provenance=JoinedProvenance(specs),
        overwrites=any(spec.overwrites for spec in specs),
        functions=tuple(dict.fromkeys([text for spec in specs for text in spec.functions] + [*functions.values()])),
    )


def _function(part):
    """(name, text) of the function that does the work of one of the part's work-items."""
    return joining.of_an_item(part.spec) if part.flat else joining.of_a_group(part.spec)


def _run(args, local, name, parts, start, size):
    """(C text, end): the groups from `start` to `end` call the function `name`, with arguments of one of `parts` each."""
    flat, rows, starts = parts[0].flat, [], []
    kinds = [a.ctype for a in parts[0].spec.args]
    guarded = flat and any(part.size != size for part in parts)
    for part in parts:
        spec, arrays = part.spec, local.given(part.spec)
        row = [arrays.get(a.name) or joining.given(args, a) for a in spec.args]
        counts = [ceil_div(n, side) for n, side in zip((*spec.grid, 1, 1)[:3], (size, 1, 1) if flat else part.group, strict=True)]
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
        text += f"const size_t item = (size_t)own * {size} + {args.place('local', 0)};\n"
        call = f"{name}({', '.join((*passed, 'item', '0', '0'))});\n"
        return text + (f"if (item < {chosen[-1]}) {call}" if guarded else call), start
    across, down = chosen[-2:]
    if all(is_one(n) for part in parts for n in part.spec.grid[1:]):
        places = ("own", "0", "0")
    else:
        places = (f"own % {across}", f"own / {across} % {down}", f"own / {across} / {down}")
    return text + f"{name}({', '.join((*passed, *places))});\n", start


def _choice(kinds, rows, starts):
    """(C statements that select a row of arguments, of C types `kinds`, by the group's id; the C text of each selected argument)."""
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
