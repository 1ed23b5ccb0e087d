"""Convolution kernels with one work-item per output element, for any geometry on any device; every extent can be an argument.

They serve small eager work, groups of few channels on GPUs, and geometries that the tiled kernels do not support.
"""

from keras_ocl.core.dim import ceil_div, hint, power_below, product, size_hint
from keras_ocl.kernels import ordered_sum, summation
from keras_ocl.kernels.conv.geometry import outside, position
from keras_ocl.kernels.conv.operand import Operand
from keras_ocl.kernels.coordinates import decode, index_type
from keras_ocl.kernels.spec import Args, Buffer

_GRADIENT = "convolution, gradient of the filter: one element per work-item"


def _filter_offset(args, problem, tap, taps, channel, inner):
    """C text of a filter element's offset for output channel `channel`, input channel `inner` of its group, and tap."""
    geometry = problem.geometry
    outputs, inputs = args.int(geometry.group_outputs), args.int(geometry.group_inputs)
    if not problem.transposed:
        return f"((long)({tap}) * {inputs} + ({inner})) * {args.int(geometry.output[-1])} + ({channel})"
    row = f"(long)({taps} - 1 - ({tap})) * {outputs} + ({channel}) % {outputs}"
    return f"({row}) * {args.int(geometry.input[-1])} + ({channel}) / {outputs} * {inputs} + ({inner})"


def forward(problem):
    """The KernelSpecs of a convolution: one, of one item per output element."""
    geometry, sink = problem.geometry, problem.sink
    args = Args(problem.all_arguments)
    x, w = Operand(problem, args, "x"), Operand(problem, args, "w")
    axes, accumulator = problem.axes, problem.register()
    i = index_type(product(geometry.output[:-1]))
    text = f"const int channel = {args.place('global', 0)};\nconst {i} pixel = {args.place('global', 1)};\n"
    text += decode("pixel", geometry.output[:-1], "o", args, i)
    inputs = args.int(geometry.group_inputs)
    text += f"{accumulator} total = 0;\n"
    text += f"const int inner = channel / {args.int(geometry.group_outputs)} * {inputs};\n"
    line, tap = f"(long)o0 * {args.int(axes[0].input_step, 'long')}", "0"
    for i, axis in enumerate(axes[1:], 1):
        taps = args.int(axis.taps)
        text += f"for (int k{i} = 0; k{i} < {taps}; ++k{i}) {{\n"
        text += f"const int t{i} = {position(axis, f'o{i}', f'k{i}', args)};\n"
        text += f"const int i{i} = t{i} / {args.int(axis.spread)};\n"
        text += f"if ({outside(axis, f't{i}', f'i{i}', args)}) continue;\n"
        line += f" + (long)i{i} * {args.int(axis.input_step, 'long')}"
        tap = f"({tap} * {taps} + k{i})"
    text += f"const long line = {line} + inner;\n"
    offset = _filter_offset(args, problem, tap, args.int(product(geometry.filter[: geometry.rank])), "channel", "c")
    (before, value), (also_before, factor) = x.alone("value", "(line + c)"), w.alone("factor", f"({offset})")
    terms = hint(geometry.group_inputs * product(axis.taps for axis in axes[1:]))

    def walk(start, stop, target="sum"):
        return f"for (int c = {start}; c < {stop}; ++c) {{\n{before}{also_before}{target} += {value} * {factor};\n}}\n"

    if terms <= summation.PRODUCT_ALONE:
        text += walk("0", inputs, "total")
    else:
        text += f"{accumulator} sum = 0;\n"
        text += summation.cut(problem.accumulator, accumulator, ["sum"], walk, "0", inputs, geometry.group_inputs) + "total += sum;\n"
    text += "}\n" * geometry.rank
    coordinates = [f"o{i}" for i in range(geometry.rank + 1)] + ["channel"]
    text += sink.store(args, coordinates, "total", 1)
    grid = (geometry.output[-1], product(geometry.output[:-1]))
    helpers = frozenset(sink.helpers) | x.helpers | w.helpers
    return [args.kernel(problem.name, text, grid, None, helpers, title="convolution: one element per work-item")]


