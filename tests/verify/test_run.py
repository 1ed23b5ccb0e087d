"""Processes of families, the record, and the command."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from keras_ocl import cli, runtime
from keras_ocl.runtime import selection
from keras_ocl.runtime.quarantine import quarantined
from keras_ocl.verify import command, run
from keras_ocl.verify.request import CRASHED, HUNG, REFUSED, RIGHT, WRONG

_FAULTY = str(Path(__file__).parent / "faulty.py")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The device in use, with a cache of the test's own."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    return runtime.current_device()


def verified(device, fault, only, **options):
    """The last Report of a verification with a planted fault; fault: a dict of a Fault's fields, or a name of FAULTS."""
    process = [sys.executable, _FAULTY, "cpu", fault if isinstance(fault, str) else json.dumps(fault)]
    *_, report = run.verify(device, only, True, process=process, **options)
    return report


def kept_out(device):
    return runtime.read_quarantine(runtime.target_of(device)).kept_out


def test_a_crash_is_a_row_and_kept_out(device):
    report = verified(device, dict(family="sorts", title="sort: ", launch="crash"), ["sorts"])
    (row,) = report.rows
    assert row.outcome.verdict == CRASHED and "sorting [3, 1000]" in row.outcome.why and "signal" in row.outcome.why
    assert row.instead.verdict == RIGHT and not report.right and report.usable
    (why,) = kept_out(device).values()
    assert list(kept_out(device)) == ["sorts"] and why.endswith("; each element is compared with all others")
    assert quarantined(runtime.target_of(device)) == {"sorts"}


def test_narrow_vectors_take_the_place_of_wide_ones_where_that_is_enough(device):
    if device.traits.vector_width <= 4:
        pytest.skip("the device has no vectors of more than 4 lanes")
    report = verified(device, "wrong multiply-add of wide vectors", ["winograd", "products"])
    assert [(row.family.name, row.outcome.verdict) for row in report.rows] == [("products", WRONG), ("winograd", RIGHT)]
    assert report.usable and list(kept_out(device)) == ["wide_vectors"]
    (why,) = kept_out(device).values()
    assert why.startswith("products are wrong, ") and why.endswith("; vectors of all kernels have 4 lanes")
    *_, report = run.verify(device, ["sorts"], True)
    assert report.right and list(kept_out(device)) == ["wide_vectors"]  # until all families are tried again


def test_a_hang_is_ended(device):
    report = verified(device, dict(family="sorts", title="sort: ", launch="hang"), ["sorts"], limit=15)
    (row,) = report.rows
    assert row.outcome.verdict == HUNG and row.outcome.why == "sorting [3, 1000]: it took more than 15 s"


def test_a_refused_build_is_kept_out_and_right_once_it_builds(device):
    report = verified(device, "refused build", ["winograd"])
    (row,) = report.rows
    assert row.outcome.verdict == REFUSED and "no_such_type" in row.outcome.why and row.instead.verdict == RIGHT
    assert list(kept_out(device)) == ["winograd"]
    *_, report = run.verify(device, ["winograd"], True)
    assert report.right and kept_out(device) == {}


def test_what_takes_its_place_and_is_wrong_is_kept_out_too(device):
    report = verified(device, "wrong lane of a sum", ["reductions"])
    (row,) = report.rows
    assert row.outcome.verdict == WRONG and row.instead.verdict == RIGHT
    assert list(kept_out(device)) == ["reductions", "pointwise"] == list(report.kept_out)
    assert "takes the place of reductions is wrong" in kept_out(device)["pointwise"]


def test_other_families_stay_as_they_are(device):
    target = runtime.target_of(device)
    runtime.write_quarantine(target, runtime.QuarantineRecord("0", ("sorts", "scans"), {"sorts": "s", "scans": "t"}))
    *_, report = run.verify(device, ["sorts"], True)
    assert report.right and report.kept_out == {"scans": "t"}
    record = runtime.read_quarantine(target)
    assert record.kept_out == {"scans": "t"} and record.verified == ("sorts",)  # by this version of the package


