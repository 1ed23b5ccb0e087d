"""`python -m comparisons`: its arguments, its table, its files, and what it says of runs that fail."""

import json
import sys

import pytest

from comparisons import __main__ as command
from comparisons import studies, study_runner
from comparisons.data import scripts
from comparisons.workers import Workers

SCRIPTS = "xor", "mnist_mlp", "cifar_cnn"
TRAINED = {
    "device": "a device",
    "keras": "3.15.1",
    "examples": [100, 10],
    "parameters": 9,
    "batch_size": 4,
    "steps_per_epoch": 25,
    "epochs": 1,
    "import_s": 1.0,
    "peak_mib": 100,
    "starts": [{"train_loss": [0.5, 0.25], "test_loss": 0.3, "test_accuracy": value} for value in (0.5, 1.0)],
    "first_step_s": 0.5,
    "fit_ms": 0.25,
    "predict_ms": 0.125,
    "step_losses": [[1.0, 0.5]],
    "real": True,
    "notice": "",
}


def made_up(job):
    """Stand in for Workers.run: TensorFlow's losses are one percent higher; backend "broken" fails."""
    names = job.identity()
    if job.backend == "broken":
        return names | {"error": "exit status 1: boom"}, "the whole traceback"
    step_losses = [[loss * (1.01 if job.backend == "tensorflow" else 1) for loss in losses] for losses in TRAINED["step_losses"]]
    return TRAINED | names | {"step_losses": step_losses}, "notice: smaller data\nchatter\n"


@pytest.fixture
def stub(monkeypatch):
    """Replaces the worker processes; returns the list of the jobs asked for."""
    asked = []

    def run(self, job, timeout=None, listen=None):
        asked.append(job)
        return made_up(job)

    monkeypatch.setattr(Workers, "run", run)
    return asked


def test_each_script_runs_on_each_backend(stub, capsys):
    assert command.main([]) == 0
    assert [(job.row, job.backend) for job in stub] == [(s, b) for s in SCRIPTS for b in ("ocl", "tensorflow")]
    sizes = [tuple(job.extent[name] for name in ("epochs", "repeats", "steps", "step_repeats")) for job in stub[::2]]
    assert sizes == [(5, 20, 100, 20), (8, 1, 100, 20), (15, 3, 100, 5)]
    output = capsys.readouterr()
    assert "1/2 solved" in output.out
    assert "75.00%" in output.out and "35.36%" in output.out
    assert "notice: smaller data" in output.err and "chatter" not in output.err


def test_options_reach_the_jobs(stub):
    command.main(["xor", "--epochs", "2", "--starts", "3", "--steps", "4", "--limit", "40", "--seed", "5"])
    wanted = dict(epochs=2, repeats=3, steps=4, step_repeats=20, examples=40, test_examples=40, evaluated=True)
    assert [(job.extent, job.seed) for job in stub] == [(wanted, 5)] * 2


def test_parity_adds_a_float64_run_and_trains_nothing(stub, tmp_path):
    path = tmp_path / "out.json"
    command.main(["xor", "--parity", "--json", str(path)])
    assert [(job.study, job.backend) for job in stub] == [("parity", b) for b in ("ocl", "tensorflow", "tensorflow float64")]
    assert {row.measures for row in studies.find("parity").rows} == {("measures:steps",)}
    results = json.loads(path.read_text())["results"]
    assert [(r["script"], r["backend"], r["floatx"]) for r in results] == [
        ("xor", "ocl", "float32"),
        ("xor", "tensorflow", "float32"),
        ("xor", "tensorflow", "float64"),
    ]


def test_failed_run_is_shown_and_fails_the_command(stub, capsys):
    assert command.main(["xor", "--backends", "broken,tensorflow"]) == 1
    output = capsys.readouterr()
    assert "exit status 1: boom" in output.out
    assert "the whole traceback" in output.err


def test_criterion_that_is_not_met_fails_the_command(stub, capsys, monkeypatch):
    monkeypatch.setitem(TRAINED, "step_losses", [[1.0] * 10])  # a percent apart, as made_up has it
    assert command.main(["xor"]) == 1
    assert "FAILED: xor on ocl: first steps: losses of the first 10 steps differ" in capsys.readouterr().out


def test_missing_matplotlib_is_said_before_anything_runs(stub, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        command.main(["--plot", str(tmp_path)])
    assert "keras-ocl[comparisons]" in capsys.readouterr().err
    assert not stub


def test_missing_rich_gives_markdown(stub, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    command.main(["xor"])
    output = capsys.readouterr().out
    assert "keras-ocl[comparisons]" in output and "| xor | ocl | 0.2500 |" in output


def test_files_are_written(stub, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "markdown")}
    pytest.importorskip("matplotlib")
    arguments = ["xor", "mnist_mlp", "--plot", str(tmp_path / "plots")]
    for kind, path in paths.items():
        arguments += [f"--{kind}", str(path)]
    command.main(arguments)
    written = json.loads(paths["json"].read_text())
    assert written["schema"] == study_runner.SCHEMA and written["reference"] == "tensorflow"
    assert [r["backend"] for r in written["results"]] == ["ocl", "tensorflow"] * 2
    assert {v["script"] for v in written["criteria"]} == {"xor"}
    lines = paths["markdown"].read_text().splitlines()
    assert lines[0].startswith("| script | backend | train loss | test accuracy |")
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert "9.9e-03 (2)" in lines[2]
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "xor-loss.png",
        "mnist-mlp-loss.png",
        "fit.png",
        "predict.png",
        "first-step.png",
    }


def test_data_is_found_by_name(tmp_path):
    (tmp_path / "mnist.npz").touch()
    assert scripts.find("mnist_mlp", tmp_path) == str(tmp_path / "mnist.npz")
    assert scripts.find("mnist_mlp", None) is None
    assert scripts.find("xor", tmp_path) is None
    with pytest.raises(FileNotFoundError, match="holds no cifar10"):
        scripts.find("cifar_cnn", tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        scripts.find("cifar_cnn", tmp_path / "missing.npz")


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["nonsense"], "unknown script nonsense"),
        (["--reference", "jax"], "not among the backends"),
        (["mnist_mlp", "--data", "missing.npz"], "missing.npz does not exist"),
        (["--epochs", "0"], "at least 1"),
    ],
)
def test_bad_arguments_are_named(stub, capsys, arguments, complaint):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert complaint in capsys.readouterr().err
    assert not stub
