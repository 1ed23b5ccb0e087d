"""`python -m tests.ecosystem` on a small project made for the purpose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="rich is in the extra 'conformance'")
from tests.ecosystem.differences import Differences, names_asked_for  # noqa: E402

PROJECT = """
import keras

def test_of_both():
    assert keras.ops.convert_to_numpy(keras.ops.add(1, 2)) == 3

def test_that_knows_a_name():
    if keras.config.backend() not in ("tensorflow", "jax"):
        raise ValueError(f"unknown backend {keras.config.backend()}")

def test_of_ours():
    assert keras.config.backend() == "ocl"
"""


def ecosystem(*options):
    command = [sys.executable, "-m", "tests.ecosystem", *options]
    here = Path(__file__).parents[2]
    return subprocess.run(command, cwd=here, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, timeout=300)


def test_a_project_on_two_backends(tmp_path):
    (tmp_path / "keras_rs").mkdir()
    (tmp_path / "keras_rs" / "a_test.py").write_text(PROJECT)
    run = ecosystem(f"rs={tmp_path}", "--names", "--report", str(tmp_path / "report.json"))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "Fail here only: 1: ValueError: unknown backend ocl\n    keras_rs.a_test::test_that_knows_a_name" in run.stdout
    assert "Fail on the reference only: 1: AssertionError" in run.stdout
    asked = "keras_rs/a_test.py:8: keras.config.backend() not in ('tensorflow', 'jax')"
    assert f"Places that ask for a backend by name: 1 in 1 files\n    {asked}\n" in run.stdout
    report = json.loads((tmp_path / "report.json").read_text())["rs"]
    assert [test["outcome"] for test in report["ocl"].values()] == ["passed", "failed", "passed"]
    assert [test["outcome"] for test in report["tensorflow"].values()] == ["passed", "passed", "failed"]


def test_an_unknown_suite_is_refused():
    run = ecosystem("nothing")
    assert run.returncode == 2 and "there is no suite 'nothing'; there are hub, rs" in run.stderr


def outcome(kind, text=""):
    return {"outcome": kind, "seconds": 1.0, "text": text}


def test_differences():
    failed = outcome("failed", "x.py:3: in f\nE   KeyError: 1")
    ours = {"a": failed, "b": failed, "c": outcome("passed"), "d": outcome("skipped"), "f": failed}
    found = Differences(ours, {"a": outcome("passed"), "b": failed, "c": failed, "d": outcome("passed"), "e": outcome("passed")})
    assert found.worse() == {"KeyError: 1": ["a", "f"]}
    assert found.better() == {"KeyError: 1": ["c"]}
    assert found.in_both() == 1
    assert found.skipped_here() == ["d", "e"]


def test_names_asked_for(tmp_path):
    (tmp_path / "m.py").write_text('a = backend() == "jax"\nb = mode == "jax"\nc = K.backend() in {"torch", "numpy"}\n')
    (tmp_path / "template.py").write_text("{{ no Python }} =")
    assert names_asked_for(tmp_path) == [("m.py", 1, "backend() == 'jax'"), ("m.py", 3, "K.backend() in {'torch', 'numpy'}")]
