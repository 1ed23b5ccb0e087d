"""How neighbouring work-items access memory: cache lines of global memory, bank conflicts of local memory, per load and store.

clang compiles a program to LLVM IR, which is translated to Python and run for the work-items of one wave, one after the other, with the
arguments of a launch. Only integers are computed; floats and values read from memory are unknown and count as zero, so a gather reads
one place. Loops end after some iterations.
"""

import collections
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from keras_ocl.vendors import interpreter
from keras_ocl.vendors.compilers import run, tool

LINE = 128  # bytes of a cache line
BANKS, WORD = 32, 4  # number of banks of local memory, and bytes of a bank's word
# Without the pass that splits loads of vectors into loads of the elements used.
_CLANG = ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-target", "spir64", "-O1", "-S", "-emit-llvm"]
_CLANG += ["-gline-tables-only", "-mllvm", "-disable-vector-combine"]

# Instructions of matrix units, as kernels have them: inline PTX, and functions of the compiler.
_PTX = re.compile(r'asm volatile\("[^"]*" : ([^:;]*) : ([^:;]*)\);')
_BUILTIN = re.compile(r"const (float\d*) sums = (?:__builtin_amdgcn|intel_sub_group)_\w+\((.*)\);")


@dataclass(frozen=True)
class Access:
    """One load or store of a kernel.

    Attributes:
        text: the line of the source that it is on.
        local: whether it reaches local memory; else global or constant memory.
        store: whether it writes.
        nbytes: bytes per work-item.
        times: how often the wave executed it.
        cost: for global memory the cache lines touched, for local memory the rounds that the banks took; summed over all executions.
        fewest: the least possible cost: lines that the bytes fit in, or rounds without bank conflicts.
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
        """Cost relative to the least; in global memory one more line per execution is free, as bytes need not begin at a line."""
        return (self.cost if self.local else max(self.cost - self.times, self.fewest)) / self.fewest


def accesses(source, launches, wave=32):
    """Computes the costs of the launches' loads and stores.

    Args:
        source: OpenCL C of the kernels.
        launches: an iterable of (kernel's name, grid, work-group size, arguments). Grid and size have one to three axes; each
            argument is a number, "global" or "local".
        wave: number of work-items that run in lockstep.

    Returns:
        A dict from the kernels' names to lists of Access.

    Raises:
        FileNotFoundError: clang is not installed.
        Rejected: clang refuses the program.
        interpreter.Unknown: the program has an instruction that the interpreter does not know.
    """
    lines = source.splitlines()
    program = interpreter.Program(_intermediate(_without_units(source)))
    found = {}
    for kernel, grid, group, arguments in launches:
        if kernel not in found:
            sites = _run(program, kernel, grid, group, arguments, wave)
            found[kernel] = [_access(site, items, lines) for site, items in sites.items() if site.space in (1, 2, 3)]
    return found


def _without_units(source):
    """The program with sums of their operands in place of matrix units' instructions, which clang has for their devices alone."""

    def ptx(found):
        sums, operands = (re.findall(r"\((\w+)\)", part) for part in found.groups())
        return " ".join(f"{name} += {_total(operands)};" for name in sums)

    def builtin(found):
        kind, arguments = found.groups()
        sums = re.search(r"\(float\d*\)\([^()]*\)", arguments)[0]
        return f"const {kind} sums = {sums} + ({_total(re.findall(r'[xy][0-9]+_[0-9]+', arguments))});"

    return _BUILTIN.sub(builtin, _PTX.sub(ptx, source))


def _total(registers):
    return " + ".join(f"as_float({name})" for name in registers)


def _intermediate(source):
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "program.cl"), Path(folder, "program.ll")
        path.write_text(source)
        run([tool("CLANG", "clang-19", "clang"), *_CLANG, "-o", str(result), str(path)], "spir64")
        return result.read_text()


def _run(program, kernel, grid, group, arguments, wave):
    """Site -> list of each work-item's addresses, in order, for the first wave of the group in the middle of the grid."""
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
    """The Access of a site, from each work-item's addresses."""
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
    """(rounds that the banks take, rounds without conflicts). A round serves as many work-items as the banks have words for."""
    together = max(1, BANKS * WORD // max(nbytes, WORD))
    total = least = 0
    for first in range(0, len(addresses), together):
        words = {a // WORD + k for a in addresses[first : first + together] for k in range(-(-nbytes // WORD))}
        total += max(collections.Counter(word % BANKS for word in words).values())
        least += 1
    return total, least
