"""The sum of parts of a result that other work-items computed: in order, so that it is the same from run to run."""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import maximum, product
from keras_ocl.kernels.coordinates import decode
from keras_ocl.kernels.spec import Args, KernelSpec


def kernel(name, parts, count, shape, dtype, sink, all_arguments=False):
    """The KernelSpec that adds `count` parts of a result of `shape`, one item per element, and hands the sums to the sink.

    `parts`: handle of a buffer (count, *shape) of `dtype`, the accumulator's.
    """
    args, elements = Args(all_arguments), product(shape)
    source, register = args.pointer(parts, dtype), dtypes.register_ctype(dtype)
    text = "const int element = get_global_id(0);\n" + decode("element", shape, "f", args)
    text += f"{register} total = 0;\n"
    text += f"for (int chunk = 0; chunk < {args.int(count)}; ++chunk) total += {source}[(long)chunk * {args.int(elements)} + element];\n"
    text += sink.store(args, [f"f{i}" for i in range(len(shape))], "total", 1)
    return KernelSpec(name, args.args, text, (maximum(1, elements),), None, frozenset(sink.helpers), title="the sum of parts of a result")
