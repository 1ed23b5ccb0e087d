"""Counts of what the emulated GPU has executed, which EMULATED_STATS=1 prints at the end."""

import contextlib
import sys
import time
from collections import Counter

_MEMORIES = {  # beginnings of names of the emulator's classes -> kind of memory
    "GLOBAL": "global memory",
    "VGLOBAL": "global memory",
    "FLAT": "global memory",
    "VFLAT": "global memory",
    "MUBUF": "global memory",
    "DS": "local memory",
    "SCRATCH": "scratch",
    "VSCRATCH": "scratch",
}


class Counts:
    """totals: of launches, groups, seconds and instructions by what they do. operations: of instructions by name."""

    def __init__(self):
        self.totals, self.operations = Counter(), Counter()

    def add(self, instruction, operation, count, lanes):
        """Count an instruction that waves have executed `count` times, for `lanes` work-items in all."""
        name = type(instruction).__name__
        memory = next((memory for start, memory in _MEMORIES.items() if name.startswith(start)), None)
        self.totals[memory or ("vector" if name.startswith("V") else "scalar")] += count
        if memory:
            self.totals[f"items' accesses of {memory}"] += lanes
        self.operations[operation] += count

    def show(self, most):
        """Print the totals and the `most` frequent operations."""
        texts = (f"{value:,.6g} {name}" if isinstance(value, float) else f"{value:,} {name}" for name, value in sorted(self.totals.items()))
        print("emulated:", ", ".join(texts), file=sys.stderr)
        print("emulated:", ", ".join(f"{name} {count:,}" for name, count in self.operations.most_common(most)), file=sys.stderr)


COUNTS = Counts()


@contextlib.contextmanager
def timed(what):
    """Adds the time of a block to a total."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        COUNTS.totals[what] += time.perf_counter() - begin
