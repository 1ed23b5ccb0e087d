"""Storage: pools, slabs, views, budget; uploads and downloads in every way of reaching memory."""

import dataclasses
import gc
import time

import ml_dtypes
import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.runtime import host, memory
from tests.devices import another

ADD = ("add", "__kernel void add(__global float* a, const float b) { a[get_global_id(0)] += b; }")
SLOW = (
    "slow",
    "__kernel void slow(__global float* a) { float x = a[0]; for (int i = 0; i < 3000000; i++) x = x * 0.5f + 1.0f; a[1] = x; }",
)

ARRAYS = [
    np.arange(1000, dtype=np.float32),
    np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(2, 0, 1),
    np.arange(10.0)[::-2],
    np.array([True, False, True]),
    np.arange(5).astype(ml_dtypes.bfloat16),
    np.arange(5).astype(ml_dtypes.float8_e4m3fn),
    np.array(3.5, np.float64),
    np.zeros((0, 4), np.float32),
    np.array([1 + 2j, 3j], np.complex64),
    np.arange(300_000, dtype=np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_round_trip(any_device, array):
    storage = any_device.upload(array)
    assert storage.nbytes == array.nbytes and storage.mem is not None
    back = any_device.download(storage, array.dtype, array.shape)
    assert back.dtype == array.dtype and back.flags.writeable and back.flags.owndata
    np.testing.assert_array_equal(back, array)


def test_the_caller_may_refill_its_array_at_once(any_device):
    array = np.zeros(50_000, np.float32)
    kernel = any_device.build([ADD])["add"]
    storages = []
    for i in range(40):
        array[:] = i
        storages.append(any_device.upload(array))
        runtime.set_argument(kernel, 0, storages[-1])
        runtime.set_argument(kernel, 1, np.float32(0.5).tobytes())
        any_device.enqueue(kernel, (50_000,))
    array[:] = -1
    for i, storage in enumerate(storages):
        assert (any_device.download(storage, np.float32, (50_000,)) == i + 0.5).all()


def test_uploads_never_touch_memory_that_the_device_still_reads(any_device):
    slow, add = any_device.build([SLOW])["slow"], any_device.build([ADD])["add"]
    result = any_device.upload(np.zeros(64, np.float32))
    for i in range(30):
        batch = any_device.upload(np.full(64, i, np.float32))
        runtime.set_argument(slow, 0, batch)
        any_device.enqueue(slow, (1,))
        any_device.copy(batch, result)
        del batch  # its block is free for the next upload, but the kernel has not read it yet
    runtime.set_argument(add, 0, result)
    runtime.set_argument(add, 1, np.float32(0).tobytes())
    any_device.enqueue(add, (64,))
    assert any_device.download(result, np.float32, (64,))[0] == 29


def test_view(any_device):
    """The host sees what was enqueued, kernels what the host wrote."""
    slow, add = any_device.build([SLOW])["slow"], any_device.build([ADD])["add"]
    storage = any_device.upload(np.arange(64, dtype=np.float32))
    if any_device.sharing != "shared":
        pytest.skip("the host has memory of its own")
    other = any_device.upload(np.zeros(64, np.float32))
    runtime.set_argument(slow, 0, other)
    any_device.enqueue(slow, (1,))
    any_device.copy(other, storage)
    any_device.finish()
    view = any_device.view(storage, np.float32, (8, 8))
    assert np.array_equal(view, any_device.download(other, np.float32, (8, 8))) and view[0, 1] == 2
    view[...] = 7
    runtime.set_argument(add, 0, storage)
    runtime.set_argument(add, 1, np.float32(0.5).tobytes())
    any_device.enqueue(add, (64,))
    assert np.all(any_device.download(storage, np.float32, (64,)) == 7.5)


def test_write_and_copy(any_device):
    state, other = any_device.allocate_state(4000), any_device.allocate_state(4000)
    any_device.write(state, np.arange(1000, dtype=np.float32))
    any_device.copy(state, other)
    any_device.write(state, np.zeros(1000, np.float32))
    np.testing.assert_array_equal(any_device.download(other, np.float32, (1000,)), np.arange(1000))
    np.testing.assert_array_equal(any_device.download(state, np.float32, (1000,)), 0)


def test_copies_of_rows(any_device):
    source = np.arange(60, dtype=np.float32).reshape(6, 10)
    state = any_device.allocate_state(source.nbytes)
    any_device.allocate_state(100)
    later = any_device.allocate_state(source.nbytes)  # not at the start of its buffer
    for storage in (state, later):
        any_device.write(storage, source)
    target = any_device.upload(np.zeros((4, 8), np.float32))
    # Columns 3 to 5 of rows 1 to 4 beside columns 0 to 2 of rows 2 to 5, and a row of two numbers behind the first.
    copies = [(later, 52, 40, 0, 32, 12, 4), (state, 80, 40, 12, 32, 12, 4), (later, 4, 8, 24, 8, 8, 1)]
    before = any_device.statistics.launches
    any_device.copy_rows(target, copies)
    assert any_device.statistics.launches == before + 3
    expected = np.zeros((4, 8), np.float32)
    expected[:, :3], expected[:, 3:6], expected[0, 6:] = source[1:5, 3:6], source[2:6, :3], source[0, 1:3]
    np.testing.assert_array_equal(any_device.download(target, np.float32, (4, 8)), expected)


def test_reading_more_than_there_is(device):
    with pytest.raises(ValueError, match="cannot read 400 bytes"):
        device.download(device.allocate(16), np.float32, (100,))
    with pytest.raises(ValueError, match="cannot copy 256 bytes into a storage of 16"):
        device.copy(device.allocate(256), device.allocate(16))


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 257, 1000, 4097, 100_352, (1 << 20) + 1, 123_456_789])
def test_size_classes_waste_little(nbytes):
    size = memory.size_class(nbytes)
    assert nbytes <= size and (size <= 256 or size - nbytes <= max(nbytes / 8, 256))
    assert memory.size_class(size) == size


