"""Which units stay in a device's traits after they were tried."""

import ast
import dataclasses
import logging
import subprocess
import sys

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, matrix_units
from keras_ocl.kernels.matrix import units
from keras_ocl.runtime.matrix_units import candidates


@pytest.fixture
def device():
    return runtime.current_device()


@pytest.fixture
def tried(device, monkeypatch, tmp_path):
    """A function from names of units to those that stay, with verdicts in a folder of the test's own."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "refused_units", {})

    def examined(*names):
        monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, matrix_units=names, matrix_rates=(8.0,) * len(names)))
        matrix_units.examine(device)
        return device.traits.matrix_units

    return examined


def test_the_units_that_work_stay(tried, device, caplog):
    with caplog.at_level(logging.WARNING, logger="keras_ocl"):
        assert tried("emulated") == ("emulated",) and not caplog.records and device.refused_units == {}
        assert tried("mma_m16n8k16", "emulated") == ("emulated",)
    (reason,) = [reason for name, reason in device.refused_units.items() if name == "mma_m16n8k16"]
    (record,) = caplog.records
    assert record.getMessage().startswith("keras_ocl does not use the matrix unit mma_m16n8k16 of ")
    assert reason.startswith("the driver does not compile it: ") and "error" in reason and record.getMessage().endswith(f": {reason}.")


def test_a_unit_whose_probe_the_driver_does_not_run_is_refused(tried, device, monkeypatch):
    def refused(*given):
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES", cl.status_code.OUT_OF_RESOURCES)

    with monkeypatch.context() as patched:
        patched.setattr(device.driver, "launch", refused)
        assert tried("emulated") == ()
    (reason,) = device.refused_units.values()
    assert reason.startswith("its probe does not run: ") and "OUT_OF_RESOURCES" in reason
    assert float((from_numpy(np.ones(3, "float32")) + 1).sum()) == 6  # the device stays usable


def test_verdicts_outlive_the_process(tried, monkeypatch):
    outcomes, real = [], matrix_units.outcome
    monkeypatch.setattr(matrix_units, "outcome", lambda *given: outcomes.append(real(*given)) or outcomes[-1])
    assert tried("emulated") == ("emulated",) and outcomes == ["", ""]  # of both dtypes
    assert tried("emulated") == ("emulated",) and outcomes == ["", ""]


def test_another_instruction_is_another_probe(tried, monkeypatch):
    assert tried("emulated") == ("emulated",)
    other = dataclasses.replace(units.EMULATED, c=dataclasses.replace(units.EMULATED.c, lane=units.EMULATED.c.lane[::-1]))
    monkeypatch.setitem(units.UNITS, "emulated", other)
    assert tried("emulated") == ()


SCRIPT = """
import dataclasses, os, sys, time
from keras_ocl import runtime
from keras_ocl.compiler import matrix_units
device = runtime.current_device()
device.traits = dataclasses.replace(device.traits, matrix_units=("emulated",), matrix_rates=(8.0,))
if "abort" in sys.argv:
    matrix_units.outcome = lambda device, given: os._exit(7)
if "count" in sys.argv:
    outcome = matrix_units.outcome

    def counted(device, given):
        with open(sys.argv[-1], "a") as file:
            file.write(given.name + " ")
        time.sleep(0.3)
        return outcome(device, given)

    matrix_units.outcome = counted
matrix_units.examine(device)
print(device.traits.matrix_units)
"""


def test_a_compiler_that_ends_the_process_is_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))

    def run(*arguments):
        return subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True)

    assert run("abort").returncode == 7
    for _ in range(2):
        later = run()
        assert later.stdout == "()\n" and "its probe ended a process" in later.stderr, later.stderr


def test_processes_wait_for_one_another(tmp_path, monkeypatch):
    """Of two that begin together one tries the units; the other takes its verdicts."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    tried = tmp_path / "tried"
    command = [sys.executable, "-c", SCRIPT, "count", str(tried)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in started] == ["('emulated',)\n"] * 2
    assert sorted(tried.read_text().split()) == ["probe_emulated_bfloat16", "probe_emulated_float16"]


