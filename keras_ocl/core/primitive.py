"""Primitive: an operation of the array language and its rules; bind() applies one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from keras_ocl.core.access import ANYWHERE, AccessMap, index_in_operand, same_place
from keras_ocl.core.dim import Extent, Shape
from keras_ocl.core.origin import NOWHERE, Origin, current_origin
from keras_ocl.core.tensor import Tensor

if TYPE_CHECKING:
    from keras_ocl.core.variable import Variable

# The trace being recorded (None: eager), and the gradient tapes that record, innermost last.
current_trace: ContextVar[Any] = ContextVar("keras_ocl_trace", default=None)  # a core.trace.Trace, which is made of this module's parts
active_tapes: ContextVar[tuple[Tape, ...]] = ContextVar("keras_ocl_tapes", default=())


class Tape(Protocol):
    """What a tape in `active_tapes` must offer: core.autodiff.GradientTape and Recorder."""

    def record(self, equation: Equation) -> None: ...
    def read(self, variable: Variable, tensor: Tensor, watched: bool = False) -> None: ...


class Kind(enum.Enum):
    """The kinds of primitives that the compiler's passes distinguish."""

    INPUT = "given from outside: of a graph's node that no primitive makes"
    SOURCE = "made of its parameters alone"
    VIEW = "its operand's elements, at other places"
    ELEMENTWISE = "computed from its operands' elements at the same place"
    MASKED = "an operand's element where there is one, at a shifted place"
    INDEXED = "computed from its operands' elements at places that values tell"
    REDUCTION = "computed from its operand's elements along axes"
    WINDOW = "computed from its operands' elements in a window"
    CONTRACTION = "sums of products along axes of two operands"
    OPAQUE = "a kernel template or a host operation, of whose inside nothing is known"
    SCAN = "a body that is repeated a known number of times"
    WHILE = "a body that is repeated while a condition holds"
    COND = "one of two bodies, which a condition chooses"
    STEP_SLICE = "a loop's present step's part of a stacked tensor, where that is in memory"
    PROJECTION = "one of the results of a primitive that has several"


Params = dict[str, Any]
Result = tuple[Shape, str]  # shape and dtype
Matrix = tuple[Extent, Extent]  # rows and columns
# Functions that compute sums over a loop's steps or values at all steps, see `total`.
Later = Callable[[], Tensor] | None
ToLater = Callable[[Tensor], Later]


