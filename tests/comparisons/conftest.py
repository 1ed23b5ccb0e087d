"""Where the real data lies, and what these tests need installed."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("KERAS_OCL_TEST_DATA", "")


@pytest.fixture(scope="session")
def root():
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def mnist():
    """The path of MNIST's .npz file; skips where it is not there."""
    return data_file("mnist.npz")


@pytest.fixture(scope="session")
def cifar():
    """The path of the CIFAR-10 subset's .npz file; skips where it is not there."""
    return data_file("cifar10_10k.npz")


@pytest.fixture(scope="session")
def data(mnist, cifar):
    """The folder with both files."""
    return DATA


@pytest.fixture(scope="session")
def tensorflow():
    """Skips where TensorFlow, which runs in processes of its own, is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed (pip install 'keras-ocl[comparisons]')")


def data_file(name):
    path = Path(DATA, name)
    if not DATA or not path.exists():
        pytest.skip(f"{path} is not there (set KERAS_OCL_TEST_DATA to the folder that holds {name})")
    return str(path)
