"""Pointwise loops of the reference schedule: a work-item computes one element, and all reductions that it needs."""

from keras_ocl.core.dim import product
from keras_ocl.kernels.pointwise.unflatten import unflatten


def write(traits, gen, nest, cost, shared, evaluate):
    """(grid, group) of loops over `nest` around `evaluate`; see Schedule.pointwise."""
    gen.emit(f"const {gen.ctype} item = {gen.args.place('global', 0)};")
    evaluate(unflatten(gen, nest, nest.groups, "item"))
    return (product(nest.extents),), None
