"""Vertical chains of GPUs: small kernels that depend on one another become one, in which a single work-group does the work of them all.

A launch takes a GPU several microseconds. The loss of a classifier, its gradient and its metrics are kernels of some hundred work-items
each, where each reads what the one before wrote. Between them all items of the group wait at a barrier with a fence of global memory, which
is where OpenCL 1.2 makes the writes of a group's items visible to the others; between groups it has no such place. Small kernels that do
not depend on one another are joined side by side (horizontal.py), where they take no turns.
"""

from keras_ocl.compiler.launch import joining
from keras_ocl.compiler.launch.provenance import JoinedProvenance, moved
from keras_ocl.core.dim import Dim, ceil_div, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec

_GROUPS = 4  # most groups whose work one group does in turn, if they have barriers
_PASSED = 32  # most kernels that another one passes on its way to a chain
_FENCE = "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"


def in_one_group(launches, traits, resolve=lambda buffer: buffer):
    """`launches` with small kernels that depend on one another joined, where the device's schedule asks for it.

    A kernel moves to an earlier place, past kernels on which it does not depend, unless it overwrites a state.

    Args:
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
    """
    limit = schedule_of(traits).group_chained
    if not limit:
        return launches
    size, found, chains = min(tuning_of(traits).team, traits.max_group), [], []
    for launch in launches:
        if not isinstance(launch, KernelSpec):
            found.append(launch)
            chains.clear()  # nothing moves across a loop or a host operation
            continue
        chain = _Chain(launch, resolve, _fits(launch, size, limit))
        if not any(other.takes(chain) for other in chains):
            found.append(chain)
            for other in chains:
                other.passed.append(chain)
            chains = [other for other in chains if len(other.passed) < _PASSED] + [chain] * chain.fits
    kept = (launch for launch in found if not isinstance(launch, _Chain) or launch.parts)
    return [launch.kernel(size, traits) if isinstance(launch, _Chain) else launch for launch in kept]


def _fits(spec, size, limit):
    """Whether one group of `size` items may do all of a kernel's work: what other groups would have done costs less than a launch.

    Decided for the extents of the first trace; extents more than eight times as large get kernels of their own (family.py).
    """
    if not joining.possible(spec) or not spec.group or spec.functions or spec.attributes:
        return False
    if any(isinstance(n, Dim) for n in [*spec.group, *(a.value for a in spec.args if a.kind == "local")]):
        return False
    flat, items = joining.is_flat(spec), size_hint(spec.grid)
    if not flat and (spec.group[0] != size or not all(map(is_one, spec.group[1:])) or items > _GROUPS * size):
        return False
    work = moved(spec.args) if flat and spec.provenance.launches > 1 else spec.provenance.work
    return items <= size or work * (1 - size / items) <= limit


class _Chain:
    """One or more kernels that become one, at the place of the first of them.

    Attributes:
        fits: whether one group may do its work. reads, writes: the resolved Buffers of its kernels. passed: the chains that come after it.
    """

    def __init__(self, spec, resolve, fits):
        self.parts, self.fits, self.passed = [spec], fits, []
        self.reads = {resolve(a.value) for a in spec.args if a.is_pointer}
        self.writes = {resolve(a.value) for a in spec.args if a.kind == "out"}

    def takes(self, last):
        """Takes the kernel of `last`, which comes after all others, if it reads what this chain writes, and returns whether it did.

        With it come the kernels in between on which it depends, if they fit too. Those that do not come are passed by the others, so no
        kernel that overwrites a state passes them.
        """
        if not (self.fits and last.fits) or self.writes.isdisjoint(last.reads):
            return False
        needed, others = [last], []
        for chain in reversed(self.passed):
            (needed if any(map(chain._precedes, needed)) else others).append(chain)
        parts = [spec for chain in reversed(needed) for spec in chain.parts]
        if not all(chain.fits for chain in needed) or any(chain.parts for chain in others) and any(spec.overwrites for spec in parts):
            return False
        if len(joining.arguments([*self.parts, *parts])) > joining.REGISTERS:
            return False
        if sum(map(len, {spec.body for spec in (*self.parts, *parts)})) > joining.SOURCE:
            return False
        self.parts += parts
        self.passed = others[::-1]
        for chain in needed:
            self.reads, self.writes = self.reads | chain.reads, self.writes | chain.writes
            chain.parts, chain.fits, chain.reads, chain.writes = [], False, set(), set()
        return True

    def _precedes(self, later):
        """Whether a later chain has to run after this one."""
        return not (self.writes.isdisjoint(later.reads) and self.reads.isdisjoint(later.writes))

    def kernel(self, size, traits):
        """The KernelSpec, for a group of `size` items."""
        if len(self.parts) == 1:
            return self.parts[0]
        args, local, functions, calls = Args(), joining.Local(self.parts), {}, []
        local.declare(args)
        own, restrict = args.place("local", 0), "restrict_outlives_calls" not in traits.quirks
        for spec in self.parts:
            flat = joining.is_flat(spec)
            name, text = joining.of_an_item(spec, restrict=restrict) if flat else joining.of_a_group(spec, restrict=restrict)
            functions[name] = text
            arrays = local.given(spec)
            given = [arrays.get(a.name) or joining.given(args, a) for a in spec.args]
            calls.append(_of_items(args, name, given, spec, size, own) if flat else _of_groups(args, name, given, spec, size))
        return args.kernel(
            f"{self.parts[0].name} to {self.parts[-1].name}",
            f"{args.barrier(_FENCE)}\n".join(calls),
            (size,),
            (size,),
            helpers=frozenset().union(*(spec.helpers for spec in self.parts)),
            title=f"{len(self.parts)} kernels, one after the other, of one group",
            provenance=JoinedProvenance(self.parts),
            overwrites=any(spec.overwrites for spec in self.parts),
            functions=tuple(functions.values()),
        )


def _of_items(args, name, given, spec, size, own):
    """C text by which the group's items do the work of a kernel's items, in turn."""
    items = spec.grid[0]
    call = f"{name}({', '.join((*given, '{}', '0', '0'))});\n"
    if not isinstance(items, Dim) and items <= size:
        return (f"if ({own} < {args.int(items)}) " if items < size else "") + call.format(own)
    count = args.int(items)
    return (
        f"for (int first = 0; first < {count}; first += {size}) {{\nif (first + (int){own} < {count}) {call.format(f'first + {own}')}}}\n"
    )


def _of_groups(args, name, given, spec, size):
    """C text by which the group does the work of a kernel's groups, in turn."""
    counts, loops, places = [ceil_div(spec.grid[0], size), *spec.grid[1:]], "", ["0", "0", "0"]
    for k, count in enumerate(counts):
        if not is_one(count):
            loops += f"for (int group{k} = 0; group{k} < {args.int(count)}; ++group{k}) "
            places[k] = f"group{k}"
    call = f"{name}({', '.join((*given, *places))});\n"
    # The arrays in local memory are written again in the next turn.
    return f"{loops}{{\n{call}{args.barrier()}\n}}\n" if loops else call
