"""Eager execution: kernels are shared by arrays of any length."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy


def test_arrays_of_all_lengths_share_a_kernel():
    runtime.current_device()  # its own kernel is built before
    seen = set()
    original = runtime.Device.build

    def build(self, specs, options="", unoptimised=None):
        seen.update(name for name, *_ in specs)
        return original(self, specs, options, unoptimised)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.Device, "build", build)
        for n in (3, 10, 16, 17, 100, 864, 5000, 1_000_003):
            x = np.arange(n, dtype="float32")
            np.testing.assert_array_equal(to_numpy(P.abs(from_numpy(-x))), x)
    packs = runtime.current_device().traits.schedule == "gpu"  # an item takes one element where there are few, else four
    assert len(seen) == (2 if packs else 1)
