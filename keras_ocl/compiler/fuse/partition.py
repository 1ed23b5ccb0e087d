"""Partition of the graph into kernels.

A region is a set of nodes that one kernel computes. Nodes are visited from the results back. A node whose consumers all sit in one region
is inlined there unless recomputing it there costs more than storing it (cost.py); cheap views are inlined wherever they are used;
everything else becomes a result of a region. A matrix product or convolution takes the pointwise region that consumes it as
its epilogue, and may compute an operand while loading it, its prologue ("fetch"). Decisions use `hint` sizes (those of the first trace),
so that another batch size partitions the same way.
"""

import functools
import itertools
import math
from dataclasses import dataclass

from keras_ocl.compiler.fuse import cost, epilogue, order, row_results, staging
from keras_ocl.compiler.fuse.axes import ANY, axis_map
from keras_ocl.compiler.fuse.light import PLACED, light, viewed
from keras_ocl.compiler.fuse.placing import Placing
from keras_ocl.compiler.fuse.prologue import fetched, packed, repeated
from keras_ocl.compiler.fuse.regions import Part, Placement, Region
from keras_ocl.compiler.fuse.siblings import merged, same_parts, with_parts
from keras_ocl.compiler.trace.ir import Node
from keras_ocl.core import dtypes
from keras_ocl.core.access import Along, Inner
from keras_ocl.core.dim import hint, product, same, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.schedule import schedule_of

_INLINED = (Kind.VIEW, Kind.SOURCE)  # recomputed wherever they are used, as they cost next to nothing


@dataclass(frozen=True)
class Partition:
    """A graph cut into kernels.

    Attributes:
        regions: the Regions, in an order in which they can run.
        materialised: the set of nodes that are in memory.
        views: dict from a view to the node whose buffer it shares.
        parts: dict from a node that is stored straight into the buffers of concats to (tuple of its Parts there, whether it has a buffer
            of its own as well).
    """

    regions: list
    materialised: set
    views: dict
    parts: dict


def partition(graph, traits, together=None, cuts=frozenset(), whole=frozenset()):
    """The Partition of a graph.

    `together`: for the body of a loop, a set of nodes; as few kernels as possible are made, because each is launched in every step. Results
    over one index space share a kernel, and the kernels of a concat's operands write straight into its buffer, unless the concat is in the
    set. `cuts`: pointwise nodes to store by kernels of their own, to measure what that would cost. `whole`: concats of which other kernels
    store no parts (fuse/placing.py), such as new values of states, which may overwrite the old ones; None: all.
    """
    nodes = graph.live()
    users = {n: [] for n in nodes}
    for n in nodes:
        for i in n.inputs:
            users[i].append(n)
    fuser = _Fuser(graph, traits, users, together, cuts, None if together is not None else whole)
    for node in reversed(nodes):
        if node.kind not in PLACED:
            fuser.place(node)
    at = fuser.at
    return Partition(
        order.in_program_order(merged(fuser.regions, at, fuser.schedule)),
        {n for n, placement in at.items() if placement.in_memory},
        {n: placement.shared for n, placement in at.items() if placement.shared is not None},
        {n: (tuple(placement.parts), fuser.has_own_memory(n)) for n, placement in at.items() if placement.parts},
    )


