"""Programs: the cache in memory, the cache on disk, and failures."""

import os
import stat

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.runtime import programs as module
from keras_ocl.runtime.disk_cache import DiskCache, cache_folder
from keras_ocl.runtime.programs import Programs


def scale(name, factor):
    return name, f"__kernel void {name}(__global float* a) {{ a[get_global_id(0)] *= {factor}.0f; }}"


@pytest.fixture
def fresh(device, tmp_path):
    """Makes Programs of the current device with a disk cache in a folder of the test's own."""

    def make():
        programs = Programs(device)
        programs.disk = DiskCache(tmp_path / "cache")
        return programs

    return make


def builds(device, action):
    """(result, programs compiled, kernels compiled)."""
    s = device.statistics
    before = s.builds, s.kernels
    result = action()
    return result, s.builds - before[0], s.kernels - before[1]


def check(device, kernel, factor):
    storage = device.upload(np.arange(8, dtype=np.float32))
    runtime.set_argument(kernel, 0, storage)
    device.enqueue(kernel, (8,))
    np.testing.assert_array_equal(device.download(storage, np.float32, (8,)), np.arange(8) * factor)


def sized(programs):
    """What one program of a kernel such as `scale` makes holds."""
    programs.build([scale("sized", 7)])
    size = programs.held_bytes
    programs.forget()
    return size


def test_of_programs_that_nobody_uses_the_last_ones_are_kept(fresh, monkeypatch):
    programs = fresh()
    monkeypatch.setattr(module, "IN_MEMORY", 3.5 * sized(programs))
    key = {n: programs._key((*scale(f"k{n}", n), ()), programs_options(programs)) for n in range(12)}
    used = programs.build([scale("k0", 0)])
    for n in range(1, 12):
        programs.build([scale(f"k{n}", n)])
        programs.build([scale("k1", 1)])  # used again and again
        assert programs.held_bytes <= module.IN_MEMORY
    assert {n for n, k in key.items() if k in programs._programs} == {0, 1, 10, 11}
    assert len(live_programs(programs)) == 4
    del used
    assert {n for n, k in key.items() if k in programs._programs} == {1, 10, 11}


