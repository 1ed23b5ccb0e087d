"""A device's tuning in a process of its own, with planted times and faults, and the file that comes of it."""

import dataclasses
import datetime
import os
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from keras_ocl import cli, runtime
from keras_ocl.kernels.overrides import asked
from keras_ocl.runtime import overrides
from keras_ocl.tune import command, record, run
from keras_ocl.tune.problem import Choice, Problem, choices, kernels, plain
from keras_ocl.tune.search import Result

PLANTED = str(Path(__file__).parent / "planted.py")
KEY = "float32 m=24 n=96 k=40 a=float32(40,1) b=float32(96,1)"
PROBLEM, OTHER = Problem("product", KEY), Problem("product", KEY.replace("m=24", "m=12"))
SLOW = {"kind": "rows", "rows": 1, "vectors": 1, "chunk": 1}


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The device in use, with a cache of the test's own."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERAS_OCL_TUNING", raising=False)
    monkeypatch.setattr("keras_ocl.tune.search._PATIENCE", 6)
    device = runtime.current_device()
    if device.traits.schedule != "cpu":
        pytest.skip("the planted times are of the cpu schedule's tiles")
    return device


def tuned(device, fault="", problems=(PROBLEM,), limit=60.0, minutes=1.0):
    """The Rows of problems, measured with a planted fault."""
    return list(run.tune(device, problems, minutes, run.Bench(device, [sys.executable, PLANTED, fault], limit)))


def stored(device):
    """{(kind, key): fields} of the device's file."""
    return {(kind, key): dict(fields) for kind, key, fields in record.read(device).choices}


def test_what_is_faster_is_used_and_the_file_says_how_much(device):
    (row,) = tuned(device)
    best = dict(row.result.best.fields)
    most = max(dict(c.fields)["rows"] * dict(c.fields)["vectors"] for c in row.result.ratios)
    assert best["rows"] * best["vectors"] == most and row.result.gain == pytest.approx(most / 2)
    assert stored(device) == {("product", KEY): best}
    path = record.file_of(device)
    text = path.read_text()
    entries = tomllib.loads(text)
    assert entries["about"]["device"] == device.model.strip() and entries["about"]["driver"] == device.driver_version
    measured = entries["cpu"]["measured"]["product"][KEY]
    assert measured["gain"] == measured["at_least"] == pytest.approx(most / 2, abs=1e-3)
    assert measured["default_seconds"] == 0.0005 and measured["date"] == datetime.date.today()
    assert f'"{KEY}" = {{ kind = "rows", rows = {best["rows"]}' in text
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Another process gets these traits, and a kernel with that tile.
    traits = dataclasses.replace(device.traits, overrides=record.read(device))
    (spec,) = kernels(PROBLEM, plain(PROBLEM, traits)[0])
    assert spec.title.startswith(f"matrix product: {best['rows']} rows x {best['vectors'] * device.traits.vector_width} columns per tile")


@pytest.mark.parametrize("fault, verdict", [("crash", "crashed"), ("hang", "hung"), ("wrong", "wrong"), ("refused", "refused")])
def test_a_candidate_with_a_fault_is_left_out_and_the_others_are_measured(device, fault, verdict):
    (row,) = tuned(device, fault, limit=5.0 if fault == "hang" else 60.0)
    left_out = row.result.wrong
    assert list(left_out) == [choices(PROBLEM, device.traits)[1]]
    assert all(why.startswith(f"{verdict}, ") for why in left_out.values())
    assert row.result.best not in left_out and stored(device)["product", KEY] == dict(row.result.best.fields)


