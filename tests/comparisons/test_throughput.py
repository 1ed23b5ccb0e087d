"""Each kind of case of `comparisons.throughput` is measured, and what goes wrong in one is told without losing the others."""

import json

import pytest

from comparisons import frameworks, throughput


@pytest.fixture
def small(monkeypatch):
    """A case of each kind, of a few elements."""
    cases = {}
    for kind in ("product", "product of transposed", "product with transposed"):
        cases[kind] = (kind, ((6, 6), (6, 6)), 2 * 6**3)
    for kind in ("convolution", "input gradient", "filter gradient"):
        cases |= throughput.convolution(kind, 3, 2, 5, 4, 8)
    monkeypatch.setattr(throughput, "CASES", cases)
    monkeypatch.setattr(frameworks, "LEAST", 1e-4)
    return cases


def test_seconds_of_each_kind(small, capsys):
    throughput.measure("ocl", small)
    found = dict(map(json.loads, capsys.readouterr().out.splitlines()))
    assert list(found) == list(small)
    assert all(isinstance(seconds, float) and 0 < seconds < 10 for seconds in found.values()), found


def test_an_error_is_one_cases(small, capsys):
    small["product"] = ("product", ((6, 5), (6, 6)), 1)
    throughput.measure("ocl", small)
    found = dict(map(json.loads, capsys.readouterr().out.splitlines()))
    assert found.pop("product").startswith("ValueError: ")
    assert all(isinstance(seconds, float) for seconds in found.values())