def test_names_of_families(device):
    with pytest.raises(ValueError, match="there is no family 'sort'; there are pointwise, "):
        next(run.verify(device, ["sort"]))
    if not device.traits.matrix_units:
        with pytest.raises(ValueError, match="the device has no kernels of the family matrix_units; it has pointwise"):
            next(run.verify(device, ["matrix_units"]))


def test_lines_of_a_process():
    lines = ['{"case": "a"}', "a driver's line", '{"case": "a", "verdict": "right", "why": ""}', '{"case": "b"}', "[1]"]
    found = run._read("\n".join(lines))
    assert (found.verdict, found.why, found.cases, found.wrong) == (RIGHT, "b", 2, 0)
    lines += ['{"case": "b", "verdict": "wrong", "why": "x"}', '{"case": "c"}', '{"case": "c", "verdict": "refused", "why": "y"}']
    found = run._read("\n".join(lines))
    assert (found.verdict, found.why, found.cases, found.wrong) == (WRONG, "b: x", 3, 2)


def test_the_command(device, capsys, monkeypatch):
    fault = json.dumps(dict(family="sorts", title="sort: ", launch="refuse"))
    monkeypatch.setattr(
        run.verify, "__defaults__", ((), False, run.LIMIT, [sys.executable, _FAULTY, "cpu", fault], lambda family: None, False)
    )
    assert command.command(device, ["sorts"], True, False, run.LIMIT) == 1
    out = capsys.readouterr().out
    assert "sorts" in out and "refused (" in out and "kept out: sorts: refused, sorting [3, 1000]: " in out
    (info,) = [info for info in runtime.devices() if info.name == device.name]
    assert any(line.startswith("sorts is not used") for line in cli._quarantine_of(info))
    assert command.command(device, (), True, True, run.LIMIT) == 0 and "is deleted" in capsys.readouterr().out
    assert cli._quarantine_of(info) == ["not verified with this driver: python -m keras_ocl verify"]
    assert command.command(device, ["nothing"], True, False, run.LIMIT) == 2 and "there is no family" in capsys.readouterr().err


def test_the_first_use_says_what_is_not_used(device, monkeypatch, caplog):
    target = runtime.target_of(device)
    runtime.write_quarantine(target, runtime.QuarantineRecord("0", ("sorts",), {"sorts": "wrong, a case; it is slower"}))
    lacking = runtime.open_again(device, device.traits.without({"sorts"}))
    monkeypatch.setattr(selection._registry, "announced", set())
    with caplog.at_level(logging.WARNING, logger="keras_ocl"):
        selection._registry.announce(lacking)
    (line,) = caplog.messages
    assert line.startswith("keras_ocl does not use all of its kernels on ") and line.endswith(": sorts: wrong, a case; it is slower.")


_PROGRAM = """
from keras_ocl import compiler, primitives as P, runtime
from keras_ocl.compiler import eager
device = runtime.current_device()
print(sorted(device.traits.quarantine), compiler.to_numpy(P.sort((compiler.from_numpy([3, 1, 2]),), 0)[0]).tolist())
"""


@pytest.mark.parametrize(("setting", "wanted"), [("", "['sorts'] [1, 2, 3]"), ("manual", "['sorts'] [1, 2, 3]"), ("0", "[] [1, 2, 3]")])
def test_later_processes_go_without_it(device, setting, wanted, monkeypatch):
    runtime.write_quarantine(runtime.target_of(device), runtime.QuarantineRecord("0", ("sorts",), {"sorts": "wrong"}))
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", setting)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted


def test_the_command_line(device, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_OCL_QUARANTINE", "")
    assert cli.main(["verify", "--device", "no such device"]) == 2
    assert "no usable OpenCL device is called 'no such device'" in capsys.readouterr().err
    assert cli.main(["verify", "--device", device.name, "--only", "sorts", "--short"]) == 0
    out = capsys.readouterr().out
    assert str(device) in out and "sorts" in out and "right" in out and "kept out" not in out
