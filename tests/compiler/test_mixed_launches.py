"""Launches of training steps in mixed precision on GPUs, and what such a step computes there."""

import keras
import numpy as np
import pytest

from keras_ocl import lowering, runtime
from tests.golden.models import MODELS


@pytest.fixture(autouse=True)
def policy():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("record", ["sm_90", "gfx1100"])
@pytest.mark.parametrize("name", ["mnist_dropout", "six_hidden"])
def test_no_launch_is_a_cast_alone(name, record):
    """Products cast their operands as they load them, as all in float32 needs no casts."""
    steps = {}
    for name_of_policy in ("float32", "mixed_bfloat16"):
        keras.config.set_dtype_policy(name_of_policy)
        steps[name_of_policy] = next(s for s in lowering.lower(MODELS[name], runtime.read_record(record), True) if "train" in s.name)
    mixed = steps["mixed_bfloat16"].launches
    assert len(mixed) <= len(steps["float32"].launches) + 1, "one more where products have groups of other sizes"
    assert not any(np.all([s.primitive == "convert" for s in launch.shares]) for launch in mixed if launch.kernel)
