"""Families of kernels that `python -m keras_ocl verify` tries one by one, and what takes the place of one that is wrong on a device.

`Traits.quarantine` has the names of those that are not to be used. For most, `schedule_of` then puts fields of the schedule `reference` in
place of the schedule's own. The others are asked for where kernels are chosen (`Schedule.inside`), so that the next best are.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        name: what quarantines and `verify --only` call it.
        kernels: what belongs to it, in a few words.
        instead: a clause: what is done in its place, and what that costs.
        fields: fields of Schedule that are those of the schedule `reference` then.
        then: the family that is kept out as well where what takes its place is wrong, too; "" for none.
        beside: names of families that are kept out while it is verified, since they would do some of its work, or join its kernels.
    """

    name: str
    kernels: str
    instead: str
    fields: tuple[str, ...] = ()
    then: str = ""
    beside: tuple[str, ...] = ("joined",)


MATRIX_UNITS, JOINED, STEPS = "matrix_units", "joined", "steps"
# No family, but what Traits.quarantine may have as well: vectors of all kernels then have no more than NARROW lanes of 32 bits.
WIDE_VECTORS, NARROW = "wide_vectors", 4

# In the order in which they are verified: those that others use come first.
FAMILIES = (
    Family(
        "pointwise",
        "elementwise code, gathers and random numbers, in vectors or several elements at once",
        "a work-item computes one element at a time",
        ("pointwise", "team", "vectors", "widest", "gather", "shared_row", "row_results", "staged_rows", "nested_row"),
    ),
    Family(
        "transposes",
        "transposed operands, by way of local memory",
        "they are read where they lie, far apart",
        then="pointwise",
    ),
    Family(
        "reductions",
        "reductions of rows, columns and all, by work-items together; kernels of whole rows",
        "a work-item reduces alone, and softmax and normalisations take several kernels",
        ("team", "shared_row", "row_results", "staged_rows", "nested_row"),
        then="pointwise",
    ),
    Family(
        "products",
        "matrix products in register tiles",
        "a work-item computes one element of a product, many times slower",
        ("product", "packs_right", "repeats_pay", "fetched_rows"),
        beside=("few_rows", MATRIX_UNITS, JOINED),
    ),
    Family(
        "few_rows",
        "matrix products of few rows or columns",
        "they are computed in tiles that are mostly empty",
        then="products",
        beside=(MATRIX_UNITS, JOINED),
    ),
    Family(MATRIX_UNITS, "matrix products by matrix units", "work-items multiply, several times slower", then="few_rows"),
    Family(
        "convolutions",
        "convolutions and their gradients",
        "a work-item computes one element of a convolution, many times slower",
        ("convolution", "filter_gradient", "packs_input", "served"),
        beside=("winograd", MATRIX_UNITS, JOINED),
    ),
    Family(
        "winograd",
        "3x3 convolutions by Winograd's algorithm",
        "they are direct, with up to four times the multiply-adds",
        then="convolutions",
        beside=(MATRIX_UNITS, JOINED),
    ),
    Family(
        "attention",
        "attention in one kernel",
        "its weights are a matrix in memory, which takes more memory and time",
        ("attention", "attention_gradients", "attention_pays"),
        beside=(MATRIX_UNITS, JOINED),
    ),
    Family(
        "scans",
        "running sums and recurrences in pieces",
        "a work-item scans a row alone",
        ("scan", "scan_steps", "scan_walks", "scan_parts"),
    ),
    Family("sorts", "sorting by merging, and the greatest elements", "each element is compared with all others", ("sort", "top_k")),
    Family(
        "scatters",
        "scatters by sorting or in blocks, and sparse gradients of embeddings",
        "a work-item per element visits all updates",
        ("scatter_sorted", "scatter_block", "distinct_rows", "sparse_table"),
    ),
    Family("loops", "all steps of a loop in one launch", "each step is launched by itself", ("persistent",)),
    Family(
        JOINED,
        "several small kernels in one launch",
        "each is launched by itself",
        ("chained", "group_chained", "joined", "filled", "moved"),
        beside=(),
    ),
    Family(STEPS, "whole training steps", "all kernels are those of the schedule `reference`, many times slower", beside=()),
)

BY_NAME = {family.name: family for family in FAMILIES}