def test_deliberately_bad_values_of_the_file_are_replaced(device):
    path = record.file_of(device)
    bad = {"tuning": {"product.latency": 10**6, "product.block": 2}, "choices": {"product": {KEY: SLOW, OTHER.key: SLOW}}}
    overrides.write_entries(path, {"cpu": bad})
    # Numbers count when a device is opened; KEY's tiles are then packed in blocks of two steps.
    device = runtime.open_again(device, dataclasses.replace(device.traits, overrides=record.read(device)))
    blocks = {dict(choice.fields)["block"] for choice in run._candidates(PROBLEM, device.traits)}
    assert blocks >= {2, 512}
    (row,) = tuned(device)
    found = stored(device)
    assert found["product", KEY] == dict(row.result.best.fields) != SLOW
    assert found["product", OTHER.key] == SLOW  # it was not measured
    assert tomllib.loads(path.read_text())["cpu"]["tuning"] == bad["tuning"]


def test_a_tile_that_is_no_longer_faster_is_removed(device, monkeypatch):
    result = Result(1.0, 1.0, Choice.of("product", SLOW), 1.5, 1.4, finished=True)
    record.store(device, PROBLEM, result, datetime.date(2026, 1, 1))
    assert stored(device) == {("product", KEY): SLOW}
    monkeypatch.setattr(run, "choices", lambda problem, traits: [Choice.of("product", {**SLOW, "chunk": n}) for n in (1, 2, 3)])
    (row,) = tuned(device)
    assert row.result.best is None and row.result.finished
    assert stored(device) == {} and not record.file_of(device).exists()


def test_a_search_that_had_no_time_leaves_the_file_as_it_is(device, monkeypatch):
    record.store(device, PROBLEM, Result(1.0, 1.0, Choice.of("product", SLOW), 1.5, 1.4, finished=True), datetime.date(2026, 1, 1))
    monkeypatch.setattr(run, "search", lambda *arguments: Result(1.0, 1.0))
    assert [row.result.finished for row in run.tune(device, [PROBLEM], 1.0)] == [False]
    assert [row.why for row in run.tune(device, [PROBLEM], 0.0)] == ["no time was left"]
    assert stored(device) == {("product", KEY): SLOW}


def test_what_cannot_be_measured_is_a_row(device):
    grid = Problem("product", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(computed)")
    rows = tuned(device, problems=[grid, PROBLEM])
    assert rows[0].result is None and "is not the key of a product" in rows[0].why
    assert rows[1].result.best


def test_a_process_that_cannot_start_is_a_row(device):
    rows = list(run.tune(device, [PROBLEM], 1.0, run.Bench(device, [sys.executable, "-c", "raise SystemExit('no driver')"])))
    assert rows[0].result is None and rows[0].why == "crashed, the process ended with 1: no driver"


def exported(device, tmp_path):
    path = tmp_path / "record.toml"
    assert command.export_to(device, path) == 0
    return path


def test_a_record_moves_from_user_to_user(device, tmp_path, monkeypatch, capsys):
    assert command.export_to(device, tmp_path / "none.toml") == 2 and "tune it first" in capsys.readouterr().err
    tuned(device)
    mine, path = stored(device), exported(device, tmp_path)
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "another"))
    assert stored(device) == {}
    result = Result(1.0, 1.0, Choice.of("product", SLOW), 1.5, 1.4, finished=True)
    for problem in (PROBLEM, OTHER):
        record.store(device, problem, result, datetime.date(2026, 1, 1))
    assert command.import_from(device, path) == 0 and "1 tiles are added to" in capsys.readouterr().out
    assert stored(device) == {**mine, ("product", OTHER.key): SLOW}
    assert command.forget(device) == 0 and stored(device) == {}
    assert command.forget(device) == 0 and capsys.readouterr().out.endswith(f"there is no record of {device}\n")


