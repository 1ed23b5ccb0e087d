"""The text of kernels: pointwise ones, with loops as the schedule writes them, and the epilogues and prologues of templates."""

from keras_ocl.compiler.codegen import Generator
from keras_ocl.compiler.codegen.nests import Register, analyse
from keras_ocl.compiler.fuse import row_results
from keras_ocl.compiler.fuse.prologue import runs_in_lanes
from keras_ocl.core.dim import product, same
from keras_ocl.core.index import Affine, is_one, linear
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, Sink


class KernelBody:
    """What one kernel computes: the nodes `outputs` over the index space `space`, or over its first axes, from `materialised` nodes.

    `alias`: dict from a node to the node whose buffer it uses. `extra`: dict from a node to further Buffers in which it is stored.
    `parts`: dict from a node to (its regions.Parts, whether it has a buffer of its own as well).
    """

    def __init__(self, outputs, space, materialised, alias, extra, parts):
        self.outputs, self.space, self.materialised, self.alias = outputs, tuple(space), materialised, alias
        self.extra, self.parts = extra, parts

    @property
    def rows(self):
        """How many leading axes of the space count rows, where some outputs have one value per row; None where none has."""
        return next((row_results.leading(n.shape, self.space) for n in self.outputs if not same(n.shape, self.space)), None)

    def store(self, gen, node, register, index, width, wide):
        """Write the statements that store `node`'s value at an index, in every buffer that holds it."""
        value, (parts, own) = gen.widen(register, width).text, self.parts.get(node, ((), True))
        places = [(self.alias.get(p.concat, p.concat), p.offset(index, node.shape)) for p in parts]
        for place in (self.alias.get(node, node), *self.extra.get(node, ())) if own else ():
            places.append((place, linear(index, node.shape)))
        for place, offset in places:
            pointer, count = gen.args.pointer(place, node.dtype, out=True), gen.partial if width > 1 else 0
            gen.visit(place, node.dtype, offset)
            gen.helpers |= prelude.helpers_for(node.dtype, width, count)
            statement = prelude.store(node.dtype, width, pointer, gen.text(offset, wide), value, count, gen.whole)
            if gen.team is not None and not same(node.shape, self.space):
                gen.team.once(gen, statement)
            else:
                gen.emit(statement)


def pointwise_kernel(traits, body, all_arguments=False):
    """The KernelSpec that computes a KernelBody's outputs."""
    axes = [i for i, n in enumerate(body.space) if not is_one(n)]
    extents = [body.space[i] for i in axes]
    schedule = schedule_of(traits)
    width = schedule.width(traits)
    dry = Generator(Args(all_arguments), body.materialised, width, None, body.alias, body.outputs)
    dry.aligned = width
    nest = dry.nest("root", extents)
    variables = []
    for i in range(len(extents)):
        variables += dry.open_loop(nest, [i], dry.block)
    _evaluate(dry, body, axes, variables)
    shared = any(
        b.var is not None and b.var.nest is not nest for block in _chain(dry.block)[1:-1] for b in block.lines if not isinstance(b, str)
    )
    analyse(dry.nests)
    team = schedule.team(traits, dry.nests, None if body.rows is None else sum(i < body.rows for i in axes))
    if team is not None:
        nest.split(team.level)
    args = Args(all_arguments)
    gen = Generator(args, body.materialised, width, dry.nests, body.alias, body.outputs)
    gen.wide = needs_64_bits(body, dry.reads, *(product(nest.extents) for nest in dry.nests.values()))
    gen.aligned, gen.team = width, team
    if not extents and team is None:
        _evaluate(gen, body, axes, [])
        grid, group = (1,), (1,)
    else:
        grid, group = schedule.pointwise(traits, gen, nest, dry.cost, shared, lambda variables: _evaluate(gen, body, axes, variables))
    return args.kernel("", gen.top.render(), grid, group, frozenset(gen.helpers), title="elementwise operations and reductions")


def _chain(block):
    """The Blocks from the outermost to `block`."""
    chain = []
    while block is not None:
        chain.append(block)
        block = block.parent
    return chain[::-1]


def _evaluate(gen, body, axes, variables):
    """Write the statements that compute and store every output at the point given by the loop variables."""
    index = [Affine()] * len(body.space)
    for axis, v in zip(axes, variables, strict=True):
        index[axis] = Affine.of(v)
    places = [index if same(node.shape, body.space) else row_results.of(index, node.shape, Affine()) for node in body.outputs]
    registers = [gen.value(node, at) for node, at in zip(body.outputs, places, strict=True)]
    for node, register, at in zip(body.outputs, registers, places, strict=True):
        offset = linear(at, node.shape)
        width = gen.width if gen.vector is not None and gen.lanes(offset) else 1
        body.store(gen, node, register, at, width, True)