def test_exact_buffers(device, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_EXACT_BUFFERS", "1")
    exact = another()
    assert exact.allocate(1001).base.size == 1001 and exact.upload(np.zeros(0)).base.size == 1


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.array(["2026-01-01"], "datetime64[D]")])
def test_what_is_not_a_number(device, array):
    with pytest.raises(TypeError, match="labels of dtype .* cannot be put on a device"):
        device.upload(array, "labels")


def test_a_dead_storage_is_used_again(device):
    storage = device.allocate(77_777)
    buffer, current = storage.base, device.memory.current
    del storage
    gc.collect()
    assert device.memory.current < current <= device.memory.peak
    assert device.allocate(77_776).base is buffer


def test_statistics(device):
    s = device.statistics
    before = s.uploads, s.downloads, s.launches, s.bytes_current
    storage = device.upload(np.zeros(10_000, np.float32))
    assert s.bytes_current >= before[3] + 40_000
    kernel = device.build([ADD])["add"]
    runtime.set_argument(kernel, 0, storage)
    runtime.set_argument(kernel, 1, np.float32(1).tobytes())
    device.enqueue(kernel, (10,))
    device.enqueue(kernel, (0, 5))
    device.replay([(kernel, (10,), None, "a"), (kernel, (10,), None, "c")])
    assert device.download(storage, np.float32, (11,)).tolist() == [3] * 10 + [0]
    assert (s.uploads, s.downloads, s.launches) == (before[0] + 1, before[1] + 1, before[2] + 3)
    assert "launches=" in repr(s)


