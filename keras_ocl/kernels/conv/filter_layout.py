"""Reorders filters into the order in which a convolution's kernel reads them.

Packing puts blocks of output channels one after the other, each with all of its taps and input channels contiguous. Unpacked, a block of
a wide filter is a few cache lines of every row, and rows whose length is a power of two map to the same few sets of the cache.
"""

from dataclasses import replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Args, Buffer

_STEP = 16  # output channels loaded at once, as a vector


def arrange(problem, transposed=False, blocks=None):
    """(KernelSpecs that write the filter in the order wanted, the Problem that reads it there); none if it has that order.

    transposed: as in Problem. blocks: [(output channels of a block, number of such blocks)] of the filter, without groups; None if it is
    not to be packed in blocks.
    """
    flipped, dtype = problem.transposed != transposed, problem.dtype
    if not flipped and blocks is None:
        return [], problem
    geometry = problem.geometry.transposed() if problem.transposed else problem.geometry  # the convolution whose filter is w
    arranged = replace(problem, w=Buffer(product(problem.geometry.filter), dtype), transposed=transposed, packed=blocks is not None)
    args = Args(all_arguments=True)  # memory-bound: literal extents would only compile a kernel per filter
    source, result = args.pointer(problem.w, dtype), args.pointer(arranged.w, dtype, out=True)
    write = _flipped if flipped else _straight
    text, items = write(geometry, source, result, dtype, args, blocks)
    name = "convolution filter transposition" if flipped else "convolution filter packing"
    helpers = prelude.helpers_for(dtype, 1) | prelude.helpers_for(dtype, _STEP)
    return [args.kernel(name, text, (items,), (1,), frozenset(helpers), title=name)], arranged


def _each_block(args, blocks, body):
    """C text of `body` for all blocks; its C variables: `start`, a block's first channel, and `lanes`, the number of its channels."""
    text, done = "", 0
    for lanes, count in blocks:
        text += f"for (int block = 0; block < {args.int(count)}; ++block) {{\n"
        text += f"const int lanes = {args.int(lanes)}, start = {args.int(done)} + block * lanes;\n{body}}}\n"
        done += lanes * count
    return text


def _straight(geometry, source, result, dtype, args, blocks):
    """(text, items) of a copy in blocks: a work-item copies a row, the output channels of one tap and input channel."""
    rows, outputs = product(geometry.filter[:-1]), args.int(geometry.output[-1])
    storage = dtypes.storage_ctype(dtype)
    body = f"__global const {storage}* from = {source} + (long)row * {outputs} + start;\n"
    body += f"__global {storage}* to = {result} + (long)start * {args.int(rows)} + (long)row * lanes;\n"
    body += f"for (int c = 0; c < lanes; ++c) {prelude.store(dtype, 1, 'to', 'c', prelude.load(dtype, 1, 'from', 'c'))}\n"
    return f"const int row = {args.place('global', 0)};\n" + _each_block(args, blocks, body), rows


def _flipped(geometry, source, result, dtype, args, blocks):
    """(text, items) of a flip: a work-item loads vectors of a tap's output channels and stores them as columns of the mirrored tap."""
    count = product(geometry.filter[: geometry.rank])
    vectors = -(-geometry.group_outputs // _STEP)
    taps, inputs, outputs = args.int(count), args.int(geometry.group_inputs), args.int(geometry.group_outputs)
    row = args.int(geometry.output[-1])
    stride = "lanes" if blocks else args.int(geometry.input[-1])
    storage = dtypes.storage_ctype(dtype)
    stores = [prelude.store(dtype, 1, "to", f"{j} * {stride} + c", f"v.s{j:x}") for j in range(_STEP)]
    body = f"__global const {storage}* from = {source} + ((long)tap * {inputs} + start) * {row} + group * {outputs} + first;\n"
    place = f"(long)start * {taps} * {outputs} + ((long)({taps} - 1 - tap) * {outputs} + first) * {stride} + group * {inputs}"
    body += f"__global {storage}* to = {result} + {place};\n"
    body += f"if (first + {_STEP} <= {outputs}) {{\nfor (int c = 0; c < lanes; ++c) {{\nconst {prelude.register_type(dtype, _STEP)} v = "
    body += prelude.load(dtype, _STEP, "from", f"c * {row}") + ";\n" + "\n".join(stores) + "\n}\n} else {\n"
    value = prelude.load(dtype, 1, "from", f"(c * {row} + j)")
    body += f"for (int c = 0; c < lanes; ++c) for (int j = 0; j < {outputs} - first; ++j) "
    body += prelude.store(dtype, 1, "to", f"(j * {stride} + c)", value) + "\n}\n"
    text = f"const int tap = {args.place('global', 0)} % {taps}, first = {args.place('global', 0)} / {taps} * {_STEP};\n"
    text += f"for (int group = 0; group < {args.int(geometry.groups)}; ++group) {{\n"
    return text + _each_block(args, blocks or [(geometry.group_inputs, 1)], body) + "}\n", count * vectors
