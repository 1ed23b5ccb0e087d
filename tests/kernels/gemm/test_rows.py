"""Products that a group computes for its rows, as loops of one launch are joined of: what is read ahead, in full rounds and others."""

import dataclasses

import numpy as np
import pytest

from keras_ocl.kernels.schedules import rows
from tests.kernels.gemm.test_gemm import check, multiply, random
from tests.pairwise import pairwise


def traits_of(device, **changes):
    return dataclasses.replace(device.traits, schedule=rows.NAME, max_groups=(), **changes)


# Depths that one round reads, several full ones, and others of which the last is not full.
DEPTHS = [1, 2, 7, 24, 50, 61, 128, 200, 515]


@pytest.mark.parametrize(
    "case,k,transposed", pairwise([(1, 64, 64), (3, 37, 64), (9, 100, 4), (8, 260, 1)], DEPTHS, [(False, False), (False, True)])
)
def test_depths(device, case, k, transposed):
    m, n, units = case
    rng = np.random.default_rng(k)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(device, traits_of(device, compute_units=units), a, b, "float32", transposed=transposed)


@pytest.mark.parametrize("items", [16, 64, 512])
@pytest.mark.parametrize("registers", [16, 64, 255])
def test_groups_and_registers(device, items, registers):
    rng = np.random.default_rng(items)
    a, b = random(rng, (1, 5, 300), "float32"), random(rng, (1, 300, 72), "float32")
    check(device, traits_of(device, max_group=items, item_registers=registers), a, b, "float32")


def test_what_lies_beyond_the_depth_counts_for_nothing(device):
    """Nor do infinities that are read again in its place."""
    a, b = np.ones((1, 2, 61), "float32"), np.ones((1, 61, 8), "float32")
    b[0, -1, 3], a[0, 1, -1], b[0, 0, 5] = np.inf, -np.inf, np.nan
    for transposed in ((False, False), (False, True)):
        got = multiply(device, traits_of(device), a, b, "float32", transposed=transposed)[0]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, a[0] @ b[0])


def test_steps_read_ahead(device):
    """As many as registers allow: all at once, else in rounds that are full."""
    traits = traits_of(device, item_registers=255, max_group=256)
    ahead = [rows._ahead(traits, 4, 1, walked) for walked in (3, 10, 50, 64)]
    assert ahead == [3, 10, 10, 8]
    few, large = dataclasses.replace(traits, item_registers=32), dataclasses.replace(traits, max_group=1024)
    assert [rows._ahead(few, 4, 1, walked) for walked in (3, 10, 50, 64)] == [1, 2, 2, 2]
    # Of 512 items each has half as many, and several rows take more of them.
    assert [rows._ahead(large, 4, count, 64) for count in (1, 2, 4)] == [8, 4, 4]