class Primitive:
    """One operation. Its rules are attributes, defined together in keras_ocl/primitives; passes ask the rules, never the name.

    The operation itself:
        shape(*inputs, **params) -> (shape, dtype), or a list of them where `multiple_results`.
        vjp(ct, out, *inputs, **params) -> gradients for the inputs (None: no gradient); `ct` and `out` are
            lists where the primitive has multiple results, and a missing cotangent is None.
        factors(seen) -> Factors: the axes along which it can be partitioned (core/factors.py); by default from the kind or access maps.
        batch(inputs, batched, size, **params) -> the result(s) for `size` examples at once, which lie along a new first axis of the inputs
            for which the tuple `batched` holds True; None where there is no such rule.
        total(summed, stacked, inputs, params, number) -> a function that computes the sum of the result over a loop's steps, or None
            where there is no formula for it. `summed(x)` and `stacked(x)` give functions that compute the sum of an operand over the
            steps and its values at all steps, or None where that does not pay; `number(x)` is the Python number that an operand equals,
            or None.
        simplify(graph, inputs, params, origin) -> a simpler node for the same value, or None.
        fold(*numbers) -> the Python number that is its result for these operands, for constant folding.
        literal(**params) -> the Python number that a SOURCE is filled with.
    How it is lowered (one of the three, or `pointwise` and `kernels`):
        pointwise(gen, node, index) -> Register: the value at an index, as code (see compiler/codegen/); of a VIEW by default the
            operand's element that its access map names.
        kernels(builder, node, sink) -> [KernelSpec]: a kernel template of its own.
        host(arrays, targets, **params) -> arrays: a declared host operation (LAPACK). It reads `arrays`, which are valid during the call
            only. It may write results into `targets`, arrays of their shapes and dtypes, and return these: that saves a copy.
        overlaps(**params) -> whether a thread computes a host operation while the device goes on with launches that do not read its
            results, where that pays. Such operations are done in the program's order, which their last operand and result stand for.
    Properties that passes ask for:
        kind: a Kind; by default INDEXED with a `pointwise` rule, OPAQUE without.
        access(node, position) -> the access map of an operand (core/access.py); by default that of the kind.
        cost: of one evaluation without its operands, in additions: a number, or a function of the node.
        terms(node) -> of a reduction, window or contraction: the number of elements of an operand that one element of the result combines.
        operations(node) -> an estimate of the additions, multiplications etc. for the whole result; by default cost times elements.
        masks(node) -> of a MASKED primitive: the axes along which its operand ends within the result.
        shares_memory(node) -> whether the value lies in the operand's memory as it is, from its first element on.
        flat: whether elements keep their row-major positions, as in a reshape.
        joined_axis: of a concatenation, the name of the parameter that is its axis.
        combines: of a reduction, how the results of parts combine to that of the whole: "sum", "max" etc.
        partial: of a reduction, the primitive that reduces parts of an axis; the reduction then reduces the parts' results.
        from_parts(graph, primitive, inputs, params, origin) -> of a reduction, a node for the same value that follows from partial results
            of another split reduction of the graph, computed on the way; None where there is none.
        stored: whether it is always stored, by a kernel of its own or one that reduces the same parts.
        rows(inputs, params) -> list of Rows (primitives/rows.py) that eager code copies in the place of a kernel; None where a kernel is
            quicker.
        deferred: of a primitive with one operand, whether eager elementwise operations compute it while loading it; before any other
            operation reads it, it is written.
        dynamic_extents: names of parameters that count elements: arguments of eager kernels. Any other parameter selects the kernel.
        fetches(node, schedule) -> (position, (rows, columns)): prologue fusion of an operand that the kernel template can compute while
            loading it, each element few times: its position, and the extents of the matrix as which it is loaded; None where there is none.
        repeats(node, traits) -> [(position, (rows, columns), times, again)]: likewise of the operands that may be recomputed at every load;
            times: for how many results each element is loaded; again: how often for each, as by the taps of a convolution.
        packs(node, traits) -> (position, (rows, columns)): likewise of an operand that the template packs, so loads about once; None where
            there is none.
        row_sparse(graph, inputs, params, origin) -> (rows, values): nodes of the result as a row-sparse tensor (primitives/row_sparse.py);
            None where it is not one.
        vanishes: of an elementwise primitive, the positions of operands of which one that is 0 makes the result 0, whatever finite numbers
            the others are; of a divisor other than 0.
        overwrites: of a kernel template that leaves most of an operand as it is, the operand's position: the result may lie in its memory.
        invariant_operand(inputs, params) -> (position, permutation, params): an operand that is better transposed once, before a loop that
            repeats the primitive with it, the permutation, and the parameters for the transposed operand; None where there is none.

    multiple_results: whether results come as a tuple, even if it is a tuple of one.
    registered: False for users' own primitives, which `registry` does not list.

    `params` must be hashable.
    """

    registry: dict[str, Primitive] = {}

    # A rule's `node` is one of the compiler's graph, its `inputs` the operands' nodes; for `access`, a core.factors.Seen too.
    shape: Callable[..., Result | Sequence[Result]]
    vjp: Callable[..., Sequence[Tensor | None]] | None
    pointwise: Callable[..., Any] | None
    kernels: Callable[..., Any] | None
    host: Callable[..., Any] | None
    overlaps: Callable[..., bool]
    _access: Callable[[Any, int], AccessMap] | None
    cost: float | Callable[[Any], float]
    terms: Callable[[Any], Extent] | None
    operations: Callable[[Any], Extent] | None
    masks: Callable[[Any], Iterable[int]] | None
    shares_memory: Callable[[Any], bool] | None
    joined_axis: str | None
    partial: Primitive | None
    from_parts: Callable[..., Any] | None
    rows: Callable[[Sequence[Tensor], Params], Sequence[Any] | None] | None
    factors: Callable[[Any], Any] | None
    combines: str | None
    batch: Callable[..., Any] | None
    total: Callable[[ToLater, ToLater, Sequence[Tensor], Params, Callable[[Tensor], Any]], Later] | None
    simplify: Callable[..., Any] | None
    fold: Callable[..., Any] | None
    literal: Callable[..., Any] | None
    fetches: Callable[[Any, Any], tuple[int, Matrix] | None] | None
    repeats: Callable[[Any, Any], Sequence[tuple[int, Matrix, Extent, Extent]]] | None
    packs: Callable[[Any, Any], tuple[int, Matrix] | None] | None
    invariant_operand: Callable[[Sequence[Tensor], Params], tuple[int, tuple[int, ...], Params] | None] | None
    row_sparse: Callable[..., Any] | None
    vanishes: tuple[int, ...]
    overwrites: int | None
    cache: Any

    def __init__(
        self,
        name: str,
        shape: Callable[..., Result | Sequence[Result]] | None,
        vjp: Callable[..., Sequence[Tensor | None]] | None = None,
        pointwise: Callable[..., Any] | None = None,
        kernels: Callable[..., Any] | None = None,
        host: Callable[..., Any] | None = None,
        *,
        overlaps: Callable[..., bool] = lambda **params: False,
        kind: Kind | None = None,
        access: Callable[[Any, int], AccessMap] | None = None,
        cost: float | Callable[[Any], float] = 4,
        terms: Callable[[Any], Extent] | None = None,
        operations: Callable[[Any], Extent] | None = None,
        masks: Callable[[Any], Iterable[int]] | None = None,
        shares_memory: Callable[[Any], bool] | None = None,
        flat: bool = False,
        joined_axis: str | None = None,
        partial: Primitive | None = None,
        from_parts: Callable[..., Any] | None = None,
        stored: bool = False,
        rows: Callable[[Sequence[Tensor], Params], Sequence[Any] | None] | None = None,
        deferred: bool = False,
        dynamic_extents: Iterable[str] = (),
        batch: Callable[..., Any] | None = None,
        factors: Callable[[Any], Any] | None = None,
        combines: str | None = None,
        total: Callable[[ToLater, ToLater, Sequence[Tensor], Params, Callable[[Tensor], Any]], Later] | None = None,
        simplify: Callable[..., Any] | None = None,
        fold: Callable[..., Any] | None = None,
        literal: Callable[..., Any] | None = None,
        fetches: Callable[[Any, Any], tuple[int, Matrix] | None] | None = None,
        repeats: Callable[[Any, Any], Sequence[tuple[int, Matrix, Extent, Extent]]] | None = None,
        packs: Callable[[Any, Any], tuple[int, Matrix] | None] | None = None,
        invariant_operand: Callable[[Sequence[Tensor], Params], tuple[int, tuple[int, ...], Params] | None] | None = None,
        row_sparse: Callable[..., Any] | None = None,
        vanishes: tuple[int, ...] = (),
        overwrites: int | None = None,
        multiple_results: bool = False,
        registered: bool = True,
    ) -> None:
        self.name, self.shape, self.vjp = name, shape, vjp  # type: ignore[assignment]  # no shape: of what bind is never given
        if pointwise is None and kind is Kind.VIEW:
            pointwise = _viewed
        self.pointwise, self.kernels, self.host, self.overlaps = pointwise, kernels, host, overlaps
        self.kind = kind or (Kind.OPAQUE if pointwise is None else Kind.INDEXED)
        self._access, self.cost, self.terms, self.operations = access, cost, terms, operations
        self.masks, self.shares_memory, self.flat, self.joined_axis = masks, shares_memory, flat, joined_axis
        self.rows, self.deferred = rows, deferred
        self.partial, self.from_parts = partial, from_parts
        self.stored, self.dynamic_extents = stored, frozenset(dynamic_extents)
        self.factors, self.combines = factors, combines
        self.batch, self.total, self.simplify, self.fold, self.literal = batch, total, simplify, fold, literal
        self.fetches, self.repeats, self.packs, self.invariant_operand = fetches, repeats, packs, invariant_operand
        self.row_sparse, self.vanishes, self.overwrites = row_sparse, vanishes, overwrites
        self.multiple_results = multiple_results
        self.registered, self.cache = registered, None  # cache: eager code's compiled kernels of a user's own primitive
        if registered:
            Primitive.registry[name] = self

    @staticmethod
    def named(name: str) -> Primitive | None:
        """The registered primitive of a name, None where there is none: for names that were stored."""
        return Primitive.registry.get(name)

    def access(self, node: Any, position: int) -> AccessMap:
        """The access map of the operand at `position`: one entry per axis of it."""
        if self._access is not None:
            return self._access(node, position)
        rank = len(node.inputs[position].shape)
        return same_place(rank) if self.kind is Kind.ELEMENTWISE else (ANYWHERE,) * rank

    @property
    def loops(self) -> bool:
        """Whether `params` hold a Body that the compiler lowers once and repeats (see primitives/loop.py)."""
        return self.kind in (Kind.SCAN, Kind.WHILE)

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *inputs: Tensor, **params: Any) -> Any:
        return bind(self, inputs, params)


