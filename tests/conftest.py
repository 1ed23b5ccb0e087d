"""All tests run on this backend; those that need another start a process of their own."""

import os
import random
import sys

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "ocl"
os.environ.setdefault("KERAS_OCL_COMPILERS", "0")  # all cores run tests already


BEGINNINGS = {}  # from each generator of the modules of tests to the state in which its module left it


def pytest_collection_finish():
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            BEGINNINGS.update({v: v.bit_generator.state for v in vars(module).values() if isinstance(v, np.random.Generator)})


def pytest_runtest_setup():
    """What a test draws, and fixtures for it, does not depend on the tests that ran before it in its process."""
    random.seed(0)  # Keras's seeds where a layer is given none
    np.random.seed(0)
    for generator, state in BEGINNINGS.items():
        generator.bit_generator.state = state


if os.environ.get("KERAS_OCL_TEST_ACCESSES", "0") not in ("", "0"):

    @pytest.fixture(autouse=True)
    def checked_accesses():
        """Every kernel compares each access with its buffer."""
        from tests.accesses.checking import installed

        with installed():
            yield


@pytest.fixture
def apart(monkeypatch):
    """Small kernels stay launches of their own, for tests that count what fusion makes."""
    from keras_ocl.compiler import executable

    monkeypatch.setattr(executable, "chained", lambda launches, traits: launches)
    monkeypatch.setattr(executable, "side_by_side", lambda launches, traits, resolve: launches)
