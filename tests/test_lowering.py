"""`python -m keras_ocl lower`: models become launches for devices that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_ocl import cli, lowering, runtime

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

FOLDER = Path(runtime.__file__).parent / "records"

SCRIPT = """
import keras
import numpy as np

def model():
    m = keras.Sequential([keras.Input((6, 5)), keras.layers.LSTM(4), keras.layers.Dense(3, "softmax")])
    m.compile("adam", "sparse_categorical_crossentropy")
    return m

def unknown_length():
    m = keras.Sequential([keras.Input((None, 5)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    m.compile("sgd", "mse")
    return m

def unknown_length_with_data():
    return unknown_length(), np.zeros((8, 9, 5), "float32"), np.zeros((8, 1), "float32"), 8

def eager():
    m = model()
    m.compile("sgd", "mse", run_eagerly=True)
    return m
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(SCRIPT)
    return path


def small_model():
    model = keras.Sequential(
        [keras.Input((12, 12, 3)), keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("sgd", "mse")
    return model


def test_command_needs_no_opencl(script):
    environment = {**os.environ, "OCL_ICD_VENDORS": str(script), "KERAS_OCL_DEVICE": ""}
    command = [sys.executable, "-m", "keras_ocl", "lower", f"{script}:model", "--traits", "sm_86", "--train", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    train, predict = json.loads(done.stdout)
    assert (train["step"], predict["step"]) == ("train", "predict")
    repeated = [launch for launch in train["launches"] if launch["loops"]]
    assert repeated and all(launch["loops"][0][1] == 1 and launch["steps"] == 6 for launch in repeated)
    assert any(share["gradient"] and share["operation"] == "LSTM" for launch in repeated for share in launch["shares"])
    for launch in train["launches"]:
        assert sum(share["fraction"] for share in launch["shares"]) == pytest.approx(1)


def test_amounts_of_a_dense_layer():
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(24)])
    x = np.zeros((16, 40), "float32")
    (step,) = lowering.lower(lambda: (model, x, None, 16), runtime.read_record("sm_86"), train=False)
    (launch,) = step.launches
    assert launch.read == 4 * (16 * 40 + 40 * 24 + 24)
    assert launch.written == 4 * 16 * 24
    assert launch.operations == pytest.approx(2 * 16 * 40 * 24, rel=0.05)


def dense(units, inputs):
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(units)])


def test_a_records_own_tile_is_used(tmp_path):
    record = tmp_path / "own.toml"
    key = "float32 m=32* n=24 k=40 a=float32(40,1) b=float32(24,1)"
    tile = f"[overrides.choices.product]\n'{key}' = {{ across = 4, down = 16, rows = 1, columns = 2, depth = 8 }}"
    record.write_text(f"{(FOLDER / 'sm_86.toml').read_text()}\n{tile}")
    grids = [
        [
            (launch.grid, launch.group)
            for launch in lowering.lower(lambda: dense(24, 40), runtime.read_record(name), train=False)[0].launches
        ]
        for name in ("sm_86", str(record))
    ]
    assert grids == [[((24, 32, 1), (8, 8, 1))], [((12, 32, 1), (4, 16, 1))]]


def test_a_records_matrix_unit_is_used(tmp_path):
    """In mixed precision by all products and convolutions of a training step; not in float32, whose kernels are as without it."""
    record = tmp_path / "unit.toml"
    record.write_text((FOLDER / "sm_86.toml").read_text().replace("mma_m16n8k16", "emulated"))

    def model(policy):
        layers = [keras.layers.Conv2D(32, 3, dtype=policy), keras.layers.Flatten(), keras.layers.Dense(24, dtype=policy)]
        model = keras.Sequential([keras.Input((12, 12, 16)), *layers])
        model.compile("sgd", "mse")
        return model

    def sources(policy, traits):
        steps = lowering.lower(lambda: model(policy), runtime.read_record(traits), train=True)
        return [launch.source for step in steps for launch in step.launches]

    assert sources("float32", str(record)) == sources("float32", "sm_86")
    for policy in ("mixed_float16", "mixed_bfloat16"):
        for traits, instruction in ((str(record), "exchange"), ("sm_86", "mma.sync.aligned.m16n8k16")):
            halves = [text for text in sources(policy, traits) if "matrix product" in text or "// convolution" in text]
            assert len(halves) >= 5 and all(instruction in text for text in halves), (policy, traits)


def test_a_files_own_tile_is_used_on_this_device(tmp_path):
    script, own, kernels = tmp_path / "models.py", tmp_path / "own.toml", []
    script.write_text("import keras\n\ndef model():\n    return keras.Sequential([keras.Input((512,)), keras.layers.Dense(512)])\n")
    key = "float32 m=32* n=512 k=512 a=float32(512,1) b=float32(512,1)"
    cpu, gpu = "{ kind = 'rows', rows = 2, vectors = 1, chunk = 2 }", "{ across = 4, down = 2, rows = 1, columns = 2, depth = 4 }"
    own.write_text(f"[cpu.choices.product]\n'{key}' = {cpu}\n[gpu.choices.product]\n'{key}' = {gpu}\n")
    schedule, device = runtime.current_device().traits.schedule, runtime.current_device().name
    for settings in ({}, {"KERAS_OCL_TUNING": str(own)}):
        command = [sys.executable, "-m", "keras_ocl", "lower", f"{script}:model", "--json"]
        environment = {**os.environ, "KERAS_OCL_DEVICE": device, **settings}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        (step,) = json.loads(done.stdout)
        kernels.append([launch["kernel"] for launch in step["launches"]])
    assert (kernels[0] != kernels[1]) == (schedule in ("cpu", "gpu"))
    assert schedule != "cpu" or step["launches"][0]["grid"][1] == 32 // 2


def test_gathered_operands_count_what_is_gathered():
    model = keras.Sequential([keras.Input((7,), dtype="int32"), keras.layers.Embedding(100_000, 8)])
    (step,) = lowering.lower(lambda: model, runtime.read_record("intel-cpu"), train=False)
    assert sum(launch.read for launch in step.launches) == 32 * 7 * (4 + 8 * 4)


def test_steps_of_a_loop_count_their_slices():
    """A step reads the state (twice, c too), the recurrent kernel and its part of the inputs' product, not all 50 of them.

    So in the one launch of all steps, which writes the state and what lies between the product and the gates.
    """
    model = keras.Sequential([keras.Input((50, 5)), keras.layers.LSTM(16, return_sequences=True)])
    x = np.zeros((8, 50, 5), "float32")
    (step,) = lowering.lower(lambda: (model, x, None, 8), runtime.read_record("sm_86"), train=False)
    launches = [launch for launch in step.launches if launch.loops]
    assert [launch.steps for launch in launches] == [50] and launches[0].reread == 4 * 16 * 64
    assert launches[0].written <= 4 * 8 * (64 + 3 * 16)
    assert launches[0].read <= 4 * (16 * 64 + 8 * 16 * 3 + 2 * 8 * 64)


def test_a_fast_algorithm_counts_its_own_operations():
    """Winograd's 4 x 4 outputs of 36 products in the place of 144, and of each transform its own."""

    def make():
        model = keras.Sequential([keras.Input((32, 32, 96)), keras.layers.Conv2D(96, 3, padding="same", use_bias=False)])
        return model, np.zeros((8, 32, 32, 96), "float32"), None, 8

    (step,) = lowering.lower(make, runtime.read_record("sm_90"), train=False)
    filters, patches, product, results = (launch.operations for launch in step.launches)
    direct = 2 * 9 * 8 * 32 * 32 * 96 * 96
    assert product == direct // 4
    assert all(0 < operations < product / 4 for operations in (filters, patches, results))


def test_source_is_what_the_device_compiles():
    device = runtime.current_device()
    steps = lowering.lower(small_model, device.traits)
    for step in steps:
        text = step.program()
        kernels = {launch.kernel for launch in step.launches if launch.kernel}
        assert all(text.count(f"void {name}(") == 1 for name in kernels)
        assert set(device.build([(name, text) for name in kernels])) == kernels


def test_saved_models_and_this_device(tmp_path, capsys):
    path = tmp_path / "model.keras"
    small_model().save(path)
    assert cli.main(["lower", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("predict: ") and ": Conv2D" in out and "train" not in out
    assert cli.main(["lower", str(path), "--source"]) == 0
    assert "__kernel" in capsys.readouterr().out


def test_unknown_extents_are_taken_from_data(script):
    traits = runtime.read_record("pocl-cpu")
    with pytest.raises(ValueError, match="more than the batch is unknown"):
        lowering.lower(lowering.load(f"{script}:unknown_length"), traits)
    train, _ = lowering.lower(lowering.load(f"{script}:unknown_length_with_data"), traits)
    assert train.launches


def test_a_models_own_number_of_examples_is_used():
    def make(batch=None):
        model = keras.Sequential([keras.Input((6,), batch_size=batch), keras.layers.Dense(8)])
        model.compile("sgd", "mse")
        return model

    traits = runtime.read_record("pocl-cpu")
    own, given, default = (lowering.lower(m, traits)[1].launches[0] for m in (lambda: make(64), lambda: (make(), None, None, 64), make))
    assert own.written == given.written == 2 * default.written == 4 * 64 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{script}:model", "--traits", "no-such"], "there is no traits record 'no-such'"),
        (["{script}:nothing", "--traits", "sm_86"], "has no function 'nothing'"),
        (["{script}:eager", "--traits", "sm_86"], "runs eagerly"),
        (["missing.keras", "--traits", "sm_86"], "there is no such file"),
        (["missing.py:model", "--traits", "sm_86"], "there is no such script"),
    ],
)
def test_errors(script, capsys, arguments, message):
    assert cli.main(["lower", *(a.format(script=script) for a in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_records_have_the_fields_of_traits(tmp_path):
    assert {"intel-cpu", "pocl-cpu", "sm_86"} <= set(runtime.record_names())
    for name in runtime.record_names():
        assert runtime.read_record(name).vector_width >= 1
    file = tmp_path / "odd.toml"
    file.write_text("kind = 'gpu'\ncolour = 1\n")
    with pytest.raises(ValueError, match="its entries are kind, vector_width"):
        runtime.read_record(file)


def test_values_cannot_be_read_where_nothing_runs():
    with runtime.device_scope(runtime.RecordDevice("phantom", runtime.read_record("sm_86"))):
        x = keras.ops.ones((3,)) * 2
        with pytest.raises(RuntimeError, match=r"phantom .*nothing runs there"):
            keras.ops.convert_to_numpy(x)
    assert float(keras.ops.sum(keras.ops.ones((3,)) * 2)) == 6
