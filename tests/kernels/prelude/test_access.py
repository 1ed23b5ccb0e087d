"""Declarations of the pointers through which kernels load."""

import pytest

from keras_ocl.kernels import prelude


@pytest.mark.parametrize(
    "dtype, stored", [("float32", "float"), ("bfloat16", "ushort"), ("float16", "half"), ("bool", "uchar"), ("int64", "long")]
)
def test_pointers_have_the_type_in_memory(dtype, stored):
    assert prelude.pointer(dtype, "x", "p0 + 3") == f"__global const {stored}* x = p0 + 3;\n"


def test_runs_make_up_a_count():
    assert prelude.runs(16) == [(0, 16)] and prelude.runs(13) == [(0, 8), (8, 4), (12, 1)] and prelude.runs(0) == []
