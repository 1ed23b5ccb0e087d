"""How neighbouring work-items reach memory: cache lines of global memory, bank conflicts of local memory, for each load and store.

clang makes LLVM's intermediate representation of a program, which is translated to Python and run for the items of one wave, one after
the other, with the arguments of a launch. Only integers are computed; floats, and what is read from memory, are unknown and count as zero,
so a gather goes to one place. Loops end after some rounds.
"""

import collections
import tempfile
from dataclasses import dataclass
from pathlib import Path

from keras_ocl.vendors import interpreter
from keras_ocl.vendors.compilers import run, tool

LINE = 128  # bytes
BANKS, WORD = 32, 4  # of local memory
# Without the pass that divides loads of vectors among the uses of their elements.
_CLANG = ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-target", "spir64", "-O1", "-S", "-emit-llvm"]
_CLANG += ["-gline-tables-only", "-mllvm", "-disable-vector-combine"]


@dataclass(frozen=True)
class Access:
    """One load or store of a kernel.

    Attributes:
        text: the line of the source that it is on.
        local: whether it reaches local memory; else global or constant memory.
        store: whether it writes.
        nbytes: of one item.
        times: how often the wave did it.
        cost: of global memory, the cache lines that the wave touched, each time anew; of local memory the rounds that the banks took.
        fewest: in how many lines the bytes fit; how many rounds there would be without conflicts.
    """

    text: str
    local: bool
    store: bool
    nbytes: int
    times: int
    cost: int
    fewest: int

    @property
    def ratio(self):
        """How many times as much as it need be; a line more each time, as bytes need not begin where a line does, is as it need be."""
        return (self.cost if self.local else max(self.cost - self.times, self.fewest)) / self.fewest


def accesses(source, launches, wave=32):
    """What the launches' loads and stores cost.

    Args:
        source: OpenCL C of the kernels.
        launches: an iterable of (kernel's name, grid, group, arguments), of which grid and group have one to three axes, and each argument
            is a number, "global" or "local".
        wave: how many items run in lockstep.

    Returns:
        A dict from the kernels' names to lists of Access.

    Raises:
        FileNotFoundError: clang is not installed.
        Rejected: clang refuses the program.
        interpreter.Unknown: the program has an instruction that is not known here.
    """
    lines = source.splitlines()
    program = interpreter.Program(_intermediate(source))
    found = {}
    for kernel, grid, group, arguments in launches:
        if kernel not in found:
            sites = _run(program, kernel, grid, group, arguments, wave)
            found[kernel] = [_access(site, items, lines) for site, items in sites.items() if site.space in (1, 2, 3)]
    return found


def _intermediate(source):
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "program.cl"), Path(folder, "program.ll")
        path.write_text(source)
        run([tool("CLANG", "clang-19", "clang"), *_CLANG, "-o", str(result), str(path)], "spir64")
        return result.read_text()


def _run(program, kernel, grid, group, arguments, wave):
    """Site -> [addresses, in order] of each item of the first wave in the middle of the grid."""
    group = (*(group or (1,)), 1, 1)[:3]
    grid = (*grid, 1, 1)[:3]
    groups = [max(n // g, 1) for n, g in zip(grid, group, strict=True)]
    middle = [n // 2 for n in groups]
    sites = collections.defaultdict(list)
    for place in range(min(wave, group[0] * group[1] * group[2])):
        local = place % group[0], place // group[0] % group[1], place // (group[0] * group[1])
        for site, addresses in program.run(kernel, arguments, interpreter.Item(local, middle, group, groups)).items():
            sites[site].append(addresses)
    return sites


def _access(site, items, lines):
    """The Access of a site, from the addresses of each item."""
    times = max(map(len, items))
    count, cost, fewest = (_rounds if site.space == 3 else _lines), 0, 0
    for k in range(times):
        taken, needed = count([addresses[k] for addresses in items if k < len(addresses)], site.nbytes)
        cost, fewest = cost + taken, fewest + needed
    text = lines[site.line - 1].strip() if 0 < site.line <= len(lines) else ""
    return Access(text, site.space == 3, site.store, site.nbytes, times, cost, fewest)


def _lines(addresses, nbytes):
    """(cache lines touched, the fewest that the bytes fit in)."""
    used = {byte for a in addresses for byte in range(a, a + nbytes)}
    return len({byte // LINE for byte in used}), -(-len(used) // LINE)


def _rounds(addresses, nbytes):
    """(rounds that the banks take, rounds without conflicts): a round serves as many items as have a word for each bank."""
    together = max(1, BANKS * WORD // max(nbytes, WORD))
    total = least = 0
    for first in range(0, len(addresses), together):
        words = {a // WORD + k for a in addresses[first : first + together] for k in range(-(-nbytes // WORD))}
        total += max(collections.Counter(word % BANKS for word in words).values())
        least += 1
    return total, least
