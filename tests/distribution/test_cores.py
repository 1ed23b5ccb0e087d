"""Ranks of a host compute on cores of their own."""

import os
from types import SimpleNamespace

import pytest

from keras_ocl import runtime
from keras_ocl.distribution.cores import bind, share
from tests.distribution.job import needs_mpi, run_job

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are bound to cores on Linux only")

SHOW = """
    import os, sys
    from keras_ocl import runtime
    cores = " ".join(map(str, os.sched_getaffinity(0)))
    sys.stdout.write(f"cores {cores} units {runtime.current_device().traits.compute_units}\\n")  # in one piece, as ranks share the stream
"""


def lines(output):
    return sorted(line for line in output.splitlines() if line.startswith("cores"))


@pytest.mark.parametrize("places", [1, 2, 3, 5, 8])
def test_each_core_is_one_rank_s(places):
    cores = [3, 4, 5, 6, 8, 9, 10, 11]
    shares = [share(cores, place, places, lambda core: core) for place in range(places)]
    assert sorted(sum(shares, [])) == cores
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_threads_of_a_core_stay_together():
    hyperthreads = lambda cpu: (0, cpu % 4)  # noqa: E731  (as Linux counts: the second threads behind all first ones)
    assert [share(range(8), place, 4, hyperthreads) for place in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@needs_mpi
def test_ranks_divide_the_cores():
    if len(usable := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("one core cannot be divided")
    found = lines(run_job(SHOW, 2))
    cores, units = zip(*(line.removeprefix("cores ").split(" units ") for line in found), strict=True)
    assert sorted(int(core) for text in cores for core in text.split()) == usable
    assert list(units) == [str(len(text.split())) for text in cores]


@needs_mpi
def test_the_switch():
    usable = sorted(os.sched_getaffinity(0))
    assert lines(run_job(SHOW, 2, KERAS_OCL_BIND="0")) == [f"cores {' '.join(map(str, usable))} units {len(usable)}"] * 2


def test_too_late():
    runtime.current_device()
    before = os.sched_getaffinity(0)
    bind(SimpleNamespace(rank=0, size=2, allgather=lambda mine: [mine, mine]))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("others", [[1], [0, 1, 2]], ids=["by the launcher", "not at all"])
def test_where_ranks_may_use_different_cores(monkeypatch, others):
    """What a launcher has bound stays so."""
    monkeypatch.setattr(runtime, "started", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: bound.append(cores))
    for name in ("POCL_CPU_MAX_CU_COUNT", "POCL_MAX_PTHREAD_COUNT"):
        monkeypatch.setenv(name, "9")  # put back afterwards
    bind(SimpleNamespace(rank=1, size=2, allgather=lambda mine: [others, mine]))
    assert len(bound) == (others == [0, 1, 2])
