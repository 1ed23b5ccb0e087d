"""All tests run on this backend; those that need another start a process of their own."""

import os

import pytest

os.environ["KERAS_BACKEND"] = "ocl"
os.environ.setdefault("KERAS_OCL_COMPILERS", "0")  # all cores run tests already


@pytest.fixture
def apart(monkeypatch):
    """Small kernels stay launches of their own, for tests that count what fusion makes."""
    from keras_ocl.compiler import executable

    monkeypatch.setattr(executable, "chained", lambda launches, traits: launches)
    monkeypatch.setattr(executable, "side_by_side", lambda launches, traits, resolve: launches)
