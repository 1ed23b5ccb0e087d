"""The estimate of a kernel's time, on numbers that can be checked by hand."""

import dataclasses
from types import SimpleNamespace

import pytest

from keras_ocl import runtime, vendors
from keras_ocl.vendors import roofline

HARDWARE = runtime.Hardware(
    units=10, wave=32, simds=4, waves=8, registers=16384, unit_local=65536, dedicated_local=True, banks=32,
    max_group_items=[1024, 1024, 64], fma=True, flops=1e12, bandwidth=1e11, launch=1e-6,
)  # fmt: skip


def launch(items, group=256, local=0, operations=0, read=0, written=0, steps=1, stages=1, reread=0):
    amounts = {"local": local, "operations": operations, "read": read, "written": written}
    return SimpleNamespace(grid=(items,), group=(group,), steps=steps, stages=stages, reread=reread, **amounts)


def test_residency():
    def waves(group=256, local=0, registers=32, hardware=HARDWARE):
        return roofline.resident(hardware, group, local, registers, 32)

    assert waves() == 8
    assert waves(registers=64) == 8 and waves(registers=65) == 6  # 72 registers: 7 waves, of which groups of 8 waves on 4 SIMDs use 6
    assert waves(registers=255) == 2
    assert waves(local=32768) == 4  # two groups of 8 waves on 4 SIMDs
    assert waves(local=32768, hardware=dataclasses.replace(HARDWARE, dedicated_local=False)) == 8
    assert waves(group=1024, registers=255) == 1  # the driver would refuse it, or spill


def test_a_full_device_reaches_its_roofs():
    items = 10 * 4 * 8 * 32  # all waves there can be
    e = vendors.estimate(HARDWARE, launch(items, operations=10**9))
    assert (e.bound, e.seconds, e.share, e.occupancy) == ("compute", pytest.approx(1e-3), pytest.approx(1), 1)
    e = vendors.estimate(HARDWARE, launch(items, read=6 * 10**8, written=4 * 10**8))
    assert (e.bound, e.seconds) == ("memory", pytest.approx(1e-2))
    assert vendors.estimate(HARDWARE, launch(items, operations=1000)).bound == "launch"


def test_too_little_work_for_the_device():
    one = vendors.estimate(HARDWARE, launch(256, operations=10**9))  # 8 of the 160 waves that keep it busy
    assert one.seconds == pytest.approx(1e-3 * 160 / 8) and one.share == pytest.approx(8 / 160)
    slow = vendors.estimate(HARDWARE, launch(256, read=10**8))
    assert slow.seconds == pytest.approx(10**8 / (256 * roofline.IN_FLIGHT / roofline.LATENCY))


def test_the_last_round_may_be_almost_empty():
    full = 10 * 4 * 8 * 32
    e = vendors.estimate(HARDWARE, launch(full + 256, operations=10**9))
    assert e.seconds == pytest.approx(2e-3 * full / (full + 256))


def test_what_a_compiler_says_counts():
    few = vendors.Resources(registers=255, spilled=0, private=0, wave=32)
    assert vendors.estimate(HARDWARE, launch(10**6, operations=10**9), few).waves == 2


def test_records_agree_with_themselves():
    for name in runtime.record_names():
        hardware, traits = runtime.read_hardware(name), runtime.read_record(name)
        if hardware is None:
            assert traits.kind == "cpu"
            continue
        assert traits.compute_units % hardware.units == 0
        assert traits.local_memory <= hardware.unit_local and traits.max_group <= max(hardware.max_group_items)
        lanes = hardware.flops / (2e6 * traits.clock * hardware.units)
        assert lanes == pytest.approx(8 * round(lanes / 8), rel=0.03), name
        assert traits.item_registers * hardware.wave <= hardware.registers
    with pytest.raises(ValueError, match="no traits record 'x'"):
        runtime.read_hardware("x")


def test_a_launch_that_does_its_work_in_many_steps():
    """What all groups read in each step comes from memory once, and then at the pace of a unit's share of the cache."""
    items = 10 * 4 * 8 * 32
    of_one, of_many = (vendors.estimate(HARDWARE, launch(items, operations=10**8, steps=n)).seconds for n in (1, 50))
    assert of_many == pytest.approx(50 * of_one)
    assert vendors.estimate(HARDWARE, launch(2560, steps=100, stages=3)).seconds == pytest.approx(300 * roofline.STAGE)
    weights = 10**6
    e = vendors.estimate(HARDWARE, launch(2560, read=weights, steps=100, reread=weights))
    multiply_adds = HARDWARE.flops / 2 / HARDWARE.units  # of a unit in a second
    assert e.bound == "memory" and e.seconds == pytest.approx(100 * (roofline.STAGE + weights / 64 * 128 / multiply_adds))
    assert vendors.estimate(HARDWARE, launch(2560, read=weights, steps=1, reread=0)).seconds < e.seconds / 50
