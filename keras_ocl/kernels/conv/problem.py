"""What convolution kernels are written for: a convolution, or one of its gradients, and facts that several kernels derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from keras_ocl.core import dtypes
from keras_ocl.core.dim import power_below
from keras_ocl.kernels import prelude
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv.geometry import Geometry
from keras_ocl.kernels.overrides import extent_of, not_counts, shown, tuning_of
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Epilogue, Handle

_DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Problem:
    """A convolution of x with w, or one of its gradients, computed from two of x, w and dy. TypeError for a dtype without kernels.

    dtype: that of the operands in memory. sink: as in dispatch.py. all_arguments: whether extents are kernel arguments, as in eager work.
    transposed: `geometry` is the transpose of another convolution, whose filter is what `w` holds: taps in reverse, channels exchanged.
    packed: whether `w` is in the blocks of forward_cpu.filter_blocks().
    precision: what float32 operands may be taken as (core/precision.py).
    sources: by the names of operands, what computes them in a prologue; see gemm.parts.Operand. CPUs' kernels of a filter's gradient take
        one of x, as a matrix (pixels, channels), which they pack; GPUs' tiled kernels take any, and read it as one row.
    """

    traits: Traits
    geometry: Geometry
    dtype: str
    sink: Epilogue
    x: Handle | None = None
    w: Handle | None = None
    dy: Handle | None = None
    all_arguments: bool = False
    name: str = "convolution"
    transposed: bool = False
    packed: bool = False
    sources: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "float32"

    def __post_init__(self):
        if self.dtype not in _DTYPES:
            raise TypeError(f"convolution: dtype {self.dtype} has no kernel; cast to one of {', '.join(_DTYPES)}.")

    @property
    def schedule(self):
        return schedule_of(self.traits)

    @property
    def tuning(self):
        """The schedule's numbers, with the device's own."""
        return tuning_of(self.traits)

    @property
    def key(self):
        """The text by which a device's own choices know problems like this: extents by their hints, those that may vary with a star."""
        g, ones = self.geometry, (1,) * self.geometry.rank
        always = (("input", g.input), ("filter", g.filter), ("output", g.output), ("low", [low for low, _ in g.padding]))
        further = (("strides", g.strides), ("dilation", g.dilation), ("input_dilation", g.input_dilation))
        fields = [*always, *((name, value) for name, value in further if tuple(value) != ones)]
        named = [f"{name}={','.join(map(shown, values))}" for name, values in fields]
        groups = [f"groups={g.groups}"] if g.groups > 1 else []
        precision = [f"precision={self.precision}"] if self.precision != "float32" else []
        return " ".join([self.dtype, *named, *groups, *(["transposed"] if self.transposed else []), *precision])

    @classmethod
    def of_key(cls, key, traits, sink, **handles):
        """The Problem with this key, and with the handles x, w or dy; ValueError for a key of another form."""
        dtype, *words = key.split(" ")
        named = {name: text.split(",") for name, _, text in (word.partition("=") for word in words)}
        try:
            transposed = named.pop("transposed", None) is not None
            (precision,), (groups,) = named.pop("precision", ["float32"]), named.pop("groups", ["1"])
            fields = {name: tuple(map(extent_of, texts)) for name, texts in named.items()}
            low, ones = fields.pop("low"), (1,) * (len(fields["input"]) - 2)
            further = {name: fields.pop(name, ones) for name in ("strides", "dilation", "input_dilation")}
            geometry = Geometry(**fields, padding=tuple((n, 0) for n in low), groups=int(groups), **further)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{key!r} is not the key of a convolution") from None
        return cls(traits, geometry, dtype, sink, transposed=transposed, precision=precision, **handles)

    @property
    def units(self):
        """Compute units to keep busy."""
        return max(1, self.traits.compute_units)

    @property
    def accumulator(self):
        return dtypes.accumulator(self.dtype)

    def register(self, width=1):
        """C type of a register of `width` lanes."""
        return prelude.register_type(self.dtype, width)

    @cached_property
    def axes(self):
        """The Axis of each dimension of the pixels."""
        return conv_geometry.axes(self.geometry, merge=False)

    @cached_property
    def merged_axes(self):
        """The same, neighbouring plain axes merged."""
        return conv_geometry.axes(self.geometry)

    # ---- CPUs

    @property
    def lanes(self):
        """Lanes of a full vector of the accumulator's type."""
        width = max(4, self.traits.vector_width)
        return min(16, width // 2 if self.dtype == "float64" else width)

    def registers(self, width):
        """Number of a CPU's registers of vectors of `width` lanes."""
        return 32 if width * (2 if self.dtype == "float64" else 1) >= 16 else 16

    def unfit(self, rows, vectors, width):
        """Why a register tile of `rows` by `vectors` of `width` output channels does not fit a CPU, as a clause; "" where it fits."""
        if counts := not_counts(rows=rows, vectors=vectors, width=width):
            return counts
        if width > self.lanes or width != power_below(width):
            return f"width = {width} is no power of two up to {self.lanes}"
        if (vectors - 1) * width >= self.channels:
            return f"{vectors} vectors of {width} are more than {self.channels} channels need"
        taken = rows * vectors + vectors + 1
        return f"it takes {taken} of {self.registers(width)} registers" if taken > self.registers(width) else ""

    @property
    def lanewise(self):
        """Whether lanes run across groups, each reading its own group's inputs, since one group has few channels."""
        return self.geometry.groups > 1 and self.geometry.group_outputs < self.lanes

    @property
    def channels(self):
        """Output channels along which a tile's vectors lie: those of a group, or of all groups together."""
        return self.geometry.output[-1] if self.lanewise else self.geometry.group_outputs

    @property
    def groups(self):
        """Number of groups of such channels."""
        return 1 if self.lanewise else self.geometry.groups
