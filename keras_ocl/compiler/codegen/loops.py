"""Loops: nests with merged dimensions, vectorised loops, and reductions."""

import functools
from typing import NamedTuple

from keras_ocl.compiler.codegen.accumulators import ArgFold, Fold, Folds
from keras_ocl.compiler.codegen.indices import Indices
from keras_ocl.compiler.codegen.nests import Block
from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.core.index import Affine, is_one
from keras_ocl.kernels import summation


class Part(NamedTuple):
    """A part of a loop, from `start` to `stop` (C text), in steps of `lanes` elements; `partial`: valid lanes of a last vector, else 0."""

    lanes: int
    partial: int
    start: str
    stop: str


class _Begins(Exception):
    """Raised where a reduction would begin: its Fold and the function that computes its elements."""

    def __init__(self, fold, body):
        super().__init__()
        self.fold, self.body = fold, body


class Loops(Indices):
    """Opens and closes loops.

    Attributes:
        partial: number of valid lanes, where the rest of a loop is less than a vector; else 0.
        bounds: dict from a reduction's node to (dimension, start, stop): C text that limits that dimension's loop.
        team: the kernels.pointwise.team.Team of items that reduce together, if any. tile: the tiles.Tile that a group computes, if any.
    """

    def __init__(self, args, materialised, width, nests, own=()):
        super().__init__(args, materialised, width, nests, own)
        self.partial = 0
        self.bounds = {}
        self.team = self.tile = None
        self._parts = {}  # identity of a part of an axis -> its Registers (first, beyond the last) and the index that the identity names
        self._asked = None  # a reduction that shall not begin, but say what it would do
        self._fused = {}  # identity of a reduction at an index -> its result, which another one's loop has computed

    def open_loop(self, nest, group, parent, vector=0, bounds=None, team=None):
        """Open a for loop over a merged group of dimensions; returns its Vars. `vector`: lanes per step, or 0. `team`: shares the loop."""
        extent = product(nest.extents[i] for i in group)
        name = self.name("g")
        start, stop = bounds or ("0", self.int(extent))
        inside, own = f"{name} + {vector} <= {stop}" if vector > 1 else f"{name} < {stop}", f"part * {vector}" if vector > 1 else "part"
        if team is not None:
            by = f"{name} += {max(1, vector) * team.count}"
            block = Block(parent, f"for ({self.ctype} {name} = {start} + {own}; {inside}; {by})")
            if team.together:
                block.together = (
                    f"for ({self.ctype} {name}t = {start}; {name}t < {stop}; {by.replace(name, name + 't')})",
                    (f"const {self.ctype} {name} = {name}t + {own};"),
                    f"if ({inside})",
                )
        else:
            by = f"{name} += {vector}" if vector > 1 else f"++{name}"
            block = Block(parent, f"for ({self.ctype} {name} = {start}; {inside}; {by})")
        self.block = block
        variables = self.group_vars(nest, group, name, block)
        block.var = variables[-1]
        return variables

    def open(self, header):
        """Open a Block under a C `header`, without a variable of a nest, until close_loop(); returns it."""
        self.block = Block(self.block, header)
        return self.block

    def close_loop(self):
        """Close the innermost open loop: its Block becomes a statement of the enclosing one."""
        block = self.block
        self.block = block.parent
        if block.together and any(isinstance(line, Block) for line in block.lines):
            loop, place, block.header = block.together
            around = Block(block.parent, loop)
            around.lines = [place, block]
            block = around
        self.block.lines.append(block)

    def reduce(self, node, kind, dtype, extents, body):
        """Reduction over `extents` of body(indices), in registers of `dtype`. kind: sum, prod, max, min, and, or."""
        fold = Fold(self, kind, dtype)
        if node is self._asked:
            raise _Begins(fold, body)
        found = self._fused.pop(self._here(node), None)
        return self._loop_nest(node, extents, body, fold, self._others(node, fold)) if found is None else found

    def _here(self, node):
        return node, tuple(i.key for i in self._index), self.vector

    def _others(self, node, fold):
        """Loop fusion: [(reduction, its Fold, its body)] of other results of the kernel that run through the same part as `node`."""
        found = []
        for other in self.own if node.primitive.stored and node in self.own and self._asked is None else ():
            if not self._runs_along(other, node):
                continue
            self._asked = other
            try:
                other.primitive.pointwise(self, other, self._index)
            except _Begins as begins:
                if begins.fold.bounded == fold.bounded:
                    found.append((other, begins.fold, begins.body))
            finally:
                self._asked = None
        return found

    def _runs_along(self, other, node):
        """Whether `other` is a reduction with the same loops as `node`, and neither needs the other's result."""
        if other is node or not other.primitive.stored or other.params != node.params:
            return False
        loops = [(n.extents, n.groups, n.vectorisable, n.spread, n.pack) for n in (self.nests[other, True], self.nests[node, True])]
        return loops[0] == loops[1] and not self._needs(other, node) and not self._needs(node, other)

    def _needs(self, node, other):
        seen, waiting = set(), [node]
        while waiting:
            n = waiting.pop()
            if n is other:
                return True
            if n not in seen and not self.in_memory(n):
                seen.add(n)
                waiting += n.inputs
        return False

    def reduce_arg(self, node, kind, dtype, extents, body):
        """(extreme, row-major int32 position of its first occurrence); NaN wins."""
        return self._loop_nest(node, extents, body, ArgFold(self, kind, dtype, extents))

    def reduce_part(self, node, dimension, part, chunk, extent):
        """From here on, the reduction `node` runs through part number `part` (an index) of a dimension of `extent`: `chunk` elements."""
        i, block = self.ctype, [v.block for v in part.terms]
        identity = part.key, self.int(chunk), self.int(extent)
        start, stop, _ = self._parts.get(identity, (None, None, None))
        if start is None or not self._visible(stop.block):
            start = self.define("int32", 1, f"({self.text(part)}) * {self.int(chunk)}", block, i)
            stop = self.define("int32", 1, f"min({start.text} + {self.int(chunk)}, ({i}){self.int(extent)})", [start.block], i)
            self._parts[identity] = start, stop, part
        self.bounds[node] = dimension, start.text, stop.text

    def _loop_nest(self, node, extents, body, fold, others=()):
        """The result of a reduction; `others`: reductions that run in the same loop, whose results are noted."""
        real = [i for i, n in enumerate(extents) if not is_one(n)]
        nest = self.nests[node, fold.vectorises]

        def full(indices):
            every = [Affine()] * len(extents)
            for i, a in zip(real, indices, strict=True):
                every[i] = a
            return tuple(every)

        parent = self._deepest([v.block for i in self._index for v in i.terms])
        lanes = any(self.lanes(i) for i in self._index)
        saved = self.block, self.vector, self.partial
        self.block = parent
        if not lanes:
            self.vector, self.partial = None, 0
        team = self.team if self.team is not None and parent is self.team.block and fold.vectorises and nest.spread is not None else None
        folds = [fold, *(other for _, other, _ in others)]
        if others:
            bodies, fold = [body, *(other for _, _, other in others)], Folds(folds)
            body = lambda indices: [each(indices) for each in bodies]  # noqa: E731
        fold.begin(self.width if lanes else 1)
        bounds = self.bounds.get(node)
        if not real:
            fold.step(body(full(())), full(()))
        else:
            if bounds is not None:
                bounds = (real.index(bounds[0]), *bounds[1:])
            self._loops(nest, body, fold, lanes, full, bounds, team)
        result, *more = [f.finish() if team is None else team.fold(self, f.finish(), f.ctype, f.combined) for f in folds]
        self.block, self.vector, self.partial = saved
        self._fused.update((self._here(other), found) for (other, _, _), found in zip(others, more, strict=True))
        return result

    def _loops(self, nest, body, fold, lanes, full, bounds, team):
        parent, bound = self.block, {}
        *outer, inner = nest.groups

        def step(group, variables):
            bound.update(zip(group, variables, strict=True))
            indices = full([Affine.of(bound[i]) for i in range(len(nest.extents))])
            fold.step(body(indices), indices)

        sharing = [team if k == nest.spread else None for k in range(len(nest.groups))]
        extent = product(nest.extents[i] for i in inner)
        vectorised = not lanes and nest.vectorisable and fold.vectorises
        packs = vectorised and sharing[-1] is not None and nest.pack > 1
        width = nest.pack if packs else self.lane_width(extent) if vectorised else 1
        cuts = [((), False)] * len(nest.groups)
        if fold.bounded:
            shares = [1 if shared is None else shared.count for shared in sharing]
            shares[-1] *= width
            cuts = summation.blocks([ceil_div(hint(nest.length(g)), n) for g, n in zip(nest.groups, shares, strict=True)])
        opened = []
        for g, shared, (sizes, fresh) in zip(outer, sharing, cuts, strict=False):
            limits = self._limits(nest, g, bounds) or ("0", self.int(product(nest.extents[i] for i in g)))
            opened += [True] * len(sizes) + [fresh]
            limits = self._open_blocks(fold, limits, sizes, 1 if shared is None else shared.count)
            bound.update(zip(g, self.open_loop(nest, g, self.block, 0, limits, shared), strict=True))
            if fresh:
                fold.begin_block()
        whole = self.whole
        self.whole = self.whole or packs
        for part in self.parts(extent, width, self._limits(nest, inner, bounds), least=width):
            sizes = cuts[-1][0] if part.lanes == width and not part.partial else ()
            limits = self._open_blocks(fold, (part.start, part.stop), sizes, width if sharing[-1] is None else width * sharing[-1].count)
            self.in_part(nest, inner, part._replace(start=limits[0], stop=limits[1]), functools.partial(step, inner), sharing[-1])
            self._close_blocks(fold, [True] * len(sizes))
        self.whole = whole
        self._close_blocks(fold, opened)
        assert self.block is parent

    def _open_blocks(self, fold, limits, sizes, step):
        """Cut a loop between `limits`, in steps of `step` elements, into nested blocks of `sizes` steps; returns the innermost's limits."""
        start, stop = limits
        for size in sizes:
            name = self.name("b")
            self.open(f"for (long {name} = {start}; {name} < {stop}; {name} += {size * step})")  # the last step may pass 2**31
            fold.begin_block()
            self.emit(f"const {self.ctype} {name}e = min({name} + {size * step}, (long)({stop}));")
            start, stop = name, f"{name}e"
        return start, stop

    def _close_blocks(self, fold, opened):
        """Close loops; `opened`: for each, the outermost first, whether it has accumulators of its own."""
        for own in reversed(opened):
            if own:
                fold.end_block()
            self.close_loop()

    def _limits(self, nest, group, bounds):
        """(start, stop) of a group's loop, in C text, when `bounds` = (dimension, start, stop) restricts its first dimension."""
        if bounds is None or bounds[0] not in group:
            return None
        scale = self.int(product(nest.extents[i] for i in group[1:]))
        return f"{bounds[1]} * {scale}", f"{bounds[2]} * {scale}"

    def lane_width(self, extent):
        """Number of lanes for a loop of `extent`: the device's width, less for short loops."""
        w, n = self.width, hint(extent)
        while w > 1 and w > (2 * n - 1 if self.known(extent) else n):
            w //= 2
        return w if w >= 4 else 1

    def parts(self, extent, width, limits=None, least=4):
        """The Parts of a loop over `extent`, or between `limits`, in vectors of `width` lanes; that for the rest has at least `least`."""
        start, stop = limits or ("0", self.int(extent))
        if width == 1:
            return [Part(1, 0, start, stop)]
        if limits or not self.known(extent):
            return [Part(width, 0, start, stop), Part(1, 0, f"{start} + ({stop} - {start}) / {width} * {width}", stop)]
        rest = extent % width
        whole, found = extent - rest, []
        if whole:
            found.append(Part(width, 0, start, str(whole)))
        if rest:
            lanes = max(least, self.lane_width(rest))
            found.append(Part(lanes, rest % lanes, str(whole), str(whole + lanes)))
        return found

    def in_part(self, nest, group, part, body, team=None):
        """Write a loop over a Part of a merged group of dimensions, shared by a `team` or not; `body(variables)` writes its statements."""
        saved = self.width, self.vector, self.partial
        variables = self.open_loop(nest, group, self.block, part.lanes, (part.start, part.stop), team)
        if part.lanes > 1:
            self.width, self.vector, self.partial = part.lanes, variables[-1], part.partial
        body(variables)
        self.close_loop()
        self.width, self.vector, self.partial = saved
