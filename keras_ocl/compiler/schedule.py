"""From the values a kernel computes to its loops: how the index space is divided over work-items.

`cpu`: a work-item covers a chunk of rows (the outer loops) or of one long row, in explicit vectors.
`gpu`: a work-item computes one element, or one row where a reduction is shared along it.
"""

import math

from keras_ocl.compiler.generator import Generator
from keras_ocl.compiler.nests import Register, analyse
from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.core.index import Affine, is_one, linear
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.spec import Args, KernelSpec, Sink

_CHUNK = 8192  # elements of elementwise work that repay a work-item's start
_GROUP = 64  # work-items of a GPU work-group for pointwise kernels


class Region:
    """What one kernel computes: `outputs` over the index space `space`, reading `materialised` nodes.

    `extra`: dict from a node to further Buffers where it is stored. `parts`: dict from a node to its fuse.Parts, its only place.
    """

    def __init__(self, outputs, space, materialised, alias, label, extra, parts):
        self.outputs, self.space, self.materialised, self.alias, self.label = outputs, tuple(space), materialised, alias, label
        self.extra, self.parts = extra, parts

    def store(self, gen, node, register, index, width, wide):
        """Statements that store `node`'s value at an index, everywhere it belongs."""
        value, offset, whole = gen.widen(register, width).text, linear(index, node.shape), node
        if node in self.parts:
            whole, offset = self.parts[node].concat, self.parts[node].offset(index, node.shape)
        for place in (self.alias.get(whole, whole), *self.extra.get(node, ())):
            pointer, count = gen.args.pointer(place, node.dtype, out=True), gen.partial if width > 1 else 0
            gen.helpers |= prelude.helpers_for(node.dtype, width, count)
            gen.emit(prelude.store(node.dtype, width, pointer, gen.text(offset, wide), value, count))


def pointwise_kernel(traits, region, all_arguments=False):
    """KernelSpec computing the region's outputs, all of shape `region.space`."""
    axes = [i for i, n in enumerate(region.space) if not is_one(n)]
    extents = [region.space[i] for i in axes]
    dry = Generator(Args(all_arguments), region.materialised, traits.vector_width, None, region.alias, region.outputs)
    dry.aligned = traits.vector_width
    nest = dry.nest("root", extents)
    variables, per_row = [], False
    for i in range(len(extents)):
        variables += dry.open_loop(nest, [i], dry.block)
    _evaluate(dry, region, axes, variables)
    per_row = any(
        b.var is not None and b.var.nest is not nest for block in _chain(dry.block)[1:-1] for b in block.lines if not isinstance(b, str)
    )
    analyse(dry.nests)
    args = Args(all_arguments)
    gen = Generator(args, region.materialised, traits.vector_width, dry.nests, region.alias, region.outputs)
    gen.wide, gen.aligned = _needs_64_bits(region, dry), traits.vector_width
    if not extents:
        _evaluate(gen, region, axes, [])
        grid, group = (1,), (1,)
    elif traits.schedule == "cpu":
        grid, group = _cpu(traits, gen, nest, region, axes, dry.cost), (1, 1, 1)
    else:
        grid, group = _gpu(traits, gen, nest, region, axes, per_row)
    return KernelSpec(region.label, args.args, gen.top.render(), grid, group, frozenset(gen.helpers))


def _chain(block):
    """Blocks from the top to `block`."""
    chain = []
    while block is not None:
        chain.append(block)
        block = block.parent
    return chain[::-1]


def _evaluate(gen, region, axes, variables):
    """Statements that compute and store every output at the point given by the loop variables."""
    index = [Affine()] * len(region.space)
    for axis, v in zip(axes, variables, strict=True):
        index[axis] = Affine.of(v)
    registers = [gen.value(node, index) for node in region.outputs]
    for node, register in zip(region.outputs, registers, strict=True):
        offset = linear(index, node.shape)
        width = gen.width if gen.vector is not None and gen.lanes(offset) else 1
        region.store(gen, node, register, index, width, True)


def _needs_64_bits(region, dry):
    return index_type(*(product(n.shape) for n in [*region.outputs, *dry.reads])) == "long"


def _cpu(traits, gen, nest, region, axes, cost):
    *outer, inner = nest.groups
    rows = product(nest.extents[i] for g in outer for i in g)
    length = product(nest.extents[i] for i in inner)
    width = gen.lane_width(length) if nest.vectorisable else 1
    total = hint(rows) * hint(length) * (1 + cost)
    items = max(1, min(4 * traits.compute_units, math.ceil(total / _CHUNK)))
    row_chunk = max(1, math.ceil(hint(rows) / items))
    ctype = gen.ctype
    limits, grid_inner = None, None
    if 2 * hint(rows) <= items and hint(length) > width:
        chunk = math.ceil(hint(length) / math.ceil(items / max(1, hint(rows))) / width) * width
        if chunk < hint(length) or isinstance(length, Dim):
            gen.emit(f"const {ctype} begin = get_global_id({1 if outer else 0}) * {gen.int(chunk)};")
            gen.emit(f"const {ctype} end = min(begin + {gen.int(chunk)}, ({ctype}){gen.int(length)});")
            limits, grid_inner = ("begin", "end"), ceil_div(length, chunk)
    variables = []
    if outer:
        first = f"({ctype})get_global_id(0) * {gen.int(row_chunk)}"
        gen.emit(f"const {ctype} first = {first};")
        gen.emit(f"const {ctype} last = min(first + {gen.int(row_chunk)}, ({ctype}){gen.int(rows)});")
        variables = _rows(gen, nest, outer, ("first", "last"))
    parts = gen.parts(length, width, limits)
    if limits and width > 1 and gen.known(length) and length % width == 0:
        parts.pop()  # chunks are whole vectors
    for part in parts:
        gen.in_part(nest, inner, part, lambda indices: _evaluate(gen, region, axes, variables + indices))
    if outer:
        gen.close_loop()
    if not outer:
        return (grid_inner or 1,)
    return (ceil_div(rows, row_chunk), grid_inner) if grid_inner is not None else (ceil_div(rows, row_chunk),)


