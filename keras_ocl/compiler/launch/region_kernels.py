"""The text of kernels: pointwise ones, with loops as the schedule writes them, and the epilogues and prologues of templates."""

import functools

from keras_ocl.compiler.codegen import Analysis, Generator
from keras_ocl.compiler.codegen.nests import Nest, Register, analyse
from keras_ocl.compiler.fuse import cost, row_results
from keras_ocl.compiler.fuse.prologue import begins_whole, runs_in_lanes
from keras_ocl.core.dim import product, same, size_hint
from keras_ocl.core.index import Affine, is_one, linear
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, Sink


class KernelBody:
    """What one kernel computes: the nodes `outputs` over the index space `space`, or over its first axes, from `materialised` nodes.

    `alias`: dict from a node to the node whose buffer it uses. `extra`: dict from a node to further Buffers in which it is stored.
    `parts`: dict from a node to (its regions.Part objects, whether it has a buffer of its own as well). `staged`: as in regions.Region.
    """

    def __init__(self, outputs, space, materialised, alias, extra, parts, staged=None):
        self.outputs, self.space, self.materialised, self.alias = outputs, tuple(space), materialised, alias
        self.extra, self.parts, self.staged = extra, parts, staged or {}

    @property
    def rows(self):
        """How many leading axes of the space count rows, where some outputs have one value per row or a row is staged; else None."""
        found = [row_results.leading(n.shape, self.space) for n in self.outputs if not row_results.per_element(n.shape, self.space)]
        return next(iter([*found, *self.staged.values()]), None)

    def places(self, node, index):
        """Where the value of `node` at an index is stored: [(the node or Buffer that holds it, offset in elements)]."""
        parts, own = self.parts.get(node, ((), True))
        places = [(self.alias.get(p.concat, p.concat), p.offset(index, node.shape)) for p in parts]
        return places + [(place, linear(index, node.shape)) for place in (self.alias.get(node, node), *self.extra.get(node, ())) if own]

    def store(self, gen, node, register, index, width):
        """Write the statements that store `node`'s value at an index, in every buffer that holds it."""
        value = gen.widen(register, width).text
        for place, offset in self.places(node, index):
            pointer, count = gen.args.pointer(place, node.dtype, out=True), gen.partial if width > 1 else 0
            gen.helpers |= prelude.helpers_for(node.dtype, width, count)
            if width == 1 or is_one(stride := gen.lane_stride(offset)):
                statement = prelude.store(node.dtype, width, pointer, gen.text(offset), value, count, gen.whole)
            else:  # a concat's operand of extent 1 along the axis: one element of each row
                statement = _one_by_one(gen, node.dtype, pointer, gen.text(offset), stride, value, count or width)
            if gen.team is not None and not row_results.per_element(node.shape, self.space):
                gen.team.once(gen, statement)
            else:
                gen.emit(statement)

    def evaluated(self, evaluator, axes, variables):
        """[(node, its Register, its index)] of outputs at the point given by the variables of the loops over `axes`; not of staged ones."""
        index = [Affine()] * len(self.space)
        for axis, v in zip(axes, variables, strict=True):
            index[axis] = Affine.of(v)
        outputs = [n for n in self.outputs if n not in self.staged]  # loops of reductions store the others
        places = [index if same(node.shape, self.space) else row_results.of(index, node.shape, self.space, Affine()) for node in outputs]
        return [(node, evaluator.value(node, at), at) for node, at in zip(outputs, places, strict=True)]


def _one_by_one(gen, dtype, pointer, offset, stride, value, count):
    """Statements that store the first `count` lanes of the register `value` (C text), `stride` elements apart, from `offset` on."""
    gen.helpers |= prelude.helpers_for(dtype, 1)
    places = [(f"({offset} + {lane} * {gen.int(stride)})", f"({value}).s{lane:x}") for lane in range(count)]
    return "{\n" + "\n".join(prelude.store(dtype, 1, pointer, place, lane) for place, lane in places) + "\n}"


def pointwise_kernel(traits, body, all_arguments=False):
    """The KernelSpec that computes a KernelBody's outputs."""
    axes = [i for i, n in enumerate(body.space) if not is_one(n)]
    schedule = schedule_of(traits)
    width = schedule.width(traits)
    analysis = Analysis(body.materialised, body.outputs, width, all_arguments)
    nest, analysis.staged = analysis.nest("root", [body.space[i] for i in axes]), body.staged
    for node, _, at in body.evaluated(analysis, axes, [analysis.open_loop(nest, i) for i in range(len(axes))]):
        for place, offset in body.places(node, at):
            analysis.visit(place, node.dtype, offset)
            analysis.note(offset, True)
    shared = any(b.var.nest is not nest for block in _chain(analysis.block)[1:-1] for b in block.lines)
    analyse(analysis.nests)
    team = schedule.team(traits, analysis.nests, None if body.rows is None else sum(i < body.rows for i in axes))
    if team is not None:
        nest.split(team.level)
    args = Args(all_arguments)
    gen = Generator(args, body.materialised, width, analysis.nests, body.alias, body.outputs)
    gen.wide = needs_64_bits(body, analysis.reads, *(product(nest.extents) for nest in analysis.nests.values()))
    gen.aligned, gen.team = width, team
    gen.staged, gen.writers, gen.store_result = body.staged, analysis.writers, functools.partial(body.store, gen)

    def evaluate(variables):
        for node, register, at in body.evaluated(gen, axes, variables):
            body.store(gen, node, register, at, gen.width if gen.vector is not None and gen.lanes(linear(at, node.shape)) else 1)

    if not axes and team is None:
        evaluate([])
        grid, group = (1,), (1,)
    else:
        grid, group = schedule.pointwise(traits, gen, nest, analysis.cost, shared, evaluate)
    return args.kernel("", gen.top.render(), grid, group, frozenset(gen.helpers), title="elementwise operations and reductions")


