"""Code generation for pointwise values: from "node at an index" to OpenCL C statements.

`Generator.value(node, index)` walks from a result back to what is in memory, composing views by
substituting index expressions (as tinygrad's rangeify does), and defines each intermediate value in
the outermost block of the loop nest where its operands are known, which hoists loop-invariant code.
Reductions met on the way become loops of their own. A dry run without output records every index
expression that is printed; from it `analyse` learns which dimensions of a nest may be merged into one
loop and whether the innermost loop may be vectorised.
"""

import functools
from typing import NamedTuple

from keras_ocl.compiler.folds import ArgFold, Fold
from keras_ocl.compiler.nests import MASKED, Block, Nest, Register
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint, product
from keras_ocl.core.index import Affine, Var, at_least, is_one, linear
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels import elementwise, prelude


class Part(NamedTuple):
    """A part of a loop, from `start` to `stop` (C text): `lanes` elements at once, or one vector of which `partial` lanes exist."""

    lanes: int
    partial: int
    start: str
    stop: str


class Generator:
    """See the module's docstring.

    Args:
        args: kernels.spec.Args that collects the kernel's parameters.
        materialised: set of nodes that are in memory.
        width: vector lanes.
        analysis: dict of Nests from a dry run, or None for the dry run itself.
        alias: dict from node to the node whose buffer it shares.
        own: nodes that are in memory for others but computed here.
    """

    def __init__(self, args, materialised, width, analysis=None, alias=None, own=()):
        self.args, self.materialised, self.width, self.own = args, materialised, width, own
        self.dry = analysis is None
        self.nests = {} if self.dry else analysis
        self.alias = alias or {}
        self.top = Block()
        self.block = self.top
        self.vector = None  # the Var that runs over lanes, in a vectorised loop
        self.partial = 0  # how many of them there are, where the rest of a loop is less than a vector
        self.helpers = set()
        self.anchor = None
        self.anchor_index = None
        self._anchor_register = None
        self.anchor_identity = True
        self.cost = 0.0
        self.wide = False
        self.bounds = {}  # reduce node -> (dimension, start, stop): C text limiting that dimension's loop
        self.reads = {}  # materialised node -> list of index tuples, for the in-place check
        self.aligned = 0  # vector loops over the root nest begin at multiples of this (0: not known)
        self._memo = {}
        self._beyond = Var("0", 1, self.top)  # a term of indices that may lie beyond the ends in some lanes, whose values a mask discards
        self._count = 0
        self._index = ()

    # ---- names and places

    def name(self, stem="t"):
        self._count += 1
        return f"{stem}{self._count}"

    def emit(self, line):
        self.block.lines.append(line)

    def _deepest(self, blocks):
        best = self.top
        for b in blocks:
            if b is not None and b.depth > best.depth:
                best = b
        return best

    def _visible(self, block):
        b = self.block
        while b is not None:
            if b is block:
                return True
            b = b.parent
        return False

    def define(self, dtype, width, expression, blocks, ctype=None):
        """A new register holding `expression`, in the deepest of `blocks`."""
        block = self._deepest(blocks)
        name = self.name()
        block.lines.append(f"const {ctype or prelude.register_type(dtype, width)} {name} = {expression};")
        return Register(name, dtype, width, block)

    # ---- index expressions

    @property
    def ctype(self):
        """The C type of indices."""
        return "long" if self.wide else "int"

    def int(self, extent):
        """C text of an extent or stride."""
        return self.args.int(extent, self.ctype)

    def lanes(self, affine):
        """Whether the index expression varies along the vector loop."""
        return self.vector is not None and any(v is self.vector or v.nest is self.vector.nest and self._same_group(v) for v in affine.terms)

    def _same_group(self, var):
        group = self.vector.nest.groups[-1] if self.vector.nest is not None else [self.vector.position]
        return var.position in group

    def lane_stride(self, affine):
        """Coefficient of the vector loop's variable (the last dimension of the merged group)."""
        for v, c in affine.terms.items():
            if v is self.vector or (v.nest is not None and v.nest is self.vector.nest and v.position == self.vector.nest.groups[-1][-1]):
                return c
        return 0

    def text(self, affine, load=False):
        """C text of an index expression."""
        if self.dry:
            self._record(affine, load)
        parts = []
        for v, c in affine.terms.items():
            if v.nest is not None and not self.dry:
                group = next(g for g in v.nest.groups if v.position in g)
                if v.position != group[-1]:
                    continue  # printed with the merged loop's variable
            if is_one(c):
                parts.append(v.name)
            else:
                parts.append(f"{v.name} * {self.int(c)}")
        if affine.constant != 0 or isinstance(affine.constant, Dim) or not parts:
            parts.append(self.int(affine.constant))
        return " + ".join(parts)

    def _record(self, affine, load):
        nests = {v.nest for v in affine.terms if v.nest is not None}
        for nest in nests:
            coefficients = [0] * len(nest.extents)
            for v, c in affine.terms.items():
                if v.nest is nest:
                    coefficients[v.position] = c
            nest.uses.append(coefficients)
            nest.loads.append(load if load is not MASKED or nest is self.nests.get("root") else False)

    def _int(self, affine, expression_of, lanes=False):
        """Define a C integer computed from `affine`; `expression_of(text)` gives its C expression. `lanes`: the first lane's will do."""
        blocks = [v.block for v in affine.terms]
        block = self._deepest(blocks)
        name = self.name("i")
        block.lines.append(f"const {self.ctype} {name} = {expression_of(self.text(affine, lanes))};")
        return name, block

    def _in_step(self, affine, *edges):
        """Whether the lanes of a vector loop see consecutive values of `affine` that no multiple-of-lanes edge divides."""
        root = self.nests.get("root")
        if not self.aligned or root is None or not root.extents:
            return False
        found = False
        for v, c in affine.terms.items():
            if v.nest is root and v.position == len(root.extents) - 1 and is_one(c):
                found = True
            elif isinstance(c, Dim) or c % self.aligned:
                return False
        return found and all(not isinstance(e, Dim) and e % self.aligned == 0 for e in (affine.constant, *edges))

    def divmod(self, affine, n):
        """(affine // n, affine % n) for affine >= 0."""
        affine = Affine.of(affine)
        if is_one(n):
            return affine, Affine()
        exact, rest = Affine(), Affine()
        for v, c in affine.terms.items():
            if _divides(n, c):
                exact = exact + Affine({v: c // n})
            else:
                rest = rest + Affine({v: c})
        whole, left = affine.constant // n, affine.constant % n
        exact, rest = exact + whole, rest + left
        low, high = rest.bounds()
        if not at_least(low, 0):  # C divides towards zero: only the whole is known not to be negative
            exact, rest = Affine(), affine
            low, high = rest.bounds()
        if at_least(low, 0) and at_least(n - 1, high):
            return exact, rest
        q, qb = self._int(rest, lambda t: f"({t}) / {self.int(n)}")
        quotient = Var(q, high // n + 1, qb)
        r, rb = self._int(rest + Affine({quotient: -n}), lambda t: t)
        return exact + Affine.of(quotient), Affine.of(Var(r, n, rb))

    def inside(self, affine, low, high):
        """Mask of low <= affine < high, or None when that always holds."""
        affine = Affine.of(affine)
        least, greatest = affine.bounds()
        tests = []
        if not at_least(least, low):
            tests.append(lambda t: f"{t} >= {self.int(low)}")
        if not at_least(high - 1, greatest):
            tests.append(lambda t: f"{t} < {self.int(high)}")
        if not tests:
            return None
        step = self._in_step(affine, low, high)
        if not step and not self.dry and self.lanes(affine):
            place = self.number(affine, "int64" if self.wide else "int32")
            sides = [("ge", low, not at_least(least, low)), ("lt", high, not at_least(high - 1, greatest))]
            masks = [self.op(op, "bool", place, Register(self.int(edge), place.dtype, 1, self.top)) for op, edge, open_ in sides if open_]
            return functools.reduce(self.both, masks)
        name, block = self._int(affine, lambda t: t, step or self._runs_along_lanes(affine))
        return self.define("bool", 1, "-(" + " && ".join(t(name) for t in tests) + ")", [block])

    def _runs_along_lanes(self, affine):
        """MASKED where an index varies along the loop that may become lanes, else False: a mask of lanes takes their place then."""
        root = self.nests.get("root")
        along = root is not None and any(v.nest is root and v.position == len(root.extents) - 1 for v in affine.terms)
        return MASKED if along else False

    def safe(self, affine, mask, fallback=0):
        """`affine` where the mask holds, else `fallback`, so that the load stays in bounds."""
        affine = Affine.of(affine)
        if mask is None:
            return affine
        if mask.width > 1 or (self.dry and self._runs_along_lanes(affine) and not self._in_step(affine, fallback)):
            return affine + Affine.of(self._beyond)
        block = self._deepest([mask.block, *(v.block for v in affine.terms)])
        name = self.name("i")
        if self._in_step(affine, fallback):
            # An offset instead of another index, so that lanes stay consecutive.
            block.lines.append(f"const {self.ctype} {name} = {mask.text} ? 0 : {self.int(fallback)} - ({self.text(affine, True)});")
            return affine + Affine.of(Var(name, 1, block))
        block.lines.append(f"const {self.ctype} {name} = {mask.text} ? {self.text(affine)} : {self.int(fallback)};")
        return Affine.of(Var(name, affine.bounds()[1] + 1, block))

    def both(self, a, b):
        if a is None or b is None:
            return a if b is None else b
        return self.op("and", "bool", a, b)

    def select(self, mask, a, b):
        return a if mask is None else self.op("select", a.dtype, mask, a, b)

    def as_index(self, register, extent):
        """An integer register (0 <= value < extent) as an index. Lanes cannot index, so this ends vectorisation."""
        if register.affine is not None:
            return register.affine
        if self.dry:
            b = register.block
            while b is not None:
                if b.var is not None and b.var.position == len(b.var.nest.extents) - 1:
                    b.var.nest.vectorisable = False
                b = b.parent
        return Affine.of(Var(register.text, extent, register.block))

    def clip_index(self, register, extent):
        """Integer register clipped to 0 <= value < extent, as int32 (int64 where needed)."""
        if register.affine is not None:
            low, high = register.affine.bounds()
            if at_least(low, 0) and at_least(extent - 1, high):
                return register
        dtype = "int64" if self.wide else "int32"
        own = register.dtype
        if own != dtype and own in ("int64", "uint32", "uint64"):  # what does not fit in `dtype` is clipped before it is converted
            top = self.define(own, 1, f"({dtypes.register_ctype(own)})({self.int(extent - 1)})", [])
            register = self.op("min", own, register, top)
            register = self.op("max", own, register, self.constant(0, own))
        r = register if own == dtype else self.op("convert", dtype, register)
        top = self.define(dtype, 1, self.int(extent - 1), [])
        return self.op("max", dtype, self.op("min", dtype, r, top), self.constant(0, dtype))

    def number(self, affine, dtype):
        """An index as a number of `dtype`; along the vector loop, one value a lane."""
        affine = Affine.of(affine)
        blocks = [v.block for v in affine.terms]
        integer = "int64" if self.wide else "int32"
        if not self.dry and self.lanes(affine):
            w = self.width
            steps = ", ".join(str(k) for k in range(w))
            stride = self.int(self.lane_stride(affine))
            text = f"({self.ctype}{w})({self.text(affine, True)}) + ({self.ctype}{w})({steps}) * ({self.ctype}{w})({stride})"
            r = self.define(integer, w, text, blocks)
        else:
            r = self.define(integer, 1, self.text(affine, True), blocks)
        r = r if dtype == integer else self.op("convert", dtype, r)
        if dtypes.is_integer(dtype):
            r.affine = affine
        return r

    # ---- values

    def constant(self, value, dtype):
        text = self._constant_text(value, dtype)
        return Register(text, dtype, 1, self.top)

    def _constant_text(self, value, dtype):
        if isinstance(value, Dim):
            text = self.args.int(value, "long" if dtypes.is_integer(dtype) else "int")
            return f"(({dtypes.register_ctype(dtype)}){text})"
        if dtypes.is_float(dtype) and value not in (0.0, 1.0, -1.0, 0.5, 2.0) and value == value and abs(value) != float("inf"):
            rounded = dtypes.numpy_dtype(dtype).type(value)
            return self.args.scalar(float(rounded), dtypes.register_ctype(dtype))
        return elementwise.literal(value, dtype)

    def op(self, name, out_dtype, *registers):
        """Apply an elementwise operation; one-lane operands widen where another operand has lanes."""
        width = max(r.width for r in registers)
        operands = [self.widen(r, width).text for r in registers]
        in_dtypes = [r.dtype for r in registers]
        self.helpers |= elementwise.helpers(name, width, out_dtype, in_dtypes)
        expression = elementwise.emit(name, width, out_dtype, in_dtypes, operands)
        return self.define(out_dtype, width, expression, [r.block for r in registers])

    def widen(self, register, width):
        if register.width == width:
            return register
        return Register(f"({prelude.register_type(register.dtype, width)})({register.text})", register.dtype, width, register.block)

    def value(self, node, index):
        """Register holding `node` at `index`."""
        index = tuple(Affine.of(i) for i in index)
        if self.dry and dtypes.is_complex(node.dtype):  # a register is a vector already
            for nest in self.nests.values():
                nest.vectorisable = False
        lanes = self.vector if any(self.lanes(i) for i in index) else None
        identity = (node, tuple(i.key for i in index), lanes)
        found = self._memo.get(identity)
        if found is not None and self._visible(found[0].block):
            return found[0]
        if node is self.anchor:
            if any(i.key != a.key for i, a in zip(index, self.anchor_index, strict=True)):
                self.anchor_identity = False
            register = self._anchor_register
        elif self.in_memory(node):
            register = self.load(node, index)
        else:
            saved, self._index = self._index, index
            register = node.primitive.pointwise(self, node, index)
            self._index = saved
        self._memo[identity] = (register, index)  # the index keeps its Vars, whose ids are in the key, alive
        return register

    def in_memory(self, node):
        """Whether `node` is read from memory here, rather than computed."""
        return node is not self.anchor and (node.primitive is None or (node in self.materialised and node not in self.own))

    def value_flat(self, node, offset):
        """`node` at a row-major offset: reshapes and elementwise operations need not take the index apart."""
        if node is self.anchor:
            return self.value(node, self._unflattened(offset, node.shape))
        if self.in_memory(node):
            return self.load(node, None, offset)
        if node.kind is Kind.VIEW and node.primitive.flat:
            return self.value_flat(node.inputs[0], offset)
        if node.kind is Kind.VIEW and not node.inputs[0].shape:
            return self.value(node.inputs[0], ())
        if node.kind is Kind.ELEMENTWISE and all(i.shape == node.shape for i in node.inputs):
            identity = (node, offset.key, self.vector if self.lanes(offset) else None)
            found = self._memo.get(identity)
            if found is None or not self._visible(found[0].block):
                saved, self._index = self._index, (offset,)
                found = self.op(node.name, node.dtype, *[self.value_flat(i, offset) for i in node.inputs]), offset
                self._index = saved
                self._memo[identity] = found
            return found[0]
        return self.value(node, self._unflattened(offset, node.shape))

    def _unflattened(self, offset, shape):
        index = []
        for n in reversed(shape[1:]):
            offset, rest = self.divmod(offset, n)
            index.append(rest)
        return (offset, *reversed(index)) if shape else ()

    def bind_anchor(self, node, index, register):
        """Values of `node` come from the kernel template's accumulator."""
        self.anchor, self.anchor_index, self._anchor_register = node, tuple(Affine.of(i) for i in index), register

    def load(self, node, index, offset=None):
        """A register with the stored value at an index, or at a row-major offset."""
        self.reads.setdefault(node, []).append(index)
        pointer = self.args.pointer(self.alias.get(node, node), node.dtype)
        offset = linear(index, node.shape) if offset is None else offset
        blocks = [v.block for v in offset.terms]
        self.helpers |= prelude.helpers_for(node.dtype, 1)
        if self.dry or not self.lanes(offset):
            return self.define(node.dtype, 1, prelude.load(node.dtype, 1, pointer, self.text(offset, True)), blocks)
        w, count, stride, beyond = self.width, self.partial, self.lane_stride(offset), self._beyond in offset.terms
        if is_one(stride):
            self.helpers |= prelude.helpers_for(node.dtype, w, count)
            if not beyond:
                return self.define(node.dtype, w, prelude.load(node.dtype, w, pointer, self.text(offset, True), count), blocks)
        base, step = self.define("int32", 1, self.text(offset, True), blocks, self.ctype), self.int(stride)
        places = [f"{base.text} + {k} * {step}" for k in range(count or w)]
        if beyond:  # in memory all the same, but for the tensor's first and last elements
            size = self.int(product(node.shape))
            places = [f"clamp({place}, ({self.ctype})0, ({self.ctype})({size} - 1))" for place in places]
        lanes = ", ".join([prelude.load(node.dtype, 1, pointer, place) for place in places] + ["0"] * (w - len(places)))
        text = f"({prelude.register_type(node.dtype, w)})({lanes})"
        if beyond and is_one(stride):
            whole = prelude.load(node.dtype, w, pointer, base.text, count)
            text = f"{base.text} >= 0 && {base.text} + {count or w} <= {size} ? {whole} : {text}"
        return self.define(node.dtype, w, text, [base.block])

    def random(self, helper, dtype, key, counter, *parameters, word=()):
        """What the prelude's `helper` draws for a counter, an index expression: `key` is two registers, `parameters` and `word` follow."""
        low = self.number(counter, "uint32")
        width = max(low.width, *(r.width for r in parameters)) if parameters else low.width
        name = f"{helper}_{width}"
        self.helpers |= {name}
        lanes = [self.widen(r, width) for r in (low, *parameters)]
        arguments = ", ".join([*(r.text for r in (*key, *lanes)), *(f"{w}u" for w in word)])
        return self.define(dtype, width, f"{name}({arguments})", [r.block for r in (*key, *lanes)])

    # ---- loops

    def nest(self, identity, extents):
        """The Nest of this identity: made in the dry run, looked up afterwards."""
        if self.dry:
            nest = self.nests.get(identity)
            if nest is None:
                nest = self.nests[identity] = Nest(extents)
            return nest
        return self.nests[identity]

    def open_loop(self, nest, group, parent, vector=0, bounds=None):
        """Open a for loop over a merged group of dimensions; returns its Vars. `vector`: lanes a step, or 0."""
        extent = product(nest.extents[i] for i in group)
        name = self.name("g")
        start, stop = bounds or ("0", self.int(extent))
        if vector > 1:
            header = f"for ({self.ctype} {name} = {start}; {name} + {vector} <= {stop}; {name} += {vector})"
        else:
            header = f"for ({self.ctype} {name} = {start}; {name} < {stop}; ++{name})"
        block = Block(parent, header)
        self.block = block
        variables = self.group_vars(nest, group, name, block)
        block.var = variables[-1]
        return variables

    def group_vars(self, nest, group, name, block):
        """Vars of the dimensions of a group; only the last one's name is printed."""
        return [Var(name, nest.extents[i], block, nest, i) for i in group]

    def close_loop(self):
        block = self.block
        block.parent.lines.append(block)
        self.block = block.parent

    def reduce(self, node, kind, dtype, extents, body):
        """Reduction over `extents` of body(indices), in registers of `dtype`. kind: sum, prod, max, min, and, or."""
        return self._loop_nest(node, extents, body, Fold(self, kind, dtype))

    def reduce_arg(self, node, kind, dtype, extents, body):
        """(extreme, row-major int32 position of its first occurrence); NaN wins."""
        return self._loop_nest(node, extents, body, ArgFold(self, kind, dtype, extents))

    def _loop_nest(self, node, extents, body, fold):
        real = [i for i, n in enumerate(extents) if not is_one(n)]
        nest = self.nest((node, type(fold).__name__), [extents[i] for i in real])

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
        elif self.dry:
            lanes = False
        self.cost += hint(product(extents))
        fold.begin(self.width if lanes else 1)
        bounds = self.bounds.get(node)
        if not real:
            fold.step(body(full(())), full(()))
        else:
            if bounds is not None:
                bounds = (real.index(bounds[0]), *bounds[1:])
                nest.breaks.add(bounds[0])
            self._loops(nest, body, fold, lanes, full, bounds)
        result = fold.finish()
        self.block, self.vector, self.partial = saved
        return result

    def _loops(self, nest, body, fold, lanes, full, bounds):
        parent, bound = self.block, {}
        *outer, inner = nest.groups

        def step(group, variables):
            bound.update(zip(group, variables, strict=True))
            indices = full([Affine.of(bound[i]) for i in range(len(nest.extents))])
            fold.step(body(indices), indices)

        for g in outer:
            bound.update(zip(g, self.open_loop(nest, g, self.block, 0, self._limits(nest, g, bounds)), strict=True))
        extent = product(nest.extents[i] for i in inner)
        vectorised = not self.dry and not lanes and nest.vectorisable and fold.vectorises
        width = self.lane_width(extent) if vectorised else 1
        for part in self.parts(extent, width, self._limits(nest, inner, bounds), least=width):
            self.in_part(nest, inner, part, functools.partial(step, inner))
        for _ in outer:
            self.close_loop()
        assert self.block is parent

    def _limits(self, nest, group, bounds):
        """(start, stop) of a group's loop when `bounds` = (dimension, start, stop) restricts its first dimension."""
        if bounds is None or bounds[0] not in group:
            return None
        scale = self.int(product(nest.extents[i] for i in group[1:]))
        return f"{bounds[1]} * {scale}", f"{bounds[2]} * {scale}"

    def known(self, extent):
        """Whether the kernel's text may depend on `extent`."""
        return not isinstance(extent, Dim) and not self.args.all_arguments

    def lane_width(self, extent):
        """Lanes for a loop of `extent`: the device's width, less for short loops."""
        w, n = self.width, hint(extent)
        while w > 1 and w > (2 * n - 1 if self.known(extent) else n):
            w //= 2
        return w if w >= 4 else 1

    def parts(self, extent, width, limits=None, least=4):
        """The Parts of a loop over `extent`, or between `limits`, in vectors of `width` lanes; one for the rest has `least` or more."""
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

    def in_part(self, nest, group, part, body):
        """A loop over a Part of a merged group of dimensions; `body` makes what is in it, given its Vars."""
        saved = self.width, self.vector, self.partial
        variables = self.open_loop(nest, group, self.block, part.lanes, (part.start, part.stop))
        if part.lanes > 1:
            self.width, self.vector, self.partial = part.lanes, variables[-1], part.partial
        body(variables)
        self.close_loop()
        self.width, self.vector, self.partial = saved


def _divides(n, c):
    rest = c % n
    return rest == 0 and not isinstance(rest, Dim)
