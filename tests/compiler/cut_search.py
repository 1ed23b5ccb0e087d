"""Looks for random chains that fusion compiles badly: each is timed as compiled, and cut at each node that fusion does not store.

    python -m tests.compiler.cut_search --cases 200 --seed 0

Prints one line per case: milliseconds as compiled, with the best cut, their ratio, and what is cut there. Ratios above 1.3 are measured
again, and are listed at the end where they stay. Times are the process's CPU time, which others on the machine disturb least; on a
device that is not a CPU, they are the clock's.
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "ocl")

from keras_ocl import runtime  # noqa: E402
from keras_ocl.compiler import from_numpy  # noqa: E402
from keras_ocl.compiler.fuse.cost import size  # noqa: E402
from keras_ocl.compiler.jit import Jitted  # noqa: E402
from keras_ocl.compiler.launch import lower  # noqa: E402
from keras_ocl.core.primitive import Kind  # noqa: E402
from tests.compiler.random_chains import Chain  # noqa: E402

WORST = 1.3  # as compiled, over with the best cut
_LEAST = 4096  # elements of a node that is worth a cut


class Cut:
    """`chain` compiled with the node of order `at` in memory, in a kernel of its own; with no cut where that is None."""

    def __init__(self, chain, at=None):
        original = lower.partition

        def partition(graph, traits, together=None, **more):
            found = original(graph, traits, together, {n for n in graph.live() if n.order == at}, **more)
            self.graph, self.regions, self.materialised = graph, found.regions, found.materialised
            return found

        lower.partition = partition
        try:
            self.run = Jitted(chain)
            self.x = from_numpy(chain.array)
            self.run(self.x)
        finally:
            lower.partition = original

    def candidates(self):
        """Nodes that fusion computes where they are read."""
        nodes = [n for n in self.graph.live() if n.primitive is not None and n not in self.materialised]
        return [n for n in nodes if n.kind not in (Kind.VIEW, Kind.SOURCE) and size(n) >= _LEAST and n.results is None]


def seconds(cuts, repeats):
    """The least time of a run of each of `cuts`, measured in turns."""
    device = runtime.current_device()
    clock = time.process_time if device.traits.kind == "cpu" else time.perf_counter
    best = [float("inf")] * len(cuts)
    for _ in range(repeats):
        for k, cut in enumerate(cuts):
            device.finish()
            start = clock()
            for _ in range(3):
                cut.run(cut.x)
            device.finish()
            best[k] = min(best[k], (clock() - start) / 3)
    return best


def search(seed, repeats=5):
    """(seconds as compiled, seconds with the best cut, that cut's node or None) of a random chain."""
    chain = Chain(seed)
    plain = Cut(chain)
    nodes = plain.candidates()
    cuts = [plain] + [Cut(chain, n.order) for n in nodes]
    times = seconds(cuts, repeats)
    k = min(range(1, len(cuts)), key=times.__getitem__, default=0)
    if k and times[0] > WORST * times[k]:
        times[0], times[k] = seconds([plain, cuts[k]], 4 * repeats)
    return chain, times[0], times[k], nodes[k - 1] if k else None


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cases", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0, help="of the first case; the others' follow")
    options = arguments.parse_args()
    bad, worst = [], 0
    for seed in range(options.seed, options.seed + options.cases):
        chain, now, best, node = search(seed)
        ratio = now / best
        worst = max(worst, ratio)
        line = f"{now * 1e3:8.2f} {best * 1e3:8.2f} {ratio:5.2f} {node!r:48} {chain}"
        print(line, flush=True)
        if ratio > WORST:
            bad.append(line)
    print(f"\n{len(bad)} of {options.cases} cases above {WORST}; the worst {worst:.2f}", *bad, sep="\n")


if __name__ == "__main__":
    main()
