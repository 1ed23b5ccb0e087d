"""Factors: the axes along which an operation can be partitioned into parts that are computed independently.

A rule `factors(seen) -> Factors` of a primitive (core/primitive.py) gives labels to the axes of operands and results: axes with the same
label are partitioned together, and a part of one needs only the same part of the others. Partitioning a step over devices uses the rules
(after the sharding rules of GSPMD: Xu et al., 2021, and of Shardy).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from keras_ocl.core.access import Along, Inner
from keras_ocl.core.dim import Extent, Shape, same
from keras_ocl.core.primitive import Kind, Params, Primitive

Labels = tuple[Hashable, ...]  # None for an axis that must be whole
Resized = Callable[[Params, Sequence[Extent]], Params]


class Shaped(Protocol):
    """A Tensor, or a node of the compiler's graph."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> str: ...


class Seen(NamedTuple):
    """An equation as the rules see it; `shape` is the first result's.

    `counting(tensor)`: the axis along which the tensor's values are 0, 1, 2, ...; None where there is none.
    """

    inputs: Sequence[Shaped]
    outputs: Sequence[Shaped]
    params: Params
    counting: Callable[[Any], int | None]

    @property
    def shape(self) -> Shape:
        return self.outputs[0].shape


class Factors(NamedTuple):
    """Labels of axes.

    Attributes:
        operands, results: for each operand or result, a tuple with a label (any hashable) per axis; None for an axis that must be whole.
        sums: for a label that no result has, such as a reduced axis, how the partial results of its parts combine: a dict from the label to
            "sum", "prod", "max", "min", "and" or "or". The axis of a label that is in neither a result nor this dict must be whole.
        resized: function (params, shape) -> the parameters for a part whose first result has this shape.
        rebased: dict from the position of an operand that counts along an axis to the label of that axis: in a part it counts from 0.
    """

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]
    sums: Mapping[Any, str] = {}
    resized: Resized | None = None
    rebased: Mapping[int, Hashable] = {}


def of(primitive: Primitive, seen: Seen) -> Factors | None:
    """The Factors of an equation: by the primitive's own rule or from its access maps; None where nothing is known."""
    if primitive.factors is not None:
        return primitive.factors(seen)
    if primitive.kind is Kind.ELEMENTWISE:
        labels = tuple(range(len(seen.shape)))
        return Factors(tuple(labels[: len(x.shape)] for x in seen.inputs), (labels,))
    if primitive.kind in (Kind.VIEW, Kind.MASKED, Kind.REDUCTION, Kind.WINDOW, Kind.INDEXED):
        return of_access(primitive, seen)
    return None


def of_access(primitive: Primitive, seen: Seen) -> Factors:
    """Factors by access maps: an operand's axis that is read along an axis of the result, whole and in order, is partitioned with it."""
    operands: list[Labels] = []
    found: set[Hashable] = set()
    for position, x in enumerate(seen.inputs):
        labels: list[Hashable] = []
        for n, entry in zip(x.shape, primitive.access(seen, position), strict=True):
            whole = isinstance(entry, Along) and entry.stride == 1 and same((n,), (seen.shape[entry.axis],))
            if isinstance(entry, Inner) and primitive.combines:
                labels.append(("reduced", entry.axis))
            else:
                labels.append(entry.axis if whole and _is_zero(entry.start) else None)  # type: ignore[union-attr]  # whole: an Along
        operands.append(tuple(labels))
        found.update(labels)
    results = tuple(i if i in found else None for i in range(len(seen.shape)))
    sums = {label: primitive.combines for labels in operands for label in labels if primitive.combines and isinstance(label, tuple)}
    return Factors(tuple(operands), (results,), sums)


def _is_zero(start: Extent) -> bool:
    return type(start) is int and start == 0


def sized(*names: str) -> Resized:
    """A rule for `resized`: the parameters of these names are the result's shape."""
    return lambda params, shape: {**params, **dict.fromkeys(names, tuple(shape))}


def all_but(*whole: Callable[[Seen], int]) -> Callable[[Seen], Factors]:
    """A rule for operands and results of one rank: all axes can be partitioned but those that `whole`, functions of Seen, return."""

    def rule(seen: Seen) -> Factors:
        rank = len(seen.inputs[0].shape)
        kept = {f(seen) % rank for f in whole}
        labels = tuple(None if i in kept else i for i in range(rank))
        return Factors((labels,) * len(seen.inputs), (labels,) * len(seen.outputs))

    return rule
