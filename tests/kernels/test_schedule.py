"""Schedules: the names there are, and that an unknown one is an error."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.core.dim import Dim
from keras_ocl.kernels.schedule import get, schedule_names, schedule_of

TRAITS = runtime.read_record("intel-cpu")


def test_an_unknown_schedule_is_an_error():
    assert set(schedule_names()) == {"cpu", "gpu", "reference"}
    with pytest.raises(ValueError, match="no schedule 'tpu'.*cpu, gpu, reference"):
        schedule_of(dataclasses.replace(TRAITS, schedule="tpu"))


@pytest.mark.parametrize("name", schedule_names())
def test_lanes(name):
    schedule = get(name)
    expected = (16, 8, 4, 1) if schedule.vectors else (1, 1, 1, 1)
    extents = (100, 8, Dim(100, hint=7, probe=1000003), 1)
    assert tuple(schedule.lanes(TRAITS, "float32", n) for n in extents) == expected
    assert schedule.lanes(TRAITS, "complex64", 100) == 1
    assert schedule.width(TRAITS) == (1 if name == "reference" else TRAITS.vector_width)