def _chain(block):
    """The Blocks from the outermost to `block`."""
    chain = []
    while block is not None:
        chain.append(block)
        block = block.parent
    return chain[::-1]


def needs_64_bits(body, read, *counts):
    """Whether indices into the nodes that the body stores, into the nodes `read` or into `counts` elements take 64 bits."""
    stored = [*body.outputs, *(part.concat for n in body.outputs for part in body.parts.get(n, ((),))[0])]
    return index_type(*(product((n if n.part is None else n.part.concat).shape) for n in [*stored, *read]), *counts) == "long"


class RegionSink(Sink):
    """The epilogue of a kernel template: evaluates a KernelBody on the template's accumulator and stores it. wide: with 64-bit indices."""

    def __init__(self, body, anchor, traits, wide):
        self.body, self.anchor, self.traits, self.wide = body, anchor, traits, wide
        self.shape, self.dtype = anchor.shape, anchor.dtype
        self.helpers = set()
        self.anchor_identity = True
        self.uniform = _uniform(body, anchor)

    def store(self, args, coordinates, value, width):
        """C text of a block that evaluates the epilogue on `width` elements in the register `value` and stores the results."""
        body = self.body
        nest = Nest(self.anchor.shape)
        gen = Generator(args, body.materialised, width, {"root": nest}, body.alias, body.outputs)
        gen.wide = self.wide
        cast = "(long)" if self.wide else ""  # the template's own coordinates may have fewer bits
        variables = [v for i, c in enumerate(coordinates) for v in gen.group_vars(nest, [i], f"{cast}({c})", gen.top)]
        index = [Affine.of(v) if not is_one(e) else Affine() for v, e in zip(variables, self.anchor.shape, strict=True)]
        gen.bind_anchor(self.anchor, index, Register(value, self.anchor.dtype, width, gen.top))
        long = [v for v, e in zip(variables, self.anchor.shape, strict=True) if not is_one(e)]
        gen.vector = long[-1] if width > 1 and long else None  # none if all extents are 1: such a kernel does not reach its vector branch
        registers = [gen.value(node, index) for node in body.outputs]
        for node, register in zip(body.outputs, registers, strict=True):
            body.store(gen, node, register, index, width)
        self.helpers |= gen.helpers
        self.anchor_identity = self.anchor_identity and gen.anchor_identity
        return "{\n" + gen.top.render(2) + "  }"


def _uniform(body, anchor):
    """How many of the nodes that `body` computes besides `anchor`, or reads, are scalars or keys of random numbers."""
    seen, stack = {anchor}, [n for n in body.outputs if n is not anchor]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += () if node in body.materialised and node not in body.outputs else node.inputs
    return sum(n is not anchor and size_hint(n.shape) <= 2 for n in seen)


class RegionSource:
    """The prologue of a kernel template: the value of `node`, an operand laid out as a matrix, is computed where the template loads it.

    leaves: the nodes that it reads from memory. whole: whether the template loads vectors only at multiples of their size.
    """

    def __init__(self, node, leaves, materialised, alias, whole):
        self.node, self.materialised, self.alias, self.whole = node, materialised, alias, whole
        self.read = sum(cost.size(n) * cost.itemsize(n) for n in leaves) / cost.size(node)
        self.helpers = set()

    def in_lanes(self, extents):
        """Whether vectors along the rows of a matrix of these extents can be computed from vectors in memory."""
        return runs_in_lanes(self.node, extents, self.materialised)

    def load(self, args, row, column, extents, width, wide):
        """(C statements, C text of a register) for `width` elements from (row, column) on; see gemm.parts.Operand."""
        nest = Nest(extents)
        gen = Generator(args, self.materialised, width, {"root": nest}, self.alias)
        gen.wide, gen.aligned = wide, width
        gen.whole = width > 1 and self.whole and begins_whole(self.node, extents, self.materialised, width)
        (k,), (c,) = (gen.group_vars(nest, [i], f"({place})", gen.top) for i, place in enumerate((row, column)))
        gen.vector = c if width > 1 else None
        register = gen.value_flat(self.node, Affine.of(k) * extents[1] + Affine.of(c))
        self.helpers |= gen.helpers
        return gen.top.render(), gen.widen(register, width).text


def reads(region, materialised):
    """(dict from each node that a region reads to the indices at which it does, the index of the element that it computes)."""
    analysis = Analysis(materialised, region.outputs)
    nest = analysis.nest("root", region.space)
    variables = [analysis.open_loop(nest, i) for i in range(len(region.space))]
    root = [Affine() if is_one(n) else Affine.of(v) for v, n in zip(variables, region.space, strict=True)]
    if region.anchor is not None:
        analysis.bind_anchor(region.anchor, root, Register("", region.anchor.dtype, 1, analysis.block))
    for node in region.outputs:
        analysis.value(node, root if same(node.shape, region.space) else row_results.of(root, node.shape, region.space, Affine()))
    return analysis.reads, root