def _viewed(gen: Any, node: Any, index: Any) -> Any:
    return gen.value(node.inputs[0], index_in_operand(node.primitive.access(node, 0), index))


class Equation:
    """`outputs = primitive(*inputs, **params)`; `origin` (an Origin): the layer and operation that it comes from.

    Equal equations of different `tag` are not merged by common-subexpression elimination.
    """

    __slots__ = ("primitive", "inputs", "params", "outputs", "origin", "tag")

    def __init__(
        self,
        primitive: Primitive,
        inputs: Sequence[Tensor],
        params: Params,
        outputs: Sequence[Tensor],
        origin: Origin = NOWHERE,
        tag: int = 0,
    ) -> None:
        self.primitive, self.inputs, self.params, self.outputs, self.origin = primitive, inputs, params, outputs, origin
        self.tag = tag

    def __repr__(self) -> str:
        return f"{[o.shape for o in self.outputs]} = {self.primitive}({[i.shape for i in self.inputs]}, {self.params})"


Execute = Callable[[Primitive, Sequence[Tensor], Params, Sequence[Result]], Sequence[Any]]
_eager: Execute = None  # type: ignore[assignment]  # installed by the compiler: (primitive, inputs, params, results) -> [Storage]


def install_eager(execute: Execute) -> None:
    """Called by the compiler: `execute(primitive, inputs, params, results)` returns one Storage per result."""
    global _eager
    _eager = execute


