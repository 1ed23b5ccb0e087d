"""A report: its keys, nothing private in it, and what happens where kernels are wrong or a measuring process ends."""

import dataclasses
import json
import platform
import sys
from pathlib import Path

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.families import BY_NAME
from keras_ocl.report import facts, make, process
from keras_ocl.runtime.overrides import Overrides
from tests.report.sample import sample

FAULTY = str(Path(__file__).parent / "faulty.py")
FAULTY_FAMILY = str(Path(__file__).parents[1] / "verify" / "faulty.py")
USER, HOST = "zyxperson", "zyxvault"
CASES = [("limits", "launch"), ("operations", "a product"), ("operations", "a convolution"), ("networks", "MNIST MLP")]


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The device in use, of a user and a host whose names no other text has, with a cache in that user's home."""
    for name in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, USER)
    home = tmp_path / USER
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(home / "cache"))
    monkeypatch.setattr(platform, "node", lambda: HOST)
    return runtime.current_device()


def measured(device, monkeypatch, faults, limit=20.0, seconds=20.0):
    """{case: its row} of a process with these faults."""
    monkeypatch.setattr(process, "cases", lambda kind, small=False: list(CASES))
    command = [sys.executable, "-S", FAULTY, json.dumps(faults)]
    rows = list(make.measured(device, True, limit, seconds, command, lambda what: None))
    assert [(section, row["case"]) for section, row in rows] == CASES  # each once, in order
    return {row["case"]: row for _, row in rows}


