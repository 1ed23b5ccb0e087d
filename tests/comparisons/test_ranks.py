"""Ranks with a core each train as one process does, and what cannot be run is left out with the reason."""

import json
import types

import numpy as np
import pytest

from comparisons.measures import Context, is_spread
from comparisons.studies import cnn, ranks
from comparisons.study import Extent
from comparisons.subject import Subject
from keras_ocl import runtime
from keras_ocl.distribution import launcher
from tests.distribution.job import needs_mpi


@pytest.fixture
def context(tmp_path):
    """The Context of Model 0's row, with few images, of which the last mini-batch has 8."""
    if runtime.current_device().kind != "cpu":
        pytest.skip("a CPU is needed")
    from comparisons import studies

    row, generator = cnn.STUDY.row("Model 0, ranks"), np.random.default_rng(0)
    x, y = generator.uniform(size=(40, 32, 32, 3)).astype("float32"), np.eye(10, dtype="float32")[generator.integers(0, 10, 40)]
    subject = Subject(x, y, x, y, lambda shape: studies.function("models", row.model)(shape, **row.options), row.batch)
    return Context(row, Extent(epochs=2, repeats=1), subject, lambda *_: None, str(tmp_path))


@needs_mpi
def test_two_ranks_have_the_losses_of_one(context, monkeypatch):
    if len(ranks.cores()) < 2:
        pytest.skip("two cores are needed")
    before = ranks.cores()
    monkeypatch.setitem(context.row.settings, "ranks", [1, 2, 1000])
    monkeypatch.setitem(context.row.settings, "steps", 6)
    found = ranks.measure(context)
    one, two = found["ranks"]
    assert (one["ranks"], two["ranks"]) == (1, 2) and is_spread(two["epoch_s"]) and two["epoch_s"]["n"] == 2
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-5)
    np.testing.assert_allclose(one["losses"], context.subject.step_losses(0, 6), rtol=1e-5)
    assert len(set(one["losses"])) == 6 and found["ranks_left_out"] == {1000: f"there are {len(before)} cores"}
    assert ranks.cores() == before


def test_what_cannot_be_run(monkeypatch):
    monkeypatch.setattr(launcher, "mpiexec", lambda: None)
    assert ranks.why_not(1) == "" and ranks.why_not(2) == ranks.MISSING


def test_a_process_that_fails_is_an_error(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps({}))
    with pytest.raises(RuntimeError, match="(?s)1 ranks: .*data.npz"):
        ranks.run(1, path, "cpu:0")


def test_gpus_are_refused(monkeypatch):
    gpu = types.SimpleNamespace(kind="gpu", name="gpu:0")
    monkeypatch.setattr(runtime, "current_device", lambda: gpu)
    with pytest.raises(RuntimeError, match="ranks with a core each need a CPU"):
        ranks.measure(types.SimpleNamespace(row=cnn.STUDY.row("Model 0, ranks")))
