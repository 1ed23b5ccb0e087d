"""The thesis's matrix products: right at every size they take, refused with the reason at others, and wrong ones noticed."""

import types

import keras
import numpy as np
import pytest

import keras_ocl
from comparisons.measures import Context, is_spread
from comparisons.studies import gemm_variants
from comparisons.study import Extent
from keras_ocl import runtime

NAMES = {"v1", "v2", "v3", "v4", "matmul"}


@pytest.mark.parametrize("size", [(50, 10, 50), (1, 1, 1), (16, 16, 16), (17, 33, 5)])
def test_small_products_of_all_variants(size):
    found = gemm_variants.measure_size(*size, repeats=2)
    assert set(found) == NAMES
    for name, result in found.items():
        assert len(result["seconds"]) == 2 and min(result["seconds"]) > 0 and is_spread(result["gflops"]), name
        assert 0 <= result["error"] <= 1


def test_a_work_group_that_is_too_large_is_refused_with_the_reason():
    found = gemm_variants.measure_size(333, 20, 111, repeats=1)
    for name in ("v1", "v2"):
        assert found[name].keys() == {"refused"}
        limit = "the work-group (111, 333) has 36963 work-items, but the device allows"
        assert found[name]["refused"].startswith(f"custom_op gemm_{name}: {limit}")
    assert all("seconds" in found[name] for name in ("v3", "v4", "matmul"))


def test_local_memory_that_is_too_small_is_refused_with_the_reason():
    available = runtime.current_device().traits.local_memory
    k = available // 16 + 1
    found = gemm_variants.measure_size(2, k, 2, repeats=1)
    assert f"its local arrays take {16 * k} bytes, but the device has {available} per group" in found["v2"]["refused"]
    assert "seconds" in found["v1"]


def test_a_wrong_product_is_an_error(monkeypatch):
    wrong = keras_ocl.custom_op("c[i] = a[0];", ("a", "b"), "c", shape=lambda a, b: (a[0], b[1]))
    monkeypatch.setattr(gemm_variants, "variants", lambda m, k, n: {"v1": wrong})
    with pytest.raises(ArithmeticError, match="v1 of 8x4 and 4x6 is .* times as far from NumPy's float64"):
        gemm_variants.measure_size(8, 4, 6, repeats=1)


def test_error_is_in_units_of_rounding():
    a, b = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32)).astype("float32")
    assert 0 < gemm_variants.error(a @ b, a, b) < 1 < gemm_variants.error(a @ b + np.float32(1e-3), a, b)


def test_a_row_measures_its_sizes():
    row = types.SimpleNamespace(settings={"sizes": [[5, 6, 7], [3, 2, 1]]})
    shown = []
    result = gemm_variants.measure(Context(row, Extent(repeats=2), None, lambda *text: shown.append(text), ""))
    assert set(result["gemm"]) == {"5x6x7", "3x2x1"} and result["gemm_tile"] == gemm_variants.TILE
    assert [text[1:] for text in shown] == [(0, 2), (1, 2)]


def test_other_backends_have_their_own_product_only(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    assert set(gemm_variants.measure_size(4, 5, 6, repeats=1)) == {"matmul"}
