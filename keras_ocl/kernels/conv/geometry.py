"""The geometry of a convolution, and the one-dimensional axes over which its kernels loop."""

import math
from dataclasses import dataclass, replace

from keras_ocl.core.dim import Dim, ceil_div, key, maximum, present, product


@dataclass(frozen=True)
class Geometry:
    """A convolution over channels-last data with 1, 2 or 3 spatial dimensions.

    input (N, *spatial, C), filter (*spatial, C / groups, C_out), output (N, *spatial, C_out). Extents
    may be Dims. Output position o reads, for tap k, position (o * stride + k * dilation - low) of the
    input spread by `input_dilation` (that many minus one zeros between neighbours) and padded by
    `padding`, a (low, high) pair per spatial dimension that may be negative (cropping). Output extents
    are what `output` says, so the high padding matters only to whoever computed them.
    """

    input: tuple
    filter: tuple
    output: tuple
    strides: tuple
    padding: tuple
    dilation: tuple
    input_dilation: tuple
    groups: int = 1

    @classmethod
    def of(cls, input, filter, strides=1, padding=0, dilation=1, input_dilation=1, groups=1):
        """The geometry, with its output shape computed. A number for `strides` and so on applies to every spatial dimension."""
        rank = len(input) - 2

        def spread(value):
            return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank

        strides, dilation, input_dilation = spread(strides), spread(dilation), spread(input_dilation)
        padding = tuple(p if isinstance(p, tuple) else (p, p) for p in spread(padding))
        spatial = []
        for i in range(rank):
            extent = maximum(0, (input[i + 1] - 1) * input_dilation[i] + 1) + padding[i][0] + padding[i][1]
            window = (filter[i] - 1) * dilation[i] + 1
            spatial.append(maximum(0, (extent - window) // strides[i] + 1))
        output = (input[0], *spatial, filter[-1])
        return cls(tuple(input), tuple(filter), output, strides, padding, dilation, input_dilation, int(groups))

    def __post_init__(self):
        rank = len(self.input) - 2
        per_dimension = (self.strides, self.padding, self.dilation, self.input_dilation)
        if not 1 <= rank <= 3 or len(self.filter) != rank + 2 or any(len(p) != rank for p in per_dimension):
            raise ValueError(f"convolution: {self} is not a convolution of 1, 2 or 3 spatial dimensions; check the ranks.")
        if self.filter[-2] * self.groups != self.input[-1] or self.filter[-1] % self.groups:
            raise ValueError(
                f"convolution: filter of shape {self.filter} with groups={self.groups} does not fit input of shape "
                f"{self.input}; the filter needs input channels / groups, and output channels divisible by groups."
            )

    @property
    def rank(self):
        return len(self.input) - 2

    @property
    def group_inputs(self):
        """Input channels of one group."""
        return self.filter[-2]

    @property
    def group_outputs(self):
        """Output channels of one group."""
        return self.filter[-1] // self.groups

    @property
    def flops(self):
        """Floating-point operations of the direct algorithm."""
        return 2.0 * float(product(present(e) for e in (*self.output, *self.filter[:-1])))

    @property
    def empty(self):
        """Whether the output has no elements."""
        return 0 in self.output

    def transposed(self):
        """The convolution from the output's gradient to the input's: taps flipped, input and output channels exchanged."""
        rank, spatial = self.rank, self.filter[: self.rank]
        window = [(spatial[i] - 1) * self.dilation[i] for i in range(rank)]
        return Geometry(
            input=self.output,
            filter=(*spatial, self.group_outputs, self.input[-1]),
            output=self.input,
            strides=self.input_dilation,
            padding=tuple((window[i] - self.padding[i][0], window[i] - self.padding[i][1]) for i in range(rank)),
            dilation=self.dilation,
            input_dilation=self.strides,
            groups=self.groups,
        )


@dataclass(frozen=True)
class Axis:
    """One dimension of the pixels: a spatial dimension or the batch, which has a single tap.

    `low` is the padding before the input, `spread` the input dilation; `input_step` and `output_step` are the elements between
    neighbours in the input and output buffers; `parts` the extents of the geometry's dimensions that were merged into this axis.
    """

    input: int
    output: int
    taps: int
    stride: int
    low: int
    dilation: int
    spread: int
    input_step: int
    output_step: int
    parts: tuple

    @property
    def plain(self):
        """Whether output o reads only input o."""
        same = key(self.input) == key(self.output)
        return self.taps == 1 and self.stride == 1 and self.spread == 1 and key(self.low) == 0 and same

    @property
    def inside(self):
        """Whether every tap of every output is known to meet an element of the input (in bounds, no input dilation)."""
        if self.plain:
            return True
        spare = self.input - 1 - ((self.output - 1) * self.stride + (self.taps - 1) * self.dilation)
        return self.spread == 1 and key(self.low) == 0 and not isinstance(spare, Dim) and spare >= 0

    @property
    def period(self):
        """Number of phases: outputs o and o + period, of one phase, use the same taps."""
        return self.spread // math.gcd(self.spread, self.stride)

    @property
    def advance(self):
        """Input positions between outputs o and o + period."""
        return self.stride * self.period // self.spread

    @property
    def per_phase(self):
        """Number of outputs of the phase with the most."""
        return ceil_div(self.output, self.period)

    @property
    def tap_period(self):
        """Distance of taps that meet the input: outputs of one phase use only taps k, k + tap_period and so on."""
        return self.spread // math.gcd(self.spread, self.dilation)

    @property
    def tap_advance(self):
        """Input positions between taps k and k + tap_period."""
        return self.dilation * self.tap_period // self.spread

    @property
    def phase_taps(self):
        """Number of taps of the phase with the most."""
        return ceil_div(self.taps, self.tap_period)


def axes(geometry, merge=True):
    """The pixel axes of a geometry, outermost first; with `merge`, neighbouring plain axes become one."""
    rank = geometry.rank
    steps = [1] * (rank + 1)
    for shape, name in ((geometry.input, "input"), (geometry.output, "output")):
        step, result = shape[-1], [0] * (rank + 1)
        for i in range(rank, -1, -1):
            result[i] = step
            step = step * shape[i]
        steps = result if name == "input" else list(zip(steps, result, strict=True))
    found = [Axis(geometry.input[0], geometry.output[0], 1, 1, 0, 1, 1, *steps[0], (geometry.output[0],))]
    for i in range(rank):
        extent_in, extent_out = geometry.input[i + 1], geometry.output[i + 1]
        found.append(
            Axis(
                extent_in,
                extent_out,
                geometry.filter[i],
                geometry.strides[i],
                geometry.padding[i][0],
                geometry.dilation[i] if geometry.filter[i] > 1 else 1,
                geometry.input_dilation[i],
                *steps[i + 1],
                (extent_out,),
            )
        )
    if not merge:
        return found
    merged = found[:1]
    for axis in found[1:]:
        last = merged[-1]
        if last.plain and axis.plain:
            extent = last.input * axis.input
            merged[-1] = replace(axis, input=extent, output=extent, parts=last.parts + axis.parts)
        else:
            merged.append(axis)
    return merged


def part_coordinates(axis, coordinate, args):
    """C expressions of the geometry's coordinates, split from the coordinate of a (merged) axis.

    `coordinate` and the results are names or parenthesised.
    """
    result, rest = [], coordinate
    for extent in reversed(axis.parts[1:]):
        result.append(f"({rest} % {args.int(extent)})")
        rest = f"({rest} / {args.int(extent)})"
    return [rest, *reversed(result)]


def position(axis, output, tap, args):
    """C text of the position, in the axis's dilated input, that output `output` reads at tap `tap`."""
    return f"{output} * {args.int(axis.stride)} + {tap} * {args.int(axis.dilation)} - {args.int(axis.low)}"


def outside(axis, place, index, args):
    """C condition that position `place` of the dilated input holds no element; `index` is place / spread."""
    bounds = f"{place} < 0 || {index} >= {args.int(axis.input)}"
    return bounds if axis.spread == 1 else f"{bounds} || {place} % {args.int(axis.spread)} != 0"