def needs_64_bits(body, read, *counts):
    """Whether indices into the nodes that the body stores, into the nodes `read` or into `counts` elements take 64 bits."""
    stored = [*body.outputs, *(part.concat for n in body.outputs for part in body.parts.get(n, ((),))[0])]
    return index_type(*(product(n.shape) for n in [*stored, *read]), *counts) == "long"


class RegionSink(Sink):
    """The epilogue of a kernel template: evaluates a KernelBody on the template's accumulator and stores it. wide: with 64-bit indices."""

    def __init__(self, body, anchor, traits, wide):
        self.body, self.anchor, self.traits, self.wide = body, anchor, traits, wide
        self.shape, self.dtype = anchor.shape, anchor.dtype
        self.helpers = set()
        self.anchor_identity = True

    def store(self, args, coordinates, value, width):
        """C text of a block that evaluates the epilogue on `width` elements in the register `value` and stores the results."""
        body, n = self.body, len(self.anchor.shape)
        dry = Generator(Args(args.all_arguments), body.materialised, width, None, body.alias, body.outputs)
        nest = dry.nest("root", self.anchor.shape)
        gen = Generator(args, body.materialised, width, {"root": nest}, body.alias, body.outputs)
        gen.wide = self.wide
        nest.groups = [[i] for i in range(n)]
        cast = "(long)" if self.wide else ""  # the template's own coordinates may have fewer bits
        variables = [v for i, c in enumerate(coordinates) for v in gen.group_vars(nest, [i], f"{cast}({c})", gen.top)]
        index = [Affine.of(v) if not is_one(e) else Affine() for v, e in zip(variables, self.anchor.shape, strict=True)]
        gen.bind_anchor(self.anchor, index, Register(value, self.anchor.dtype, width, gen.top))
        long = [v for v, e in zip(variables, self.anchor.shape, strict=True) if not is_one(e)]
        gen.vector = long[-1] if width > 1 and long else None  # none if all extents are 1: such a kernel does not reach its vector branch
        registers = [gen.value(node, index) for node in body.outputs]
        for node, register in zip(body.outputs, registers, strict=True):
            body.store(gen, node, register, index, width, False)
        self.helpers |= gen.helpers
        self.anchor_identity = self.anchor_identity and gen.anchor_identity
        return "{\n" + gen.top.render(2) + "  }"


class RegionSource:
    """The prologue of a kernel template: the value of `node`, an operand laid out as a matrix, is computed where the template loads it."""

    def __init__(self, node, materialised, alias):
        self.node, self.materialised, self.alias = node, materialised, alias
        self.helpers = set()

    def in_lanes(self, extents, width):
        """Whether vectors along the rows of a matrix of these extents can be computed from vectors in memory."""
        return runs_in_lanes(self.node, extents, self.materialised, width)

    def load(self, args, row, column, extents, width, wide):
        """(C statements, C text of a register) for `width` elements from (row, column) on; see gemm.parts.Operand."""
        nest = Generator(Args(), self.materialised, width).nest("root", extents)
        gen = Generator(args, self.materialised, width, {"root": nest}, self.alias)
        gen.wide, gen.aligned = wide, width
        (k,), (c,) = (gen.group_vars(nest, [i], f"({place})", gen.top) for i, place in enumerate((row, column)))
        gen.vector = c if width > 1 else None
        register = gen.value_flat(self.node, Affine.of(k) * extents[1] + Affine.of(c))
        self.helpers |= gen.helpers
        return gen.top.render(), gen.widen(register, width).text


def dry_run(region, materialised):
    """A dry run of a region, with its anchor as a plain value; returns the Generator, for its `reads` and `root_index`."""
    gen = Generator(Args(), materialised, 1, None, None, region.outputs)
    nest = gen.nest("root", region.space)
    variables = [v for i in range(len(region.space)) for v in gen.open_loop(nest, [i], gen.block)]
    gen.root_index = [Affine() if is_one(n) else Affine.of(v) for v, n in zip(variables, region.space, strict=True)]
    if region.anchor is not None:
        gen.bind_anchor(region.anchor, gen.root_index, Register("acc", region.anchor.dtype, 1, gen.block))
    for node in region.outputs:
        gen.value(node, gen.root_index if same(node.shape, region.space) else row_results.of(gen.root_index, node.shape, Affine()))
    return gen
