"""Problems whose tiles can be searched: a product, a convolution or a filter's gradient, by the key under which a device's file has it."""

import dataclasses
import itertools
from dataclasses import dataclass, replace

from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels import conv, gemm
from keras_ocl.kernels.gemm.parts import Problem as Product
from keras_ocl.kernels.overrides import extent_of
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Buffer, Sink

# kind of tile -> operation
OPERATIONS = {
    "product": "product",
    "few_rows": "product",
    "convolution": "convolution",
    "winograd": "convolution",
    "filter_gradient": "filter_gradient",
    "winograd_gradient": "filter_gradient",
}
_COLUMNS, _ROWS = 512, 2048  # least columns and rows of a product that stands for a larger one: some panels and chunks of any tile
_IMAGES = 4  # least images of such a convolution


@dataclass(frozen=True)
class Problem:
    """What a kernel computes: `operation` is a value of OPERATIONS, `key` the kernels' text of extents, dtypes and strides."""

    operation: str
    key: str


@dataclass(frozen=True)
class Choice:
    """A tile as the device's file has it: its kind, and its fields as (name, value)."""

    kind: str
    fields: tuple

    @classmethod
    def of(cls, kind, fields):
        """The Choice with a dict's fields."""
        return cls(kind, tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in fields.items()))

    def differences(self, other):
        """In how many fields it differs from another Choice; more than any number of fields where the kinds differ."""
        if self.kind != other.kind:
            return 100
        mine, theirs = dict(self.fields), dict(other.fields)
        return sum(mine.get(name) != theirs.get(name) for name in mine.keys() | theirs.keys())

    def __str__(self):
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.fields)])


def plain(problem, traits):
    """(the kernels' problem, its dict of named operand Buffers, the result's Buffer and shape) with a sink that only stores.

    Raises:
        ValueError: there are no such kernels outside a fused one.
    """
    if problem.operation == "product":
        a, b = Buffer(0, ""), Buffer(0, "")
        sink = Sink(None, (), "")
        p = Product.of_key(problem.key, traits, a, b, sink)
        shape = (p.m, p.n) if p.batch is None else (p.batch, p.m, p.n)
        for operand, rows, columns in ((p.a, p.m, p.k), (p.b, p.k, p.n)):
            last = ((1 if p.batch is None else p.batch) - 1) * operand.batch_stride
            last += (rows - 1) * operand.row_stride + (columns - 1) * operand.column_stride
            operand.handle.elements, operand.handle.dtype = int(last + 1), operand.dtype
        operands = {"a": a, "b": b}
    else:
        names = ("x", "w") if problem.operation == "convolution" else ("x", "dy")
        operands = {name: Buffer(0, "") for name in names}
        sink = Sink(None, (), "")
        p = conv.Problem.of_key(problem.key, traits, sink, **operands)
        g = p.geometry
        shape = g.output if problem.operation == "convolution" else g.filter
        for name, extents in (("x", g.input), ("w", g.filter), ("dy", g.output)):
            if name in operands:
                operands[name].elements, operands[name].dtype = _count(extents), p.dtype
    sink.handle, sink.shape, sink.dtype = Buffer(_count(shape), p.accumulator), shape, p.accumulator
    return p, operands, sink.handle, tuple(map(int, shape))


def _count(extents):
    count = 1
    for n in extents:
        count *= int(n)
    return count


def kernels(problem, p):
    """KernelSpecs of the kernels' problem `p` of a Problem."""
    if problem.operation == "product":
        further = dict(all_arguments=p.all_arguments, longest=p.longest, repeated=p.repeated, precision=p.precision)
        described = dict(batch=p.batch, m=p.m, n=p.n, k=p.k, a=p.a, b=p.b, dtype=p.accumulator, sink=p.sink)
        return gemm.plan(p.traits, **described, **further)
    if problem.operation == "convolution":
        return conv.forward(p)
    return conv.filter_grad(p)


def measurable(asked):
    """(Problems of the (kind, key) that were asked for, the largest first; the number of those that have no kernels of their own).

    Equally large products come before convolutions, which may be computed as products.
    """
    found, sizes = dict.fromkeys(Problem(OPERATIONS[kind], key) for kind, key in asked if kind in OPERATIONS), {}
    for problem in found:
        try:
            sizes[problem] = operations(plain(problem, None)[0])
        except ValueError:
            continue
    order = sorted(sizes, key=lambda problem: (-sizes[problem], list(OPERATIONS.values()).index(problem.operation)))
    return order, len(found) - len(sizes)


def operations(p):
    """Arithmetic operations of a kernels' problem, by the hints of its extents."""
    if isinstance(p, Product):
        return 2.0 * hint(p.m) * hint(p.n) * hint(p.k) * (1 if p.batch is None else hint(p.batch))
    return p.geometry.flops


def smaller(problem, most):
    """A Problem of the same kind with at most about `most` operations, whose work-items do what those of `problem` do.

    It has fewer matrices, columns, then rows of a product, or fewer images, with the same strides. A small `problem` is returned as it is.
    """
    p = plain(problem, None)[0]
    share = most / max(1, operations(p))
    if share >= 1:
        return problem
    if not isinstance(p, Product):
        g = p.geometry
        images = _cut(g.input[0], share, _IMAGES)[0]
        p = replace(p, geometry=replace(g, input=(images, *g.input[1:]), output=(images, *g.output[1:])))
        return replace(problem, key=p.key)
    if p.batch is not None:
        p.batch, share = _cut(p.batch, share, 1)
    p.n, share = _cut(p.n, share, _COLUMNS)
    p.m, share = _cut(p.m, share, _ROWS)
    return replace(problem, key=p.key)


def _cut(extent, share, least):
    """(a `share` of an extent, but at least `least` and in multiples of that, the share that is left to cut)."""
    if share >= 1 or hint(extent) <= least:
        return extent, share
    found = min(hint(extent), max(least, int(hint(extent) * share) // least * least))
    return extent_of(f"{found}*") if isinstance(extent, Dim) else found, share * hint(extent) / found


def choices(problem, traits):
    """Choices for a Problem in the order of their estimates; of several kinds in turn. Empty where nothing can be chosen."""
    p = plain(problem, traits)[0]
    by_kind = {}
    for kind, estimate, fields in schedule_of(traits).candidates(problem.operation, p):
        by_kind.setdefault(kind, []).append((estimate, Choice.of(kind, fields)))
    ranked = [[choice for _, choice in sorted(found, key=lambda pair: pair[0])] for found in by_kind.values()]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*ranked))
    return list(dict.fromkeys(choice for choice in in_turn if choice is not None))


def with_choice(traits, problem, choice, name):
    """Traits with `choice` (None: no choice) for a Problem, in place of any that they have. name: distinguishes them from others."""
    others = tuple(own for own in traits.overrides.choices if own[1] != problem.key or OPERATIONS.get(own[0]) != problem.operation)
    own = () if choice is None else ((choice.kind, problem.key, choice.fields),)
    return dataclasses.replace(traits, overrides=dataclasses.replace(traits.overrides, file=name, choices=others + own))
