"""Products, convolutions and attention of every matrix unit through its vendor's compiler."""

import dataclasses

import pytest

from keras_ocl import runtime, vendors
from keras_ocl.compiler.launch.lower import program_spec
from keras_ocl.kernels import attention, gemm
from keras_ocl.kernels.conv import Geometry
from keras_ocl.kernels.matrix.units import UNITS
from keras_ocl.kernels.spec import Sink
from tests.compiler.fuse.test_prologue import dense_step
from tests.compiler.fuse.test_rows import launches
from tests.kernels.conv.test_conv import FUNCTIONS, specs_of
from tests.kernels.launching import named
from tests.vendors.test_compilers import compiler

# A record with the unit, and the device to compile for, old and new.
DEVICES = {
    "mma_m16n8k16": [("sm_86", "nvidia:sm_80"), ("sm_90", "nvidia:sm_90")],
    "mma_m16n8k8": [("sm_75", "nvidia:sm_75")],
    "mma_m16n8k8_tf32": [("sm_86", "nvidia:sm_80"), ("sm_90", "nvidia:sm_90")],
    "wmma_gfx11": [("gfx1100", "amd:gfx1100")],
    "wmma_gfx12": [("gfx1100", "amd:gfx1201")],
    "mfma_16x16x16": [("gfx90a", "amd:gfx90a"), ("gfx90a", "amd:gfx942")],
    "mfma_32x32x8": [("gfx90a", "amd:gfx90a"), ("gfx90a", "amd:gfx942")],
    "mfma_32x32x2": [("gfx90a", "amd:gfx90a"), ("gfx90a", "amd:gfx942")],
    "mfma_16x16x8_xf32": [("gfx90a", "amd:gfx942")],
    "mfma_32x32x4_xf32": [("gfx90a", "amd:gfx942")],
    "mma_m16n8k32_i8": [("sm_86", "nvidia:sm_80"), ("sm_90", "nvidia:sm_90")],
    "mma_m8n8k16_i8": [("sm_75", "nvidia:sm_75")],
    "wmma_gfx11_i8": [("gfx1100", "amd:gfx1100")],
    "wmma_gfx12_i8": [("gfx1100", "amd:gfx1201")],
    "mfma_32x32x16_i8": [("gfx90a", "amd:gfx942")],
    "mfma_16x16x32_i8": [("gfx90a", "amd:gfx942")],
    "mfma_32x32x8_i8": [("gfx90a", "amd:gfx90a")],
    "mfma_16x16x16_i8": [("gfx90a", "amd:gfx90a")],
    "dpas_8_i8": [("dg2", "intel:dg2")],
    "dpas_8": [("dg2", "intel:dg2")],
    "dpas_16": [("pvc", "intel:pvc")],
}
# All dtypes on the first of them.
CASES = [
    (n, *devices[k], d) for n, devices in DEVICES.items() for k in range(len(devices)) for d in UNITS[n].dtypes[: None if k == 0 else 1]
]
# Of float32 operands, as terms.
CASES += [
    (n, *DEVICES[n][-1], e)
    for n, e in (("mma_m16n8k16", "bf16x6"), ("mfma_16x16x16", "bf16x3"), ("wmma_gfx11", "bf16x3"), ("dpas_16", "bf16"))
]
PRECISION = {"tf32": "tf32", "bf16x3": "tf32", "bf16": "bfloat16"}


def test_every_unit_is_compiled():
    assert {*DEVICES} == {name for name in UNITS if not name.startswith("emulated")}


def operands(dtype):
    """(dtype in memory, precision) of a product in `dtype`, one of a unit's or the name of an Expansion."""
    precision = PRECISION.get(dtype, "float32")
    return "float32" if precision != "float32" or dtype == "bf16x6" else dtype, precision


def products(traits, dtype):
    """The first kernels of products of 1,024 x 1,024 matrices, with each operand along k and across it."""
    m = n = k = 1024
    dtype, precision = operands(dtype)
    for a_strides in ((k, 1), (1, m)):
        for b_strides in ((n, 1), (1, k)):
            a, b = gemm.Operand(named("a"), dtype, *a_strides), gemm.Operand(named("b"), dtype, *b_strides)
            total = "int32" if dtype == "int8" else dtype
            sink = Sink(named("c"), (m, n), total)
            yield gemm.plan(traits, batch=None, m=m, n=n, k=k, a=a, b=b, dtype=total, sink=sink, precision=precision)[0]


def convolutions(traits, dtype):
    """The first kernels of a convolution and its two gradients."""
    geometry, (stored, precision) = Geometry.of((8, 32, 32, 64), (3, 3, 64, 64), padding=1), operands(dtype)
    for what in FUNCTIONS:
        specs, _ = specs_of(what, traits, geometry, stored, precision=precision)
        yield next(spec for spec in specs if "by the matrix unit" in spec.title)


def attentions(traits, dtype, size=64):
    """The kernels of attention and its gradients, with a mask, for heads of a size."""
    rows, statistics = (8, 256, 8, size), (8, 256, 8)
    operands = {name: attention.Operand(named(name), dtype, rows) for name in ("query", "key", "value", "do")}
    operands |= {name: attention.Operand(named(name), "float32", statistics) for name in ("peak", "rescale", "delta")}
    operands["mask"] = attention.Operand(named("mask"), "bool", (8, 1, 1, 256))
    for plan, names, shapes in (
        (attention.forward, ("query", "key", "value", "mask"), (rows, statistics, statistics)),
        (attention.gradient, tuple(operands), (rows, rows, rows)),
    ):
        given = {name: operands[name] for name in names}
        problem = attention.Problem(traits, 8, 256, 256, 8, 8, size, size, dtype, 0.125, False, given)
        sinks = [Sink(named(f"{plan} {k}"), shape, dtype if shape is rows else "float32") for k, shape in enumerate(shapes)]
        yield from plan(problem, sinks)


