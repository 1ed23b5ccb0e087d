"""Convolution for GPUs as an implicit matrix product (im2col on the fly), with tiles in local memory (kernels/contraction.py).

A convolution is the product of (pixels x rows) by (rows x output channels), where a row is one (tap, input
channel); its filter's gradient is (rows x pixels) by (pixels x output channels). Neither the im2col matrix
nor a transposed filter is ever stored: tiles are gathered as they are loaded. This works for every
geometry; groups are the third dimension of the grid.

With an input dilation (the gradient of a strided convolution, a transposed one) a work-group computes outputs
of one phase, whose rows are only the taps that meet the input, so that no inserted zero is multiplied.

The inner loop has no divisions. The addresses of an item's rows are computed before it, and the (tap, channel), or the
pixel, of its step advances like the digits of an odometer, since the steps that an item loads are equally far apart.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint, power_below, product, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.kernels import ordered_sum, prelude
from keras_ocl.kernels.contraction import Computed, Loader
from keras_ocl.kernels.conv.geometry import outside
from keras_ocl.kernels.conv.operand import Operand
from keras_ocl.kernels.coordinates import decode, index_type
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.gemm.parts import Problem
from keras_ocl.kernels.matrix.units import methods
from keras_ocl.kernels.spec import Args, Buffer, Sink


def _beside(geometry, of_input, most):
    """`most` if the input's (else the output's) channels, and those of one group, are known to be multiples of it; else 1."""
    g = geometry
    channels = (g.input[-1], g.group_inputs) if of_input else (g.output[-1], g.group_outputs)
    return most if all(not isinstance(n, Dim) and n % most == 0 for n in channels) else 1


class _Odometer:
    """Row-major coordinates of a step of k, in C variables `names`, that advance by `advance` steps at a time without divisions.

    extents, texts: the coordinates' extents and their C texts. begin: C text of the step at which the sum begins. first: C text of the
    item's first step relative to it, less than `advance`.
    """

    def __init__(self, names, extents, texts, begin, first, advance):
        self.names, self.extents, self.texts = names, extents, texts
        self.begin, self.first, self.advance = begin, first, advance
        self.outer, self.last = [i for i, extent in enumerate(extents[:-1]) if not is_one(extent)], len(extents) - 1

    def start(self):
        """Statements before the loop over k. The loop begins with a move(), so they set the step before the item's first."""
        digits, values, rest = [*self.outer, self.last], ["0"] * len(self.names), self.begin
        for i in reversed(digits if rest != "0" else ()):
            extent = f"max(1, {self.texts[i]})"
            values[i], rest = (rest, "0") if i == digits[0] else (f"{rest} % {extent}", f"({rest} / {extent})")
        values[self.last] += f" + {self.first} - {self.advance}"
        return "".join(f"int {name} = {value};\n" for name, value in zip(self.names, values, strict=True))

    def move(self, changed=""):
        """Statements that advance the coordinates; `changed`: statements to run when more than the last coordinate has changed."""
        name, extent = self.names[self.last], self.texts[self.last]
        text = f"{name} += {self.advance};\n"
        if not self.outer:
            return text
        carry = f"++{self.names[self.outer[0]]};\n"
        for i in self.outer[1:]:
            carry = f"if (++{self.names[i]} == {self.texts[i]}) {{\n{self.names[i]} = 0;\n{carry}}}\n"
        carry = f"{name} -= {extent};\n{carry}"
        once = not isinstance(self.extents[self.last], Dim) and self.extents[self.last] >= self.advance
        carry = carry if once else f"do {{\n{carry}}} while ({name} >= {extent});\n"
        return f"{text}if ({name} >= {extent}) {{\n{carry}{changed}}}\n"


def _declared(ctype, names, count):
    """Statement that declares `count` variables per name; not arrays, which some compilers do not keep in registers."""
    declared = ", ".join(f"{name}{x}" for name in names for x in range(count))
    return f"{ctype} {declared};\n" if declared else ""


