"""Every access of a kernel to global memory lies inside of its buffer: that one which does not is seen, and that programs have none."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from keras_ocl import runtime
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.kernels.spec import Arg, KernelSpec
from tests.accesses.checking import AccessError, installed
from tests.accesses.rewriting import NotUnderstood, checked
from tests.fuzz.checks import check_gradient, check_results, supported
from tests.fuzz.programs import Program, programs
from tests.kernels.launching import launch, named

N = 24  # elements of each buffer
PART = """// a part
static void part(__global const float* x, __global float* y, const int at) {
  y[0] = x[at];
}
"""
FORMS = {  # a body that accesses p0, of N floats, at `at`, or from there on: how many it takes
    "a load": ("p1[0] = p0[at];", 1),
    "a store": ("p0[at] = 1;", 1),
    "an index in an index": ("p1[0] = p1[(int)p0[at] * 0];", 1),
    "a vector": ("vstore4(vload4(0, p0 + at), 0, p1);", 4),
    "a vector at its number": ("p1[0] = vload2(at, p0).x;", None),
    "a vector that is stored": ("vstore2((float2)(1), 0, p0 + at);", 2),
    "a half": ("p1[0] = vload_half(2 * at + 1, (__global const half*)p0);", 1),
    "a pointer to vectors": ("p1[0] = (*(__global const float4*)(p0 + at)).x;", 4),
    "a vector of another kind": ("p1[0] = ((__global float2*)p0)[at / 2].x;", 1),
    "a slice": ("p1[0] = (p0 + (long)n0 * 4)[at - 4 * n0];", 1),
    "a pointer of its own": ("__global const float* row = p0 + at;\nrow += 1;\np1[0] = row[-1];", 1),
    "a star": ("__global const float* row = p0 + at;\np1[0] = 2 * *row;", 1),
    "a choice": ("p1[0] = (n0 ? p0 : p1)[at];", 1),
    "a chosen pointer": ("__global float* chosen = p1;\nif (n0) { chosen = p0; }\nchosen[at] = 1;", 1),
    "a pointer that moves": ("__global float* x = p0;\nfor (int i = 0; i < 2; ++i, x += at) if (i) x[0] = 1;", 1),
    "a branch": ("if (n0) p1[0] = 1; else p1[0] = 2;\nfor (int i = 0; i < 2; ++i) p1[i] += p0[at];", 1),
    "a conditional": ("p1[0] = at < 1000000 ? p0[at] : 0;", 1),
    "a function": ("part(p0, p1, at);", 1),
    "a function of a slice": ("part(p0 + at, p1, 0);", 1),
}


@pytest.fixture
def device():
    return runtime.current_device()


def run(device, body, at):
    floats = [Arg(f"p{k}", "out", "float32", named(f"p{k}")) for k in range(2)]
    numbers = [Arg("at", "int", value=at), Arg("n0", "int", value=1)]
    spec = KernelSpec("accesses", (*floats, *numbers), f"{body}\n", (1,), functions=(PART,), title="a kernel of a test")
    with installed():
        launch(device, [spec], {f"p{k}": device.upload(np.zeros(N, np.float32)) for k in range(2)})


@pytest.mark.parametrize("form", FORMS)
def test_accesses_outside_of_a_buffer_are_seen(device, form):
    body, count = FORMS[form]
    last = N // 2 - 1 if count is None else N - count
    if form == "a vector of another kind":
        last = N - 2
    for at in (0, last):
        run(device, body, at)
    where = "a part" if "part(" in body else "a kernel of a test"
    for at in (-4, last + 4, 100_000):
        with pytest.raises(AccessError, match=rf"(?s)outside of buffers:.* of '{where}': \d+ bytes at byte .* which has 96"):
            run(device, body, at)


def test_kernels_share_a_function():
    """Else a program of both would define it twice."""
    kernel = "// {0}\n__kernel void {0}(__global float* restrict p0, __global float* restrict p1) {{\n  part(p0, p1, {0});\n}}\n"
    one, other = (checked(kernel.format(name), (PART,), {})[1] for name in ("one", "other"))
    assert one == other and "checked(" in one[-1]


def test_what_is_not_understood_is_no_kernel_without_accesses():
    kernel = "// one\n__kernel void k(__global float* restrict p0) {{\n{}\n}}\n"
    for body in ("other(p0);", "__global float* x;", "p0 + 1;"):
        with pytest.raises(NotUnderstood):
            checked(kernel.format(body), (), {})


FOUND = {
    "reflection of a piece that has no rows in the second batch": Program(
        inputs=[(), (None, 8, 7, 1)],
        steps=[
            ("add", [1, 1], {}),
            ("concatenate", [1, 2], {"axis": 0}),
            ("pad by reflection", [3], {"pad_width": ((1, 2), (0, 1), (2, 0), (0, 0)), "mode": "reflect"}),
        ],
        outputs=[4],
        dtype="float16",
        seed=24,
        batches=[2, 1],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_accessed_what_they_must_not(name):
    program = FOUND[name]
    with installed():
        function = Jitted(program.__call__, dynamic=(0,))
        for batch in program.batches:
            function(*(from_numpy(a.astype(program.dtype)) for a in program.arrays(batch)))


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(steps=3))
def test_random_programs(program):
    if supported(program):
        with installed():
            check_results(program)
            check_gradient(program)
