"""Regions to kernels: each region becomes the KernelSpecs that compute it."""

import hashlib

from keras_ocl.compiler import schedule
from keras_ocl.core.dim import same
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Sink


class Builder:
    """What a primitive's `kernels` rule may ask about the compilation."""

    def __init__(self, traits, all_arguments):
        self.traits, self.all_arguments = traits, all_arguments


class HostCall:
    """A declared host operation among the launches: reads `inputs`, computes in NumPy, writes `outputs` (nodes)."""

    def __init__(self, node, outputs):
        self.node, self.outputs = node, outputs
        self.name = f"host {node.name}"

    @property
    def reads(self):
        return list(self.node.inputs)

    @property
    def writes(self):
        return list(self.outputs)


def lower(regions, materialised, users, traits, alias, all_arguments):
    """Launches (KernelSpec or HostCall) in order."""
    builder = Builder(traits, all_arguments)
    launches = []
    for region in regions:
        launches += _lower_region(region, materialised, users, builder, alias)
    return launches


def _lower_region(region, materialised, users, builder, alias):
    label = describe(region)
    view = schedule.Region(region.outputs, region.space, materialised, alias, label)
    node = region.anchor
    if node is None:
        if any(int(n) == 0 for n in region.space):
            return []
        return [schedule.pointwise_kernel(builder.traits, view, builder.all_arguments)]
    if node.results is not None:
        projections = {u.params["index"]: u for u in users[node] if u.name == "project"}
        if node.primitive.host is not None:
            return [HostCall(node, [projections.get(k) for k in range(len(node.results))])]
        sinks = [Sink(projections.get(k, (node, k)), shape, dtype) for k, (shape, dtype) in enumerate(node.results)]
        specs = node.primitive.kernels(builder, node, sinks)
    elif node.primitive.host is not None:
        return [HostCall(node, [node])]
    else:
        sinks = [schedule.RegionSink(view, node, builder.traits)]
        specs = node.primitive.kernels(builder, node, sinks[0])
    helpers = frozenset().union(*(s.helpers for s in sinks))
    for spec in specs:
        spec.helpers = frozenset(spec.helpers) | helpers
        spec.name = f"{label} {spec.name}" if spec.name else label
    return specs


def describe(region):
    """What the region computes, for profiles and errors: where its results came from and the main operation."""
    names = [region.anchor.name] if region.anchor is not None else []
    names += [n.name for n in region.outputs if n is not region.anchor][:3]
    origins = list(dict.fromkeys(n.origin for n in [*region.outputs, *([region.anchor] if region.anchor else [])] if n.origin))
    text = "+".join(dict.fromkeys(names))
    return f"{origins[0]}: {text}" if origins else text


def in_place(regions, materialised, updates, views):
    """Which updated states may overwrite their old value: {new node: entry node}.

    Allowed when the kernel that computes the new value reads the old one only at the element it writes,
    and no later kernel reads the old value. `updates` lists (entry node, new node).
    """
    readers = {}
    for position, region in enumerate(regions):
        for n in region.operands:
            readers.setdefault(n, []).append(position)
            while n in views:
                n = views[n]
                readers.setdefault(n, []).append(position)
    producer = {n: (position, region) for position, region in enumerate(regions) for n in region.outputs}
    alias = {}
    taken = set()
    for entry, new in updates:
        if new in alias or new not in producer or entry in taken or entry.primitive is not None:
            continue
        position, region = producer[new]
        if not same(entry.shape, new.shape) or entry.dtype != new.dtype or not same(new.shape, region.space):
            continue
        if max(readers.get(entry, [0])) > position:
            continue
        if region.anchor is not None and (
            entry in region.anchor.inputs or region.anchor.results is not None or region.anchor.primitive.host is not None
        ):
            continue
        if any(_base(n, views) is entry and n is not entry for n in region.operands):
            continue
        if entry in region.operands and not _reads_in_place(region, materialised, entry):
            continue
        alias[new] = entry
        taken.add(entry)
    return alias


def _base(node, views):
    while node in views:
        node = views[node]
    return node


def _reads_in_place(region, materialised, entry):
    gen = schedule.probe(region, materialised)
    root = gen.root_index
    return all(index is not None and [i.key for i in index] == [r.key for r in root] for index in gen.reads.get(entry, []))


def function_name(spec):
    """A name that depends on the kernel's text alone, so equal kernels are one."""
    text = spec.source("k")
    return "k" + hashlib.sha256((text + "".join(sorted(spec.helpers))).encode()).hexdigest()[:20], text


def program_specs(launches, traits):
    """(function name, source, helper texts) of every kernel, for Device.build."""
    specs = []
    for launch in launches:
        if isinstance(launch, HostCall):
            continue
        if traits.vec_len_hint and traits.schedule == "cpu":
            # Our kernels are explicit vectors already, and the compiler's vectoriser crashes on some loops.
            launch.attributes = "__attribute__((intel_vec_len_hint(1))) "
        name, text = function_name(launch)
        source = text.replace(" k(", f" {name}(", 1)
        extensions = ("cl_khr_fp64",) if traits.fp64 and "double" in source else ()
        specs.append((launch, (name, source, prelude.pieces(launch.helpers, extensions))))
    return specs