class _Patches(Loader):
    """The input of a convolution as (pixels x rows), summed over rows: adjacent elements are channels of one tap."""

    def __init__(self, product, operand, pixels):
        super().__init__("i_first", pixels, along_k=True, vector=product.beside(True, product.tile.depth))
        self.p, self.operand, self.rows = product, operand, product.rows(product.tile.height, self)
        self.bounded = [i for i, axis in enumerate(product.axes) if i and not axis.inside]
        self.changed = []  # statements of other loaders for a new tap

    def prepare(self, count):
        self.count = count
        places = _declared(self.p.index, ["base_of", "from_of"], count) + _declared("int", [f"at{i}_of" for i in self.bounded], count)
        return f"{self.rows.start()}{self._tap()}{places}"

    def _tap(self):
        """Statements that compute the current tap's offset in the input, relative to a pixel's first tap."""
        p, text = self.p, ""
        terms = []
        for i, axis in enumerate(p.axes[1:], 1):
            text += f"const int shift{i} = tap{i} * {p.args.int(axis.tap_advance)};\n"
            terms.append(f"shift{i} * {p.step(axis)}")
        return f"{text}const {p.index} shift = {' + '.join(terms)};\n"

    def _reach(self, x):
        """Statement that computes the offset of the current tap of the item's pixel `x` in the input, -1 if it is outside."""
        inputs = {i: self.p.args.int(self.p.axes[i].input) for i in self.bounded}
        inside = " && ".join(f"(uint)(at{i}_of{x} + shift{i}) < (uint){inputs[i]}" for i in self.bounded)
        return f"from_of{x} = {f'{inside} ? ' if inside else ''}base_of{x} + shift{' : -1' if inside else ''};\n"

    def row(self, x):
        p = self.p
        text, line = p.pixel("at"), f"{p.wide('u0')} * {p.step(p.axes[0])} + group * {p.inputs}"
        for i, axis in enumerate(p.axes[1:], 1):
            text += f"const int at{i} = u{i} * {p.args.int(axis.advance)} + {p.starts[i]};\n"
            line += f" + {p.wide(f'at{i}')} * {p.step(axis)}"
        text += "".join(f"at{i}_of{x} = at{i};\n" for i in self.bounded)
        return f"{text}base_of{x} = {line};\n{self._reach(x)}"

    def move(self):
        reach = "".join(self._reach(x) for x in range(self.count))
        return self.rows.move(f"{self._tap()}{''.join(self.changed)}{reach}")

    def element(self, x):
        # Without a pixel the offset is -1, which would be no multiple of a vector's size.
        place = f"max(from_of{x}, 0)" if self.bounded and self.operand.source else f"from_of{x}"
        statements, value = self.operand.load(self.vector, f"({place} + inner)", self.p.tile.stored, guarded=True)
        return statements, f"from_of{x} >= 0" if self.bounded else "", value


class _Filter(Loader):
    """A filter as (rows x output channels of the group), where the rows are not contiguous.

    If it is transposed and every item loads some of the patches, an item loads the same steps of both operands: `patches` is loaded first,
    and its odometer serves the filter too. Otherwise the filter has its own odometer.
    """

    def __init__(self, product, operand, patches):
        transposed = product.problem.transposed
        vector = product.beside(transposed, product.tile.depth if transposed else product.tile.width)
        super().__init__("j_first", product.outputs, along_k=transposed, vector=vector)
        self.p, self.operand, self.transposed = product, operand, transposed
        together = transposed and not product.contraction.shares(product.tile.height, patches)[0].guard
        self.prefix = "" if together else "own_"
        self.rows = None if together else product.rows(product.tile.width, self, self.prefix)
        if together:
            patches.changed.append(self._tap())

    def _tap(self):
        """Statement that computes the offset in the filter of the current tap's elements for the group."""
        p, args, g = self.p, self.p.args, self.p.geometry
        tap = "0"
        for i, axis in enumerate(p.axes[1:], 1):
            own = f"{self.prefix}tap{i}" if axis.tap_period == 1 else f"{self.prefix}tap{i} * {axis.tap_period}"
            own = own if axis.spread == 1 else f"first{i} + {own}"
            tap = own if tap == "0" else f"({tap}) * {args.int(axis.taps)} + {own}"
        if self.transposed:
            line = f"({args.int(product(g.filter[: g.rank]))} - 1 - ({tap})) * {p.outputs} * {args.int(g.input[-1])} + group * {p.inputs}"
        else:
            line = f"({tap}) * {p.inputs} * {args.int(g.output[-1])} + group * {p.outputs}"
        return f"line = {line};\n"

    def prepare(self, count):
        return f"{self.rows.start() if self.rows else ''}int {self._tap()}"

    def move(self):
        return self.rows.move(self._tap()) if self.rows else ""

    def element(self, x):
        g, inner = self.p.geometry, f"{self.prefix}inner"
        step = self.p.args.int(g.input[-1] if self.transposed else g.output[-1])
        place = f"at * {step} + {inner}" if self.transposed else f"{inner} * {step} + at"
        statements, value = self.operand.load(self.vector, f"(line + {place})", self.p.tile.stored, guarded=True)
        return statements, "", value


