"""What a kernel template returns (a KernelSpec), and its two helpers: Args and Sink.

`Args` collects a kernel's parameters and decides how an extent prints: as a literal, or, for a Dim
(and for every extent in eager code), as a kernel argument, so that another batch size gives the same
source text. It also notes what the body asks of its launch: ids of the work-item and barriers. `Sink` is
the epilogue: the template calls it with a register holding part of the result, and it returns the code
that applies the fused operations and stores.
"""

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, Extent, Shape, present, product
from keras_ocl.kernels import ids
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.ids import Ids, Place
from keras_ocl.kernels.indent import indented

Group = tuple[int, ...] | None  # a kernel's work-group


@dataclass(frozen=True)
class Arg:
    """One kernel parameter. kind: 'in', 'out' (pointers), 'local' or a C scalar type such as 'int'."""

    name: str
    kind: str
    dtype: str = ""  # pointers: the element's dtype
    value: object = None  # pointers: the Buffer; scalars: the number, which may be a Dim
    # pointers into stacks of loop steps' slices: {shift: a slice's elements}, None: all
    parts: Mapping[int | None, Extent | None] = field(default_factory=dict)

    @property
    def is_pointer(self) -> bool:
        return self.kind in ("in", "out")

    @property
    def ctype(self) -> str:
        """The parameter's C type."""
        if self.is_pointer:
            return f"__global {'const ' if self.kind == 'in' else ''}{dtypes.storage_ctype(self.dtype)}*"
        return f"__local {self.dtype}*" if self.kind == "local" else f"const {self.kind}"


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """One kernel: body text without signature, its parameters in order, its launch geometry, and what the body asks of the launch.

    Passes make another one in its place (dataclasses.replace) and never change it.

    Templates make it by `Args.kernel`, which knows the latter.

    `title` is the first line of the text and says what it computes; it contains nothing that the rest of the text does not imply.
    `grid` is the global size in work-items (1 to 3 extents), `group` the work-group size or None. `helpers` are the names of the prelude
    functions that the body calls.

    The head of the kernel declares the ids in `places`, by `ids`, and returns where one of `guards`, C conditions, says that the work-item
    has nothing to do.
    """

    name: str  # what the kernel computes, for profiles and errors; not part of the source
    args: tuple[Arg, ...]
    body: str
    grid: Shape
    group: Group = (1,)
    helpers: frozenset[str] = frozenset()
    scalar: bool = False  # the body is a user's, for one element: the compiler may put several work-items in a vector
    title: str = field(kw_only=True)
    provenance: object = None  # the operations that it computes (compiler/launch/provenance.py); not part of the source either
    overwrites: bool = False  # whether it overwrites a variable's value; not part of the source either
    operations: float | None = None  # arithmetic operations done, if the algorithm (Winograd) differs from the definition; may be a Dim
    replaced: Extent | None = None  # elements that it writes, if it leaves the others of its result as they are
    functions: tuple[str, ...] = ()  # source texts of functions that only this kernel calls; its pointers may then alias
    places: frozenset[Place] = frozenset()  # the ids of the work-item that the body and the guards name
    ids: Ids = Ids()
    guards: tuple[str, ...] = ()
    barriers: bool = False  # whether the body has barriers
    attributes: str = ""  # lines of attributes before the function's name
    sized: bool = False  # whether a user's body asks for the number of work-items or of groups

    def signature(self, form: str = "{}", restrict: bool = True) -> str:
        """The parameters as C text; `form` is the format string of the pointers' names, which `restrict` qualifies if none may alias."""
        return ", ".join(self._declared(a, form, restrict) if a.is_pointer else f"{a.ctype} {a.name}" for a in self.args)

    def _declared(self, pointer: Arg, form: str = "{}", restrict: bool = True) -> str:
        return f"{pointer.ctype} {'restrict ' if restrict and not self.functions else ''}{form.format(pointer.name)}"

    def source(self, function: str, offsets: bool = False) -> str:
        """The kernel's OpenCL C text under the function name `function`; `offsets`: as for around()."""
        return function.join(self.around(offsets))

    def around(self, offsets: bool = False, attributes: str = "") -> tuple[str, str]:
        """The kernel's OpenCL C text before the function's name and after it, with further `attributes` of the function.

        offsets: whether the kernel has one more parameter for each pointer, after its own and in the same order: the pointer's offset in
            bytes from the start of its buffer.
        """
        signature, begin = self.signature(), ""
        if offsets:
            pointers = [a for a in self.args if a.is_pointer]
            signature = ", ".join([self.signature("{}_whole"), *(f"const ulong {a.name}_at" for a in pointers)])
            begin = "".join(f"  {self._declared(a)} = ({a.ctype})((__global const char*){a.name}_whole + {a.name}_at);\n" for a in pointers)
        sizes = ", ".join(str(g) for g in (tuple(self.group) + (1, 1))[:3]) if self.group else ""
        required = f"__attribute__((reqd_work_group_size({sizes})))\n" if sizes else ""
        return f"// {self.title}\n__kernel {required}{self.attributes}{attributes}void ", f"({signature}) {{\n{begin}{self.text()}}}\n"

    def head(self, given: Mapping[Place, str] | None = None) -> str:
        """Declarations of ids, and the guards; `given`: as for Ids.declarations."""
        guard = f"{Args.leave(' || '.join(self.guards))}\n" if self.guards else ""
        return indented(self.ids.declarations(self.places, given) + guard)

    def text(self, given: Mapping[Place, str] | None = None) -> str:
        """The head and the body, which is indented unless it is a user's; `given`: as for Ids.declarations."""
        return self.head(given) + (self.body if self.scalar else indented(self.body))


