"""Lowering of regions to kernels: each region becomes the KernelSpecs that compute it."""

import hashlib
from dataclasses import dataclass, replace

from keras_ocl.compiler.fuse import order
from keras_ocl.compiler.fuse.partition import partition
from keras_ocl.compiler.launch import branches, region_kernels
from keras_ocl.compiler.launch.alike import Alike
from keras_ocl.compiler.launch.in_place import in_place, rest_of, reused, writer_of
from keras_ocl.compiler.launch.provenance import Provenance
from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels import prelude
from keras_ocl.kernels.launch import fitted, pieces
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Buffer, KernelSpec, Sink
from keras_ocl.primitives import algebra


class Builder:
    """What a primitive's `kernels` rule may ask about the compilation, and for loops the function that lowers them.

    `sources`: dict from the position of an operand that the template computes while loading it (a prologue: Primitive's `fetches` and
    `repeats`) to the RegionSource that writes its code. `repeated`: whether the kernels are launched in every step of a loop.
    `overwriting`: the nodes that lie in the memory of the states whose new values they are.
    """

    def __init__(self, traits, all_arguments, lower_loop=None, sources=None, repeated=False, overwriting=frozenset()):
        self.traits, self.all_arguments, self.lower_loop, self.sources = traits, all_arguments, lower_loop, sources or {}
        self.repeated, self.overwriting = repeated, overwriting


class HostCall:
    """A declared host operation among the launches: reads its node's inputs, computes in NumPy, writes `outputs` (nodes; None: unused)."""

    def __init__(self, node, outputs):
        self.node, self.outputs = node, outputs
        self.name = f"host {node.name}"
        self.provenance = None

    @property
    def reads(self):
        """The operands' Buffers."""
        return [n.buffer for n in self.node.inputs]

    @property
    def writes(self):
        """The results' Buffers; None for a result that nobody reads."""
        return [None if n is None else n.buffer for n in self.outputs]


class HostEnd:
    """Among the launches, the place before which a thread must have finished `call`, an earlier HostCall."""

    overwrites = False

    def __init__(self, call):
        self.call, self.name, self.provenance = call, call.name, call.provenance


@dataclass
class Lowered:
    """A graph's launches (KernelSpec, HostCall or Loop) in order.

    `alias`: dict from a node, of branches too, to the node whose buffer it uses. `overwritten`: the entry nodes of states whose memory
    launches overwrite.
    """

    launches: list
    alias: dict
    overwritten: set

    def __post_init__(self):
        self.shared = {node.buffer: owner.buffer for node, owner in self.alias.items()}  # `alias` in terms of buffers

    def resolve(self, buffer):
        """The Buffer whose memory this one uses."""
        return self.shared.get(buffer, buffer)


