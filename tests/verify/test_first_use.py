"""A device on which this package's tests do not run is verified in the background when it is first used."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_ocl import runtime
from keras_ocl.verify import first_use
from keras_ocl.verify.request import Request
from keras_ocl.verify.run import known

_FAULTY = str(Path(__file__).parent / "faulty.py")
_SHORT = ("sorts", "winograd")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The device in use as one that nobody has tried, which has two families, with a cache of the test's own."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_use, "TESTED", ())
    monkeypatch.setattr(first_use, "_begun", set())
    monkeypatch.setattr(first_use, "known", lambda traits: known(traits, _SHORT))
    monkeypatch.delenv("KERAS_OCL_QUARANTINE", raising=False)
    return runtime.current_device()


def _ended(thread):
    thread.join(120)
    assert not thread.is_alive()


def _record(device):
    return runtime.read_quarantine(runtime.target_of(device))


def test_all_families_are_tried_once(device, monkeypatch):
    _ended(first_use.begin(device))
    assert set(_record(device).verified) == set(_SHORT) and _record(device).kept_out == {}
    monkeypatch.setattr(first_use, "_begun", set())
    assert first_use.begin(device) is None


def test_another_program_goes_on_where_one_ended(device):
    """It does not try again what is verified, which would now be refused."""
    runtime.write_quarantine(runtime.target_of(device), runtime.QuarantineRecord(first_use.version(), ("sorts",), {}))
    fault = json.dumps(dict(family="sorts", title="sort: ", launch="refuse"))
    _ended(first_use.begin(device, [sys.executable, _FAULTY, "cpu", fault]))
    assert set(_record(device).verified) == set(_SHORT) and _record(device).kept_out == {}


def test_what_is_wrong_is_said_and_kept_out(device, caplog):
    fault = json.dumps(dict(family="sorts", title="sort: ", launch="refuse"))
    with caplog.at_level(logging.WARNING, logger="keras_ocl"):
        _ended(first_use.begin(device, [sys.executable, _FAULTY, "cpu", fault]))
    assert list(_record(device).kept_out) == ["sorts"]
    (message,) = [record.getMessage() for record in caplog.records if "family" in record.getMessage()]
    assert "the family sorts do not work on" in message and "start it again" in message and "each element is compared" in message


def test_nothing_is_kept_out_where_another_process_cannot_use_the_device(device, caplog):
    """As one that the first process has for itself: all kernels are refused, what takes their place, too."""
    fault = json.dumps(dict(family="", title="", launch="refuse"))
    with caplog.at_level(logging.WARNING, logger="keras_ocl"):
        _ended(first_use.begin(device, [sys.executable, _FAULTY, "cpu", fault]))
    assert _record(device) is None
    assert any("could not be tried in another process (refused, " in message for message in caplog.messages)


@pytest.mark.parametrize("setting", ["manual", "0"])
def test_not_where_a_setting_forbids_it(device, monkeypatch, setting):
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", setting)
    assert first_use.begin(device) is None


def test_not_where_the_tests_run(device, monkeypatch):
    monkeypatch.setattr(first_use, "TESTED", ((device.platform, device.traits.kind),))
    assert first_use.begin(device) is None


def test_not_where_no_record_can_be_kept(device, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert first_use.begin(device) is None


def test_it_begins_with_the_first_use(device, monkeypatch):
    used = []
    monkeypatch.setitem(runtime.selection._registry.users, "verify", used.append)
    monkeypatch.setattr(runtime.selection._registry, "announced", set())
    runtime.current_device(), runtime.current_device()
    assert used == [device]


def test_a_process_ends_with_the_one_that_started_it(device):
    request = Request(device.name, "steps", (), short=False)
    with subprocess.Popen(
        [sys.executable, "-m", "keras_ocl.verify.process", request.text()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert json.loads(child.stdout.readline())["case"]  # it is at work
        child.stdin.close()
        begin = time.monotonic()
        while child.poll() is None and time.monotonic() - begin < 60:
            time.sleep(0.05)
        assert child.returncode == 1
