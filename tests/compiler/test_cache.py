"""Compiled functions are kept while there is room for them, and made again when they are not."""

import gc
import weakref

import numpy as np
import pytest

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import cache as caches
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.cache import evict
from keras_ocl.compiler.jit import Jitted


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime.current_device().programs.steps, "folder", tmp_path)
    caches.forget()
    gc.collect()


def ones(n):
    return np.ones(n, "float32")


def doubled():
    return Jitted(lambda x: P.add(x, x))


def test_what_was_not_used_for_longest_goes_first(monkeypatch):
    monkeypatch.setattr(caches, "MOST", 8)
    often, other = doubled(), doubled()
    first = often.compiled(ones(100))
    for n in range(1, 20):
        function = other if n % 2 else often
        np.testing.assert_array_equal(to_numpy(function(ones(n))), 2 * ones(n))
        assert often.compiled(ones(100)) is first
        assert len(often._compiled) + len(other._compiled) == min(n + 1, 8)
    assert other.compiled(ones(19)).bounds and len(other._compiled) + len(often._compiled) == 8
    assert {key[4][0] for key in other._compiled} == {(19,), (17,), (15,), (13,)}


def test_eager_code_counts_too(monkeypatch):
    kept = doubled()
    kept(ones(3))
    monkeypatch.setattr(caches, "MOST", 4)
    x = from_numpy(ones(7))
    for axis in range(3):
        for n in range(4):
            P.reduce_sum(P.reshape(x, (1,) * (axis + n) + (7,)), (axis + n,))
    assert not kept._compiled
    np.testing.assert_array_equal(to_numpy(kept(ones(3))), 2 * ones(3))


def test_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(caches, "MOST_BYTES", 8 << 20)

    def with_constant(n):
        constant = from_numpy(np.full((1 << 18,), n, "float32"))
        return Jitted(lambda x: P.mul(x, constant))

    functions = [with_constant(n) for n in range(20)]
    for n, function in enumerate(functions):
        np.testing.assert_array_equal(to_numpy(function(ones(1 << 18))), n * ones(1 << 18))
    held = [n for n, function in enumerate(functions) if function._compiled]
    assert held == list(range(20 - len(held), 20)) and 4 <= len(held) <= 7


def test_one_that_is_larger_than_all_may_be_is_kept_alone(monkeypatch):
    monkeypatch.setattr(caches, "MOST_BYTES", 1)
    first, second = doubled(), doubled()
    first(ones(3)), second(ones(3))
    assert not first._compiled and len(second._compiled) == 1


def large_arena(x):
    """Six megabytes of intermediate results."""
    y = P.dot_general(x, x, ((1,), (0,)))
    return P.dot_general(P.dot_general(y, y, ((1,), (0,))), y, ((1,), (0,)))


def test_clear_cache_forgets_compiled_functions():
    function, device = Jitted(large_arena), runtime.current_device()
    x = np.eye(768, dtype="float32")
    function(x)
    executable = weakref.ref(function.compiled(x).executable)
    before = keras_ocl.memory_info()["reserved"]
    keras_ocl.clear_cache()
    assert executable() is None and not device.arena.storages
    assert keras_ocl.memory_info()["reserved"] <= before - executable_bytes(x)
    np.testing.assert_array_equal(to_numpy(function(x)), x)


def executable_bytes(x):
    return Jitted(large_arena).compiled(x).executable.arena_bytes


def test_another_devices_functions_stay():
    function = doubled()
    function(ones(3))
    record = runtime.RecordDevice("record", runtime.read_record("sm_86"))
    with runtime.device_scope(record):
        function.compiled(ones(3))
    assert len(function._compiled) == 2
    caches.forget(record)
    assert [compiled.device for compiled in function._compiled.values()] == [runtime.current_device()]


@pytest.fixture
def little_memory():
    """Sets what is left beside what is reserved."""
    memory = runtime.current_device().memory
    budget = memory.budget

    def leave(nbytes):
        runtime.current_device().memory.trim()
        memory.budget = memory.reserved + nbytes

    yield leave
    memory.budget = budget


def test_an_idle_arena_makes_room(little_memory):
    function, device = Jitted(large_arena), runtime.current_device()
    x = np.eye(768, dtype="float32")
    function(x)
    little_memory(8 << 20)
    assert device.allocate(10 << 20).nbytes == 10 << 20
    assert function._compiled
    np.testing.assert_array_equal(to_numpy(function(x)), x)


def test_compiled_functions_make_room(little_memory):
    """Constants are released, of the functions first that were not used for longest."""
    device = runtime.current_device()

    def with_constant():
        constant = P.add(from_numpy(np.zeros(1 << 20, "float32")), from_numpy(ones(1 << 20)))
        compiled = Jitted(lambda x: P.mul(x, constant))
        compiled(ones(1 << 20))
        compiled.function = None  # so that it is the compiled function alone that holds the constant
        return compiled

    old, new = with_constant(), with_constant()
    gc.collect()
    device.arena.release()
    little_memory(1 << 20)
    held = device.allocate(4 << 20)
    assert not old._compiled and new._compiled
    with pytest.raises(runtime.OutOfMemory):
        device.allocate(device.memory.budget + 1)
    assert new._compiled  # that would not have helped
    with pytest.raises(runtime.OutOfMemory):
        device.allocate(device.memory.budget - held.nbytes // 2)
    assert not new._compiled and not evict(device)


def test_after_running_out_a_smaller_batch_runs(little_memory):
    function = Jitted(lambda x: P.reduce_sum(large_arena(x), (0, 1)))
    small, large = np.eye(256, dtype="float32"), np.eye(2048, dtype="float32")
    function(small)
    little_memory(12 << 20)
    for _ in range(2):
        with pytest.raises(runtime.OutOfMemory):
            function(large)
        assert to_numpy(function(small)) == 256