def lower_graph(graph, updates, traits, all_arguments, lower_loop, extra=None):
    """The Lowered form of a graph.

    Args:
        updates: pairs (entry node, position in graph.outputs) of states to update in place where that is safe.
        all_arguments: whether every extent is a kernel argument rather than a literal (eager code).
        lower_loop: the function (builder, node, projections) -> launches for loops.
        extra: for the body of a loop, a dict from a node to further Buffers in which it is stored too.
    """
    users = {n: [] for n in graph.live()}
    for n in users:
        for i in n.inputs:
            users[i].append(n)
    whole = None if all_arguments else {graph.outputs[k] for _, k in updates}
    found = partition(graph, traits, None if extra is None else set(extra), whole=whole)
    regions, materialised, views, parts = found.regions, found.materialised, found.views, found.parts
    if extra is None:
        _place(materialised, parts)
    single = [(entry, graph.outputs[k]) for entry, k in updates if graph.outputs.count(graph.outputs[k]) == 1]
    rests = {rest for _, n in single if (rest := rest_of(n)) is not None and rest not in graph.outputs}
    updated = {*(writer_of(n) for _, n in single), *rests}
    alike = Alike(materialised, parts)
    regions = order.updates_last(regions, updated)
    if extra is None:
        stops = [r for r in regions if _stops(r)]
        regions = order.behind_stops(regions, updated, stops)
        if not all_arguments and not any(order.overlaps(s.anchor) for s in stops):
            writers = [(entry, w) for entry, n in single for w in (writer_of(n), rest_of(n)) if w is not None]
            regions = order.Ordering(regions, found, set(graph.outputs), writers, stops).best()
        after = max((k for k, r in enumerate(regions) if _stops(r)), default=-1)
        alias = in_place(regions, materialised, single, views, alike, rests, after)
    else:
        alias = in_place(regions, materialised, single, views, alike, rests)
    overwritten, overwriting = set(alias.values()), frozenset(alias)
    updates = {writer_of(n) for n in alias} if extra is None else set()
    if extra is None and not all_arguments:
        alias |= reused(regions, found, alias, alike, set(graph.outputs))
    alias.update({node: _resolve(node, {**views, **alias}) for node in views})
    for node in views:
        node.buffer.slice = alias[node].buffer.slice
    builder = Builder(traits, all_arguments, lower_loop, repeated=extra is not None, overwriting=overwriting)
    launches = []
    for region in regions:
        provenance = Provenance(region)
        label = describe(region)

        def lower(region=region):
            return _lower_region(region, materialised, users, builder, alias, extra or {}, parts)

        found = _launchable(lower() if extra or parts and extra is not None else alike.kernels(region, alias, lower), provenance, builder)
        provenance.launches = max(1, len(found))
        found = [_labelled(launch, label, provenance, not updates.isdisjoint(region.outputs)) for launch in found]
        flag = _needed_if(graph, region, alias) if extra is None and rests.issuperset(region.outputs) else None
        launches += found if flag is None else [branches.guarded(launch, flag.buffer, True) for launch in found]
    return Lowered(launches, alias, overwritten)


def _place(materialised, parts):
    """Let the values that lie in concats' buffers alone be read there; `parts`: as in Partition. A graph may be lowered again."""
    for n in materialised:
        if n.part is not None:
            n.part = n.buffer = None
    for n, ((part, *_), own) in parts.items():
        if not own:
            n.part, n.buffer = part, part.concat.buffer


def _launchable(launches, provenance, builder):
    """The launches of a region, with kernels fitted to the device's launch limits and long ones split (kernels/launch.py)."""
    traits, eager, found = builder.traits, builder.all_arguments, []
    for launch in launches:
        if not isinstance(launch, KernelSpec) or launch.provenance is not None:  # kernels of a loop have been fitted already
            found.append(launch)
            continue
        work = provenance.work if traits.max_groups else 0
        found += pieces(fitted(launch, traits, eager), traits, work, eager)
    return found


def _needed_if(graph, region, alias):
    """The rank-0 bool in memory without which a region only leaves the states that it overwrites as they are; None where there is none."""
    found = set()
    for n in region.outputs:
        flag = mask = n.inputs[0] if n.kind is Kind.ELEMENTWISE and n in alias else None
        if flag is None or flag.dtype != "bool":
            return None
        while flag.kind is Kind.VIEW:
            (flag,) = flag.inputs
        unset = algebra.full(graph, False, mask.shape, "bool", n.origin)
        if graph.simplest(n.primitive, (unset, *n.inputs[1:]), n.params, n.origin) is not alias[n]:
            return None
        found.add(flag)
    flag = found.pop() if len(found) == 1 else None
    return flag if flag in region.operands and flag.shape == () else None


def _labelled(launch, label, provenance, overwrites):
    """A launch of a region with the region's label in its name, unless it is a loop's, which has its provenance already."""
    provenance = launch.provenance or provenance
    if isinstance(launch, KernelSpec):
        name = launch.name
        if launch.provenance is None:
            name = f"{label} {name}" if name else label
        return replace(launch, name=name, provenance=provenance, overwrites=overwrites)
    launch.provenance, launch.overwrites = provenance, overwrites
    return launch


def _stops(region):
    """Whether the host takes part while the region runs, where a run can fail or be interrupted: all else is enqueued in one go."""
    node = region.anchor
    if node is None:
        return False
    return node.primitive.loops or node.primitive.host is not None or node.kind is Kind.COND and branches.loops(node)