@dataclass(frozen=True)
class StepSlice:
    """The slice of the Buffer `base` for a loop's current step: `elements` elements, from (step + shift) * elements on."""

    base: "Buffer"
    elements: int  # may be a Dim
    shift: int = 0


@dataclass(eq=False)
class Buffer:
    """Memory that kernels read and write: a node's value, or scratch between the kernels of one operation.

    Buffers are compared by identity. Each has memory of its own, unless the compiler lets several share it or it is a `slice` of another.
    """

    elements: int  # may be a Dim
    dtype: str
    slice: StepSlice | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes, with the extents of the current trace."""
        return present(self.elements) * dtypes.itemsize(self.dtype)


class Stored(Protocol):
    """A node of the compiler's graph, as templates see it: its value lies in a Buffer."""

    @property
    def buffer(self) -> Buffer: ...


Handle = Buffer | Stored  # what Args.pointer() takes


class _Step:
    """Placeholder value of the argument that holds a loop's current step number; the number is set before each launch."""

    def __repr__(self) -> str:
        return "STEP"


STEP = _Step()


@dataclass
class Args:
    """Parameters of a kernel under construction, and what its body asks of the launch.

    `all_arguments=True` (eager code) prints every extent above 1 as an argument.
    """

    all_arguments: bool = False
    args: list[Arg] = field(default_factory=list)
    places: set[Place] = field(default_factory=set)
    barriers: bool = False
    _seen: dict[Hashable, int] = field(default_factory=dict)  # positions in `args`

    def place(self, kind: str, dimension: int) -> str:
        """C name of an id of the work-item along a dimension of the grid: kind 'global', 'group' (that of its group) or 'local' (in it)."""
        self.places.add((kind, dimension))
        return ids.name((kind, dimension))

    def barrier(self, fence: str = "CLK_LOCAL_MEM_FENCE") -> str:
        """C statement at which the work-items of a group wait for one another, and after which they see each other's writes."""
        self.barriers = True
        return f"barrier({fence});"

    @staticmethod
    def leave(condition: str) -> str:
        """C statement by which work-items for which a C condition holds return."""
        return f"if ({condition}) return;"

    def pointer(self, value: Handle, dtype: str, out: bool = False, parts: Mapping[int | None, Extent | None] | None = None) -> str:
        """C text of the pointer to `value`: a Buffer, or a node of the compiler's graph, which stands for its `buffer`.

        It is the name of a parameter; for a slice, an expression for the start of the current step's slice. `parts`: slices, as in
        Arg.parts, if the kernel accesses only those through the pointer.
        """
        buffer = value if isinstance(value, Buffer) else value.buffer
        if buffer.slice is not None:
            base = self.pointer(buffer.slice.base, dtype, out, {buffer.slice.shift: buffer.slice.elements})
            step = self.step() if buffer.slice.shift == 0 else f"({self.step()} + {buffer.slice.shift})"
            return f"({base} + (long){step} * {self.int(buffer.slice.elements, 'long')})"
        key = ("ptr", buffer)
        if key not in self._seen:
            name = f"p{sum(a.kind in ('in', 'out') for a in self.args)}"
            self._seen[key] = len(self.args)
            self.args.append(Arg(name, "out" if out else "in", dtype, buffer, parts or {None: None}))
            return name
        seen = self.args[self._seen[key]]
        kind = "out" if out else seen.kind
        all_parts: dict[int | None, Extent | None] = {**seen.parts, **(parts or {None: None})}
        if kind != seen.kind or len(all_parts) != len(seen.parts):
            self.args[self._seen[key]] = replace(seen, kind=kind, parts=all_parts)
        return seen.name

    def int(self, extent: Extent, ctype: str = "int") -> str:
        """C text of an extent or stride: a literal, or the name of an argument."""
        key: Hashable
        if isinstance(extent, Dim):
            key = (ctype, extent.key)
        elif self.all_arguments and not -1 <= extent <= 1:
            key = (ctype, "occurrence", len(self.args))  # values that happen to be equal must not change the source
        else:
            return str(int(extent)) if extent >= 0 else f"({int(extent)})"
        return self._scalar(key, ctype, extent)

    def step(self) -> str:
        """Name of the argument that holds the current step number of the loop around the kernel."""
        return self._scalar("step", "int", STEP)

    def scalar(self, value: float, ctype: str) -> str:
        """C text of a number that is always an argument (a float constant: equal code then shares a kernel)."""
        return self._scalar((ctype, "scalar", value), ctype, value)

    def own(self, value: Extent) -> str:
        """Name of a new int argument, never shared with an equal number, so that the text is the same for all values."""
        return self._scalar(("int", "occurrence", len(self.args)), "int", value)

    def _scalar(self, key: Hashable, ctype: str, value: object) -> str:
        if key not in self._seen:
            name = f"n{sum(a.kind not in ('in', 'out', 'local') for a in self.args)}"
            self._seen[key] = len(self.args)
            self.args.append(Arg(name, ctype, value=value))
        return self.args[self._seen[key]].name

    def local(self, ctype: str, elements: Extent) -> str:
        """Name of a __local parameter of `elements` elements of C type `ctype`."""
        name = f"l{sum(a.kind == 'local' for a in self.args)}"
        self.args.append(Arg(name, "local", ctype, elements))
        return name

    def kernel(
        self,
        name: str,
        body: str,
        grid: Shape,
        group: Group = (1,),
        helpers: frozenset[str] = frozenset(),
        *,
        title: str,
        **more: Any,
    ) -> KernelSpec:
        """The KernelSpec with these parameters and a body that was written with them; `more`: further fields of it."""
        asked: dict[str, Any] = {"places": frozenset(self.places), "barriers": self.barriers}
        return KernelSpec(name, tuple(self.args), body, grid, group, helpers, title=title, **asked, **more)