def test_views(device):
    align = device.traits.alignment
    arena = device.allocate(4 * align, "plan")
    view = arena.view(2 * align, align)
    inner = view.view(0, 4)
    assert (view.base, view.offset, inner.offset) == (arena.base, 2 * align, 2 * align)
    device.write(view, np.full(align, 7, np.uint8))
    device.write(arena.view(0, align), np.full(align, 9, np.uint8))
    del arena
    gc.collect()
    assert (device.download(inner, np.uint8, (4,)) == 7).all()
    with pytest.raises(ValueError, match="leaves a storage"):
        view.view(align // 2, align)
    with pytest.raises(ValueError, match="not aligned"):
        view.view(4, 4)


def test_state_lies_side_by_side_and_is_given_back(any_device):
    align = any_device.traits.alignment
    a, b, c = (any_device.allocate_state(n) for n in (1, align, 5 * align))
    assert a.base is b.base is c.base and (b.offset - a.offset, c.offset - b.offset) == (align, align)
    assert a.nbytes == 1 and c.offset % align == 0
    kernel = any_device.build([ADD])["add"]
    any_device.write(c, np.arange(align, dtype=np.float32))
    any_device.write(b, np.full(align, 5, np.uint8))
    runtime.set_argument(kernel, 0, c)
    runtime.set_argument(kernel, 1, np.float32(1).tobytes())
    any_device.enqueue(kernel, (align,))
    np.testing.assert_array_equal(any_device.download(c, np.float32, (align,)), np.arange(align) + 1)
    assert (any_device.download(b, np.uint8, (align,)) == 5).all()
    start = a.offset
    del a, b
    gc.collect()
    assert any_device.allocate_state(2 * align).offset == start


def test_slab_merges_its_holes():
    slab = memory.Slab(memory.Block(None, 1000, None), 10)
    offsets = [slab.take(100) for _ in range(10)]
    assert offsets == list(range(0, 1000, 100)) and slab.take(1) is None
    for i in (3, 5, 4, 0, 9):
        slab.freed.append((i * 100, 100))
    assert slab.take(300) == 300
    assert slab.holes == [(0, 100), (900, 100)]


def test_large_state_gets_its_own_slab(any_device):
    small = any_device.allocate_state(100)
    large = any_device.allocate_state(30 << 20, "embedding")
    assert large.base is not small.base and large.block.size == 30 << 20


def test_out_of_memory_names_what_asked_and_leaves_the_device_usable(any_device):
    kept = any_device.upload(np.arange(10))
    free = any_device.memory.budget
    any_device.memory.budget = any_device.memory.reserved + (1 << 20)
    try:
        with pytest.raises(runtime.OutOfMemory, match=r"out of memory on .*: the kernel of layer dense needs 64\.0 MiB, .* free"):
            any_device.allocate(64 << 20, "the kernel of layer dense")
        with pytest.raises(MemoryError, match="moments"):
            any_device.allocate_state(64 << 20, "moments")
        with pytest.raises(MemoryError, match="batch"):
            any_device.upload(np.zeros(64 << 20, np.uint8), "batch")
    finally:
        any_device.memory.budget = free
    np.testing.assert_array_equal(any_device.download(kept, kept_dtype := np.arange(10).dtype, (10,)), np.arange(10, dtype=kept_dtype))


def with_free(device, nbytes):
    """Gives the device a budget that leaves so much beyond what is reserved; returns a function that takes it back."""
    device.memory.trim()
    budget = device.memory._budget
    device.memory.budget = device.memory.reserved + nbytes
    return lambda: setattr(device.memory, "_budget", budget)


def test_the_last_state_that_fits(any_device, monkeypatch):
    """Where a usual slab does not."""
    monkeypatch.setattr(any_device.memory, "_slabs", [])
    restore = with_free(any_device, 1300 << 10)
    try:
        first = any_device.allocate_state(1 << 20, "moments")
        with pytest.raises(runtime.OutOfMemory, match=r"moments needs 1\.0 MiB, 276\.0 KiB of .* free; use a smaller batch"):
            any_device.allocate_state(1 << 20, "moments")
        assert any_device.allocate_state(200 << 10).nbytes == 200 << 10 and first.nbytes == 1 << 20
    finally:
        restore()


def test_what_fits_but_for_its_block_says_so(any_device):
    restore = with_free(any_device, (1 << 20) + (100 << 10))
    try:
        with pytest.raises(runtime.OutOfMemory, match=r"batch needs 1\.0 MiB in a block of 1\.1 MiB, 1\.1 MiB of .* free"):
            any_device.allocate((1 << 20) + 4096, "batch")
    finally:
        restore()


def test_what_a_driver_said_stands_beside_the_count(any_device, monkeypatch):
    def refuse(nbytes):
        code = cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE
        raise cl.MemoryError(cl._cl._ErrorRecord(msg="on purpose", code=code, routine="clCreateBuffer"))

    monkeypatch.setattr(any_device.driver, "allocate", refuse)
    text = r"batch needs 48\.0 MiB, .* free; the driver said .*MEM_OBJECT_ALLOCATION_FAILURE.*: it has less than that left, or not in one"
    with pytest.raises(runtime.OutOfMemory, match=text):
        any_device.allocate(48 << 20, "batch")


def test_more_than_one_buffer_can_hold(device):
    with pytest.raises(runtime.OutOfMemory, match="a single buffer holds at most"):
        device.allocate(device.traits.max_allocation + 1, "x")


@pytest.fixture
def of_nine_megabytes(any_device, monkeypatch):
    """A device whose largest buffer has 9,000,000 bytes, which is no size class."""
    monkeypatch.setattr(any_device.memory, "largest", 9_000_000)
    monkeypatch.setattr(any_device.memory, "_slabs", [])  # those there are may be larger
    yield any_device
    any_device.memory.trim()


def test_a_block_is_never_smaller_than_asked(of_nine_megabytes):
    device = of_nine_megabytes
    first = device.allocate(8_900_000)
    buffer = first.base
    assert buffer.size == 9_000_000
    del first
    for hand_out in (device.memory.allocate, device.memory.allocate_idle):
        with pytest.raises(runtime.OutOfMemory, match="a single buffer holds at most"):
            hand_out(9_400_000)
        device.finish()
        assert hand_out(9_000_000).base is buffer


def test_state_as_large_as_a_buffer_may_be(of_nine_megabytes):
    device = of_nine_megabytes
    current = device.memory.current
    for _ in range(2):
        state = device.allocate_state(8_999_999)
        device.write(state, np.full(8_999_999, 3, np.uint8))
        assert (device.download(state, np.uint8, (8_999_999,)) == 3).all()
        del state
        assert device.memory.current == current
    with pytest.raises(runtime.OutOfMemory, match="a single buffer holds at most"):
        device.allocate_state(9_000_001)


def test_uploads_as_large_as_a_buffer_may_be(of_nine_megabytes):
    array = np.arange(8_999_999, dtype=np.uint32).astype(np.uint8)
    for _ in range(2):
        np.testing.assert_array_equal(of_nine_megabytes.download(of_nine_megabytes.upload(array), np.uint8, array.shape), array)
    with pytest.raises(runtime.OutOfMemory, match=r"out of memory on .*: batch needs .*; a single buffer holds at most"):
        of_nine_megabytes.upload(np.zeros(9_000_001, np.uint8), "batch")


def test_an_upload_that_leaves_no_room_for_staging(any_device):
    any_device.memory.trim()
    free, any_device.memory.budget = any_device.memory.budget, any_device.memory.reserved + (20 << 20)
    array = np.arange(10 << 20, dtype=np.int16).reshape(2, -1).T  # its block is all that fits
    try:
        storage = any_device.upload(array)
    finally:
        any_device.memory.budget = free
    np.testing.assert_array_equal(any_device.download(storage, array.dtype, array.shape), array)


def test_staging_memory_counts_and_is_trimmed(any_device):
    memory = any_device.memory
    any_device.memory.trim()
    before = memory.reserved
    storage = any_device.upload(np.zeros(20 << 20, np.uint8))
    expected = 40 << 20 if any_device.sharing == "copied" else 20 << 20
    assert memory.reserved - before == expected
    free, memory.budget = memory.budget, memory.reserved + (1 << 20)
    try:
        assert memory.available == expected - storage.nbytes + (1 << 20)
        if any_device.sharing == "copied":
            assert any_device.allocate(20 << 20).nbytes == 20 << 20  # what was staging makes room
    finally:
        memory.budget = free
    memory.trim()
    assert memory.reserved - before == 20 << 20


def test_free_blocks_make_room_for_other_sizes(any_device):
    blocks = [any_device.allocate(1 << 20) for _ in range(8)]
    budget = any_device.memory.budget
    any_device.memory.budget = any_device.memory.reserved + (1 << 20)
    del blocks
    try:
        assert any_device.allocate(6 << 20).nbytes == 6 << 20
    finally:
        any_device.memory.budget = budget


@pytest.mark.parametrize("way", ["allocate", "allocate_state"])
def test_trimming_waits_for_what_another_thread_enqueues_meanwhile(any_device, monkeypatch, way):
    slow = any_device.build([SLOW])["slow"]
    held = [getattr(any_device, way)(20 << 20)]
    block, idle, release = held[0].block, any_device.idle, held[0].block.release
    when = []  # the last event's status when the memory goes

    def others_go_on():
        idle()
        runtime.set_argument(slow, 0, held[0])
        any_device.enqueue(slow, (1,))
        held.clear()

    monkeypatch.setattr(any_device, "idle", others_go_on)
    block.release = lambda: (when.append(any_device.last_event.command_execution_status), release())
    any_device.memory.trim()
    assert when == [0]


def test_in_flight_uploads_are_bounded(any_device):
    slow = any_device.build([SLOW])["slow"]
    big = np.zeros(5 << 20, np.uint8)
    reserved = any_device.memory.reserved
    for _ in range(12):
        storage = any_device.upload(big)
        runtime.set_argument(slow, 0, storage)
        any_device.enqueue(slow, (1,))
    del storage
    any_device.finish()
    blocks = 12 if getattr(any_device.transfer, "_on_a_bus", False) else 7  # staging memory and the device's are both in flight
    assert any_device.memory.reserved - reserved <= blocks * memory.size_class(big.nbytes)


def test_large_uploads_do_not_wait_for_kernels(any_device):
    """Where a bus is between: they are written while kernels that came before run, and those that follow see them."""
    if not getattr(any_device.transfer, "_on_a_bus", False):
        pytest.skip("not written on a queue of its own")
    add = any_device.build([ADD])["add"]
    any_device.memory.trim()
    gate = cl.UserEvent(any_device.driver.context)
    try:
        cl.enqueue_barrier(any_device.queue, wait_for=[gate])  # what is enqueued from here on runs when the gate opens
        storage = any_device.upload(np.full(1 << 18, 5, np.float32))
        runtime.set_argument(add, 0, storage)
        runtime.set_argument(add, 1, np.float32(1).tobytes())
        any_device.enqueue(add, (1 << 18,))
        (block,) = [block for free in any_device.memory._staging.values() for block in free]
        end = time.monotonic() + 20
        while block.fence.command_execution_status > 0 and time.monotonic() < end:
            time.sleep(0.001)
        assert block.fence.command_execution_status == 0, "the array is written"
        assert any_device.last_event.command_execution_status > 0, "before the kernels run"
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    assert (any_device.download(storage, np.float32, (1 << 18,)) == 6).all()
    block.fence = None


def test_control_group_limits(tmp_path):
    own = tmp_path / "cgroup"
    group = tmp_path / "v2" / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    for folder, most, now in ((group, "max", "5"), (group.parent, "1000", "300")):
        (folder / "memory.max").write_text(most + "\n")
        (folder / "memory.current").write_text(now + "\n")
    (group.parent / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    assert list(host._cgroup_headroom(tmp_path / "v2", own)) == [800]

    own.write_text("4:cpu:/x\n3:memory:/docker/abc\n")
    group = tmp_path / "v1" / "memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("4096\n")
    (group / "memory.usage_in_bytes").write_text("96\n")
    assert list(host._cgroup_headroom(tmp_path / "v1", own)) == [4000]
    assert host.available_memory() > 0


def test_the_budget_follows_the_free_memory_of_the_host(monkeypatch):
    if not runtime.current_device().traits.unified_memory:
        pytest.skip("memory of its own")
    monkeypatch.setattr(host, "available_memory", lambda: 100 << 20)
    device = another()
    assert device.memory.budget == 90 << 20
    held = device.allocate(8 << 20)
    monkeypatch.setattr(host, "available_memory", lambda: 10 << 20)  # others have taken it
    assert device.memory.budget == device.memory.reserved + (9 << 20)
    with pytest.raises(runtime.OutOfMemory, match="9.0 MiB of 17.0 MiB free"):
        device.allocate(12 << 20)
    monkeypatch.setattr(host, "available_memory", lambda: 1 << 30)  # and given it back
    assert device.allocate(200 << 20).nbytes == 200 << 20 and held.nbytes == 8 << 20


def test_small_blocks_do_not_ask_the_host_for_its_memory_each(monkeypatch):
    asked, free = [], 1 << 40
    device = another("copied")
    monkeypatch.setattr(host, "available_memory", lambda: asked.append(1) or free)
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, unified_memory=True))
    pool = device.memory
    held = [pool.allocate(100) for _ in range(500)]
    assert len(asked) <= 2
    held += [pool.allocate(memory.UNSEEN) for _ in range(3)]  # what is large asks each time
    assert len(asked) >= 4
    free = 0  # others have taken all of it
    with pytest.raises(runtime.OutOfMemory):
        for _ in range(2 * memory.UNSEEN // 256):
            held.append(pool.allocate(100))
    held.clear()
    pool.trim()
    with pytest.raises(runtime.OutOfMemory):  # nor is what was given back ours
        held.append(pool.allocate(memory.UNSEEN))
