"""The command line of `report`, and a report as Markdown."""

import json
import os

import pytest

from keras_ocl import cli, runtime
from keras_ocl.report import command
from keras_ocl.report.text import markdown
from tests.report.sample import sample


@pytest.fixture
def made(monkeypatch):
    """What `make` was called with; it makes the sample."""
    calls = []

    def make(device, short, begin):
        calls.append((device, short))
        begin("a thing")
        print("a driver's line")
        return sample()

    monkeypatch.setattr(command, "make", make)
    return calls


def test_standard_output_is_the_report(made, capsys, monkeypatch):
    monkeypatch.delenv("KERAS_OCL_QUARANTINE", raising=False)
    assert cli.main(["report"]) == 0
    out, errors = capsys.readouterr()
    assert json.loads(out) == sample() and "a driver's line" in errors
    assert made == [(runtime.current_device(), True)] and "KERAS_OCL_QUARANTINE" not in os.environ


def test_the_named_device(made, capsys):
    last = [info.name for info in runtime.devices() if info.usable][-1]
    assert cli.main(["report", "--device", last, "--whole", "--markdown"]) == 0
    assert made == [(runtime.find_device(last), False)]
    assert capsys.readouterr().out == markdown(sample()) + "\n"
    assert cli.main(["report", "--device", "no such device"]) == 2
    assert "no usable OpenCL device is called 'no such device'" in capsys.readouterr().err


def test_a_report_that_was_made_before(tmp_path, capsys, made):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(sample()))
    assert cli.main(["report", "--read", str(path), "--markdown"]) == 0
    assert capsys.readouterr().out == markdown(sample()) + "\n" and made == []
    for text, says in (("{", "is no report: "), ('{"format": 0}', "is no report of the format 1: make it again"), ("[]", "is no report")):
        path.write_text(text)
        assert cli.main(["report", "--read", str(path)]) == 2
        assert says in capsys.readouterr().err
    assert cli.main(["report", "--read", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_markdown():
    text = markdown(sample())
    assert text.startswith("### Device | 9000: A platform, driver 1.2\n")
    for line in (
        "| device | gpu:0, Device \\| 9000, A vendor |",
        "| taken as | gpu, 8 units, 1.0 GiB (copied), 32.0 KiB local, float64, float16 |",
        "| matrix unit unit | refused: its probe computes wrong values |",
        "| multiply-adds a byte | 4.5 measured, 20 taken |",
        "Few cases of each family; right: sorts.",
        "| scans | crashed | 1 of 3 | a \\| b | right |",
        "| a launch among many | 1 us | 2 us | 7 |  |",
        "| memory, read and written | 4 ms | 8 ms | 7 | 10 GB/s |",
        "| product 2048 x 2048 x 2048 | 1 ms | 2 ms | 7 | 1000 GFLOP/s |",
        "| convolution 3x3, 64 of 28 x 28 x 128 to 128 | a signal, 6, ended its process |  |  |  |",
        "| MNIST MLP | 1.25 ms | 2.5 ms | 7 | 400 steps/s |",
    ):
        assert f"\n{line}\n" in text, line
    assert json.loads(text.partition("```json\n")[2].partition("```")[0]) == sample()
