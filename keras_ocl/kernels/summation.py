"""Blocked summation: the most terms that a sum of floats adds one after the other (a chain) before the total is added to another sum.

A chain of n additions loses up to n/2 units in the last place, and most where terms are alike, as all roundings then go the same way.
Nested sums of bounded chains, in an order that depends on extents alone, lose only as much as a few chains: less than log2(n) units for n
positive terms. Short sums stay one chain.
"""

import math
from collections.abc import Callable, Sequence

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, hint

CHAIN = 16  # most terms of a chain, in each of an accumulator's lanes
ALONE = 48  # most terms of a sum that stays one chain
PRODUCT = 256  # CHAIN for sums of products, whose terms are seldom alike, and whose tiles have many accumulators
PRODUCT_ALONE = 512
TILE = 1024  # CHAIN in tiles without spare registers: totals of blocks go to memory; GPUs use blocks from 2 * TILE terms on
UNIT = 512  # TILE in matrix units, which may round each sum towards zero
PARTS = 128  # most partial results that are added as one chain


def bounded(dtype: str) -> bool:
    """Whether sums in `dtype` are cut into chains: not of integers, which are exact, nor of float64, which has enough digits."""
    return dtypes.register_ctype(dtype) == "float"


def blocks(steps: Sequence[Extent], chain: int = CHAIN, alone: int = ALONE) -> list[tuple[tuple[int, ...], bool]]:
    """How to cut a loop nest, whose innermost loop adds one term per step, into chains; `steps`: trip counts, outermost loop first.

    Returns for each loop (sizes, fresh). sizes: steps per block of the loop, the larger blocks first, each level with its own accumulator.
    fresh: whether each step of the loop starts a new accumulator for the loops inside it.
    """
    steps = [max(1, hint(n)) for n in steps]
    if math.prod(steps) <= alone:
        return [((), False)] * len(steps)
    found: list[tuple[tuple[int, ...], bool]]
    sizes: list[int]
    found, inside = [], 1  # terms that one step of the loop adds to the chain
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


def cut(
    dtype: str,
    register: str,
    names: Sequence[str],
    loop: Callable[[str, str], str],
    start: str,
    stop: str,
    steps: Extent,
    step: int = 1,
    chain: int = PRODUCT,
    alone: int = PRODUCT_ALONE,
) -> str:
    """Statements that sum from `start` to `stop` (C texts), `steps` steps in all, in blocks if these are many.

    dtype: of the accumulators. register: their C type. names: of the variables that are 0 before and hold the sums after. step: elements
    per step. `loop(start, stop)` gives the statements that add the elements from `start` to `stop` to the variables.
    """
    ((sizes, _),) = blocks([steps], chain, alone) if bounded(dtype) else [((), False)]
    if not sizes:
        return loop(start, stop)

    def level(depth: int, start: str, stop: str) -> str:
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
