"""Cache lines and bank conflicts, of programs of which they are known, and of our own kernels."""

import shutil

import pytest

from keras_ocl import cli, lowering, runtime, vendors
from keras_ocl.vendors import interpreter
from tests.golden.models import MODELS

pytestmark = pytest.mark.skipif(not (shutil.which("clang-19") or shutil.which("clang")), reason="no clang: apt install clang-19")


def measured(body, arguments="__global float* x, int n", values=("global", 64), grid=(4096,), group=(64,), before=""):
    """[(cost, fewest)] of a kernel's accesses in their order."""
    source = f"{before}\n__kernel void f({arguments}) {{ int i = get_global_id(0); int l = get_local_id(0); {body} }}"
    return [(x.cost, x.fewest) for x in vendors.accesses(source, [("f", grid, group, values)])["f"]]


@pytest.mark.parametrize(
    ("index", "lines"),
    [
        ("i", 1),
        ("i + 1", 2),  # not where a line begins
        ("0", 1),
        ("2 * i", 2),
        ("n * i", 32),
        ("i / n", 1),
        ("(i ^ 5) - 5 + 5", 1),
        ("i % n * n + i / n", 32),
        ("(uint)i >> 2 << 2", 1),
        ("min(i, 2048 + 16)", 1),  # the middle group begins at 2048
        ("i < 2048 + 16 ? i : i + 4096", 2),
    ],
)
def test_lines_of_a_load(index, lines):
    (load, cost), (store, _) = measured(f"x[i] = x[{index}] + 1;")[0], measured(f"x[{index}] = 1;")[0]
    assert load == store == lines and cost <= lines


@pytest.mark.parametrize(("stride", "rounds"), [(1, 1), (2, 2), (32, 32), (33, 1), (4, 4)])
def test_rounds_of_local_memory(stride, rounds):
    assert measured(f"l0[l * {stride}] = 1;", "__local float* l0", ("local",))[0] == (rounds, 1)
    inside = f"__local float inside[4096]; inside[l * {stride}] = 1; barrier(1); x[i] = inside[(l * {stride}) ^ 1];"
    assert measured(inside)[0][0] == rounds


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x[i] = vload4(i, x).s1;", (4, 4)),
        ("vstore2((float2)(1, 2), i, x);", (2, 2)),
        ("x[i] = ((__global float4*)x)[i * 2].s0;", (8, 4)),
        ("float s = 0; for (int k = 0; k < n; ++k) s += x[k * n + l]; x[i] = s;", (48, 48)),  # the first 48 rounds
        ("float s = 0; int k = n; while (k > 0) { s += x[k * 32]; k -= 16; } x[i] = s;", (4, 4)),
        ("switch (n) { case 1: x[i] = 1; break; case 64: x[i * 32] = 1; break; default: x[i] = 3; }", (32, 1)),
        ("int kept[4]; for (int k = 0; k < 4; ++k) kept[k] = k * n; x[kept[l % 4] + i] = 1;", (4, 1)),
        ("int2 at = (int2)(i, n) * 2; x[at.s0 + at.s1] = 1;", (2, 1)),
        ("x[place(l, n)] = 1;", (32, 1)),
        ("x[mad24(l, n, 3)] = 1;", (32, 1)),
    ],
)
def test_instructions(body, found):
    helper = "__attribute__((noinline)) int place(int a, int n) { return a * n + n / 3; }"
    assert found in measured(body, before=helper)


def test_axes_and_a_wave_that_a_group_does_not_fill():
    body = "x[get_global_id(1) * n + get_global_id(0)] = 1;"
    assert measured(body, grid=(64, 64), group=(8, 8)) == [(4, 1)]  # four rows of eight, 256 bytes apart
    assert measured(body, grid=(64, 64), group=(4, 2)) == [(2, 1)]
    assert measured(body, grid=(64,), group=None) == [(1, 1)]


def test_what_is_not_known():
    program = interpreter.Program("define i32 @f(i32 %0) {\n  %2 = strange i32 %0, 1\n  ret i32 %2\n}\n")
    with pytest.raises(interpreter.Unknown, match="f: strange"):
        program.run("f", (1,), interpreter.Item((0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1)))


def of_step(name):
    """(lowering.Launch, [Access]) of each kernel of a model's training step."""
    (step, *_) = lowering.lower(MODELS[name], runtime.read_record("sm_86"))
    launches = {x.kernel: x for x in step.launches if x.kernel}
    found = vendors.accesses(step.program(), [(k, x.grid, x.group, x.arguments) for k, x in launches.items()])
    return [(launch, found[kernel]) for kernel, launch in launches.items()]


@pytest.mark.parametrize("name", ["xor", "six_hidden", "small_cnn", "half_precision"])
def test_our_kernels_are_known(name):
    found = of_step(name)
    assert found and all(accesses for _, accesses in found)


@pytest.mark.parametrize("name", ["cifar_cnn", "transformer"])
def test_kernels_that_move_much_are_coalesced(name):
    """Fewer than 2.2 times the lines that the bytes fit in, and fewer than a third more rounds of local memory than without conflicts.

    The most have products of operands that both lie along k, of which a group loads a part of each line at a time, with short epilogues.
    """
    for launch, accesses in of_step(name):
        lines, rounds = ([x for x in accesses if x.local == local] for local in (False, True))
        if launch.read + launch.written > 2**19:
            assert sum(max(x.cost - x.times, x.fewest) for x in lines) <= 2.2 * sum(x.fewest for x in lines), launch.name
        if rounds and launch.read + launch.written > 2**19:
            assert sum(x.cost for x in rounds) <= 1.33 * sum(x.fewest for x in rounds), launch.name


def test_the_command(tmp_path, capsys):
    script = tmp_path / "models.py"
    script.write_text("from tests.golden.models import MODELS\nmodel = MODELS['small_cnn']\n")
    assert cli.main(["lower", f"{script}:model", "--traits", "sm_86", "--access"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("predict: cache lines of global memory") and "max_pooling2d" in out