class _PatchesAcross(Loader):
    """The input of a convolution as (rows x pixels), summed over pixels from `begin` on."""

    def __init__(self, product, operand, rows, begin):
        super().__init__("i_first", rows, along_k=False, vector=product.beside(True, product.tile.height))
        extents = product.geometry.output[:-1]
        names, texts = [f"u{i}" for i in range(len(extents))], [product.args.int(n) for n in extents]
        self.p, self.operand = product, operand
        self.pixels = product.odometer(names, extents, texts, begin, product.tile.height, self)
        self.bounded = [i for i, axis in enumerate(product.axes) if i and not axis.inside]

    def prepare(self, count):
        places = _declared(self.p.index, ["from_of"], count) + _declared("int", [f"at{i}_of" for i in self.bounded], count)
        return f"{self.pixels.start()}{self.p.index} {self._line()}{places}"

    def row(self, x):
        p, g, args = self.p, self.p.geometry, self.p.args
        text = f"const int tap = at / {p.inputs}, inner = at % {p.inputs};\n{decode('tap', g.filter[: g.rank], 'tap', args)}"
        line = f"group * {p.inputs} + inner"
        for i, axis in enumerate(p.axes[1:], 1):
            text += f"const int at{i} = tap{i - 1} * {args.int(axis.dilation)} - {args.int(axis.low)};\n"
            line += f" + {p.wide(f'at{i}')} * {p.step(axis)}" if axis.spread == 1 else ""
        return text + "".join(f"at{i}_of{x} = at{i};\n" for i in self.bounded) + f"from_of{x} = {line};\n"

    def _line(self):
        """Statement that computes the current pixel's offset in the input, along the axes without input dilation."""
        p, terms = self.p, [f"{self.p.wide('u0')} * {self.p.step(self.p.axes[0])}"]
        for i, axis in enumerate(p.axes[1:], 1):
            terms += [f"{p.wide(f'u{i}')} * {p.args.int(axis.stride)} * {p.step(axis)}"] if axis.spread == 1 else []
        return f"line = {' + '.join(terms)};\n"

    def move(self):
        p, last = self.p, self.p.axes[-1]
        text = f"line += {self.pixels.advance * last.stride} * {p.step(last)};\n" if last.spread == 1 else ""
        return text + self.pixels.move(self._line())

    def step(self):
        return "".join(f"const int place{i} = u{i} * {self.p.args.int(self.p.axes[i].stride)};\n" for i in self.bounded)

    def element(self, x):
        p, text, line, conditions = self.p, "", f"line + from_of{x}", []
        for i in self.bounded:
            axis = p.axes[i]
            place, extent = f"place{i} + at{i}_of{x}", p.args.int(axis.input)
            if axis.spread == 1:
                conditions.append(f"(uint)({place}) < (uint){extent}")
                continue
            text += f"const int t{i} = {place}, i{i} = t{i} / {axis.spread};\n"
            conditions.append(f"!({outside(axis, f't{i}', f'i{i}', p.args)})")
            line += f" + {p.wide(f'i{i}')} * {p.step(axis)}"
        statements, value = self.operand.load(self.vector, f"({line})", p.tile.stored, guarded=True)
        return text + statements, " && ".join(conditions), value


def own_tile(problem, kind):
    """What gpu_choice.choose() returns, of the device's own choices of a kind; None where it has none."""
    traits, dtype, accumulator = problem.traits, problem.dtype, problem.accumulator

    def multiplying():
        return methods(traits.matrix_units, dtype, accumulator, problem.precision)

    return gpu_choice.own_tile(traits, accumulator, kind, lambda: problem.key, multiplying=multiplying)


