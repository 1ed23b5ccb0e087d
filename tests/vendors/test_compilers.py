"""The vendors' compilers, where they are installed: what they tell of kernels, and that they take all of ours without spilling."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_ocl import cli, lowering, runtime, vendors
from tests.golden.models import MODELS

# Each vendor's, old and new. The golden file's models that differ most in their kernels.
RECORDS = ["sm_86", "gfx1030", "gfx1100", "dg2"]
STEPS = [
    "xor", "mnist_dropout", "six_hidden", "cifar_cnn", "cifar_response_normalized", "all_convolutional", "irradiance_wide_mlp",
    "irradiance_cnn", "reviews_lstm", "transformer", "bidirectional_masked", "convolutional_lstm", "decoder_grouped_queries",
    "attention_without_scores", "volumes", "depthwise_separable", "transposed_autoencoder", "mixture_of_experts", "half_precision",
]  # fmt: skip

PLAIN = """
__kernel void first(__global float* x) { x[get_global_id(0)] = 2 * x[get_global_id(0)]; }
__kernel void second(__global float* x, int n) {
  float kept[2048];
  for (int i = 0; i < 2048; ++i) kept[i] = x[i * n];
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += kept[(i * 7) % 2048];
  x[get_global_id(0)] = sum;
}
"""


def compiler(record):
    """The target of a record; skips where its compiler is not installed."""
    target = runtime.read_hardware(record).compiler
    try:
        vendors.compile_program(target, "__kernel void f(__global int* x) { x[0] = 1; }")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return target


@pytest.mark.parametrize("record", [name for name in runtime.record_names() if getattr(runtime.read_hardware(name), "compiler", "")])
def test_what_compilers_tell(record):
    found = vendors.compile_program(compiler(record), PLAIN)
    assert set(found) == {"first", "second"}
    assert found["first"].private == found["first"].spilled == 0 < found["first"].registers
    assert found["second"].private > 0  # an index that is known only when it runs
    assert found["first"].wave in (16, 32, 64)


def test_items_of_a_large_group_share_a_units_registers():
    """clang does not tell ptxas of the group that a kernel requires."""
    loads = "".join(f"float y{i} = x[me * n + {i}];\n" for i in range(200))
    sums = "".join(f"s = fma(s, y{i}, y{199 - i});\n" for i in range(200))
    body = f"int me = get_global_id(0);\nfloat s = n;\n{loads}barrier(CLK_GLOBAL_MEM_FENCE);\n{sums}x[me] = s;"

    def registers(items):
        kernel = f"__kernel __attribute__((reqd_work_group_size({items}, 1, 1)))\nvoid f(__global float* x, int n) {{\n{body}\n}}\n"
        return vendors.compile_program(compiler("sm_86"), kernel)["f"].registers

    assert registers(256) > 128 >= registers(512) and registers(1024) <= 64


@pytest.mark.parametrize("record", RECORDS)
def test_what_is_refused_says_why(record):
    target = compiler(record)
    with pytest.raises(vendors.Rejected, match="undeclared"):
        vendors.compile_program(target, "__kernel void f(__global int* x) { x[0] = nothing; }")


def test_missing_tools_and_vendors(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for variable in ("CLANG", "PTXAS", "OCLOC"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(FileNotFoundError, match="clang is not installed.*apt install clang-19"):
        vendors.compile_program("amd:gfx1030", PLAIN)
    with pytest.raises(FileNotFoundError, match="ocloc is not installed.*intel-opencl-icd"):
        vendors.compile_program("intel:dg2", PLAIN)
    with pytest.raises(ValueError, match="no compiler 'other:x': it is one of nvidia, amd, intel"):
        vendors.compile_program("other:x", PLAIN)


@pytest.mark.parametrize("record", RECORDS)
def test_no_kernel_of_a_training_step_is_refused_or_spills(record):
    target, traits = compiler(record), runtime.read_record(record)

    def compiled(step):
        return vendors.compile_program(target, step.program())

    steps = [lowering.lower(MODELS[name], traits)[0] for name in STEPS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, step, found in zip(STEPS, steps, pool.map(compiled, steps), strict=True):
            short = [(x.name, found[x.kernel]) for x in step.launches if x.kernel and (found[x.kernel].spilled or found[x.kernel].private)]
            assert not short, (name, short)


def test_the_command(tmp_path, capsys):
    compiler("sm_86")
    script = tmp_path / "models.py"
    script.write_text("from tests.golden.models import MODELS\nmodel = MODELS['small_cnn']\n")
    assert cli.main(["lower", f"{script}:model", "--traits", "sm_86", "--train", "--compile"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("train on sm_86: registers") and "predict on sm_86" in out and "of the peak" in out
    assert "conv+relu convolution" in out


@pytest.mark.parametrize("arguments", [[], ["--traits", "mali_g78"], ["--traits", "pocl-cpu"]])
def test_the_command_needs_a_record_with_a_compiler(tmp_path, capsys, arguments):
    script = tmp_path / "models.py"
    script.write_text("from tests.golden.models import MODELS\nmodel = MODELS['xor']\n")
    assert cli.main(["lower", f"{script}:model", "--compile", *arguments]) == 2
    assert "--traits with a record that names a vendor's compiler: dg2, gfx1030" in capsys.readouterr().err
