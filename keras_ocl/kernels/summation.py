"""How many terms a sum of floats may add one after the other, before their total goes to another sum.

A chain of n additions loses up to n/2 units in the last place, and loses most where terms are alike: their roundings go the same way. Sums
of sums of bounded chains, in an order that depends on extents alone, lose as much as a few chains do: less than log2(n) units for n
positive terms. What is short stays one chain.
"""

import math

from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint

CHAIN = 16  # terms, in each of an accumulator's lanes
ALONE = 48  # terms up to which a sum is one chain
PRODUCT = 256  # the same of products, whose factors are seldom alike, and whose tiles have many sums
PRODUCT_ALONE = 512
TILE = 1024  # the same in tiles that have no registers to spare: sums of blocks go to memory, on GPUs from twice as many on
PARTS = 128  # of a result, up to which they are added one after the other


def bounded(dtype):
    """Whether sums in registers of `dtype` are cut into chains: integers are exact, and float64 has digits enough."""
    return dtypes.register_ctype(dtype) == "float"


def blocks(steps, chain=CHAIN, alone=ALONE):
    """How a nest of loops, which adds one term in each step of the innermost, is cut into chains; `steps`: of each loop, outermost first.

    Returns for each loop (sizes, fresh): steps of the blocks it is cut into, the larger first, each with an accumulator of its own, and
    whether each of its steps begins one, for the loops inside it.
    """
    steps = [max(1, hint(n)) for n in steps]
    if math.prod(steps) <= alone:
        return [((), False)] * len(steps)
    found, inside = [], 1  # terms of the chain that a step adds
    for n in reversed(steps):
        fresh = n > 1 and inside * n > chain and 4 * inside > chain
        if fresh:
            inside = 1
        size, sizes = max(1, chain // inside), []
        while inside * n > alone:
            sizes.insert(0, sizes[0] * chain if sizes else size)
            n, inside = -(-n // (chain if len(sizes) > 1 else size)), 1
        inside *= n
        found.insert(0, (tuple(sizes), fresh))
    return found


def cut(dtype, register, names, loop, start, stop, steps, step=1, chain=PRODUCT, alone=PRODUCT_ALONE):
    """Statements that sum from `start` to `stop` (C texts) in blocks, where `steps`, how many steps that is, are many.

    dtype: the accumulators'. register: their C type. names: of variables that are 0, and get the sums. step: elements of a step.
    `loop(start, stop)` gives the statements that add the elements between two places to the variables.
    """
    ((sizes, _),) = blocks([steps], chain, alone) if bounded(dtype) else [((), False)]
    if not sizes:
        return loop(start, stop)

    def level(depth, start, stop):
        if depth == len(sizes):
            return loop(start, stop)
        size, begin, totals = sizes[depth] * step, f"from{depth}", [f"{name}_{depth}" for name in names]
        inside = level(depth + 1, begin, f"to{depth}")
        added = "".join(f"{total} += {name}; {name} = 0;\n" for total, name in zip(totals, names, strict=True))
        return (
            f"{{\n{register} {', '.join(f'{total} = 0' for total in totals)};\n"
            f"for (long {begin} = {start}; {begin} < {stop}; {begin} += {size}) {{\n"
            f"const long to{depth} = min({begin} + {size}, (long)({stop}));\n{inside}{added}}}\n"
            f"{''.join(f'{name} = {total};' + chr(10) for total, name in zip(totals, names, strict=True))}}}\n"
        )

    return level(0, start, stop)
