"""Sums of the parts of a result that other work-items computed: in order, so that they are the same from run to run."""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, maximum, product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import decode, index_type, unflattened
from keras_ocl.kernels.spec import Args, KernelSpec

_TITLE = "the sum of parts of a result"


def kernel(name, parts, count, shape, dtype, sink, all_arguments=False):
    """The KernelSpec that adds `count` parts of a result of `shape`, one item per element, and hands the sums to the sink.

    `parts`: handle of a buffer (count, *shape) of `dtype`, the accumulator's.
    """
    args, elements = Args(all_arguments), product(shape)
    source, register, i = args.pointer(parts, dtype), dtypes.register_ctype(dtype), index_type(elements)
    text = f"const {i} element = get_global_id(0);\n" + decode("element", shape, "f", args, i)
    text += f"{register} total = 0;\n"
    text += f"for (int chunk = 0; chunk < {args.int(count)}; ++chunk) total += {source}[(long)chunk * {args.int(elements, i)} + element];\n"
    text += sink.store(args, [f"f{i}" for i in range(len(shape))], "total", 1)
    return KernelSpec(name, args.args, text, (maximum(1, elements),), None, frozenset(sink.helpers), title=_TITLE)


def in_vectors(name, parts, count, shape, dtype, sink, width, least=1, all_arguments=False):
    """`kernel` with one item per row of `shape`, in vectors of at most `width` lanes along it.

    Rows of fewer than `least` elements share an item.
    """
    args, elements = Args(all_arguments), product(shape)
    columns, rows = shape[-1], product(shape[:-1])
    per_item = max(1, least // max(1, hint(columns)))
    while width > max(1, hint(columns)):
        width //= 2
    i = index_type(count * elements)
    source, n, total, stop = args.pointer(parts, dtype), args.int(columns, i), args.int(elements, i), args.int(count, i)

    def add(lanes):
        register = prelude.register_type(dtype, lanes)
        return (
            f"__global const {dtypes.storage_ctype(dtype)}* part = {source} + row * {n} + column;\n"
            f"{register} total = {prelude.load(dtype, lanes, 'part', '0')};\n"
            f"for ({i} chunk = 1; chunk < {stop}; ++chunk) {{\npart += {total};\n"
            f"total += {prelude.load(dtype, lanes, 'part', '0')};\n}}\n"
            f"{sink.store(args, [*unflattened(args, 'row', shape[:-1]), 'column'], 'total', lanes)}"
        )

    walk = f"{i} column = 0;\n"
    if width > 1:
        walk += f"for (; column + {width} <= {n}; column += {width}) {{\n{add(width)}}}\n"
    if width == 1 or not isinstance(columns, int) or columns % width:
        walk += f"for (; column < {n}; ++column) {{\n{add(1)}}}\n"
    if per_item == 1:
        text = f"const {i} row = get_global_id(0);\n{walk}"
    else:
        text = f"const {i} first = get_global_id(0) * {per_item};\n"
        text += f"for ({i} row = first; row < min(first + {per_item}, ({i}){args.int(rows, i)}); ++row) {{\n{walk}}}\n"
    grid = (ceil_div(rows, per_item),)
    return KernelSpec(name, args.args, text, grid, (1,), frozenset(sink.helpers), title=_TITLE)
