"""Sources: the lowered launches that a Program was made of, which know the operations that they compute.

Where the Program was read from disk (stored.py), its graph is lowered only once something asks for them: a profile, or a choice of
unoptimised builds.
"""

import threading
from typing import NamedTuple

from keras_ocl.compiler.fuse.kept import kept
from keras_ocl.compiler.launch import lower as lowering
from keras_ocl.compiler.launch.chain import chained
from keras_ocl.compiler.launch.group_chain import in_one_group
from keras_ocl.compiler.launch.horizontal import side_by_side
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.overlap import overlapped
from keras_ocl.compiler.launch.provenance import key
from keras_ocl.compiler.run.assembly import assemble
from keras_ocl.compiler.run.digest import digest
from keras_ocl.compiler.run.program import Program
from keras_ocl.core.dim import noting
from keras_ocl.core.facts import Facts


class Sources:
    """Lowers a graph and assembles its Program, when it is first asked for either; `sources[number]` is the lowered launch of that number.

    Args:
        device_traits, traits: the device's Traits, and those to lower for, which may have smaller groups.
        name, all_arguments, graph, inputs, updates, states, unknowns: as for Executable.
    """

    def __init__(self, device_traits, traits, name, all_arguments, graph, inputs, updates, states, unknowns):
        self._given = device_traits, traits, name, all_arguments, graph, inputs, updates, states, unknowns
        self._lock, self._found = threading.Lock(), None

    def __getitem__(self, number):
        return self._lowered().sources[number]

    @property
    def program(self):
        """The Program."""
        return self._lowered().program

    @property
    def launches(self):
        """The lowered launches in order, without those of loops' bodies."""
        return self._lowered().launches

    @property
    def updates(self):
        """Dict from the position of each state that is overwritten to the Provenance.allocator of its new value."""
        return self._lowered().updates

    @property
    def facts(self):
        """The facts about unknown extents, as core.facts.Fact, that lowering found out; eager code notes them itself."""
        return self._lowered().facts

    def digest(self):
        """The digest of all that lowering reads, but for the package itself. Raises digest.Nameless where there is none."""
        device_traits, traits, name, all_arguments, graph, inputs, updates, states, unknowns = self._given
        return digest(graph, inputs, updates, states, unknowns, name, all_arguments, _text(device_traits), _text(traits))

    def _lowered(self):
        with self._lock:
            if self._found is None:
                _, _, _, all_arguments, *_, unknowns = self._given
                if all_arguments:
                    self._found = _lower(*self._given)
                else:
                    with noting(Facts(unknowns)) as facts:  # a profile may ask while another function is traced
                        self._found = _lower(*self._given)._replace(facts=tuple(facts))
                self._given = None  # the launches keep what they need of the graph
            return self._found


class _Found(NamedTuple):
    """What lowering gave: see the properties of Sources; `sources`: lowered launches by number."""

    program: Program
    sources: tuple
    launches: list
    updates: dict
    facts: tuple


class Computed:
    """What a launch of a Program computes, for its runtime.Label: `shares` are asked of the Sources when a profile reads them.

    kernel: the launch's program.Kernel; None for a host operation.
    """

    __slots__ = ("_kernel", "_number", "_sources")

    def __init__(self, sources, number, kernel=None):
        self._sources, self._number, self._kernel = sources, number, kernel

    @property
    def matrix_unit(self):
        """Kernel.matrix_unit of its kernel."""
        return self._kernel.matrix_unit if self._kernel else ""

    @property
    def shares(self):
        """A tuple of provenance.Shares."""
        return self._sources[self._number].provenance.shares


def _text(traits):
    """A text that is the same for equal Traits, in which sets have an order."""
    return [(name, sorted(v) if isinstance(v, frozenset) else repr(v)) for name, v in vars(traits).items()]


def _lower(device_traits, traits, name, all_arguments, graph, inputs, updates, states, unknowns):
    if not all_arguments:
        graph = kept(graph, traits).graph
    lowered = lowering.lower_graph(graph, updates, traits, all_arguments, lower_loop)
    launches = lowered.launches
    if not all_arguments:
        launches = side_by_side(in_one_group(launches, traits, lowered.resolve), traits, lowered.resolve)
        launches = overlapped(chained(launches, traits), lowered.resolve)
    # Gradients that vanish over many steps end in denormal numbers, with which CPUs compute 30 times as slowly. As in XLA and
    # TensorFlow, compiled functions treat them as zero.
    options = "" if all_arguments else "-cl-denorms-are-zero"
    program, sources = assemble(lowered, launches, name, options, device_traits, inputs, graph.outputs, states, unknowns)
    # Of each state that is overwritten, the operation that computes its new value; not that of a view of it.
    new = {entry: node for node, entry in reversed(lowered.alias.items()) if entry in lowered.overwritten}
    updates = {k: key(new[n]) for k, n in enumerate(states) if n in new}
    return _Found(program, sources, launches, updates, ())