@pytest.mark.parametrize(
    "text, says",
    [
        ("[about]\ndevice = 'Another'\n[cpu.tuning]\n", "was measured on Another; this device is"),
        ("[gpu.tuning]\ndepth = 8\n", "has nothing for the schedule cpu"),
        ("[cpu.tuning]\n'product.blok' = 8\n", "has no number 'product.blok'"),
        ("[cpu.tunning]\n", "is no schedule with the tables"),
        ("cpu = ", "cannot be read from"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(device, tmp_path, text, says, capsys):
    path = tmp_path / "record.toml"
    path.write_text(text)
    assert command.import_from(device, path) == 2 and says in capsys.readouterr().err
    assert command.import_from(device, tmp_path / "absent.toml") == 2 and "absent.toml cannot be read" in capsys.readouterr().err
    assert not record.file_of(device).exists()


def test_fitted_numbers_are_kept_and_forgotten(device):
    overrides.write_entries(record.file_of(device), {"cpu": {"tuning": {"product.block": 256}}})
    record.store_numbers(device, {"product.latency": 5.5}, datetime.date(2026, 1, 1))
    assert dict(record.read(device).tuning) == {"product.block": 256, "product.latency": 5.5}
    assert record.forget(device) and not record.forget(device)
    assert dict(record.read(device).tuning) == {"product.block": 256}


def test_another_drivers_record_is_taken_with_a_word(device, tmp_path, capsys):
    path = tmp_path / "record.toml"
    path.write_text(f"[about]\ndevice = {device.model.strip()!r}\ndriver = '0'\n[cpu.tuning]\n'product.block' = 256\n")
    assert command.import_from(device, path) == 0
    assert "measured with driver 0, not" in capsys.readouterr().out
    assert command.forget(device) == 0  # numbers were not measured by tune
    assert "product.block" in record.file_of(device).read_text()


def test_the_command_takes_one_thing_to_do(device, capsys):
    for arguments in ([], ["model.keras", "--all"], ["--forget", "--export", "file"]):
        assert cli.main(["tune", *arguments]) == 2
        assert capsys.readouterr().err.startswith("tune: name one model, or one of --all")
    assert cli.main(["tune", "absent.keras"]) == 2 and "there is no such file" in capsys.readouterr().err
    assert cli.main(["tune", "--all", "--device", "no such device"]) == 2


def test_the_command_prints_a_table_and_where_the_record_is(device, monkeypatch, capsys):
    monkeypatch.setattr(command.standard, "problems", lambda traits: [PROBLEM])
    monkeypatch.setattr(run, "PROCESS", [sys.executable, PLANTED, ""])
    assert cli.main(["tune", "--all", "--minutes", "1"]) == 0
    said = capsys.readouterr().out
    assert "faster: 1 of 1 problems; the geometric mean of all gains is" in said and str(record.file_of(device)) in said
    assert cli.main(["tune", "--forget"]) == 0 and not record.file_of(device).exists()


def test_a_models_problems_are_those_that_its_steps_ask_for(device, tmp_path):
    script = tmp_path / "network.py"
    script.write_text(
        "import keras\n\n\ndef make():\n    inputs = keras.Input((12, 12, 4))\n"
        "    x = keras.layers.Flatten()(keras.layers.Conv2D(8, 3)(inputs))\n"
        "    model = keras.Model(inputs, keras.layers.Dense(5)(x))\n    model.compile('sgd', 'mse')\n    return model\n"
        "\n\ndef plain():\n    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])\n"
    )
    from keras_ocl.tune import model

    found, others = model.problems(f"{script}:make", device.traits)
    assert {problem.operation for problem in found} == {"product", "convolution", "filter_gradient"} and others == 0
    assert Problem("convolution", "float32 input=32*,12,12,4 filter=3,3,4,8 output=32*,10,10,8 low=0,0") in found
    assert [p.key for p in model.problems(f"{script}:plain", device.traits)[0]] == ["float32 m=32* n=3 k=6 a=float32(6,1) b=float32(3,1)"]


def test_nothing_is_noted_unless_somebody_asks(device):
    with asked() as seen:
        kernels(PROBLEM, plain(PROBLEM, device.traits)[0])
    before = dict(seen.problems)
    kernels(PROBLEM, plain(PROBLEM, device.traits)[0])
    assert before == dict(seen.problems) == {("product", KEY): 1}
