"""The pytest plugin that Keras's tests run under: its conftest's duties, and our branch in trainer_test.py."""

import gc
import itertools
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path

try:
    import torch  # noqa: F401  before TensorFlow, else it crashes on import
except ImportError:
    pass

import pytest
from keras.src.backend import backend

from keras_ocl.plugin.finder import keras_lists_us

# Keras's tests import this name from the conftest.py of its repository.
sys.modules["conftest"] = sys.modules[__name__]


def skip_if_backend(name, reason):
    """A mark that skips a test on the backend `name`."""
    return pytest.mark.skipif(backend() == name, reason=reason)


_COUNT = pytest.StashKey[itertools.count]()
FREEZE = 20  # tests after which collections pass by what these left, as caches: Keras collects for each variable that it deletes


def pytest_collection_finish():
    # Collections pass by the 14,000 tests and what they import.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    counted = item.session.stash.setdefault(_COUNT, itertools.count(1))
    if next(counted) % FREEZE == 0:
        gc.collect()
        gc.freeze()


def pytest_configure(config):
    if backend() == "ocl":
        trainer_test = TrainerTest(TrainerTest.EDITS[keras_lists_us() :])
        sys.meta_path.insert(0, trainer_test)
        if not hasattr(config, "workerinput"):
            print(f"Added in memory to {trainer_test.path}:")
            print("".join(added for _, added in trainer_test.edits))


class TrainerTest(SourceFileLoader, MetaPathFinder):
    """Loads Keras's trainer_test.py with our name added where it chooses its trainer and its device."""

    MODULE = "keras.src.trainers.trainer_test"
    EDITS = (
        (
            'else:\n    raise ImportError(f"Invalid backend',
            'elif backend.backend() == "ocl":\n    from keras_ocl.hooks.trainer import OclTrainer as Trainer\n',
        ),
        ('            "torch": "cpu",\n', '            "ocl": "cpu:0",\n'),
    )

    def __init__(self, edits):
        self.edits = edits
        super().__init__(self.MODULE, str(Path(find_spec("keras").origin).parent / "src" / "trainers" / "trainer_test.py"))

    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, self.path, loader=self) if name == self.MODULE else None

    def get_code(self, fullname):
        source = Path(self.path).read_text()
        for place, added in self.edits:
            if source.count(place) != 1:
                raise ImportError(f"The installed Keras's {self.path} lacks the lines {place!r}: does this Keras have another test?")
            source = source.replace(place, added + place)
        return compile(source, self.path, "exec", dont_inherit=True)


def pytest_collection_modifyitems(config, items):
    trainable = pytest.mark.skipif(backend() in ("numpy", "openvino"), reason="Trainer not implemented for NumPy and OpenVINO backend.")
    several = pytest.mark.skip(reason="Requires multiple devices")
    for item in items:
        if "requires_trainable_backend" in item.keywords:
            item.add_marker(trainable)
        if "multi_device" in item.keywords:
            item.add_marker(several)
    part, parts = map(int, os.environ.get("KERAS_CONFORMANCE_PART", "1/1").split("/"))
    left = [item for i, item in enumerate(items) if i % parts != part - 1]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = items[part - 1 :: parts]