def _resolve(node, shared):
    """The node whose memory `node` uses."""
    while node in shared:
        node = shared[node]
    return node


def _lower_region(region, materialised, users, builder, alias, extra, parts):
    view = region_kernels.KernelBody(region.outputs, region.space, materialised, alias, extra, parts, region.staged)
    node = region.anchor
    if node is None:
        if 0 in region.space:
            return []
        return [region_kernels.pointwise_kernel(builder.traits, view, builder.all_arguments)]
    if node.results is not None:
        projections = {u.params["index"]: u for u in users[node] if u.kind is Kind.PROJECTION}
        if node.primitive.loops:
            return builder.lower_loop(builder, node, projections)
        if node.kind is Kind.COND:
            return branches.lower_cond(builder, node, projections, alias, lower_graph)
        if node.primitive.host is not None:
            return [HostCall(node, [projections.get(k) for k in range(len(node.results))])]
        sinks = [Sink(projections.get(k) or Buffer(product(shape), dtype), shape, dtype) for k, (shape, dtype) in enumerate(node.results)]
        specs = node.primitive.kernels(builder, node, sinks)
    elif node.primitive.host is not None:
        return [HostCall(node, [node])]
    else:
        wide = region_kernels.needs_64_bits(view, [node, *region.operands])
        sinks = [region_kernels.RegionSink(view, node, builder.traits, wide)]
        if region.prologues:
            whole = not schedule_of(builder.traits).vectors
            sources = {
                node.inputs.index(operand): region_kernels.RegionSource(operand, leaves, materialised - inside, alias, whole)
                for operand, (inside, leaves) in region.prologues.items()
            }
            builder = Builder(builder.traits, builder.all_arguments, builder.lower_loop, sources, builder.repeated)
            sinks += sources.values()
        specs = node.primitive.kernels(builder, node, sinks[0])
    helpers = frozenset().union(*(s.helpers for s in sinks))
    return [replace(spec, helpers=frozenset(spec.helpers) | helpers) for spec in specs]


def describe(region):
    """A region's name for profiles and errors: the layer that its results come from and the main operations."""
    names = [region.anchor.name] if region.anchor is not None else []
    names += [n.name for n in region.outputs if n is not region.anchor][:3]
    origins = list(dict.fromkeys(n.origin.layer for n in [*region.outputs, *([region.anchor] if region.anchor else [])] if n.origin.layer))
    text = "+".join(dict.fromkeys(names))
    return f"{origins[0]}: {text}" if origins else text


def _named(spec, traits):
    """(a name that is a hash of the kernel's text, so that equal kernels are built once; the text under that name)."""
    # The kernels are written in vectors already, without the compiler's own vectoriser (quirk vectoriser_crash).
    written = traits.vec_len_hint and schedule_of(traits).as_written and not spec.scalar
    before, after = spec.around(not traits.sub_buffers, "__attribute__((intel_vec_len_hint(1))) " if written else "")
    name = "k" + hashlib.sha256("".join([before, "k", after, *sorted(spec.helpers)]).encode()).hexdigest()[:20]
    return name, f"{before}{name}{after}"


def function_name(spec, traits):
    """The name of a KernelSpec's function."""
    return _named(spec, traits)[0]


def program_spec(spec, traits):
    """(function name, source, helper texts) of a KernelSpec, for Device.build."""
    name, source = _named(spec, traits)
    extensions = ("cl_khr_fp64",) if traits.fp64 and any("double" in t for t in (source, *spec.functions)) else ()
    if "as_half" in source:  # a matrix unit's operands
        extensions += ("cl_khr_fp16",)
    return name, source, (*prelude.pieces(spec.helpers, extensions), *spec.functions)


def buffers(launch):
    """Every Buffer that a launch reads or writes; a HostEnd counts as its host operation, which uses its buffers until then."""
    if isinstance(launch, HostEnd):
        launch = launch.call
    if isinstance(launch, HostCall):
        return [*launch.reads, *(w for w in launch.writes if w is not None)]
    return [a.value for a in launch.args if a.is_pointer]