def keys(value):
    """The names in a report: of dicts, and of the first entry of lists."""
    if isinstance(value, dict):
        return {name: keys(one) for name, one in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


def test_a_report_of_small_cases(device, monkeypatch):
    monkeypatch.delenv("KERAS_OCL_QUARANTINE", raising=False)
    monkeypatch.setenv("KERAS_OCL_KEEP", "all")
    begun = []
    report = make.make(device, only=["sorts"], small=True, begin=begun.append)
    assert json.loads(json.dumps(report)) == report
    assert USER not in json.dumps(report) and HOST not in json.dumps(report)
    assert report["format"] == make.FORMAT and report["settings"] == {"KERAS_OCL_KEEP": "all"}
    assert begun[0].startswith("verify sorts") and begun[-1] == "measure transformer"

    wanted = sample()
    assert report.keys() == wanted.keys()
    for part in ("versions", "system"):
        assert report[part].keys() == wanted[part].keys()
    assert report["device"].keys() == wanted["device"].keys()
    told, traits = report["device"]["opencl"], report["device"]["traits"]
    assert told.keys() >= wanted["device"]["opencl"].keys() and traits.keys() >= wanted["device"]["traits"].keys()
    assert told["extensions"] == sorted(device.driver.handle.extensions.split()) and told["max_compute_units"] == traits["compute_units"]

    assert keys(report["verify"]["families"]) == keys(wanted["verify"]["families"])
    (row,) = report["verify"]["families"]
    assert (row["family"], row["verdict"], report["verify"]["kept_out"], report["verify"]["error"]) == ("sorts", "right", {}, "")

    rows = [(section, row) for section in process.SECTIONS for row in report[section]]
    assert [(section, row["case"]) for section, row in rows] == process.cases(device.kind, small=True)
    for section, row in rows:
        assert "error" not in row, row
        rate = {"operations": "flops_per_s", "networks": "steps_per_s"}.get(section, "bytes_per_s")
        assert 0 < row["best_ms"] <= row["median_ms"] and row["n"] >= 1
        if row["case"] not in ("launch", "round trip"):
            assert row[rate]["best"] >= row[rate]["median"] > 0
    assert report["networks"][0]["parameters"] == 669706 and report["byte"] > 0


def test_rates_are_of_what_is_counted():
    product = process.operations.operations("cpu", False)["product 2048 x 2048 x 2048"]
    assert product.flops == 2 * 2048**3
    convolution = process.operations.operations("gpu", False)["filter gradient 3x3, 64 of 28 x 28 x 128 to 128"]
    assert convolution.flops == 2 * 64 * 28**2 * 9 * 128**2 and convolution.shapes == ((64, 28, 28, 128),) * 2
    times = process.operations.rates({"best_ms": 2.0, "median_ms": 4.0, "n": 5}, 1e6)
    assert times == {"best": 5e8, "median": 2.5e8}
    row = {"case": "memory", "bytes_per_s": {"best": 1e9, "median": 1e8}}
    products = [
        {"case": name, "flops_per_s": {"best": flops, "median": 1.0}} for name, flops in (("product a", 4e9), ("product, float16", 9e9))
    ]
    assert make._byte({"limits": [row], "operations": products}) == 2
    assert make._byte({"limits": [{"case": "memory", "error": "x"}], "operations": products}) is None


def test_texts_of_drivers_and_files_are_not_private(device, monkeypatch):
    home = Path.home()
    monkeypatch.setattr(runtime, "facts_of", lambda d: {"model": f"{USER}'s", "platform": {"name": f"{home}/x.so"}, "extensions": []})
    monkeypatch.setattr(platform, "release", lambda: f"6.1-{HOST}")
    monkeypatch.setenv("KERAS_OCL_MATRIX", f"{USER}, off")
    own = Overrides(str(home / "own.toml"), ("cpu",), (("product.block", 256),))
    opened = runtime.open_again(device, dataclasses.replace(device.traits, overrides=own))
    opened.refused_units = {"unit": f"{home}/probe.cl does not compile"}
    found = {**facts.device_facts(opened), "system": facts.system(), "settings": facts.settings()}
    assert USER not in json.dumps(found) and HOST not in json.dumps(found)
    assert found["tuned"] == {"numbers": 1, "tiles": 0} and found["refused_units"] == {"unit": "PATH does not compile"}


def test_a_crash_costs_one_case(device, monkeypatch):
    found = measured(device, monkeypatch, {"a product": "crash", "a convolution": f"RuntimeError: {Path.home()}/x.cl by {USER}"})
    assert found["a product"]["error"].startswith("a signal, 6, ended its process")
    assert found["a convolution"]["error"] == "RuntimeError: PATH by USER"
    assert found["launch"]["n"] == found["MNIST MLP"]["n"] == 3


def test_an_exit_and_a_hang_cost_one_case_each(device, monkeypatch):
    found = measured(device, monkeypatch, {"launch": "end", "a convolution": "hang"}, limit=0.5)
    assert found["launch"]["error"] == "its process ended with 3: in PATH"
    assert found["a convolution"]["error"] == "it took more than 0.5 s"
    assert found["a product"]["n"] == found["MNIST MLP"]["n"] == 3


def test_the_time_of_all_measurements(device, monkeypatch):
    found = measured(device, monkeypatch, {"a product": "hang"}, seconds=1.0)
    assert found["launch"]["n"] == 3 and found["a product"]["error"] == "the time of all measurements was over"
    assert found["a convolution"]["error"] == found["MNIST MLP"]["error"] == "the 1 s of all measurements were over"


def test_a_crashed_family_is_shown_and_the_rest_made(device, monkeypatch):
    monkeypatch.setattr(process, "cases", lambda kind, small=False: list(CASES))
    fault = json.dumps(dict(family="sorts", title="sort: ", launch="crash"))
    report = make.make(
        device,
        only=["scans", "sorts"],
        process=[sys.executable, "-S", FAULTY, "{}"],
        verify_process=[sys.executable, FAULTY_FAMILY, "cpu", fault],
    )
    scans, sorts = report["verify"]["families"]
    assert (scans["verdict"], sorts["verdict"], sorts["instead"]) == ("right", "crashed", "right") and "signal" in sorts["why"]
    assert list(report["verify"]["kept_out"]) == ["sorts"] == list(runtime.read_quarantine(runtime.target_of(device)).kept_out)
    assert all(row["n"] == 3 for section in process.SECTIONS for row in report[section])


@pytest.mark.parametrize("short", [True, False])
def test_few_cases_let_nothing_in_again(device, monkeypatch, short):
    def verify(device, only, few, process, begin):  # which lets scans in again
        runtime.write_quarantine(target, runtime.QuarantineRecord("0", ("scans",), {}))
        outcome = make.verification.Outcome("wrong", f"sorting: {Path.home()}/x.cl", 3, 1, 0.25)
        yield make.verification.Report([make.verification.Row(BY_NAME["sorts"], outcome)])

    target = runtime.target_of(device)
    runtime.write_quarantine(target, runtime.QuarantineRecord("0", ("scans",), {"scans": f"wrong in {Path.home()}/x"}))
    monkeypatch.setattr(make.verification, "verify", verify)
    found = make.verified(device, short, (), (), lambda what: None)
    row = {"family": "sorts", "verdict": "wrong", "why": "sorting: PATH", "cases": 3, "wrong": 1, "seconds": 0.2, "instead": ""}
    assert found["families"] == [row]
    assert found["kept_out"] == ({"scans": "wrong in PATH"} if short else {})
    assert list(runtime.read_quarantine(target).kept_out) == (["scans"] if short else [])


def test_a_record_that_cannot_be_written(device, monkeypatch):
    def verify(*arguments, **options):
        raise OSError(f"{Path.home()}/cache cannot be written")
        yield

    monkeypatch.setattr(make.verification, "verify", verify)
    found = make.verified(device, True, (), (), lambda what: None)
    assert found["error"] == "the record cannot be written: PATH cannot be written" and found["families"] == []
