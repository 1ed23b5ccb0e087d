"""Fixtures for tests of Keras as a whole on this backend; a folder's conftest.py takes those that its tests need."""

import keras
import pytest

from keras_ocl import runtime


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same seed and leaves no global Keras state behind."""
    keras.utils.set_random_seed(1)
    yield
    keras.utils.clear_session(free_memory=False)


class Built:
    """How many kernels were built, or fetched from the disk, since the last look."""

    def __init__(self):
        self.programs = runtime.current_device().programs
        self.seen = set(self.programs._programs)

    def since(self):
        before, self.seen = self.seen, set(self.programs._programs)
        return len(self.seen - before)


@pytest.fixture
def built():
    return Built()