@pytest.mark.parametrize(("name", "record", "target", "dtype"), CASES, ids=[f"{n} {t} {d}" for n, _, t, d in CASES])
def test_the_instruction_is_in_the_loop_and_nothing_is_spilled(name, record, target, dtype):
    compiler(record)  # skips where it is not installed
    traits = dataclasses.replace(runtime.read_record(record), matrix_units=(name,), matrix_rates=(32.0,))
    specs = [*products(traits, dtype), *(convolutions(traits, dtype) if dtype != "int8" else ())]
    manner = f"by the matrix unit {name}" + (f" as {dtype}" if operands(dtype)[0] == "float32" != dtype else "")
    assert all(manner in spec.title for spec in specs)
    texts = [program_spec(spec, traits) for spec in specs]
    program = "".join([*dict.fromkeys(piece for _, _, pieces in texts for piece in pieces), *(source for _, source, _ in texts)])
    found = vendors.compile_program(target, program, loops=target.startswith("amd"))
    assert {*found} == {kernel for kernel, _, _ in texts}
    for kernel, resources in found.items():
        assert (resources.spilled, resources.private) == (0, 0), kernel
        assert resources.wave == UNITS[name].lanes
        if resources.loop:
            assert resources.loop.matrix > 0 and resources.loop.fma == 0, str(resources.loop)


# A dense layer's products with a few odd extents: (record, target, examples, inputs, outputs).
COMPUTED = [
    (record, target, *sizes)
    for record, target in (("sm_90", "nvidia:sm_90"), ("gfx1100", "amd:gfx1100"), ("dg2", "intel:dg2"))
    for sizes in ((128, 784, 512), (100, 300, 252), (70, 33, 129))
]


@pytest.mark.parametrize(("record", "target", "examples", "inputs", "outputs"), COMPUTED)
def test_operands_that_are_cast_as_they_are_loaded(record, target, examples, inputs, outputs):
    compiler(record)
    traits = runtime.read_record(record)
    specs = launches(record, dense_step, (examples, inputs), (inputs, outputs), (examples, outputs))
    assert any("by the matrix unit" in part.title for spec in specs for part in spec.provenance.parts(spec))
    texts = [program_spec(spec, traits) for spec in specs]
    program = "".join([*dict.fromkeys(piece for _, _, pieces in texts for piece in pieces), *(source for _, source, _ in texts)])
    found = vendors.compile_program(target, program, loops=target.startswith("amd"))
    for spec, (kernel, _, _) in zip(specs, texts, strict=True):
        assert (found[kernel].spilled, found[kernel].private) == (0, 0), kernel
        if found[kernel].loop and "by the matrix unit" in spec.title:
            assert found[kernel].loop.matrix > 0 and found[kernel].loop.fma == 0, str(found[kernel].loop)


# On Intel's GPUs work-items multiply: with a unit, the sums of whole rows do not fit the registers.
ATTENTION = [case for case in CASES if not case[0].startswith("dpas") and case[-1] in ("float16", "bfloat16")]


@pytest.mark.parametrize(("name", "record", "target", "dtype"), ATTENTION, ids=[f"{n} {t} {d}" for n, _, t, d in ATTENTION])
def test_attention(name, record, target, dtype):
    compiler(record)
    traits = dataclasses.replace(runtime.read_record(record), matrix_units=(name,), matrix_rates=(8.0,))
    specs = [spec for size in (64, 128) for spec in attentions(traits, dtype, size)]
    assert len(specs) == 6 and all(f"by the matrix unit {name}" in spec.title for spec in specs)
    texts = [program_spec(spec, traits) for spec in specs]
    program = "".join([*dict.fromkeys(piece for _, _, pieces in texts for piece in pieces), *(source for _, source, _ in texts)])
    for kernel, resources in vendors.compile_program(target, program, loops=target.startswith("amd")).items():
        assert (resources.spilled, resources.private) == (0, 0), kernel
        assert resources.wave == UNITS[name].lanes
        if resources.loop:
            assert resources.loop.matrix > 0 and resources.loop.fma == 0, str(resources.loop)


@pytest.mark.parametrize("name", [name for name in DEVICES if UNITS[name].size == 2])
def test_banks_of_local_memory(name):
    """Tiles that lie across k are stored one step at a time, of rows that begin in different banks."""
    (record, _), *_ = DEVICES[name]
    compiler(record)
    traits = dataclasses.replace(runtime.read_record(record), matrix_units=(name,), matrix_rates=(16.0,))
    for spec in [*products(traits, "float16"), *convolutions(traits, "float16")]:
        kernel, source, pieces = program_spec(spec, traits)
        arguments = ["global" if a.is_pointer else "local" if a.kind == "local" else 1 for a in spec.args]
        offsets = 0 if traits.sub_buffers else sum(a.is_pointer for a in spec.args)
        launch = kernel, tuple(map(int, spec.grid)), spec.group, [*arguments, *[0] * offsets]
        found = vendors.accesses("".join(pieces) + source, [launch], UNITS[name].lanes)[kernel]
        rounds = [x for x in found if x.local]
        assert len(rounds) > 4 and any(x.store for x in rounds) and not all(x.store for x in rounds)
        assert sum(x.cost for x in rounds) <= 2.1 * sum(x.fewest for x in rounds), spec.title
