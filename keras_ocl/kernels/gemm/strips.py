"""Packs the left operand of a large matrix product in the order in which a CPU's tiles read it.

In a gradient of weights, consecutive elements along k lie a whole row apart: each step of k touches another page, and row lengths that are
powers of two use only a few sets of the cache. A strip holds the rows of one tile, with the elements of each step of k adjacent (the
packing of the left block in Goto and van de Geijn 2008, done once for all blocks).
"""

from dataclasses import replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint
from keras_ocl.kernels import prelude
from keras_ocl.kernels.gemm.parts import summed
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.spec import Args, Buffer


def suits(problem, tile):
    """Whether the left operand of a product is worth packing for `tile`."""
    a, t = problem.a, tuning_of(problem.traits).product
    if problem.all_arguments or problem.batch is not None or isinstance(problem.m, Dim) or problem.m < tile.rows:
        return False
    if tile.kind != "rows" or tile.steps > 1:  # in passes over a panel a tile's rows are read by their stride
        return False
    if isinstance(a.column_stride, Dim) or a.row_stride != 1 or a.column_stride * dtypes.itemsize(a.dtype) < t.strips_stride:
        return False
    panels = ceil_div(hint(problem.n), tile.panel(problem.lanes))
    return problem.m * hint(problem.k) >= t.strips and panels >= t.strips_panels


def pack(problem, tile):
    """Return (the KernelSpec that packs the left operand, the Problem that reads the packed operand)."""
    rows, a, depth = tile.rows, problem.a, tuning_of(problem.traits).product.strips_depth
    strips = ceil_div(problem.m, rows)
    packed = Buffer(strips * rows * problem.k, a.dtype)
    args, i = Args(), problem.index
    source, target = args.pointer(a.handle, a.dtype), args.pointer(packed, a.dtype, out=True)
    k, step = args.int(problem.k, i), args.int(a.column_stride, i)
    storage = dtypes.storage_ctype(a.dtype)
    body = f"const {i} first = ({i}){args.place('global', 0)} * {depth};\nconst {i} last = min(first + {depth}, ({i}){k});\n"
    body += f"for ({i} strip = 0; strip < {strips}; ++strip) {{\n"
    body += f"const {i} top = min(strip * {rows}, ({i}){problem.m - rows});\n"
    body += f"for ({i} q = first; q < last; ++q) {{\n"
    body += f"__global const {storage}* from = {summed(source, args.int(a.offset, i), 'top', f'q * {step}')};\n"
    body += f"__global {storage}* to = {target} + (strip * {k} + q) * {rows};\n"
    body += "\n".join(prelude.store(a.dtype, 1, "to", str(r), prelude.load(a.dtype, 1, "from", str(r))) for r in range(rows))
    body += "\n}\n}\n"
    helpers = frozenset(prelude.helpers_for(a.dtype, 1))
    spec = args.kernel(
        "matrix product packing",
        body,
        (ceil_div(problem.k, depth),),
        (1,),
        helpers,
        title=f"matrix product: the left operand in strips of {rows} rows",
    )
    # Within a step of k a tile's rows are adjacent; the strip that starts at row i begins at element i * k.
    operand = replace(a, handle=packed, row_stride=problem.k, column_stride=rows, batch_stride=0, offset=0)
    return spec, replace(problem, a=operand, strips=True)
