"""What a schedule is, and the registry of all schedules.

A schedule says how kernels are written for one kind of device. Each is one table, a `Schedule` in a file of schedules/ that registers
itself; no other code tests a schedule's name.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, Shape, hint
from keras_ocl.core.factors import Shaped
from keras_ocl.kernels.families import FAMILIES, MATRIX_UNITS, STEPS, Family
from keras_ocl.kernels.spec import Epilogue, Handle, KernelSpec


class Overrides(Protocol):
    """A device's own numbers and tiles; runtime/overrides.py says what each is, overrides.py reads them."""

    @property
    def file(self) -> str: ...
    @property
    def schedules(self) -> tuple[str, ...]: ...
    @property
    def tuning(self) -> tuple[tuple[str, Any], ...]: ...
    @property
    def choices(self) -> tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...]: ...
    def __hash__(self) -> int: ...


class Traits(Protocol):
    """What kernels ask of a device's traits; runtime/traits.py says what each is."""

    @property
    def vector_width(self) -> int: ...
    @property
    def compute_units(self) -> int: ...
    @property
    def local_memory(self) -> int: ...
    @property
    def max_group(self) -> int: ...
    @property
    def max_groups(self) -> tuple[int, ...]: ...
    @property
    def global_memory(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def clock(self) -> int: ...
    @property
    def item_registers(self) -> int: ...
    @property
    def unit_registers(self) -> int: ...
    @property
    def byte(self) -> float: ...
    @property
    def matrix_units(self) -> tuple[str, ...]: ...
    @property
    def matrix_rates(self) -> tuple[float, ...]: ...
    @property
    def quirks(self) -> frozenset[str]: ...
    @property
    def quarantine(self) -> frozenset[str]: ...
    @property
    def overrides(self) -> Overrides: ...


def _never(*_: object) -> None:
    """The default of optional writers and predicates: the kernel does not exist, or does not pay."""
    return None


def _none(*_: object) -> tuple[()]:
    """The default of `candidates`."""
    return ()


@dataclass(frozen=True)
class Schedule:
    """How each family of kernels is written, and the prices and limits that the compiler's passes use.

    Writers:
        pointwise: (traits, gen, nest, cost, shared, evaluate) -> (grid, group): the loops of generated code over the index space `nest`,
            around what `evaluate(variables)` emits. cost: cheap operations per element beyond the first. shared: whether a reduction's
            result is used by a whole row. The generator itself writes the reductions inside `evaluate`, in vectors of `width()`.
        team: (traits, nests, level) -> the pointwise.team.Team of work-items that reduce together in a kernel with these Nests, or the
            pointwise.cpu.Rows that single items reduce, or None; level: number of dimensions of the results that have one value per
            row, None where there are no such results.
        product: (problem, tile or None) -> KernelSpecs of a gemm.parts.Problem whose result is not empty.
        convolution: (problem) -> KernelSpecs of a conv.Problem whose result, a convolution of x with w, is not empty.
        filter_gradient: (problem) -> KernelSpecs of a conv.Problem's gradient of the filter.
        attention: (problem, scheme, sinks) -> the KernelSpec of one attention.parts.Scheme (forward, or gradients).
        attention_gradients: (problem, sinks) -> the KernelSpec of all three gradients, or None where each has a kernel of its own.
        attention_pays: (traits, query, key, has_bias) -> whether attention kernels are at least as fast as the separate operations.
        repeats_pay: (traits, uses, price, read) -> whether products should compute an operand in their prologues wherever they load it,
            each element by `price` operations on `read` bytes more than it has itself: the repeated work then takes less time than a
            launch. uses: [((rows, columns) of the operand, for how many results each element is loaded, how often for each)] of all
            these products and convolutions.
        packs_right: (m, n, k) -> whether a product of these extents packs each element of its right operand once, so can compute it there.
        packs_input: (problem) -> likewise of the input of a conv.Problem's gradient of the filter.
        served: (problem, gradient) -> for how many results, at least, the kernel of a conv.Problem, of its filter's gradient if `gradient`,
            loads an element of an operand once, and can compute it there; 0 where it cannot.
        sort: (problem, results) -> KernelSpecs that sort the rows of a sort.Problem into `results`.
        top_k: (problem, k, results) -> KernelSpecs that store the `k` greatest of each row of a sort.Problem with one operand, and their
            positions.
        scatter_block: (traits, rows, columns, lanes) -> (rows, columns) of the block of the result that a work-item owns.
        scan: (scan) -> KernelSpecs in which groups scan the rows of a cumulative.Scan together, None where one work-item scans a row alone.
        scatter_sorted: (problem) -> KernelSpecs that sort the updates of a scatter.Problem, None where each work-item visits all updates.
        candidates: (operation, problem) -> (kind, estimate, fields) of the tiles worth trying for a product, convolution or filter_gradient
            (the writers' names) whose problem this is: what overrides.chosen() is asked for, and of each kind the writers take the tile
            with the least estimate.
        distinct_rows: (problem, rows) -> KernelSpecs for kernels/row_sparse.distinct: the slots go to the scatter.Problem's result.

    tuning: the table of schedules/tuning.py from which this schedule's kernels take their numbers, None where they need none; they ask
        overrides.tuning_of() for it, which puts a device's own numbers in place.
    costs: names of the numbers of that table (as in a device's file) of which the estimates of products are made, and which tune may fit.
    fusion: a tuning.Fusion, the limits of the regions that become one kernel.
    splitting: a tuning.Splitting, when long reductions are split into parts.

    Prices, in cheap operations on one element of a vector (all but `joined`, `filled` and `moved`):
        launch: one more kernel. byte: writing a byte to memory and reading it in another kernel. kept: keeping a byte for a step's
        gradient, where it has left the caches. gather: each element, where the lanes of a vector read elements that are not adjacent.
        chained: vertical chains: most work of a kernel that is taken from other compute units to save one launch, 0 for no chains.
        group_chained: likewise of one work-group, that does the work of other groups; 0 for no such chains.
        joined: horizontal fusion: most work-items per compute unit of independent kernels that become one, 0 for none.
        filled, moved: horizontal fusion: a kernel of more work-items and bytes per compute unit gives up its launch for its own code alone.
        compilation: unoptimised builds: the work that a compute unit does in unoptimised code while the compiler optimises one character
        of source, 0 for no such builds.

    Limits and shapes:
        vectors: whether a work-item computes explicit vectors, their lanes along the last axis of the result.
        as_written: whether the compiler's own vectoriser is to leave kernels alone, where a device has a hint for that.
        widest: most lanes of the vectors in which generated code computes and reduces.
        group: work-group size of kernels that need no particular one, None to leave it open.
        open_group: work-items of a group where a kernel leaves its size open (kernels/launch.py), 0 to leave it to the driver.
        shared_row: most elements of a row for which one work-item, or a group, reduces and computes the whole row.
        row_results: a kernel that computes rows of more elements than this may also store results with one value per row.
        staged_rows: least and most elements of a row of which a work-item stores values that its later loops load; (0, 0): it never does.
        nested_row: most elements of a reduction that may be repeated for each row of another reduction in the same kernel.
        scan_steps, scan_walks, scan_parts: a scan of at least `scan_steps` elements in at most `scan_walks` rows is cut into `scan_parts`.
        fetched_rows: most rows of a product that computes its right operand, such as quantised weights, in a prologue.
        persistent: whether persistent kernels are used: a group runs all steps of a loop for its rows of the batch.
        inner: whether only passes of the compiler choose this schedule, for kernels that they then join into one.
        inside: names of families of kernels (families.py) among which its writers choose, unless the traits keep them out.
        sparse_table: least elements of a tensor, mostly 0, that is kept as the rows that are not.
        plain_channels, plain_pixels: 1x1 convolutions are matrix products from `plain_channels` channels on, and their filter gradients
            only up to `plain_pixels` pixels.
    """

    name: str
    # Any: problems and loop nests, which modules above this one define.
    pointwise: Callable[[Traits, Any, Any, float, bool, Callable[..., Any]], tuple[Shape, tuple[int, ...] | None]]
    product: Callable[[Any, Any], list[KernelSpec]]
    convolution: Callable[[Any], list[KernelSpec]]
    filter_gradient: Callable[[Any], list[KernelSpec]]
    attention: Callable[[Any, Any, Sequence[Epilogue]], KernelSpec]
    sort: Callable[[Any, Sequence[Handle]], list[KernelSpec]]
    top_k: Callable[[Any, Extent, Sequence[Handle]], list[KernelSpec]]
    scatter_block: Callable[[Traits, Extent, Extent, int], tuple[int, int]]
    tuning: Any  # these three are tables of schedules/tuning.py
    fusion: Any
    splitting: Any
    launch: int
    gather: int
    vectors: bool
    as_written: bool
    widest: int
    group: tuple[int, ...] | None
    shared_row: float
    scan_steps: float
    scan_walks: int
    scan_parts: int
    plain_channels: int
    plain_pixels: float
    distinct_rows: Callable[[Any, Handle], list[KernelSpec]]
    sparse_table: float
    candidates: Callable[[str, Any], Iterable[tuple[str, float, dict[str, Any]]]] = _none
    costs: tuple[str, ...] = ()
    open_group: int = 0
    byte: int = 4
    kept: int = 16
    nested_row: float = math.inf
    row_results: float = math.inf
    staged_rows: tuple[int, int] = (0, 0)
    fetched_rows: int = 0
    chained: int = 0
    group_chained: int = 0
    compilation: int = 0
    joined: int = 0
    filled: int = 0
    moved: int = 0
    persistent: bool = False
    inner: bool = False
    inside: tuple[str, ...] = ()
    attention_gradients: Callable[[Any, Sequence[Epilogue]], KernelSpec | None] = _never
    attention_pays: Callable[[Traits, Shaped, Shaped, bool], bool | None] = _never
    repeats_pay: Callable[[Traits, Sequence[tuple[tuple[Extent, Extent], Extent, Extent]], float, int], bool | None] = _never
    packs_right: Callable[[Extent, Extent, Extent], bool | None] = _never
    packs_input: Callable[[Any], bool | None] = _never
    served: Callable[[Any, bool], int | None] = _never
    team: Callable[[Traits, Any, int | None], Any] = _never
    scan: Callable[[Any], list[KernelSpec] | None] = _never
    scatter_sorted: Callable[[Any], list[KernelSpec] | None] = _never

    def width(self, traits: Traits) -> int:
        """Lanes of a vector of 32-bit elements in generated code."""
        return min(traits.vector_width, self.widest)

    def lanes(self, traits: Traits, dtype: str, extent: Extent) -> int:
        """Vector lanes of `dtype` along an axis of `extent`: a hardware vector's, fewer on a short axis, 1 where there are no vectors."""
        if not self.vectors or dtypes.is_complex(dtype):
            return 1
        width = max(1, traits.vector_width * 4 // max(4, dtypes.itemsize(dtype)))
        while width > hint(extent):
            width //= 2
        return max(1, width)

    def without_lanes(self, traits: Traits) -> int:
        """Factor by which operations cost more in a kernel that cannot compute in vectors."""
        return max(1, traits.vector_width // 2) if self.vectors else 1


_KNOWN: dict[str, Schedule] = {}


def register(schedule: Schedule) -> Schedule:
    """Make `schedule` known by its name, and return it."""
    _KNOWN[schedule.name] = schedule
    return schedule


def schedule_names() -> tuple[str, ...]:
    """Names of the schedules that a device may have."""
    return tuple(name for name, schedule in _KNOWN.items() if not schedule.inner)


def get(name: str) -> Schedule:
    """The Schedule called `name`. ValueError, which lists the known names, for an unknown one."""
    try:
        return _KNOWN[name]
    except KeyError:
        known = ", ".join(schedule_names())
        raise ValueError(f"there is no schedule {name!r}; set KERAS_OCL_SCHEDULE to one of {known}, or unset it") from None


def schedule_of(traits: Traits) -> Schedule:
    """The Schedule for a device of such `traits`, without the families of kernels that they keep out."""
    return _without(traits.schedule, traits.quarantine) if traits.quarantine else get(traits.schedule)


@functools.lru_cache(64)
def _without(name: str, families: frozenset[str]) -> Schedule:
    schedule, reference = get(name), get("reference")
    if STEPS in families:
        return reference
    fields = {field: getattr(reference, field) for family in FAMILIES if family.name in families for field in family.fields}
    return replace(schedule, **fields)


def families_of(traits: Traits) -> list[Family]:
    """The Families that a device of such `traits` has, whether or not they are kept out: those that the reference schedule has not."""
    schedule, reference = get(traits.schedule), get("reference")

    def has(family: Family) -> bool:
        if family.name == MATRIX_UNITS:
            return bool(traits.matrix_units)
        if family.name == STEPS:
            return schedule is not reference
        return family.name in schedule.inside or any(getattr(schedule, f) != getattr(reference, f) for f in family.fields)

    return [family for family in FAMILIES if has(family)]
