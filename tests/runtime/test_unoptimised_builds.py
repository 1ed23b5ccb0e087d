"""Kernels compiled without optimisation serve until others are there, and give the same results, bit for bit."""

import os
import subprocess
import sys

import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.runtime import compilers as module
from keras_ocl.runtime import programs as module_of_programs
from keras_ocl.runtime.compilers import Compilers
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.programs import UNOPTIMISED, Programs, UnoptimisedBuilds
from tests.keras.tensorflow_process import ROOT
from tests.plugin.process import WITHOUT_EXTRAS
from tests.runtime.compiling import check_kernels, kernel_specs, wait

SPECS = kernel_specs(6)  # two parts
EXACT = "__import__('keras_ocl').runtime.current_device().programs.unoptimised_is_exact"
pytestmark = pytest.mark.skipif(f"not {EXACT}", reason="only where a CPU's compiler gives the same bits")


@pytest.fixture
def programs(device, tmp_path):
    """Programs of the current device with a process beside and an empty disk cache."""
    made = Programs(device)
    made.disk = DiskCache(tmp_path / "cache")
    made.compilers = Compilers(device.driver.identity, 1)
    return made


def allowed(wanted="k", excess=lambda spec, runs: -1):
    """UnoptimisedBuilds of kernels whose names begin so."""
    return UnoptimisedBuilds(lambda specs: {spec for spec in specs if spec[0].startswith(wanted)}, lambda spec: int(spec[0][1:]), excess)


def unoptimised(programs, kernels):
    """The names of those among kernels that are unoptimised builds."""
    good = {*programs._programs.values()}
    return [name for name, kernel in kernels.items() if kernel.ours not in good]


def test_unoptimised_builds_serve_until_optimised_ones_are_there(device, programs, tmp_path):
    first = allowed()
    kernels = programs.build(SPECS, unoptimised=first)
    check_kernels(device, kernels)
    assert len(first.awaited) == 2 and unoptimised(programs, kernels) == list(kernels)
    builds = device.statistics.builds
    wait(lambda: all(future.done() for future in first.awaited))
    second = allowed()
    kernels = programs.build(SPECS, unoptimised=second)
    check_kernels(device, kernels)
    assert first.better() and not second.awaited and not unoptimised(programs, kernels)
    assert device.statistics.builds == builds
    again = Programs(device)
    again.disk = DiskCache(tmp_path / "cache")
    check_kernels(device, again.build(SPECS))
    assert device.statistics.builds == builds  # what was stored are the optimised ones


def test_unoptimised_builds_that_nobody_uses_go_too(device, programs, monkeypatch):
    monkeypatch.setattr(module_of_programs, "IN_MEMORY", 0)
    first, second, third = allowed(), allowed(), allowed()
    kernels = programs.build(SPECS, unoptimised=first)
    assert programs.build(SPECS, unoptimised=second) and second.awaited == first.awaited  # shared while they are used
    builds = device.statistics.builds
    del kernels
    wait(lambda: all(future.done() for future in first.awaited))
    kernels = programs.build(SPECS, unoptimised=third)
    assert not third.awaited and not programs._unoptimised and device.statistics.builds == builds  # the better ones came from disk
    check_kernels(device, kernels)


def test_the_dearest_are_first(programs, monkeypatch):
    begun, begin = [], programs.compilers.begin
    monkeypatch.setattr(programs.compilers, "begin", lambda sources, *rest: begun.extend(sources) or begin(sources, *rest))
    programs.build(SPECS, unoptimised=allowed())
    assert ["k5" in begun[0], "k2" in begun[0], "k1" in begun[1], "k0" in begun[1]] == [True] * 4 and len(begun) == 2


def test_another_caller_shares_them(programs):
    first, second = allowed(), allowed()
    programs.build(SPECS, unoptimised=first)
    programs.build(SPECS[:2], unoptimised=second)
    assert second.awaited <= first.awaited and second.awaited


def test_who_wants_none_gets_none(device, programs):
    programs.build(SPECS, unoptimised=allowed())
    for given in (None, UnoptimisedBuilds()):
        kernels = programs.build(SPECS, unoptimised=given)
        check_kernels(device, kernels)
        assert not unoptimised(programs, kernels)


def test_some_are_unoptimised_and_others_are_not(device, programs):
    given = allowed(wanted="k3")
    kernels = programs.build(SPECS, unoptimised=given)
    check_kernels(device, kernels)
    assert unoptimised(programs, kernels) == ["k3"]
    assert len(given.awaited) == 1
    wait(given.better)
    assert not unoptimised(programs, programs.build(SPECS, unoptimised=allowed()))


def test_unoptimised_builds_are_compiled_in_processes_that_run(device, programs, monkeypatch):
    asked, started, ask = [], [], module._Process.ask

    def noted(process, what):
        (started if UNOPTIMISED in what[1] else asked).append(what)  # others' processes may be at work still, on better ones
        return ask(process, what)

    monkeypatch.setattr(module._Process, "ask", noted)
    programs.compilers.start(1)
    wait(lambda: asked)
    build_here = programs._build_here
    monkeypatch.setattr(programs, "_build_here", lambda *part: [wait(lambda: started), build_here(*part)][1])
    specs = kernel_specs(8)
    check_kernels(device, programs.build(specs, unoptimised=allowed()))
    ((source, _),) = started
    assert source.count("__kernel") == 4