def test_a_kernel_that_is_there_keeps_its_program(device, fresh, monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    programs = fresh()
    kernels = programs.build([scale("a", 2), scale("b", 3)])
    del kernels["b"]
    monkeypatch.setattr(programs, "disk", None)
    again, n, _ = builds(device, lambda: programs.build([scale("b", 3)]))
    assert n == 0
    check(device, again["b"], 3)
    check(device, kernels["a"], 2)
    del kernels, again
    assert not programs._programs and not programs.held_bytes
    assert builds(device, lambda: programs.build([scale("a", 2)]))[1] == 1


def programs_options(programs):
    return f"{module.STANDARD} {module.FUSED}" if programs.unoptimised_is_exact else module.STANDARD


def live_programs(programs):
    return {*programs._programs.values()}


def test_several_kernels_in_one_program(device, fresh):
    programs = fresh()
    kernels, n, k = builds(device, lambda: programs.build([scale("a", 2), scale("b", 3)]))
    assert (n, k) == (1, 2)
    check(device, kernels["a"], 2)
    check(device, kernels["b"], 3)
    again, n, k = builds(device, lambda: programs.build([scale("b", 3), scale("c", 4)]))
    assert (n, k) == (1, 1)
    assert again["b"] is not kernels["b"]  # arguments belong to the caller
    check(device, again["c"], 4)
    _, n, _ = builds(device, lambda: programs.build([scale("a", 2)], "-cl-mad-enable"))
    assert n == 1  # other options, another program
    _, n, _ = builds(device, lambda: programs.build([]))
    assert n == 0


def test_helpers_are_put_in_once(device, fresh):
    helper = "float twice(float x) { return x * 2; }\n"
    one = ("one", "__kernel void one(__global float* a) { a[get_global_id(0)] = twice(a[get_global_id(0)]); }", (helper,))
    two = ("two", "__kernel void two(__global float* a) { a[get_global_id(0)] = twice(twice(a[get_global_id(0)])); }", [helper])
    kernels = fresh().build([one, two, scale("three", 3)])
    check(device, kernels["one"], 2)
    check(device, kernels["two"], 4)


def test_disk_serves_another_process_and_other_sets(device, fresh):
    fresh().build([scale("a", 2), scale("b", 3)])
    kernels, n, _ = builds(device, lambda: fresh().build([scale("b", 3)]))
    assert n == 0
    check(device, kernels["b"], 3)
    kernels, n, k = builds(device, lambda: fresh().build([scale("a", 2), scale("new", 5), scale("b", 3)]))
    assert (n, k) == (1, 1)
    check(device, kernels["a"], 2)
    check(device, kernels["new"], 5)


def damage_nothing(data):
    return b""


def damage_half(data):
    return data[: len(data) // 2]


def damage_one_byte(data):
    return data[:-20] + bytes([data[-20] ^ 255]) + data[-19:]


@pytest.mark.parametrize("damage", [damage_nothing, damage_half, damage_one_byte, lambda data: b"something else"])
def test_a_corrupt_entry_is_rebuilt(device, fresh, damage):
    programs = fresh()
    programs.build([scale("a", 2)])
    ((_, _, path),) = programs.disk.entries()
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(damage(data))
    kernels, n, _ = builds(device, lambda: fresh().build([scale("a", 2)]))
    assert n == 1
    check(device, kernels["a"], 2)
    assert builds(device, lambda: fresh().build([scale("a", 2)]))[1] == 0  # and stored again


def test_a_binary_that_the_driver_rejects_is_rebuilt(device, fresh):
    if device.platform == "rusticl":
        pytest.skip("rusticl ends the process when it is given what is not a binary; the checksum keeps that from it")
    programs = fresh()
    key = programs._key((*scale("a", 2), ()), "-cl-std=CL1.2")
    programs.disk.put({"a": key}, b"not a binary")
    kernels, n, _ = builds(device, lambda: programs.build([scale("a", 2)]))
    assert n == 1
    check(device, kernels["a"], 2)


def test_a_binary_of_other_kernels_is_rebuilt(device, fresh):
    programs = fresh()
    programs.build([scale("other", 9)])
    ((_, _, path),) = programs.disk.entries()
    binary = open(path, "rb").read().split(b"\n", 3)[3]
    programs.disk.put({"a": programs._key((*scale("a", 2), ()), "-cl-std=CL1.2")}, binary)
    kernels, n, _ = builds(device, lambda: programs.build([scale("a", 2)]))
    assert n == 1
    check(device, kernels["a"], 2)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_files_are_private(fresh):
    programs = fresh()
    programs.build([scale("a", 2)])
    for folder, _, files in os.walk(programs.disk.folder):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600
        assert not any(name.startswith(".") for name in files)  # no temporary files left


def test_least_recently_used_programs_go_first(tmp_path):
    disk = DiskCache(tmp_path, limit=4000)
    key = "{:064x}".format
    for i in range(3):
        disk.put({"k": key(i)}, bytes(1000))
        program = disk.get(key(i))[0]
        os.utime(tmp_path / "programs" / program, (i, i))
    assert disk.get(key(0))[2] == bytes(1000)  # used now: no longer the oldest
    disk.put({"k": key(3)}, bytes(1000))
    assert disk.get(key(0)) and disk.get(key(3)) and disk.get(key(1)) is None
    kept = disk.entries()
    assert disk.size() <= 4000 and len(os.listdir(tmp_path / "kernels")) == len(kept)
    assert disk.clear() == len(kept) and disk.size() == 0 and disk.get(key(3)) is None


def test_a_folder_that_cannot_be_written_is_no_error(device, tmp_path):
    programs = Programs(device)
    (tmp_path / "file").write_text("")
    programs.disk = DiskCache(tmp_path / "file" / "cache")
    check(device, programs.build([scale("a", 2)])["a"], 2)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("KERAS_OCL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert cache_folder() == tmp_path / "keras_ocl"


def test_failure_shows_names_log_and_numbered_source(device, fresh):
    bad = ("bad", "__kernel void bad(__global float* a) {\n  a[0] = undeclared_thing;\n}")
    with pytest.raises(runtime.KernelBuildError) as error:
        fresh().build([scale("fine", 2), bad])
    text = str(error.value)
    assert text.startswith("kernel(s) fine, bad do not compile on ") and "undeclared_thing" in error.value.log
    assert "    3    a[0] = undeclared_thing;" in text and error.value.names == ("fine", "bad")
    check(device, device.build([scale("fine", 2)])["fine"], 2)
