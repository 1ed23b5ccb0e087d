"""Processes that begin with one empty cache: each kernel is compiled by one of them, and nobody waits for one that is gone or stopped."""

import os
import subprocess
import sys
import time

import pytest

from keras_ocl import runtime
from keras_ocl.runtime import claims as module
from keras_ocl.runtime.disk_cache import DiskCache
from tests.keras.tensorflow_process import ROOT

KEY = "{:064x}".format
KEYS = [KEY(n << 228) for n in range(1, 9)]  # each at a place of its own

# Holds the keys of its arguments until it is told something, or ended.
HOLDER = """
import sys
from keras_ocl.runtime.disk_cache import DiskCache
claims = DiskCache(sys.argv[1]).claims
print(len(claims.take(sys.argv[2:])), flush=True)
sys.stdin.readline()
claims.give_back(sys.argv[2:])
print("given back", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Function that starts a process which claims keys, and returns it."""
    started = []

    def start(*keys):
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "cache"), *keys]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert int(process.stdout.readline()) == len(keys)
        return process

    yield start
    for process in started:
        process.kill()
        with process:
            pass


@pytest.fixture
def claims(tmp_path):
    return DiskCache(tmp_path / "cache").claims


def test_what_another_process_claims_is_its_own_until_it_gives_it_back(holder, claims):
    process = holder(*KEYS[:2])
    assert claims.take(KEYS[:4]) == KEYS[2:4]
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "given back\n"
    claims.wait(KEYS[:2])
    assert claims.take(KEYS[:2]) == KEYS[:2]


def test_a_process_that_dies_claims_nothing(holder, claims):
    process = holder(*KEYS)
    assert claims.take(KEYS) == []
    process.kill()
    claims.take_all(reversed(KEYS))
    claims.give_back(KEYS)


def test_one_that_is_stopped_is_not_waited_for_again_and_again(holder, claims, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    holder(*KEYS)
    start = time.monotonic()
    claims.wait(KEYS)
    claims.wait(KEYS)
    claims.take_all(KEYS)
    assert 0.2 <= time.monotonic() - start < 5 and claims.take(KEYS) == KEYS
    claims.give_back(KEYS)


def test_claims_of_one_process_are_counted(holder, claims, tmp_path):
    others = DiskCache(tmp_path / "cache").claims
    assert claims.take(KEYS[:1]) == others.take(KEYS[:1]) == KEYS[:1]
    others.give_back(KEYS[:1])
    with pytest.raises(AssertionError):
        holder(KEYS[0])
    claims.give_back(KEYS[:1])
    holder(KEYS[0])


def test_without_a_folder_everything_is_compiled_here():
    claims = DiskCache("/proc/nothing").claims
    assert claims.take(KEYS) == KEYS
    claims.give_back(KEYS)
    claims.wait(KEYS)
    claims.take_all(KEYS)


def test_a_file_system_without_locks_is_done_without(claims, monkeypatch):
    def refuse(file, place, take):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(module._File, "_system", refuse)
    assert claims.take(KEYS) == KEYS
    claims.give_back(KEYS)


# Builds kernels in two calls, each as soon as the others are there, slowly, and prints how many it compiled and how many are right.
BUILDER = """
import sys, time
import numpy as np
from keras_ocl import runtime
from tests.runtime.compiling import check_kernels, kernel_specs
device = runtime.current_device()
real = device.programs._build_here
def slow(*rest):
    time.sleep(0.2)
    return real(*rest)
device.programs._build_here = slow
print("ready", flush=True)
sys.stdin.readline()
before = device.statistics.kernels
first, last = map(int, sys.argv[1:])
specs = kernel_specs(last)[first:]
kernels = {**device.build(specs[:3]), **device.build(specs[3:])}
check_kernels(device, kernels)
print(device.statistics.kernels - before, flush=True)
"""


@pytest.mark.parametrize("compilers, ranges", [("0", [(0, 8), (0, 8), (2, 10)]), ("1", [(0, 24), (0, 24)])])
def test_each_kernel_is_compiled_once(tmp_path, compilers, ranges):
    if runtime.current_device().programs.disk is None:
        pytest.skip("the driver has a cache of its own")
    environment = {**os.environ, "KERAS_OCL_CACHE_DIR": str(tmp_path / "cache"), "KERAS_OCL_COMPILERS": compilers}
    how = {"cwd": ROOT, "env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", BUILDER, *map(str, some)], **how) for some in ranges]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        print(file=process.stdin, flush=True)
    counts = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert sum(counts) == len({number for some in ranges for number in range(*some)}), counts
