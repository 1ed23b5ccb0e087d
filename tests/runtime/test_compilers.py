"""Compiling in processes beside this one: the same kernels, and nothing lost where they fail."""

import os
import subprocess
import sys
import time

import pytest

from keras_ocl import runtime
from keras_ocl.runtime import compilers as module
from keras_ocl.runtime.compilers import Compilers, most_compilers
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.programs import Programs
from tests.keras.tensorflow_process import ROOT
from tests.runtime.compiling import check_kernels, kernel_specs, wait

SPECS = kernel_specs(16)  # four parts
pytestmark = pytest.mark.skipif("not __import__('keras_ocl').runtime.current_device().kind == 'cpu'", reason="only a CPU's compilers")


@pytest.fixture
def programs(device, tmp_path, monkeypatch):
    """Programs of the current device with a process beside and an empty disk cache; `asked` lists what processes answered."""
    monkeypatch.setattr(module, "IDLE", 1.0)
    made = Programs(device)
    made.disk = DiskCache(tmp_path / "cache")
    made.compilers = Compilers(device.driver.identity, 1)
    made.asked = []
    ask = module._Process.ask

    def noted(process, what):
        answer = ask(process, what)
        made.asked.append((process._process.pid, answer))
        return answer

    monkeypatch.setattr(module._Process, "ask", noted)
    return made


def start(programs):
    """The process's number, once it is ready."""
    programs.compilers.start(1)
    wait(lambda: programs.asked)
    return programs.asked[0][0]


def slowly(programs, monkeypatch):
    """Leaves the process time to take one part at least."""
    build_here = programs._build_here

    def later(*part):
        wait(lambda: len(programs.asked) > 1 or not programs.compilers.most)
        return build_here(*part)

    monkeypatch.setattr(programs, "_build_here", later)


def check(device, kernels):
    check_kernels(device, kernels)
    assert len(kernels) == len(SPECS)


def test_a_process_compiles_parts(device, programs, monkeypatch, tmp_path):
    start(programs)
    slowly(programs, monkeypatch)
    before = device.statistics.builds, device.statistics.kernels
    check(device, programs.build(SPECS))
    assert (device.statistics.builds, device.statistics.kernels) == (before[0] + 1, before[1] + len(SPECS))
    assert all(isinstance(binary, bytes) for _, binary in programs.asked[1:]) and len(programs.asked) > 1
    again = Programs(device)
    again.disk = DiskCache(tmp_path / "cache")
    check(device, again.build(SPECS))
    assert device.statistics.builds == before[0] + 1  # all of them were stored


def test_what_does_not_compile_there_is_reported_here(programs, monkeypatch):
    start(programs)
    slowly(programs, monkeypatch)
    with pytest.raises(runtime.KernelBuildError, match="k0, bad, k2, k3 do not compile") as error:
        programs.build([SPECS[0], ("bad", "__kernel void bad(__global float* a) { undeclared_thing; }"), *SPECS[2:]])
    assert "undeclared_thing" in error.value.log
    assert len(programs.build(SPECS[2:])) == len(SPECS) - 2


def test_a_process_that_ends_is_done_without(device, programs, monkeypatch):
    process = start(programs)
    os.kill(process, 9)
    slowly(programs, monkeypatch)
    check(device, programs.build(SPECS))
    wait(lambda: not programs.compilers.running)
    assert programs.compilers.most == 0 and len(programs.asked) == 1
    programs.forget()
    check(device, programs.build(SPECS))


def test_an_empty_cache_is_a_reason_to_start_one(device, programs, tmp_path):
    check_kernels(device, programs.build(SPECS[:1]))
    wait(lambda: programs.asked)
    warm = Programs(device)
    warm.disk, warm.compilers = DiskCache(tmp_path / "cache"), Compilers(device.driver.identity, 1)
    check_kernels(device, warm.build(SPECS[:1]))
    check_kernels(device, warm.build(SPECS[:2]))  # only this one is new
    assert warm.compilers.running == 0


def test_one_that_cannot_start_is_done_without(device, programs, monkeypatch):
    monkeypatch.setattr(module, "_python", lambda: ["/nowhere/python"])
    check(device, programs.build(SPECS))
    wait(lambda: not programs.compilers.running)
    assert programs.compilers.most == 0 and not programs.asked


def alive(process):
    return os.path.exists(f"/proc/{process}")


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs /proc")
def test_an_idle_process_ends_and_another_follows(device, programs):
    first = start(programs)
    wait(lambda: not programs.compilers.running)
    assert not alive(first)
    programs.asked.clear()
    assert start(programs) != first
    check(device, programs.build(SPECS))


SCRIPT = """
import os, sys, threading
from keras_ocl import runtime
from keras_ocl.runtime import compilers
ready, ask = threading.Event(), compilers._Process.ask
def noted(process, what):
    answer = ask(process, what)
    print(process._process.pid, flush=True)
    ready.set()
    return answer
compilers._Process.ask = noted
programs = runtime.current_device().programs
programs.compilers = compilers.Compilers(programs._identity, 1)
programs.compilers.start(1)
assert ready.wait(60)
os._exit(0) if sys.argv[1] == "suddenly" else None
"""


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("how", ["suddenly", "in order"])
def test_it_ends_with_who_started_it(how):
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SCRIPT, how]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "Warning" not in run.stderr, run.stderr
    wait(lambda: not alive(int(run.stdout)))


BUSY = """
import os, pickle, sys
from keras_ocl import runtime
from keras_ocl.runtime import compilers
process = compilers._Process(runtime.current_device().programs._identity)
lines = "".join(f"x = x * {n}.5f + sin(x);" for n in range(200))
source = "\\n".join(f"__kernel void k{n}(__global float16* a) {{ float16 x = a[0]; {lines} a[1] = x; }}" for n in range(40))
pickle.dump((source, "-cl-std=CL1.2"), process._process.stdin)
process._process.stdin.flush()
print(process._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def works(process):
    try:
        with open(f"/proc/{process}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs /proc")
def test_it_ends_in_the_middle_of_compiling_when_who_asked_is_killed():
    run = subprocess.run([sys.executable, "-c", BUSY], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120)
    start = time.monotonic()
    wait(lambda: not works(int(run.stdout)))
    assert time.monotonic() - start < 5  # what it compiles takes half a minute


def test_how_many(monkeypatch):
    monkeypatch.delenv(module.VARIABLE, raising=False)
    assert [most_compilers(n) for n in (1, 2, 8, 64)] == [0, 1, 7, 7]
    monkeypatch.setenv(module.VARIABLE, "3")
    assert most_compilers(2) == 3
    with monkeypatch.context() as there:
        there.setattr(sys, "executable", "/usr/bin/blender")  # Python is a part of it: it would start once more
        assert most_compilers(8) == 0
    monkeypatch.setenv(module.VARIABLE, "many")
    with pytest.raises(ValueError, match="KERAS_OCL_COMPILERS is 'many', not a number of processes: 0 compiles everything in this one"):
        most_compilers(8)


def test_none_without_memory_to_spare(programs, monkeypatch):
    monkeypatch.setattr(module, "available_memory", lambda: module.MEMORY - 1)
    programs.compilers.start(1)
    assert programs.compilers.running == 0