def _rows(gen, nest, outer, bounds):
    """Open one loop over all outer groups, flattened; returns the Vars of their dimensions."""
    if len(outer) == 1:
        return gen.open_loop(nest, outer[0], gen.block, 0, bounds)
    flat = [i for g in outer for i in g]
    row = gen.open_loop(nest, flat, gen.block, 0, bounds)[-1]
    return _unflatten(gen, nest, outer, row.name)


def _unflatten(gen, nest, groups, name):
    """Vars of all dimensions of `groups` from the flattened index held in `name`."""
    ctype = gen.ctype
    block, variables = gen.block, []
    for k in range(len(groups) - 1, -1, -1):
        extent = product(nest.extents[i] for i in groups[k])
        own = gen.name("g")
        if k == 0:
            gen.emit(f"const {ctype} {own} = {name};")
        else:
            rest = gen.name("g")
            n = gen.int(extent)
            gen.emit(f"const {ctype} {rest} = {name} / {n};")
            gen.emit(f"const {ctype} {own} = {name} - {rest} * {n};")
            name = rest
        variables = gen.group_vars(nest, groups[k], own, block) + variables
    return variables


def _gpu(traits, gen, nest, region, axes, per_row):
    groups = nest.groups
    items = groups[:-1] if per_row else groups
    count = product(nest.extents[i] for g in items for i in g)
    size = min(_GROUP, traits.max_group)
    ctype = gen.ctype
    gen.emit(f"const {ctype} item = get_global_id(0);")
    gen.emit(f"if (item >= {gen.int(count)}) return;")
    variables = _unflatten(gen, nest, items, "item") if items else []
    for v in variables:
        v.block = gen.top
    if per_row:
        vs = gen.open_loop(nest, groups[-1], gen.block)
        _evaluate(gen, region, axes, variables + vs)
        gen.close_loop()
    else:
        _evaluate(gen, region, axes, variables)
    return (ceil_div(count, size) * size,), (size,)


class RegionSink(Sink):
    """The epilogue of a kernel template: evaluates a region on the template's accumulator and stores it."""

    def __init__(self, region, anchor, traits, wide=False):
        self.region, self.anchor, self.traits, self.wide = region, anchor, traits, wide
        self.shape, self.dtype = anchor.shape, anchor.dtype
        self.helpers = set()
        self.anchor_identity = True

    def store(self, args, coordinates, value, width):
        region, n = self.region, len(self.anchor.shape)
        probe = Generator(Args(args.all_arguments), region.materialised, width, None, region.alias, region.outputs)
        nest = probe.nest("root", self.anchor.shape)
        gen = Generator(args, region.materialised, width, {"root": nest}, region.alias, region.outputs)
        gen.wide = self.wide
        nest.groups = [[i] for i in range(n)]
        variables = [v for i, c in enumerate(coordinates) for v in gen.group_vars(nest, [i], f"({c})", gen.top)]
        index = [Affine.of(v) if not is_one(e) else Affine() for v, e in zip(variables, self.anchor.shape, strict=True)]
        gen.bind_anchor(self.anchor, index, Register(value, self.anchor.dtype, width, gen.top))
        long = [v for v, e in zip(variables, self.anchor.shape, strict=True) if not is_one(e)]
        gen.vector = long[-1] if width > 1 and long else None  # without: in a branch of a single result's kernel that is not taken
        registers = [gen.value(node, index) for node in region.outputs]
        for node, register in zip(region.outputs, registers, strict=True):
            region.store(gen, node, register, index, width, False)
        self.helpers |= gen.helpers
        self.anchor_identity = self.anchor_identity and gen.anchor_identity
        return "{\n" + gen.top.render(2) + "  }"


def probe(region, materialised):
    """A dry run of a fused region (with its anchor as a plain value): the generator, for its `reads` and `root_index`."""
    gen = Generator(Args(), materialised, 1, None, None, region.outputs)
    nest = gen.nest("root", region.space)
    variables = [v for i in range(len(region.space)) for v in gen.open_loop(nest, [i], gen.block)]
    gen.root_index = [Affine() if is_one(n) else Affine.of(v) for v, n in zip(variables, region.space, strict=True)]
    if region.anchor is not None:
        gen.bind_anchor(region.anchor, gen.root_index, Register("acc", region.anchor.dtype, 1, gen.block))
    for node in region.outputs:
        gen.value(node, gen.root_index)
    return gen
