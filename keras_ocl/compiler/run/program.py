"""Program: a compiled step as data: its kernels, memory, launches and loops, with numbers that depend on unknown extents as formulas.

It holds no device, kernel object, graph or function of its own, so it prints, compares and pickles, and is stored on disk (stored.py). Two
things stay with the launches that it was made of (sources.py): the operations they come from, which only profiles ask for, and the code of
a user's own host operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from keras_ocl.core import dtypes
from keras_ocl.core.facts import function_of
from keras_ocl.kernels.matrix.units import of_title


@dataclass(frozen=True, slots=True)
class Formula:
    """A number computed from unknown extents: one of them ("u0", "u1", ...) or the result of one of the Program's formulas ("v0", ...)."""

    symbol: str

    def __str__(self) -> str:
        return self.symbol


Number = int | Formula


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's OpenCL C, and the texts of the functions that it calls."""

    source: str
    helpers: tuple[str, ...]

    @property
    def matrix_unit(self) -> str:
        """The name of the matrix unit by which its products, convolutions and attention all multiply, "" if work-items do; titles tell."""
        titles = re.findall(r"^// ((?:matrix product|convolution|attention)\b.*)", "".join([*self.helpers, self.source]), re.M)
        units = {found[0] if (found := of_title(title)) else "" for title in titles}
        return units.pop() if len(units) == 1 else ""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a buffer needs.

    elements, dtype: its size. first, last: the numbers of the launches between which it is live; None where its memory comes from outside.
    """

    elements: Number
    dtype: str
    first: int | None
    last: int | None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtypes.itemsize(self.dtype)


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that is a buffer. `buffer`: its number, see Loop; `written`: whether the kernel writes to it."""

    buffer: int
    written: bool


@dataclass(frozen=True, slots=True)
class Scalar:
    """An argument that is a number of the C type `ctype`."""

    ctype: str
    value: Number | float


@dataclass(frozen=True, slots=True)
class Local:
    """An argument that is local memory for so many elements of the C type `ctype`."""

    ctype: str
    elements: Number


@dataclass(frozen=True, slots=True)
class Step:
    """An argument that is the number of the present step of the loop around the launch, an int."""


Argument = Pointer | Scalar | Local | Step


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of the kernel named `kernel`.

    name: what it computes. grid, group: work-items in all and of a group (None: the OpenCL runtime chooses). empty: whether there are no
    work-items, which holds for all extents; then nothing is launched. overwrites: whether it overwrites a variable's value.
    """

    number: int
    name: str
    kernel: str
    arguments: tuple[Argument, ...]
    grid: tuple[Number, ...]
    group: tuple[int, ...] | None
    empty: bool
    overwrites: bool


@dataclass(frozen=True, slots=True)
class Array:
    """An operand or result of a host operation; a result that nobody reads has no buffer."""

    buffer: int | None
    shape: tuple[Number, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class HostCall:
    """An operation that the host computes: the primitive's name and parameters (of which tuples may contain Formulas), operands, results.

    single: whether the primitive returns one array in the place of a list.
    """

    number: int
    name: str
    primitive: str
    params: tuple[tuple[str, object], ...]
    reads: tuple[Array, ...]
    writes: tuple[Array, ...]
    single: bool


@dataclass(frozen=True, slots=True)
class HostEnd:
    """The place where the host operation of launch number `call`, which a thread computes meanwhile, must be done."""

    number: int
    call: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of so many bytes from one buffer to another, at these offsets in bytes."""

    source: int
    target: int
    nbytes: Number
    start: Number
    end: Number


@dataclass(frozen=True, slots=True)
class Loop:
    """Launches that are repeated.

    The body numbers the buffers that it uses from 0 on. A step is of one of the variants, which alternate; the last one is of variant 0.

    Attributes:
        body: the launches of a step, which have the numbers before the loop's own.
        variants: for each, the numbers outside of the loop of the body's buffers.
        held: buffers (numbers outside, as in all that follows) that are live during the whole loop.
        before, after: copies before and after the loop. last: copies after a last step of variant 1, of a while loop.
        length, reverse: of a scan, the number of steps, and whether it begins with the last slice.
        guards: for each condition in whose branch the loop is, outermost first, its bool, and the value of it for which the loop runs.
        condition: of a while loop, for each variant the flag after its step; variant 0's has it before the first step too.
        state: of a while loop of kernels alone, an int32: twice the number of steps done, plus 1 while the loop goes on.
    """

    number: int
    name: str
    body: tuple[Launch, ...]
    variants: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    before: tuple[Copy, ...]
    after: tuple[Copy, ...]
    last: tuple[Copy, ...]
    length: Number | None
    reverse: bool
    guards: tuple[tuple[int, bool], ...]
    condition: tuple[int, ...] | None
    state: int | None


Launch = KernelLaunch | HostCall | HostEnd | Loop


@dataclass(frozen=True, slots=True)
class Output:
    """A result in a buffer. memory: it is "new" in each run; "shared": that of the buffer, such as a state overwritten in place; or a copy,
    since the buffer is an "input", or an output listed before ("repeated")."""

    buffer: int
    memory: Literal["new", "shared", "input", "repeated"]


@dataclass(frozen=True, slots=True)
class State:
    """An input that holds a variable. overwritten: whether the program writes its new value over it."""

    buffer: int
    overwritten: bool


