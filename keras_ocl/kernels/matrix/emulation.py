"""The instructions of a matrix unit on any device that has work-groups: lanes exchange their fragments by way of local memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import MatrixUnit, in_memory
from keras_ocl.kernels.prelude import vector_type


@dataclass(frozen=True)
class Emulation:
    """The Instruction of a unit with these extents and layouts, which are its own, as those of hardware are.

    Every product is exact and each sum of floats is rounded to nearest, in the order of the steps.
    """

    rows: int
    columns: int
    steps: int
    packed: int
    a: Layout
    b: Layout
    c: Layout

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str:
        text, beside, kind = "", self.rows * self.steps, vector_type("char" if dtype == "int8" else "ushort", self.packed)
        total, add = ("int", "mad24") if dtype == "int8" else ("float", "fma")
        for names, layout, start in ((a, self.a, 0), (b, self.b, beside)):
            for e in range(layout.elements):
                line, step = layout.texts(e)
                name = names[e // self.packed]
                element = f"as_{kind}({name}).s{e % self.packed}" if self.packed > 1 else name
                text += f"exchange[{start} + ({line}) * {self.steps} + {step}] = {element};\n"
        places = [self.c.texts(e) for e in range(self.c.elements)]
        rows, columns = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
        loop = f"#pragma unroll 1\nfor (int i = 0; i < {self.steps}; ++i) {{\n"
        for n, row in enumerate(rows):
            loop += f"const {total} x{n} = {_element(dtype, f'({row}) * {self.steps} + i')};\n"
        for n, column in enumerate(columns):
            loop += f"const {total} y{n} = {_element(dtype, f'{beside} + ({column}) * {self.steps} + i')};\n"
        for name, (row, column) in zip(c, places, strict=True):
            loop += f"{name} = {add}(x{rows.index(row)}, y{columns.index(column)}, {name});\n"
        return f"{text}{barrier}\n{loop}}}\n{barrier}\n"


def _element(dtype: str, where: str) -> str:
    """C text of the element at an offset (C text) in the exchange, as a number to multiply."""
    if dtype == "int8":
        return f"exchange[{where}]"
    if in_memory(dtype) == "float32":
        return f"as_float(exchange[{where}])"
    if dtype == "float16":
        return f"vload_half({where}, (const __local half*)exchange)"
    return f"as_float((uint)exchange[{where}] << 16)"


def shuffle(name: str, value: str, mask: int, barrier: str, /) -> str:
    """The Shuffle by way of local memory."""
    place = "((__local float*)exchange)"
    return f"{place}[lane] = {value};\n{barrier}\nconst float {name} = {place}[lane ^ {mask}];\n{barrier}\n"


def emulated(unit: MatrixUnit, name: str) -> MatrixUnit:
    """A unit of that name with the extents and layouts of `unit`, whose instructions any device can run."""
    u = unit
    instruction = Emulation(u.rows, u.columns, u.steps, u.packed, u.a, u.b, u.c)
    return replace(
        u,
        name=name,
        instruction=instruction,
        shuffle=shuffle if u.shuffle else None,
        attributes="",
        exchange=(u.rows + u.columns) * u.steps,
    )