class _Product:
    """Base of both products: the group of channels at work, its extents, the contraction.

    blocks: {C name: number} of the indices, besides the group of channels, into which the grid's third dimension is split.
    """

    def __init__(self, problem, tile, **blocks):
        self.problem, self.geometry, self.dtype, self.axes = problem, problem.geometry, problem.dtype, problem.axes
        self.args, self.tile, self.blocks, geometry = Args(), tile, blocks, problem.geometry
        self.inputs, self.outputs = self.args.int(geometry.group_inputs), self.args.int(geometry.group_outputs)
        self.contraction = tile.contraction(self.args, problem.register(), "fma({}, {}, {})".format, dtype=problem.dtype)
        self.index = index_type(product(geometry.input))
        self.operands = []

    def beside(self, of_input, extent):
        """Number of adjacent channels of the input (else the output) that form one vector; it divides `extent`, a tile's."""
        widths = {min(most, self.tile.fragment, extent) for most in (8, 4)}
        return max(_beside(self.geometry, of_input, width) if extent % width == 0 else 1 for width in widths)

    def helpers(self, sink):
        """Names of the prelude functions that the kernel calls, with its Sink's."""
        loads = prelude.helpers_for(self.dtype, self.tile.fragment) | prelude.helpers_for(self.dtype, 1)
        return frozenset(sink.helpers).union(loads, *(operand.helpers for operand in self.operands))

    def operand(self, name):
        """The Operand of that name."""
        self.operands.append(Operand(self.problem, self.args, name))
        return self.operands[-1]

    def wide(self, name):
        """C text of a coordinate, converted to the type of offsets into the input."""
        return name if self.index == "int" else f"({self.index}){name}"

    def step(self, axis):
        """C text of the input's stride along `axis`, in elements."""
        return self.args.int(axis.input_step, self.index)

    def odometer(self, names, extents, texts, begin, extent, loader):
        """The _Odometer of the steps of k that an item loads of an operand with `extent` rows per tile."""
        _, steps = self.contraction.shares(extent, loader)
        first = f"({steps.first})" if steps.vector == 1 else f"({steps.first}) * {steps.vector}"
        return _Odometer(names, extents, texts, begin, first, min(steps.side, steps.extent) * steps.vector)

    def head(self):
        """Statements that define the item's indices in the work-group, its group of channels, and its indices of `blocks`."""
        t, text, rest = self.tile, "", self.args.place("group", 2)
        for name, count in self.blocks.items():
            text += f"const int {name} = {rest} % {count};\n"
            rest = f"{rest} / {count}"
        return (
            f"{self.contraction.head()}{text}const int group = {rest};\n"
            f"const int i_first = {self.args.place('group', 1)} * {t.height}, j_first = {self.args.place('group', 0)} * {t.width};\n"
            f"{self.contraction.results()}"
        )

    def dense(self, operand):
        """The Loader of an operand that lies as (steps of k x output channels of all groups)."""
        channels = self.args.int(self.geometry.output[-1])

        vector = self.beside(False, self.tile.width)

        def load(at, k):
            return operand.load(vector, f"((long){k} * {channels} + group * {self.outputs} + {at})", self.tile.stored)

        return Computed("j_first", self.outputs, False, load, None, vector=vector)

    def grid(self, results):
        """The global size for `results` rows of results."""
        t, g = self.tile, self.geometry
        across, down = ceil_div(g.group_outputs, t.width) * t.across, ceil_div(results, t.height) * t.down
        return across, down, g.groups * product(self.blocks.values())

    def cut(self, results, steps):
        """Let the contraction sum in blocks if there are many `steps`; `results`: rows of results."""
        (across, down, count), t = self.grid(results), self.tile
        self.contraction.cut(self.problem.accumulator, (across // t.across, down // t.down, count), steps)

    @property
    def stored(self):
        """Number of adjacent channels of a result that are stored as one vector."""
        return self.beside(False, self.tile.beside)

    def each(self, rows, store):
        """Statements that run `store` for each result, or each vector of `stored` results."""
        return self.contraction.each("i_first", rows, "j_first", self.outputs, store, vectors=self.stored > 1)

    @property
    def shape(self):
        """Text of a work-group's tile, for the kernel's title."""
        return f"{self.tile.height} rows x {self.tile.width} channels per work-group{self.tile.manner}"

    @property
    def group(self):
        return self.tile.across, self.tile.down, 1


def _forward_sums(problem):
    """What gpu_choice.choose() and candidates() take of a convolution, but for a given tile."""
    axes, geometry, accumulator = problem.axes, problem.geometry, problem.accumulator
    batch = geometry.groups * product(axis.period for axis in axes)
    rows = product(axis.phase_taps for axis in axes) * geometry.group_inputs
    extents = batch, product(axis.per_phase for axis in axes), geometry.group_outputs, rows
    read = size_hint(geometry.input), size_hint(geometry.filter)
    sums = Problem(problem.traits, *extents, None, None, accumulator, None, precision=problem.precision, read=read)
    return sums, None, _beside(geometry, True, gpu_choice.fragment(dtypes.itemsize(accumulator))), problem.dtype


def _gradient_sums(problem):
    """The same of a convolution whose filter's gradient is computed."""
    geometry = problem.geometry
    pixels, rows = product(geometry.output[:-1]), product(geometry.filter[:-1])
    read = size_hint(geometry.input), size_hint(geometry.output)
    extents = geometry.groups, rows, geometry.group_outputs, pixels
    sums = Problem(problem.traits, *extents, None, None, problem.accumulator, None, precision=problem.precision, read=read)
    return sums, None, 0, problem.dtype


def candidates(problem, kind):
    """gpu_choice.candidates() of the kind "convolution" or "filter_gradient"."""
    sums, _, pixels, dtype = (_forward_sums if kind == "convolution" else _gradient_sums)(problem)
    return gpu_choice.candidates(sums, pixels, dtype)


class _Forward(_Product):
    """The product (pixels of a phase x rows) by (rows x output channels)."""

    def __init__(self, problem):
        axes, geometry = problem.axes, problem.geometry
        self.pixels, phases = tuple(axis.per_phase for axis in axes), product(axis.period for axis in axes)
        tile, size = own_tile(problem, "convolution") or gpu_choice.choose(*_forward_sums(problem))
        rows = product(axis.phase_taps for axis in axes) * geometry.group_inputs
        self.parts = -(-hint(rows) // size) if size else 1
        super().__init__(problem, tile, part=self.parts, phase=phases)
        args = self.args
        # C texts for each axis: the number of the phase's taps, and the input position of its first output's first tap.
        self.taps = [args.int(axis.taps) if axis.spread == 1 else f"taps{i}" for i, axis in enumerate(self.axes)]
        self.starts = [f"-{args.int(axis.low)}" if axis.spread == 1 else f"start{i}" for i, axis in enumerate(self.axes)]

    def head(self):
        text = super().head() + decode("phase", [axis.period for axis in self.axes], "phase", self.args)
        for i, axis in enumerate(self.axes):
            if axis.spread == 1:
                continue
            low, taps, dilation = self.args.int(axis.low), self.args.int(axis.taps), axis.dilation
            text += f"const int origin{i} = phase{i} * {axis.stride} - {low};\nint first{i} = 0;\n"
            text += f"while (first{i} < {taps} && (origin{i} + first{i} * {dilation}) % {axis.spread} != 0) ++first{i};\n"
            text += f"const int taps{i} = ({taps} - first{i} + {axis.tap_period - 1}) / {axis.tap_period};\n"
            text += f"const int start{i} = (origin{i} + first{i} * {dilation}) / {axis.spread};\n"
        text += f"const int rows = {' * '.join([self.inputs, *self.taps[1:]])};\n"
        if self.parts == 1:
            return text
        size = f"((rows + {self.parts - 1}) / {self.parts} + {self.tile.depth - 1}) / {self.tile.depth} * {self.tile.depth}"
        return f"{text}const int size = {size};\nconst int begin = part * size, end = min(begin + size, rows);\n"

    @property
    def begin(self):
        """C text of the row at which an item's sum begins."""
        return "0" if self.parts == 1 else "begin"

    def pixel(self, name):
        """Statements that split the index `name` of a pixel of the phase into coordinates u0, u1, ..."""
        return decode(name, self.pixels, "u", self.args)

    def rows(self, extent, loader, prefix=""):
        """The _Odometer of rows (tap1, ..., inner) for an operand with `extent` rows per tile."""
        g, axes = self.geometry, self.axes[1:]
        names = [*(f"{prefix}tap{i}" for i in range(1, g.rank + 1)), f"{prefix}inner"]
        extents = [*(axis.phase_taps for axis in axes), g.group_inputs]
        return self.odometer(names, extents, [*self.taps[1:], self.inputs], self.begin, extent, loader)

    def result(self, sink):
        """Statements that hand `value` at `row` and `column` to the sink."""
        text, outputs, guards = self.pixel("row"), [], []
        for i, axis in enumerate(self.axes):
            outputs.append(f"u{i}" if axis.period == 1 else f"(phase{i} + u{i} * {axis.period})")
            if axis.period > 1 and (isinstance(axis.output, Dim) or axis.output % axis.period):
                guards.append(f"{outputs[-1]} < {self.args.int(axis.output)}")
        outputs = outputs if self.parts == 1 else ["part", *outputs]
        store = sink.store(self.args, [*outputs, f"(group * {self.outputs} + column)"], "value", self.stored)
        return text + (f"if ({' && '.join(guards)}) {{\n{store}}}\n" if guards else store)


def forward(problem):
    """The KernelSpecs of a convolution: one, or, if pixels are few, one for partial sums over the rows and one that adds them in order."""
    p, shape, sink, kept = _Forward(problem), problem.geometry.output, problem.sink, problem.accumulator
    args = p.args
    x, w = p.operand("x"), p.operand("w")
    pixels = args.int(product(p.pixels))
    patches = _Patches(p, x, pixels)
    ordered = not problem.transposed and all(axis.spread == 1 for axis in p.axes)
    columns = p.dense(w) if ordered else _Filter(p, w, patches)
    parts = Buffer(p.parts * product(shape), kept)
    stored = sink if p.parts == 1 else Sink(parts, (p.parts, *shape), kept)
    p.cut(product(p.pixels), ceil_div(product(axis.phase_taps for axis in p.axes) * p.geometry.group_inputs, p.parts))
    text = f"{p.head()}{p.contraction.walk(p.begin, 'rows' if p.parts == 1 else 'end', patches, columns)}"
    text += p.each(pixels, p.result(stored))
    title = f"convolution: {p.shape}"
    specs = [
        args.kernel(problem.name, text, p.grid(product(p.pixels)), p.group, p.helpers(stored), title=title, attributes=p.tile.attributes)
    ]
    return specs if p.parts == 1 else [*specs, _sum(problem, f"sum of a split {problem.name}", parts, p.parts, shape)]


def _sum(problem, name, parts, count, shape):
    """The KernelSpec that adds `count` partial results of `shape`."""
    group = power_below(problem.traits.max_group)
    team = ordered_sum.team(count, product(shape), problem.tuning.summing_items, min(16, group))
    return ordered_sum.kernel(name, parts, count, shape, problem.accumulator, problem.sink, team=team, group=group)


def filter_grad(problem):
    """The KernelSpecs of a filter gradient: one, or, if pixels are many, one that sums chunks of them and one that adds these in order."""
    geometry, kept = problem.geometry, problem.accumulator
    pixels, rows = product(geometry.output[:-1]), product(geometry.filter[:-1])
    tile, size = own_tile(problem, "filter_gradient") or gpu_choice.choose(*_gradient_sums(problem))
    chunks = ceil_div(hint(pixels), size) if size else 1
    p = _Product(problem, tile, chunk=chunks)
    args = p.args
    x, dy = p.operand("x"), p.operand("dy")
    size, rows_text = args.int(ceil_div(pixels, chunks)), args.int(rows)
    partial = Buffer(product(geometry.filter) * chunks, kept)
    stored = problem.sink if chunks == 1 else Sink(partial, (chunks, *geometry.filter), kept)
    p.cut(rows, ceil_div(pixels, chunks))
    text = p.head()
    text += f"const int begin = chunk * {size}, end = min(begin + {size}, {args.int(pixels)});\n"
    text += p.contraction.walk("begin", "end", _PatchesAcross(p, x, rows_text, "begin"), p.dense(dy))
    place = [f"f{i}" for i in range(geometry.rank + 1)] + [f"(group * {p.outputs} + column)"]
    store = decode("row", geometry.filter[:-1], "f", args)
    store += stored.store(args, place if chunks == 1 else ["chunk", *place], "value", p.stored)
    text += p.each(rows_text, store)
    title = f"convolution, gradient of the filter: {p.shape}"
    first = args.kernel(problem.name, text, p.grid(rows), p.group, p.helpers(stored), title=title, attributes=p.tile.attributes)
    return [first] if chunks == 1 else [first, _sum(problem, f"{problem.name} sum", partial, chunks, geometry.filter)]
