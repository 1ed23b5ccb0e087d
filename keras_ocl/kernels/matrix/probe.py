"""A kernel that shows whether a device's matrix unit does what its row says: one wave, two operands, every place by the row's layouts."""

from typing import Any, NamedTuple

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import MatrixUnit, in_memory
from keras_ocl.kernels.prelude import vector_type

_LARGEST = 15  # of the integers: their products' sums are exact in every dtype, and no two places have the same


class Probe(NamedTuple):
    """A kernel `name` of `items` work-items, with the buffers `a` (rows x steps), `b` (columns x steps) and `sums`, which it leaves as
    `wanted`, bit for bit but for the bits of NaN."""

    name: str
    source: str
    items: int
    a: np.ndarray
    b: np.ndarray
    sums: np.ndarray
    wanted: np.ndarray


def probe(unit: MatrixUnit, dtype: str) -> Probe:
    """The Probe of a unit with operands of `dtype`, multiplied twice.

    Of floats: integers, an infinity, a NaN and, in float16, subnormal numbers. Of integers: all numbers of the dtype.
    """
    rng, kind = np.random.default_rng(unit.rows * unit.columns + unit.steps), dtypes.numpy_dtype(in_memory(dtype))
    shapes = [(lines, unit.steps) for lines in (unit.rows, unit.columns)]
    numbers = np.arange(unit.rows * unit.columns).reshape(unit.rows, -1)
    name = f"probe_{unit.name}_{dtype}"
    if dtypes.is_integer(dtype):
        limits = np.iinfo(kind)
        a, b = (rng.integers(limits.min, limits.max + 1, shape, kind) for shape in shapes)
        a[1], b[2] = limits.min, limits.min  # the largest products, added to the largest number: sums wrap around, as NumPy's do
        sums = (np.iinfo(unit.accumulator).max - numbers).astype(unit.accumulator)
        wanted = (2 * (a.astype("i8") @ b.astype("i8").T) + sums).astype(unit.accumulator)
        return Probe(name, _text(name, unit, dtype), unit.lanes, a, b, sums, wanted)
    a, b = (_integers(rng, shape, kind) for shape in shapes)
    a[1, 0], b[2, -1] = np.inf, np.nan
    sums = (numbers + 0.5).astype(unit.accumulator)
    if dtype == "float16":
        a[3] *= kind.type(2.0**-24)  # CDNA2's units flush subnormal numbers
        sums[3] = 0  # so that these sums are exact, too
    wanted = (2 * (a.astype("f8") @ b.astype("f8").T) + sums).astype(unit.accumulator)
    return Probe(name, _text(name, unit, dtype), unit.lanes, a, b, sums, wanted)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Integers other than 0, of which an infinity would make NaN."""
    return (rng.integers(1, _LARGEST + 1, shape) * rng.choice([-1, 1], shape)).astype(kind)


def _text(name: str, unit: MatrixUnit, dtype: str) -> str:
    element, total = unit.staged, unit.sum
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
    names = {side: [f"{side}{r}" for r in range(unit.registers(layout))] for side, layout in (("a", unit.a), ("b", unit.b))}
    sums = [f"c{e}" for e in range(unit.c.elements)]
    text = f"__local {element} exchange[{unit.exchange}] __attribute__((aligned(16)));\n" if unit.exchange else ""
    text += "const int lane = get_local_id(0);\n"
    for side, layout in (("a", unit.a), ("b", unit.b)):
        text += "".join(_register(unit, layout, side, r) for r in range(unit.registers(layout)))
    places = [f"c[({row}) * {unit.columns} + {column}]" for row, column in map(unit.c.texts, range(unit.c.elements))]
    text += "".join(f"{total} {s} = {place};\n" for s, place in zip(sums, places, strict=True))
    text += 2 * unit.instruction(dtype, names["a"], names["b"], sums, barrier)
    masks = unit.masks if unit.shuffle else ()
    for mask in masks:
        text += "".join(unit.shuffle(f"{s}_{mask}", s, mask, barrier) for s in sums)
        sums = [f"{s}_{mask}" for s in sums]
    # Each lane has the sums of another one now, if they are exchanged.
    text += f"const int mine = lane;\n{{\nconst int lane = mine ^ {sum(masks)};\n"
    text += "".join(f"{place} = {s};\n" for s, place in zip(sums, places, strict=True)) + "}\n"
    pragma = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n" if "as_half" in text else ""
    arguments = f"__global const {element}* restrict a, __global const {element}* restrict b, __global {total}* c"
    required = f"__attribute__((reqd_work_group_size({unit.lanes}, 1, 1)))\n"
    return f"{pragma}__kernel {required}{unit.attributes}void {name}({arguments}) {{\n{text}}}\n"


def _register(unit: MatrixUnit, layout: Layout, side: str, r: int) -> str:
    """Statement that loads register `r` of an operand's fragment."""
    places = [layout.texts(r * unit.packed + e) for e in range(unit.packed)]
    loads = [f"{side}[({line}) * {unit.steps} + {step}]" for line, step in places]
    value = f"as_uint(({vector_type(unit.staged, unit.packed)})({', '.join(loads)}))" if unit.packed > 1 else loads[0]
    return f"const uint {side}{r} = {value};\n"
