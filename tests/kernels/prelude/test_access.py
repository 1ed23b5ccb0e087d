"""Declarations of the pointers through which kernels load."""

import pytest

from keras_ocl.kernels import prelude


@pytest.mark.parametrize(
    "dtype, stored", [("float32", "float"), ("bfloat16", "ushort"), ("float16", "half"), ("bool", "uchar"), ("int64", "long")]
)
def test_pointers_have_the_type_in_memory(dtype, stored):
    assert prelude.pointer(dtype, "x", "p0 + 3") == f"__global const {stored}* x = p0 + 3;\n"
