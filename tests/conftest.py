"""All tests run on this backend; those that need another start a process of their own."""

import os
import random
import sys
import zlib

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "ocl"
os.environ.setdefault("KERAS_OCL_COMPILERS", "0")  # all cores run tests already


GENERATORS = []  # of all modules of tests, those that only lend others their functions too


def pytest_collection_finish():
    values = [value for name, module in sys.modules.items() if name.startswith("tests.") for value in vars(module).values()]
    GENERATORS.extend({id(value): value for value in values if isinstance(value, np.random.Generator)}.values())


def pytest_runtest_setup(item):
    """What a test draws depends on its name, not on the tests that ran before it in its process."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)  # Keras's seeds where a layer is given none
    np.random.seed(seed)
    state = np.random.default_rng(seed).bit_generator.state
    for generator in GENERATORS:
        generator.bit_generator.state = state


@pytest.fixture
def apart(monkeypatch):
    """Small kernels stay launches of their own, for tests that count what fusion makes."""
    from keras_ocl.compiler import executable

    monkeypatch.setattr(executable, "chained", lambda launches, traits: launches)
    monkeypatch.setattr(executable, "side_by_side", lambda launches, traits, resolve: launches)