def test_the_setting(tmp_path, monkeypatch):
    """KERAS_OCL_MATRIX names the units to try, in a process that begins with it."""
    text = "from keras_ocl import compiler, runtime; print(runtime.current_device().traits.matrix_units)"
    for name, value in {"KERAS_OCL_CACHE_DIR": str(tmp_path), "KERAS_OCL_SCHEDULE": "gpu"}.items():
        monkeypatch.setenv(name, value)
    for setting, wanted in (("off", "()"), ("emulated", "('emulated',)"), ("dpas_8, emulated", "('emulated',)"), ("", "()")):
        monkeypatch.setenv("KERAS_OCL_MATRIX", setting)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert done.stdout == f"{wanted}\n", done.stderr
    monkeypatch.setenv("KERAS_OCL_MATRIX", "tensor")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "there is no matrix unit 'tensor'; the units are " in done.stderr


def test_refused_units_are_listed_once(tmp_path, monkeypatch, device):
    """By the commands, which say nothing of them in the log, and by devices(), in processes that begin with the setting."""
    settings = {"KERAS_OCL_CACHE_DIR": str(tmp_path), "KERAS_OCL_SCHEDULE": "gpu", "KERAS_OCL_MATRIX": "dpas_8, emulated"}
    for name, value in {**settings, "KERAS_OCL_DEVICE": device.name}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    listed = run(
        "-c", "import keras_ocl; print(*((i.name, i.traits.matrix_units, i.refused_units) for i in keras_ocl.devices()), sep='\\n')"
    )
    units = [(units, refused) for _, units, refused in map(ast.literal_eval, listed.stdout.splitlines())]
    assert (("emulated",), ["dpas_8"]) in [(working, [*refused]) for working, refused in units]
    said = [line for line in listed.stderr.splitlines() if "does not use the matrix unit dpas_8" in line]
    assert len(said) == sum(map(len, (refused for _, refused in units))), "a program is told by the log"
    wanted = sorted(f"matrix unit {name} is not used: {reason}" for _, refused in units for name, reason in refused.items())
    for command in ("devices", "doctor"):
        done = run("-m", "keras_ocl", command)
        assert sorted(line.strip() for line in done.stdout.splitlines() if "dpas_8" in line and "=" not in line) == wanted
        assert "dpas_8" not in done.stderr


CDNA3_I8 = "mfma_32x32x16_i8", "mfma_16x16x32_i8"


@pytest.mark.parametrize(
    ("architecture", "extensions", "wanted"),
    [
        ("sm_75", "", ("mma_m16n8k8", "mma_m8n8k16_i8")),
        ("sm_70", "", ()),
        ("sm_80", "", ("mma_m16n8k16", "mma_m16n8k8_tf32", "mma_m16n8k32_i8")),
        ("sm_90", "", ("mma_m16n8k16", "mma_m16n8k8_tf32", "mma_m16n8k32_i8")),
        ("sm_89", "", ("mma_m16n8k16", "mma_m16n8k32_i8")),
        ("sm_120", "", ("mma_m16n8k16", "mma_m16n8k32_i8")),
        ("gfx1030", "", ()),
        ("gfx1102", "", ("wmma_gfx11", "wmma_gfx11_i8")),
        ("gfx1201", "", ("wmma_gfx12", "wmma_gfx12_i8")),
        ("gfx906", "", ()),
        ("gfx90a", "", ("mfma_32x32x8", "mfma_16x16x16", "mfma_32x32x2", "mfma_32x32x8_i8", "mfma_16x16x16_i8")),
        ("gfx942", "", ("mfma_32x32x8", "mfma_16x16x16", "mfma_32x32x2", "mfma_32x32x4_xf32", "mfma_16x16x8_xf32", *CDNA3_I8)),
        ("gfx950", "", ("mfma_32x32x8", "mfma_16x16x16", "mfma_32x32x2", *CDNA3_I8)),
        ("", "cl_khr_fp16 cl_intel_subgroup_matrix_multiply_accumulate", ("dpas_16", "dpas_8", "dpas_8_i8")),
        ("", "", ()),
    ],
)
def test_the_units_of_an_architecture(monkeypatch, architecture, extensions, wanted):
    monkeypatch.delenv("KERAS_OCL_MATRIX", raising=False)
    found = candidates(architecture, extensions.split())
    assert tuple(found) == wanted and set(found) <= {*units.UNITS} and all(rate > 1 for rate in found.values())
