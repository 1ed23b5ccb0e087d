"""Matrix product of the reference schedule: a work-item computes one element of the result."""

from keras_ocl.kernels import summation
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.spec import Args


def kernel(problem):
    """The KernelSpec of `problem`."""
    p, args = problem, Args(problem.all_arguments)
    n = Names(p, args)
    a = p.load(p.a, 1, "a", summed(scaled("row", n.a_row), scaled("q", n.a_column)))
    b = p.load(p.b, 1, "b", summed(scaled("q", n.b_row), scaled("column", n.b_column)))

    def walk(start, stop):
        return f"for ({n.index} q = {start}; q < {stop}; ++q) value = {p.fma(a, b, 'value')};\n"

    body = [
        *n.lines,
        f"const {n.index} row = {args.place('global', 1)}, column = {args.place('global', 0)};\n",
        f"{p.register} value = 0;\n",
        summation.cut(p.accumulator, p.register, ["value"], walk, "0", n.k, p.k),
        p.sink.store(args, (*n.coordinates, "row", "column"), "value", 1),
    ]
    grid = (p.n, p.m, 1 if p.batch is None else p.batch)
    return args.kernel(
        "matrix product",
        "".join(body),
        grid,
        None,
        frozenset(p.helpers | p.sink.helpers),
        title="matrix product: one element per work-item",
    )