def test_where_no_process_can_be_started(device, programs, monkeypatch):
    monkeypatch.setattr(module, "_python", lambda: ["/nowhere/python"])
    first = allowed()
    check_kernels(device, programs.build(SPECS, unoptimised=first))
    wait(first.better)
    wait(lambda: all(future.done() for future in first.awaited))
    kernels = programs.build(SPECS, unoptimised=allowed())
    check_kernels(device, kernels)
    assert not unoptimised(programs, kernels)  # compiled here


def test_a_process_that_ends_is_done_without(device, programs, monkeypatch):
    def end(process, what):
        raise EOFError

    monkeypatch.setattr(module._Process, "ask", end)
    first = allowed()
    programs.build(SPECS, unoptimised=first)
    wait(lambda: all(future.done() for future in first.awaited))
    assert {future.result() for future in first.awaited} == {None}
    check_kernels(device, programs.build(SPECS, unoptimised=allowed()))


def test_better_ones_are_begun_after_the_first_run(device, programs, monkeypatch):
    monkeypatch.setattr(module_of_programs, "FIRST_RUN", 600.0)
    begun, ask = [], module._Process.ask
    monkeypatch.setattr(module._Process, "ask", lambda process, what: begun.append(what) or ask(process, what))
    first, waited = allowed(), []
    monkeypatch.setattr(device, "await_quietly", lambda event: waited.append((event, len(begun))))
    kernels = programs.build(SPECS, unoptimised=first)
    assert not begun
    first.ran("event")
    first.ran("another")
    wait(lambda: all(future.done() for future in first.awaited))
    assert waited == [("event", 0)] and begun
    check_kernels(device, kernels)


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_is_due_is_compiled_here(device, programs, monkeypatch, interrupted):
    monkeypatch.setattr(module_of_programs, "FIRST_RUN", 600.0)  # no process begins
    first = allowed(excess=lambda spec, runs: runs - 2 - 2 * (spec[0] < "k2"))
    programs.build(SPECS, unoptimised=first)
    builds, event = device.statistics.builds, cl.enqueue_marker(device.queue)
    for _ in range(2):
        first.ran(event)
    programs.complete(first)
    assert device.statistics.builds == builds and not first.better()
    first.ran(event)
    if interrupted:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(programs, "_compile", interrupt)
            programs.complete(first)
    else:
        programs.complete(first)
        assert device.statistics.builds == builds + 1
    second = allowed()
    kernels = programs.build(SPECS, unoptimised=second)
    check_kernels(device, kernels)
    assert first.better() and len(second.awaited) == 1 and device.statistics.builds == builds + 1
    assert unoptimised(programs, kernels) == ["k0", "k1"]


def interrupt(*args):
    raise KeyboardInterrupt


def test_what_does_not_compile_is_told_at_once(programs):
    with pytest.raises(runtime.KernelBuildError, match="k0"):
        programs.build([("k0", "__kernel void k0(__global float* a) { undeclared_thing; }")], unoptimised=allowed())


SCRIPT = """
import hashlib, sys, time
import keras, numpy as np
from keras import layers as L
from keras_ocl import runtime

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((9, 9, 3)), L.Conv2D(8, 3, activation="gelu"), L.BatchNormalization(), L.MaxPooling2D(2),
    L.Conv2D(12, 3, padding="same"), L.LayerNormalization(), L.Activation("tanh"), L.Flatten(), L.Dropout(0.2),
    L.Dense(40, activation="relu"), L.Dense(3, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
r = np.random.default_rng(0)
x, y = r.normal(size=(32, 9, 9, 3)).astype("float32"), r.integers(0, 3, 32)
programs, started, digest = runtime.current_device().programs, [], hashlib.sha256()
for step in range(8):
    loss = model.train_on_batch(x, y)[0]
    started.append(len(programs._unoptimised))
    while step == 3 and any(not build.future.done() for build in programs._unoptimised.values()):
        time.sleep(0.01)
for v in [*model.weights, *model.optimizer.variables]:
    digest.update(np.asarray(v).tobytes())
print(digest.hexdigest(), started[3] > 0, started[-1])
"""


OTHER = "__import__('keras_ocl').runtime.current_device().traits.schedule != 'cpu'"
chosen = pytest.mark.skipif(OTHER, reason="only CPUs' schedule chooses unoptimised builds")


@chosen
def test_a_training_that_begins_with_unoptimised_builds_ends_the_same(tmp_path):
    found = []
    for processes in "01":
        ours = {"KERAS_BACKEND": "ocl", "KERAS_OCL_COMPILERS": processes, "KERAS_OCL_CACHE_DIR": str(tmp_path / processes)}
        options = {"cwd": ROOT, "env": {**os.environ, **ours}, "capture_output": True, "text": True, "timeout": 300}
        run = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS + SCRIPT], **options)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.split())
    (whole, *without), (same, *with_them) = found
    assert without == ["False", "0"] and with_them == ["True", "0"]
    assert whole == same


SHORT = """
import keras, numpy as np
from keras_ocl import runtime

model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.train_on_batch(np.ones((4, 5)), np.ones((4, 1)))
programs = runtime.current_device().programs
print(len(programs._unoptimised), runtime.current_device().statistics.builds)
"""


@chosen
def test_a_short_script_leaves_what_it_began(tmp_path):
    ours = {"KERAS_BACKEND": "ocl", "KERAS_OCL_COMPILERS": "1", "KERAS_OCL_CACHE_DIR": str(tmp_path / "cache")}
    options = {"cwd": ROOT, "env": {**os.environ, **ours}, "capture_output": True, "text": True, "timeout": 300}
    first, second = (subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS + SHORT], **options) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert int(first.stdout.split()[0]) > 0 and second.stdout.split() == ["0", "0"]