class Epilogue(Protocol):
    """What templates ask of a Sink, or of what stands between a template and a Sink."""

    @property
    def helpers(self) -> AbstractSet[str]: ...

    @property
    def uniform(self) -> int: ...

    def store(self, args: Args, coordinates: Sequence[str], value: str, width: int) -> str: ...


class Sink:
    """The epilogue slot of a template (matrix product, convolution): where results go.

    `store(args, coordinates, value, width)` returns C statements that consume `value`, a register of
    `width` lanes of the accumulator's type whose lanes run along the last coordinate (of an extent other than 1).
    `coordinates` are C integer expressions, one per dimension of the result, already known to be in bounds.
    This plain sink stores to one row-major buffer. `helpers` collects what the returned code calls; read
    it after the last store(). `uniform` is the number of values that the code uses and that are the same for all elements: compilers
    keep them in registers throughout the kernel.
    """

    uniform = 0

    def __init__(self, handle: Handle, shape: Shape, dtype: str) -> None:
        self.handle, self.shape, self.dtype = handle, shape, dtype
        self.helpers: set[str] = set()

    def store(self, args: Args, coordinates: Sequence[str], value: str, width: int) -> str:
        """C statements that store a register; see the class."""
        from keras_ocl.kernels import prelude

        pointer, index = args.pointer(self.handle, self.dtype, out=True), index_type(product(self.shape))
        offset = coordinates[0] if index == "int" else f"({index})({coordinates[0]})"
        for extent, c in zip(self.shape[1:], coordinates[1:], strict=True):
            offset = f"({offset}) * {args.int(extent, index)} + {c}"
        self.helpers |= prelude.helpers_for(self.dtype, width)
        return prelude.store(self.dtype, width, pointer, offset, value) + "\n"