def filter_grad(problem, units=0, teams=False):
    """The KernelSpecs of a filter gradient, one item per filter element and chunk of rows of output pixels.

    `units` is the number of compute units to keep busy, 0 for a single chunk, however many images there are; the chunks' sums are added
    in order, by several work-items per element if `teams`.
    """
    geometry, sink, name = problem.geometry, problem.sink, problem.name
    args = Args(problem.all_arguments)
    x, dy = Operand(problem, args, "x"), Operand(problem, args, "dy")
    axes, accumulator = problem.axes, problem.register()
    elements = product(geometry.filter)
    # Eager work here is small: one chunk, so that its kernels do not depend on the number of images.
    items = 0 if problem.all_arguments else 256 * units
    chunks = max(1, min(size_hint(geometry.output[:-2]), items // max(1, hint(elements))))
    outer = geometry.output[:-2] if chunks > 1 else geometry.output[:1]
    rows = product(outer)
    size = ceil_div(rows, chunks)
    inputs, outputs = args.int(geometry.group_inputs), args.int(geometry.group_outputs)
    text = f"const int element = {args.place('global', 0)};\nconst int chunk = {args.place('global', 1)};\n"
    text += decode("element", geometry.filter, "f", args)
    rank = geometry.rank
    text += f"const int channel = f{rank + 1}; const int inner = channel / {outputs} * {inputs} + f{rank};\n"
    text += f"{accumulator} total = 0;\n"
    text += f"const int end = min((chunk + 1) * {args.int(size)}, {args.int(rows)});\n"
    row, kept = "row" if len(outer) > 1 else "o0", problem.accumulator
    line, gradient = f"(long)o0 * {args.int(axes[0].input_step, 'long')}", f"(long)o0 * {args.int(axes[0].output_step, 'long')}"
    places = [decode(row, outer, "o", args) if len(outer) > 1 else ""]
    ends = [args.int(axis.output) if i >= len(outer) else "" for i, axis in enumerate(axes)]
    for i, axis in enumerate(axes[1:], 1):
        place = f"const int t{i} = {position(axis, f'o{i}', f'f{i - 1}', args)};\n"
        place += f"const int i{i} = t{i} / {args.int(axis.spread)};\n"
        places.append(f"{place}if ({outside(axis, f't{i}', f'i{i}', args)}) continue;\n")
        line += f" + (long)i{i} * {args.int(axis.input_step, 'long')}"
        gradient += f" + (long)o{i} * {args.int(axis.output_step, 'long')}"
    (before, value), (also_before, factor) = x.alone("value", f"({line} + inner)"), dy.alone("factor", f"({gradient} + channel)")
    many = hint(size) * size_hint(geometry.output[len(outer) : -1]) > summation.PRODUCT_ALONE

    def along(i, total):
        """Statements that add the terms of all pixels along axis `i` and the inner axes to `total`."""
        if i > rank:
            return f"{before}{also_before}{total} += {value} * {factor};\n"
        if i < len(outer):
            return places[i] + along(i + 1, total)
        own = f"sum{i}" if many else total
        body = places[i] + along(i + 1, own)

        def walk(start, stop):
            return f"for (int o{i} = {start}; o{i} < {stop}; ++o{i}) {{\n{body}}}\n"

        if not many:
            return walk("0", ends[i])
        text = summation.cut(kept, accumulator, [own], walk, "0", ends[i], axes[i].output)
        return f"{{\n{accumulator} {own} = 0;\n{text}{total} += {own};\n}}\n"

    def rows_between(start, stop):
        return f"for (int {row} = {start}; {row} < {stop}; ++{row}) {{\n{places[0]}{along(1, 'total')}}}\n"

    text += summation.cut(kept, accumulator, ["total"], rows_between, f"chunk * {args.int(size)}", "end", size)
    if chunks == 1:
        text += sink.store(args, [f"f{i}" for i in range(rank + 2)], "total", 1)
        return [args.kernel(name, text, (elements, 1), None, frozenset(sink.helpers) | x.helpers | dy.helpers, title=_GRADIENT)]
    partial = Buffer(elements * chunks, kept)
    out = args.pointer(partial, kept, out=True)
    text += f"{out}[(long)chunk * {args.int(elements)} + element] = total;\n"
    first = args.kernel(name, text, (elements, chunks), None, frozenset(x.helpers | dy.helpers), title=_GRADIENT)
    group = power_below(problem.traits.max_group)
    team = ordered_sum.team(chunks, elements, items, min(16, group)) if teams else 1
    return [first, ordered_sum.kernel(f"{name} sum", partial, chunks, geometry.filter, kept, sink, team=team, group=group)]
