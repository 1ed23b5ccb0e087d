"""The cases of each family of kernels (kernels/families.py): functions of a device's traits that return Cases, few if `short`."""

from keras_ocl.verify.cases import attention, convolutions, fused, ordered, pointwise, products, reductions, steps


def _of_units(traits, short):
    return [case for part in (products, convolutions, attention) for case in part.of_units(traits, short)]


# Family -> the function (traits, short) that returns its Cases.
CASES = {
    "pointwise": pointwise.cases,
    "transposes": pointwise.transposes,
    "reductions": reductions.cases,
    "products": products.cases,
    "few_rows": products.few_rows,
    "matrix_units": _of_units,
    "convolutions": convolutions.cases,
    "winograd": convolutions.winograd,
    "attention": attention.cases,
    "scans": ordered.scans,
    "sorts": ordered.sorts,
    "scatters": ordered.scatters,
    "loops": fused.loops,
    "joined": fused.joined,
    "steps": steps.cases,
}