@dataclass(frozen=True)
class Program:
    """A compiled step.

    Attributes:
        extents: the values of the unknown extents when it was traced.
        formulas: an assignment, as Python code, for each number computed from them.
        options: OpenCL's build options.
        kernels: by name.
        buffers: what is needed of each; launches, inputs and so on name buffers by their positions here.
        launches: in order.
    """

    name: str
    extents: tuple[int, ...]
    formulas: tuple[str, ...]
    options: str
    kernels: Mapping[str, Kernel] = field(hash=False)
    buffers: tuple[Memory, ...]
    launches: tuple[Launch, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    states: tuple[State, ...]

    def numbers(self) -> Callable[..., dict[str, int]]:
        """A function from the values of the unknown extents, as its arguments, to a dict from the symbol of each Formula to its value."""
        return function_of(len(self.extents), self.formulas)

    @property
    def frame(self) -> tuple[int, ...]:
        """The numbers of the buffers, in the place of a loop's variant for launches outside of loops."""
        return tuple(range(len(self.buffers)))

    def __str__(self) -> str:
        unknown = "".join(f", u{k} = {n}" for k, n in enumerate(self.extents))
        head = [f"{self.name}: {len(self.kernels)} kernels{unknown}{self.options and ', '}{self.options}", *self.formulas]
        roles: dict[int, list[str]] = {}
        for k, buffer in enumerate(self.inputs):
            roles.setdefault(buffer, []).append(f"input {k}")
        for state in self.states:
            roles.setdefault(state.buffer, []).append("state overwritten" if state.overwritten else "state")
        for k, output in enumerate(self.outputs):
            roles.setdefault(output.buffer, []).append(f"output {k}" if output.memory == "new" else f"output {k} ({output.memory})")
        for k, memory in enumerate(self.buffers):
            live = [] if memory.first is None else [f"live from {memory.first} to {memory.last}"]
            head.append(f"b{k}: {memory.elements} {memory.dtype}, {', '.join([*roles.get(k, []), *live])}")
        return "\n".join([*head, *_lines(self.launches, [self.frame])])


def value(number: Number, numbers: Mapping[str, int]) -> int:
    """The value of an int or Formula."""
    return numbers[number.symbol] if isinstance(number, Formula) else number


def values(some: Sequence[Number], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The values of ints and Formulas."""
    return tuple([numbers[n.symbol] if isinstance(n, Formula) else n for n in some])


def inside(loop: Loop, variant: int, frame: Sequence[int]) -> tuple[int, ...]:
    """The Program's numbers of the buffers of a loop's body; `frame`: those of the buffers of the launches around the loop."""
    return tuple([frame[outside] for outside in loop.variants[variant]])


def launches_of(launches: Sequence[Launch], times: int = 1) -> Iterator[tuple[KernelLaunch, int]]:
    """(launch, number of kernel objects that it needs: in a loop one for each variant) of all kernels, also in loops."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from launches_of(launch.body, times * len(launch.variants))
        elif isinstance(launch, KernelLaunch):
            yield launch, times


def _lines(launches: Sequence[Launch], frames: Sequence[Sequence[int]], indent: str = "") -> Iterator[str]:
    """A line for each launch; `frames`: for each variant of the loops around them, the Program's numbers of the buffers."""

    def name(buffer: int | None) -> str:
        return "none" if buffer is None else "|".join(dict.fromkeys(f"b{frame[buffer]}" for frame in frames))

    def argument(a: Argument) -> str:
        match a:
            case Pointer():
                return f"{'out ' if a.written else ''}{name(a.buffer)}"
            case Scalar():
                return f"{a.ctype} {a.value}"
            case Local():
                return f"local {a.elements} {a.ctype}"
            case Step():
                return "step"

    def copies(title: str, some: tuple[Copy, ...]) -> str:
        texts = [f"{name(c.source)} + {c.start} to {name(c.target)} + {c.end}, {c.nbytes} bytes" for c in some]
        return f"; {title} copy {', '.join(texts)}" if some else ""

    def arrays(some: tuple[Array, ...]) -> str:
        return ", ".join(f"{name(a.buffer)} {a.dtype}({', '.join(map(str, a.shape))})" for a in some)

    for launch in launches:
        start = f"{indent}{launch.number}: "
        match launch:
            case KernelLaunch():
                size = " x ".join(map(str, launch.grid))
                if launch.group:
                    size += f" in groups of {' x '.join(map(str, launch.group))}"
                marks = f"{', empty' if launch.empty else ''}{', overwrites' if launch.overwrites else ''}"
                yield f"{start}{launch.name}: {launch.kernel}({', '.join(map(argument, launch.arguments))}) on {size}{marks}"
            case HostCall():
                params = "".join(f", {key} = {_text(given)}" for key, given in launch.params)
                yield f"{start}{launch.name}: {launch.primitive}({arrays(launch.reads)}{params}) to {arrays(launch.writes)}"
            case HostEnd():
                yield f"{start}end of {launch.call}"
            case Loop():
                inner = [inside(launch, v, frame) for frame in frames for v in range(len(launch.variants))]
                flags = ", ".join(dict.fromkeys(map(name, launch.condition or ())))
                times = f"while {flags}" if launch.length is None else f"{launch.length} times"
                ahead = "" if launch.state is None else f", state {name(launch.state)}"
                only = "".join(f", if {name(flag)} is {str(taken).lower()}" for flag, taken in launch.guards)
                done = copies("before", launch.before) + copies("after", launch.after) + copies("after a step of variant 1", launch.last)
                yield f"{start}{launch.name}: {times}{', from the end' if launch.reverse else ''}{only}{ahead}{done}"
                yield from _lines(launch.body, inner, f"{indent}    ")


def _text(param: object) -> str:
    return f"({', '.join(map(str, param))})" if isinstance(param, tuple) else str(param)
