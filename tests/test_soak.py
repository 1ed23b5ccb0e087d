"""The judgement of the soak test."""

import pytest

from tests.soak import Sample, grown, plot

MB = 1 << 20


def test_flat_after_the_warm_up():
    rising = [Sample(100 * MB * k, k, 10 * MB * k) for k in range(10)]
    flat = [Sample(1000 * MB + k % 5 * MB, 10, 100 * MB * (k % 3)) for k in range(20)]
    assert grown(rising + flat) == []


@pytest.mark.parametrize(("name", "step"), [("rss", 2 * MB), ("handles", 1), ("reserved", MB)])
def test_growth(name, step):
    assert grown([Sample(500 * MB, 10, 10 * MB)._replace(**{name: 100 * MB + k * step}) for k in range(30)]) == [name]


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    plot([Sample(500 * MB + k * MB, 10, 10 * MB) for k in range(9)], tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
