"""A device that is not there takes every command of a Device, and nothing runs."""

import dataclasses

import numpy as np
import pytest

import keras_ocl
from keras_ocl import runtime
from keras_ocl.runtime.driver import Driver

ADD = ("add", "__kernel void add(__global float* a, const float b) { a[get_global_id(0)] += b; }")


@pytest.fixture(params=["sm_86", "intel-cpu"])
def record(request):
    return runtime.RecordDevice("phantom", runtime.read_record(request.param))


def test_a_record_is_a_device_whose_driver_has_all_that_a_driver_needs(record):
    assert isinstance(record, runtime.Device) and not record.runs
    needed = [name for name in (*vars(Driver), *Driver.__annotations__) if not name.startswith("_")]
    assert len(needed) > 20 and [name for name in needed if not hasattr(record.driver, name)] == []


def test_commands_are_accepted_and_done(record):
    kernel = record.build([ADD])["add"]
    a, b = record.upload(np.zeros(300, "float32")), record.allocate(2400)
    runtime.set_argument(kernel, 0, a)
    runtime.set_argument(kernel, 1, bytes(4))
    launch, done = (kernel, (300,), None, "add"), []
    record.enqueue(kernel, (300,))
    record.replay([launch] * 3000, [(a, b)], iter([None, 1, done.append(1)]))
    record.repeat([([launch] * 3, [(kernel, 1)], bytes(4))] * 5)
    record.copy(a, b, 400, 4, 8)
    record.copy_rows(b, [(a, 0, 40, 0, 80, 40, 3), (a, 0, 40, 4, 80, 40, 1)])
    record.write(b, np.ones(600, "float32"))
    record.finish()
    assert done == [1] and record.statistics.launches == 3018
    assert record.group_limit(kernel) == record.traits.max_group


def test_values_cannot_be_read(record):
    storage = record.upload(np.zeros((2, 3), "float32"))
    with pytest.raises(
        RuntimeError, match=r"phantom \(a record of its traits\): nothing runs there, so no value \(shape \(2, 3\), float32"
    ):
        record.download(storage, np.float32, (2, 3))


def test_memory_has_no_end(record):
    """So that a model is lowered for which the device is too small."""
    traits = record.traits
    held = [record.allocate(2 * traits.global_memory), record.allocate_state(2 * traits.max_allocation)]
    assert [storage.nbytes for storage in held] == [2 * traits.global_memory, 2 * traits.max_allocation]
    record.destroy(held.pop(0))


def test_profiles_are_of_no_time(record):
    kernel = record.build([ADD])["add"]
    with runtime.profiling(record) as times:
        record.replay([(kernel, (8,), None, "add")] * 700)
    assert times == [("add", 0.0)] * 700


def test_nothing_is_told_of_it(record, monkeypatch, capsys):
    """It is no device of the process, and KERAS_OCL_VERBOSE prints nothing of what it does."""
    monkeypatch.setenv("KERAS_OCL_VERBOSE", "1")
    verbose = runtime.RecordDevice("phantom", dataclasses.replace(record.traits))
    verbose.enqueue(verbose.build([ADD])["add"], (8,))
    verbose.finish()
    assert capsys.readouterr().err == "" and not {record, verbose} & {*runtime.living_devices()}
    assert record.programs.disk is None and keras_ocl.memory_info()["budget"] < 1 << 62


def test_each_matrix_unit_has_a_rate(tmp_path):
    path = tmp_path / "no_rates.toml"
    path.write_text('matrix_units = ["emulated"]\n')
    with pytest.raises(ValueError, match="matrix_rates has not one number for each of matrix_units; its entries are kind, "):
        runtime.read_record(str(path))