class _Fuser:
    def __init__(self, graph, traits, users, together, cuts, whole):
        self.traits, self.schedule, self.users, self.together = traits, schedule_of(traits), users, together
        self.limits = self.schedule.fusion
        results = set(graph.outputs)
        self.at = {n: Placement(n in results, n in cuts, n.kind in PLACED) for n in users}
        self.indices, self.border = cost.Places(), graph.border
        self.regions, self._numbers = [], itertools.count()
        rules = (self._is_template, self._may_be_epilogue)
        self.placing = None if whole is None else Placing(self.at, users, graph.border, whole, *rules, self.schedule)
        self.repeated = {}  # operand of templates -> what repeated() finds, where all of them compute it
        self.copies = {}  # operand of a concat that may take the place of its copy there -> the copy

    # ---- placing one node

    def place(self, node):
        """Decide where a node is computed and stored, after all its users: inlined, in a region of its own, or with another's results."""
        at = self.at[node]
        if at.passed:
            return
        if self._joined_only(node):
            at.passed = at.joined = True
            return
        if self._is_template(node) and not at.cut:
            self._template(node)
            return
        if at.parts or at.cut:
            if not self._place_operands(node):
                self._store(node, self._readers(node)[0] if at.parts else ())
            return
        readers, needs_memory = self._readers(node)
        if at.fetchers and not readers and not needs_memory:
            return
        free = node.kind in _INLINED and not needs_memory and readers
        if free and all(node.kind is Kind.SOURCE or self._stays_in_lanes(node, r) and self._worth_lanes(node, r) for r in readers):
            for region in readers:
                self._inline(node, region)
            return
        if node.primitive.stored:
            self._store(node, with_parts(node, readers, self.users, self.at))
            return
        if not needs_memory and len(readers) == 1:
            (region,) = readers
            if len(region.maps) < self.limits.nodes and (self._worth_inlining(node, region) or self._stage(node, region)):
                self._inline(node, region)
                return
        small = all(len(r.maps) < self.limits.nodes for r in readers)
        if not needs_memory and readers and small and self._light(node, readers):
            for region in readers:
                self._inline(node, region)
            return
        if node.primitive.shares_memory is not None and node.primitive.shares_memory(node) and not at.wanted:
            at.shared, at.in_memory = node.inputs[0], True
            return
        if node in self.copies and not needs_memory and self._replace_copy(node):
            readers = self._readers(node)[0]
        if not self._place_operands(node) and not self._assemble(node):
            self._store(node, readers)

    def _place_operands(self, node):
        """Let the kernels of a concat's operands write straight into its buffer, and others copy the rest; returns whether so."""
        at = self.at[node]
        if self.placing is None or node.primitive.joined_axis is None or at.cut or at.parts and self.has_own_memory(node):
            return False
        if (found := self.placing.parts(node, *at.parts)) is None:
            return False
        at.passed = at.joined = at.in_memory = True
        placed, others = found
        for x, part in placed.items():
            self.at[x].parts.append(part)
        for operands, part in others:
            copy = self._part_of(node, operands)
            self.at[copy].parts.append(part)
            self._store(copy, ())
            if self.placing.may_take(operands[0], node):
                self.copies[operands[0]] = copy
        return True

    def _replace_copy(self, node):
        """Let the kernel that stores an operand of a concat do so in the place into which another one would copy it; returns whether so."""
        copy = self.copies.pop(node)
        at = self.at[copy]
        if len(at.producer.outputs) > 1:  # the copy's kernel computes more
            return False
        self.regions.remove(at.producer)
        at.producer.detach()
        at.producer, at.in_memory, at.passed, at.joined = None, False, True, True
        self.at[node].parts, at.parts = at.parts, []
        self.users[node] = [u for u in self.users[node] if u is not copy]
        return True

    def _part_of(self, concat, operands):
        """A new concat of a few adjacent operands of `concat`, which reads them in its place."""
        axis = concat.params[concat.primitive.joined_axis]
        shape = (*concat.shape[:axis], sum(x.shape[axis] for x in operands), *concat.shape[axis + 1 :])
        copy = Node(concat.primitive, operands, concat.params, shape, concat.dtype, origin=concat.origin)
        copy.order, copy.tag = concat.order, concat.tag
        self.at[copy], self.users[copy] = Placement(False, False, False), [concat]
        for x in operands:
            self.users[x] = [*self.users[x], copy]
        return copy

    def _assemble(self, node):
        """In the body of a loop, let kernels write straight into a concat's buffer, if all operands are elementwise; returns whether so."""
        if self.together is None or node.primitive.joined_axis is None:
            return False
        axis, start, found = node.params[node.primitive.joined_axis], 0, {}
        unit = product(node.shape[axis + 1 :])
        for part in node.inputs:
            base = part
            while base.kind is Kind.VIEW and base.primitive.flat and self._joins(base):
                base = base.inputs[0]
            inner = product(part.shape[axis:])
            split = next((q for q in range(len(base.shape)) if same((product(base.shape[q:]),), (inner,))), None)
            if base.kind is not Kind.ELEMENTWISE or split is None or is_one(base.shape[-1]) or base in found:
                return False
            found[base] = Part(node, split, node.shape[axis] * unit, start * unit)
            start = start + part.shape[axis]
        if node in self.together or len({len(b.shape) for b in found}) > 1:
            return False
        for base, part in found.items():
            self.at[base].parts.append(part)
        at = self.at[node]
        at.passed = at.joined = at.in_memory = True
        return True

    def _joins(self, node):
        """Whether only concats read `node`, directly or through reshapes."""
        users = self.users[node]
        return all(u.primitive.joined_axis is not None or u.kind is Kind.VIEW and u.primitive.flat and self._joins(u) for u in users)

    def _joined_only(self, node):
        """Whether `node` is a reshape read only by concats (or by such reshapes) whose operands write straight into the concat's buffer."""
        reshape = node.kind is Kind.VIEW and node.primitive.flat and not self.at[node].wanted
        return reshape and all(self.at[u].joined for u in self.users[node])

    def has_own_memory(self, node):
        """Whether a node that is stored straight into concats needs a buffer of its own too, for other readers."""
        at = self.at[node]
        others = [self.at[u] for u in self.users[node] if not self.at[u].joined and node not in self.at[u].fetches]
        needed = at.wanted or any(u.anchored or u.shared is not None for u in others)
        if self.together is not None:
            return needed or any(u.regions - {at.producer} for u in others)
        return needed or any(node in r.loaded for u in others for r in u.regions | u.fetchers)

    def _readers(self, node):
        """The regions that evaluate a consumer of `node`, and whether `node` must be in memory anyway."""
        readers, needs_memory = set(), self.at[node].wanted
        for user in self.users[node]:
            if user.kind is Kind.PROJECTION:
                continue
            at = self.at[user]
            if node in at.fetches:
                continue
            if user.primitive.pointwise is None or at.anchored or at.shared is not None:
                needs_memory = True
            if at.shared is not None:
                continue
            readers |= at.inlined if at.anchored else at.regions
        # Sorted by creation: the order of a set differs from trace to trace, and the kernels would differ with it.
        return sorted(readers, key=lambda r: r.number), needs_memory

    def _template(self, node):
        """Place a node that a template or the host computes: as the anchor of its consumers' region, then its epilogue, or of a new one."""
        at = self.at[node]
        at.anchored = True
        readers, _ = self._readers(node)
        few = len(readers) == 1 or self.together is not None
        for region in readers if few and node.results is None and node.primitive.host is None else ():
            extra = at.wanted or at.parts or len(readers) > 1 or any(self.at[u].anchored for u in self.users[node])
            if not self._later(node, region) and self._can_anchor(node, region) and not (extra and self._feeds_itself(node, region)):
                region.anchor = node
                region.maps[node] = tuple(range(len(node.shape)))
                if extra:
                    region.outputs.append(node)
                    self._materialise(node, region)
                at.producer = at.producer or region
                region.operands.update(node.inputs)
                self._fetch(node, region)
                return
        region = Region(node.shape, next(self._numbers))
        region.anchor = node
        region.outputs.append(node)
        region.maps[node] = tuple(range(len(node.shape)))
        self.regions.append(region)
        self._materialise(node, region)
        for k in self.users[node]:
            if k.kind is Kind.PROJECTION:
                self._materialise(k, region)
        region.operands.update(node.inputs)
        self._fetch(node, region)

    def _fetch(self, node, region):
        """Prologue fusion: let the template of `node` compute operands while loading them, where that pays."""
        found = fetched(node, self.users, self._may_be_fetched, self.traits, self.limits.fetched)
        if found is None:
            self._pack(node, region)
        else:
            operand, inside, leaves = found
            for n in inside:
                at = self.at[n]
                at.anchored, at.passed, at.producer = True, True, region
                region.maps[n] = (ANY,) * len(n.shape)
            region.compute(operand, inside, leaves)
        self._repeat(node, region)

    def _repeat(self, node, region):
        """Prologue fusion also of operands that are then recomputed for every load, where that saves a launch."""
        for position, *_ in () if node.primitive.repeats is None else node.primitive.repeats(node, self.traits):
            operand = node.inputs[position]
            views = []
            while operand.kind is Kind.VIEW and operand.primitive.flat:
                views.append(operand)
                operand = operand.inputs[0]
            if operand not in self.repeated:
                self.repeated[operand] = self._repeated(operand, region)
            if self.repeated[operand] is not None and node.inputs[position] not in region.prologues:
                inside, leaves = self.repeated[operand]
                self._compute_also(node, region, node.inputs[position], inside.union(views), leaves)

    def _repeated(self, operand, region):
        """What repeated() finds for an operand of the template of `region`; None where that saves no launch."""
        if self.together is None and self._is_stored(operand):  # in a loop another kernel may store it, for which no step waits
            return None
        rules = (self._is_there, self._is_free, self._is_template)
        if (found := repeated(operand, self.users, *rules, self.traits, self.limits.fetched)) is None:
            return None
        # Not if the kernel of a leaf could compute it or, in the body of a loop, one over the same index space could store it.
        made = any(n.kind not in PLACED and same(n.shape, operand.shape) for n in found[1])
        hosts = self.together is not None and any(
            r is not region and same(r.space, operand.shape) and not region.reaches(r) for r in self.regions
        )
        return None if made or hosts else found

    def _pack(self, node, region):
        """Prologue fusion of an operand that the template packs, which saves its store."""
        if self.together is not None:
            return
        rules = (self._is_stored, self._is_free, self._is_template)
        found = packed(node, self.users, self.border, *rules, self.traits)
        if found is not None:
            self._compute_also(node, region, *found)

    def _compute_also(self, node, region, operand, inside, leaves):
        """Let the template of `node` compute `operand`, of the nodes `inside` and what they read, whatever other kernels do."""
        self.at[node].fetches.add(operand)
        for n in inside:
            self.at[n].fetchers.add(region)
        for n in leaves:
            self.at[n].wanted |= n.kind not in PLACED
        region.compute(operand, inside, leaves)

    def _is_stored(self, node):
        at = self.at[node]
        return at.in_memory or at.wanted or at.cut or at.parts

    def _is_there(self, node):
        return self.at[node].in_memory or self._is_template(node)

    def _is_free(self, node):
        return not (self.at[node].cut or node.primitive.stored)

    def _may_be_fetched(self, node):
        at = self.at[node]
        return not (at.in_memory or at.wanted or at.cut or at.parts or node.primitive.stored)

    def _feeds_itself(self, node, region):
        """Whether storing `node` as another result of `region` closes a cycle of dependencies."""
        readers = [self.at[u].producer for u in self.users[node] if self.at[u].anchored and self.at[u].producer is not None]
        return any(r is region for r in readers) or self._closes_cycle(node, region)

    def _can_anchor(self, node, region):
        if region.anchor is not None or region.reductions or not same(region.space, node.shape):
            return False
        if region.maps.get(node, None) not in (None, tuple(range(len(node.shape)))):
            return False
        for n in region.outputs:
            if not same(n.shape, node.shape):
                return False
        return epilogue.fits(node, region, self.at)

    def _stays_in_lanes(self, node, region, results=()):
        """Whether a region that is a template's epilogue can still be vectorised with `node` in it. `results`: further nodes to store."""
        if region.anchor is None or node.kind is Kind.ELEMENTWISE:
            return True  # only index arithmetic prevents vectors
        region.maps[node] = None
        fits = epilogue.fits(region.anchor, region, self.at, results)
        del region.maps[node]
        return fits

    # ---- decisions

    def _worth_inlining(self, node, region):
        if self._reduction(node):
            return self._reduction_fits(node, region)
        if not self._stays_in_lanes(node, region):
            return False
        return self._worth_repeating(node, [region])

    def _reduction_fits(self, node, region):
        """Whether a reduction may run inside its consumers' kernel: it is evaluated once per row of that kernel, or is tiny."""
        if region.anchor is not None:
            return False
        places = self._places(node, region)
        if len(places) > self.limits.copies:
            return False
        length, evaluations = cost.terms(node), cost.evaluations(places)
        if not self._one_level(region, length, evaluations):
            return False
        if evaluations * length <= self.limits.alone:
            return True
        if evaluations > cost.size(node):
            return False
        last = node.primitive.access(node, 0)[-1:]
        inner = region.strided and any(type(entry) is Inner for entry in last)  # lanes would run along the reduction
        if not self._worth_lanes(node, region, inner):
            return False
        return length <= self.schedule.shared_row or same(node.shape, region.space)

    def _one_level(self, region, length, evaluations):
        """Whether a reduction fits beside those of `region`: a kernel has one loop over rows, so its long reductions share those rows."""
        return length <= self.schedule.nested_row or row_results.one_level(region, evaluations, self.schedule.nested_row)

    def _places(self, node, region):
        """The list of distinct indices (see cost.Places) at which `region` would evaluate `node`."""
        found = {}  # a dict for its order
        for user in dict.fromkeys(self.users[node]):
            for index in region.places.get(user, ()):
                for position, i in enumerate(user.inputs):
                    if i is node:
                        found[self.indices.operand(user, position, index)] = None
        return list(found)

    def _worth_repeating(self, node, readers):
        """Whether rematerialising `node` wherever the regions `readers` read it costs less than storing it."""
        each = [self._places(node, region) for region in readers]
        places = [index for part in each for index in part]
        stored = functools.partial(self._in_memory, readers=set(readers))
        limit = cost.storing(node, places, self.schedule) + self._around(node, stored)
        lanes = all(r.anchor is not None or r.lanes and not cost.ends_lanes(node, part) for r, part in zip(readers, each, strict=True))
        factor = 1 if lanes else self.schedule.without_lanes(self.traits)
        above = sum((factor - 1) * r.work for r in readers if r.lanes)
        return above + cost.repeated(node, places, self.schedule, self.indices, stored, limit - above, factor) < limit

    def _stage(self, node, region):
        """Let the kernel of `region` stage `node` (staging.py), if it can; returns whether so."""
        rows = staging.rank(node, region, self._places(node, region), self.indices, self.schedule, self.traits)
        if rows is None or self._may_be_epilogue(node):
            return False
        region.staged[node] = rows
        return True

    def _around(self, node, stored):
        """Extra cost of storing a pad of the vectorised axis: rows rounded up to whole vectors recompute its operand; 0 for other nodes."""
        if not self.schedule.vectors or not cost.pads_lanes(node):
            return 0
        *rows, length = node.shape
        width = self.schedule.width(self.traits)
        x, index = node.inputs[0], self.indices.results(node, (*rows, -(-hint(length) // width) * width))
        at = [self.indices.operand(node, 0, index)]
        return cost.repeated(x, at, self.schedule, self.indices, stored, cost.storing(x, at, self.schedule))

    def _worth_lanes(self, node, region, ends=False):
        """Whether `region` stays vectorised with `node` inlined, or losing its vectors (`ends`: for certain) costs less than storing."""
        if region.anchor is not None or not region.lanes:
            return True
        places = self._places(node, region)
        if not (ends or cost.ends_lanes(node, places)):
            return True
        work = region.work + cost.price(node) * cost.evaluations(places)
        return (self.schedule.without_lanes(self.traits) - 1) * work < cost.storing(node, places, self.schedule)

    def _in_memory(self, node, readers):
        """Whether `node`, not placed yet, will be in memory in any case, for consumers outside the regions `readers`."""
        at = self.at[node]
        if at.in_memory or at.wanted or at.cut or at.parts:
            return True
        if self._is_template(node):
            return True
        return any(self.at[u].anchored or self.at[u].regions - readers for u in self.users[node])

    def _light(self, node, readers):
        """Whether all of `readers` had better compute `node` than load it."""
        in_memory = functools.partial(self._in_memory, readers=set(readers))
        return light(node, readers, self.border, in_memory, self._may_be_epilogue) and self._worth_repeating(node, readers)

    def _reduction(self, node):
        return node.kind in row_results.REDUCING

    # ---- what placing does

    def _evaluate(self, node, region, places):
        """Note that `region` evaluates `node` at the indices `places`."""
        region.places[node] = places
        region.work += cost.price(node) * cost.evaluations(places)
        region.reductions |= self._reduction(node)
        region.lanes &= not cost.ends_lanes(node, places)
        region.strided |= _permutes(node) and any(cost.strided(node.inputs[0], [self.indices.operand(node, 0, p) for p in places]))

    def _inline(self, node, region):
        region.maps[node] = self._map_in(node, region)
        self._evaluate(node, region, self._evaluated(node, region))
        self.at[node].inlined.add(region)
        region.operands.update(node.inputs)

    def _evaluated(self, node, region, more=()):
        """The indices at which `region` computes `node`: those at which it reads it and `more`, one of them if it stages the node."""
        places = self._places(node, region)
        return staging.computed(places, region, self.indices) if node in region.staged else list(dict.fromkeys([*more, *places]))

    def _store(self, node, readers):
        """Store `node`: as a further result of a region that fits (as a rule one of `readers`), or else of a new one."""
        candidates = [r for r in (*readers, *self._sharing(node, readers)) if not self._later(node, r)]
        if self.together is not None and (not readers or self.at[node].parts):
            concats = {r for part in self.at[node].parts for r in self._consumer_regions(part.concat)}  # these run later
            others = sorted((r for r in self.regions if same(r.space, node.shape)), key=lambda r: r.anchor is not None)
            candidates = [r for r in dict.fromkeys([*readers, *others]) if r not in concats]
        # What is computed again for a gradient would be stored when `node` is, and kept.
        candidates = [r for r in candidates if r.outputs[0].tag == node.tag]
        rules = (self._fits, self._can_accompany)
        region = next((r for fits in rules for r in candidates if fits(node, r)), None)
        if region is not None:
            region.outputs.append(node)
            region.maps[node] = self._map_in(node, region)
            place = self.indices.results(region, region.space)
            place = place if same(node.shape, region.space) else row_results.of(place, node.shape, region.space, cost.NOWHERE)
            self._evaluate(node, region, self._evaluated(node, region, [place]))
            self._materialise(node, region)
            region.operands.update(node.inputs)
            return
        region = Region(node.shape, next(self._numbers))
        region.outputs.append(node)
        region.maps[node] = tuple(range(len(node.shape)))
        self._evaluate(node, region, [self.indices.results(region, region.space)])
        self.regions.append(region)
        self._materialise(node, region)
        region.operands.update(node.inputs)

    def _later(self, node, region):
        """Whether `node` belongs to the forward part and `region` to the backward part, whose results would stay in memory all the time."""
        return node.order < self.border <= region.order

    def _sharing(self, node, readers):
        """Regions other than `readers` that evaluate an operand of `node` too, which is not in memory: together they compute it once."""
        if node.kind is not Kind.ELEMENTWISE or self.together is not None:
            return []
        if self.schedule.joined:  # kernels run side by side
            operands = [i for i in node.inputs if same(i.shape, node.shape)]
        else:  # also of what a broadcast repeats, such as a deviation, for several vectors per row
            operands = [viewed(i) for i in node.inputs]
        operands = [i for i in operands if i.kind is Kind.ELEMENTWISE and not self.at[i].in_memory]
        found = {r for i in operands for u in self.users[i] if u.kind is Kind.ELEMENTWISE for r in self.at[u].regions}
        return sorted(found - set(readers), key=lambda r: r.number)

    def _can_join(self, node, region, matches=same):
        if region.anchor is not None and region.anchor.results is not None:  # such as a loop, which has kernels of its own
            return False
        if not matches(node.shape, region.space) or len(region.maps) >= self.limits.nodes or not self._in_place(node, region):
            return False
        long = self._reduction(node) and cost.terms(node) * size_hint(node.shape) > self.limits.alone
        if self._reduction(node) and region.anchor is not None or long and not same_parts(node, region):
            return False
        if not self._stays_in_lanes(node, region, [node]):
            return False
        return not self._closes_cycle(node, region) and not self._operand_of(node, region)

    def _fits(self, node, region):
        """Whether a kernel can also store `node`."""
        fits = self._can_join(node, region) or self._can_lead(node, region) or self._can_repeat(node, region)
        return fits or self._can_stage(node, region)

    def _can_accompany(self, node, region):
        """Whether a kernel can also store `node` where it has an element for each of the kernel's, but for axes of extent 1."""
        return region.anchor is None and cost.size(node) > 1 and self._can_join(node, region, row_results.per_element)

    def _in_place(self, node, region):
        """Whether `region` reads `node`, of one value per element or row, nowhere but at its own element or row."""
        own = row_results.of(range(len(region.space)), node.shape, region.space, None)
        return all(a == i for a, i in zip(self._map_in(node, region), own, strict=True) if i is not None)

    def _can_lead(self, node, region):
        """Whether a kernel that computes whole rows can also store `node`, one value per row that follows from a reduction of the row."""
        least = self.schedule.row_results
        if self.together is not None or region.anchor is not None:
            return False
        rank, length = row_results.leading(node.shape, region.space), row_results.reduced(node, self.at)
        if rank is None or length is None or not least < length <= self.schedule.shared_row:
            return False
        if 0 in region.space or len(region.maps) >= self.limits.nodes or size_hint(region.space[rank:]) < least:
            return False
        others = [n.shape for n in region.outputs if not row_results.per_element(n.shape, region.space)]
        ranks = [*(row_results.leading(shape, region.space) for shape in others), *region.staged.values()]
        if any(k != rank for k in ranks) or not self._in_place(node, region):
            return False
        return row_results.one_level(region, cost.size(node), least) and not self._closes_cycle(node, region)

    def _can_repeat(self, node, region):
        """Whether a kernel that reduces rows can also store `node`, which it reads at other indices too: computed twice, never loaded."""
        if self.schedule.row_results == math.inf or self.together is not None or region.anchor is not None or not region.reductions:
            return False
        if node.kind is not Kind.ELEMENTWISE or not same(node.shape, region.space) or len(region.maps) >= self.limits.nodes:
            return False
        root = self.indices.results(region, region.space)
        places = list(dict.fromkeys([root, *self._places(node, region)]))

        def stored(n):
            return n is not node and self._in_memory(n, {region})

        if self._may_be_epilogue(node):
            return False
        limit = self.schedule.launch + cost.size(node) * cost.itemsize(node) * self.schedule.byte // 2
        # Whole: if an operand were stored in place of the node, nothing would be saved.
        again = cost.repeated(node, places, self.schedule, self.indices, stored, limit, whole=True)
        return again < limit and not self._closes_cycle(node, region)

    def _can_stage(self, node, region):
        """Whether the kernel of `region` can store `node` in one loop over a row and load it in later ones; notes that it does so."""
        exact = dtypes.register_ctype(node.dtype) == dtypes.storage_ctype(node.dtype)
        if not exact or self.at[node].parts or len(region.maps) >= self.limits.nodes:
            return False
        return not self._closes_cycle(node, region) and self._stage(node, region)

    def _may_be_epilogue(self, node):
        return epilogue.may_hold(node, self.users, self._is_template)

    def _is_template(self, node):
        """Whether a template or the host computes `node`."""
        return node.kind not in PLACED and (node.primitive.pointwise is None or self._prefers_template(node))

    def _prefers_template(self, node):
        """Whether a contraction has so many multiply-adds (over 512) that it uses the matrix-product template."""
        return node.kind is Kind.CONTRACTION and cost.terms(node) > self.limits.terms and cost.terms(node) * size_hint(node.shape) > 512

    def _closes_cycle(self, node, region):
        """Whether storing `node` in `region` closes a cycle: another region reads `node`, and `region` depends on that one.

        A region that reads a concat needs all of it before it can store a part.
        """
        if any(c is not region and c.reaches(region) for c in self._consumer_regions(node)):
            return True
        return any(self.at[u].passed and region in self._consumer_regions(u) for u in self.users[node] if self.at[u].joined)

    def _operand_of(self, node, region):
        """Whether the template of `region`, or its prologue, reads `node` from memory."""
        read = () if region.anchor is None else (*region.anchor.inputs, *region.loaded)
        return any(self._base(i) is node for i in read if i not in region.prologues)

    def _base(self, node):
        while self.at[node].shared is not None:
            node = self.at[node].shared
        return node

    def _consumer_regions(self, node):
        found = set()
        for u in self.users[node]:
            if u.kind is Kind.PROJECTION:
                continue
            at = self.at[u]
            if node in at.fetches:
                continue
            if at.shared is not None or at.passed:
                found |= self._consumer_regions(u)
            found |= at.regions | at.fetchers
        return found

    def _materialise(self, node, region):
        at = self.at[node]
        at.in_memory, at.producer = True, region
        region.feed([r for r in self._consumer_regions(node) if r is not region])

    def _map_in(self, node, region):
        """The axis map (see axes.py) of `node` in `region`: for each axis its loop, ANY where consumers disagree."""
        combined = None
        for user in self.users[node]:
            if user not in region.maps or node in self.at[user].fetches:
                continue
            for position, i in enumerate(user.inputs):
                if i is node:
                    m = axis_map(user, position, region.maps[user])
                    combined = m if combined is None else tuple(a if a == b else ANY for a, b in zip(combined, m, strict=True))
        return combined if combined is not None else tuple(range(len(node.shape)))


def _permutes(node):
    """Whether `node` is a view whose axes are in another order than its operand's."""
    if node.kind is not Kind.VIEW:
        return False
    axes = [entry.axis for entry in node.primitive.access(node, 0) if type(entry) is Along]
    return axes != sorted(axes)
