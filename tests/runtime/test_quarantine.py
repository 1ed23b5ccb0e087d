"""Records of the families of kernels that a device does not use: signed, by driver and schedule, read into the traits."""

import dataclasses
import logging

import pytest

from keras_ocl import cli, runtime
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.overrides import Overrides
from keras_ocl.runtime.quarantine import Record, Target, quarantined, read_quarantine, remove_quarantine, write_quarantine
from keras_ocl.runtime.traits import read_traits

_TARGET = Target("Some Platform ", "A/Device (1)", "1.2.3", "gpu")
_RECORD = Record("0.1", ("sorts", "winograd"), {"winograd": "wrong; slower"})


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A cache of the test's own."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_record_comes_back():
    assert read_quarantine(_TARGET) is None and quarantined(_TARGET) == set()
    write_quarantine(_TARGET, _RECORD)
    assert read_quarantine(_TARGET) == _RECORD and quarantined(_TARGET) == {"winograd"}
    assert remove_quarantine(_TARGET) and not remove_quarantine(_TARGET) and read_quarantine(_TARGET) is None


def test_it_is_of_one_driver_and_schedule(folder):
    write_quarantine(_TARGET, _RECORD)
    for other in (_TARGET._replace(driver="1.2.4"), _TARGET._replace(schedule="cpu"), _TARGET._replace(platform="Other")):
        assert read_quarantine(other) is None
    assert [path.name for path in (folder / "quarantine").iterdir()] == ["Some-Platform-A-Device-1-1.2.3-gpu.json"]


def test_clearing_the_cache_keeps_it():
    write_quarantine(_TARGET, _RECORD)
    DiskCache().clear()
    assert read_quarantine(_TARGET) == _RECORD


@pytest.mark.parametrize("change", ["text", "name", "key", "mode", "form"])
def test_what_others_may_have_written_is_not_read(folder, change, caplog):
    write_quarantine(_TARGET, _RECORD)
    path = folder / "quarantine" / _TARGET.file
    target = _TARGET
    if change == "text":
        path.write_bytes(path.read_bytes().replace(b"winograd", b"products"))
    elif change == "name":  # a valid record of another device
        target = _TARGET._replace(model="Another")
        path.rename(path.parent / target.file)
    elif change == "key":
        (folder / "key").write_bytes(bytes(32))
    elif change == "mode":
        path.chmod(0o666)
    else:
        DiskCache().put_record(_TARGET.file, b"[]")
    with caplog.at_level(logging.WARNING, logger="keras_ocl"):
        assert read_quarantine(target) is None and quarantined(target) == set()
    assert all(message.startswith(f"keras_ocl ignores what was found wrong on {target.model}: ") for message in caplog.messages)
    assert caplog.messages


def test_the_variable(monkeypatch):
    write_quarantine(_TARGET, _RECORD)
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", "0")
    assert quarantined(_TARGET) == set()
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", "manual")
    assert quarantined(_TARGET) == _RECORD.kept_out.keys()
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", "off")
    with pytest.raises(ValueError, match='KERAS_OCL_QUARANTINE=\'off\': it is "manual", "0", or not set'):
        quarantined(_TARGET)


def test_traits_have_it():
    device = runtime.current_device()
    target = runtime.target_of(device)._replace(schedule=read_traits(device.driver.handle).schedule)
    write_quarantine(target, _RECORD)
    assert read_traits(device.driver.handle).quarantine == {"winograd"}


def test_matrix_units_that_are_kept_out_are_no_traits():
    traits = dataclasses.replace(runtime.current_device().traits, matrix_units=("emulated",), matrix_rates=(8.0,))
    assert traits.without({"sorts"}).matrix_units == ("emulated",) and traits.without(()).quarantine == frozenset()
    without = traits.without({"matrix_units"})
    assert (without.matrix_units, without.matrix_rates, without.quarantine) == ((), (), {"matrix_units"})


def test_wide_vectors_that_are_kept_out_have_four_lanes():
    traits = dataclasses.replace(runtime.current_device().traits, vector_width=16)
    assert traits.without({"wide_vectors"}).vector_width == 4 and traits.without({"sorts"}).vector_width == 16
    assert dataclasses.replace(traits, vector_width=1).without({"wide_vectors"}).vector_width == 1


def test_a_folder_that_cannot_be_written(folder):
    (folder / "key").write_bytes(b"short")
    with pytest.raises(OSError, match="is not a file of 32 bytes"):
        write_quarantine(_TARGET, _RECORD)


def test_doctor_names_the_files_of_the_device(folder, capsys, monkeypatch):
    monkeypatch.delenv("KERAS_OCL_TUNING", raising=False)
    device = runtime.current_device()
    target = runtime.target_of(device)
    file = str(folder / "quarantine" / target.file)
    own = runtime.device_file(device.model, device.driver_version, device.traits.compute_units)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"verify's record: none (python -m keras_ocl verify writes {file})" in out and "quarantine: nothing is kept out\n" in out
    assert f"tuning file: none (it would be {own})" in out and str(folder) in str(own)

    write_quarantine(target, Record("0.1", ("sorts", "scans"), {"sorts": "wrong", "scans": "wrong"}))
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out  # the device was opened before there was a record
    assert f"verify's record: {file}\n" in out and "quarantine: sorts, scans (ignored, KERAS_OCL_QUARANTINE=0)\n" in out

    traits = dataclasses.replace(device.traits, overrides=Overrides("own.toml", ("cpu",)), quarantine=frozenset(["sorts", "scans"]))
    opened = runtime.open_again(device, traits)
    assert list(cli._files_of(opened))[1:] == ["quarantine: sorts, scans", "tuning file: own.toml"]
    monkeypatch.setenv("KERAS_OCL_TUNING", "own.toml")
    assert list(cli._files_of(opened))[2] == "tuning file: own.toml, which KERAS_OCL_TUNING names"
