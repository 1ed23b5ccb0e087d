"""Results of TensorFlow that are stored: read as long as they are of these cases, else made anew."""

import numpy as np
import pytest

from tests.keras import tensorflow_process as process


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """A folder with cases, and a stored result 1; a run gives 2."""

    def run(module, path):
        np.savez(path, result=2)
        return path

    monkeypatch.setattr(process, "HERE", tmp_path)
    monkeypatch.setattr(process, "run", run)
    for name in ("some_cases", "parity_cases"):
        (tmp_path / f"{name}.py").write_text("")
    process.store("some_cases")
    stored = tmp_path / "tensorflow" / "some_cases.npz"
    np.savez(stored, **dict(np.load(stored)) | {"result": 1})
    return tmp_path


def test_stored_results_are_read(cases):
    assert process.results("some_cases", cases)["result"] == 1


@pytest.mark.parametrize("changed", ["some_cases", "parity_cases"])
def test_other_cases_run_again(cases, changed):
    (cases / f"{changed}.py").write_text("# changed")
    assert process.results("some_cases", cases)["result"] == 2


@pytest.mark.parametrize("name", ["keras", "tensorflow", "tensorflow-cpu"])
def test_other_versions_run_again(cases, monkeypatch, name):
    class Other:
        version = "99"

    Other.name = name
    installed = [d for d in process.distributions() if d.name.replace("_", "-") != name]
    monkeypatch.setattr(process, "distributions", lambda: [*installed, Other])
    assert process.results("some_cases", cases)["result"] == 2


def test_cases_that_were_never_stored_run(cases):
    (cases / "tensorflow" / "some_cases.npz").unlink()
    assert process.results("some_cases", cases)["result"] == 2