def bind(primitive: Primitive, inputs: Sequence[Tensor], params: Params) -> Any:
    """Apply a primitive: record it when tracing, else run it. Returns a Tensor, or a tuple of them where it has `multiple_results`."""
    results: Any = primitive.shape(*inputs, **params)
    if not primitive.multiple_results:
        results = (results,)
    for shape, _ in results:
        for n in shape:
            if n < 0:
                raise ValueError(f"{primitive}: a result of shape {tuple(shape)} has a negative extent; check the sizes that were given.")
    trace = current_trace.get()
    if trace is None:
        for x in inputs:
            if x.storage is None:
                raise RuntimeError(
                    f"{primitive}: a tensor of a finished trace was used (shape {tuple(x.shape)}). A jitted function's values exist only"
                    " while it is traced: return them, or run eagerly (run_eagerly=True)."
                )
        storages = _eager(primitive, inputs, params, results)
        outputs = tuple(Tensor(s, d, storage) for (s, d), storage in zip(results, storages, strict=True))
        tapes = active_tapes.get()
        equation = Equation(primitive, inputs, params, outputs, current_origin.get()) if tapes else None
    else:
        outputs = tuple(Tensor(s, d, None, trace) for s, d in results)
        equation = Equation(primitive, inputs, params, outputs, current_origin.get(), trace.tag)
        trace.equations.append(equation)
        tapes = active_tapes.get()
    for tape in tapes:
        tape.record(equation)  # type: ignore[arg-type]  # it is None only where there are no tapes
    return outputs if primitive.multiple_results else outputs[0]
