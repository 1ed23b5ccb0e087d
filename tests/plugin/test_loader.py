"""Keras as its coming loader of backends will be: `keras_ocl.src` has what it asks for, and our hook stands aside."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conformance.loader import listed, with_ours
from tests.plugin.process import run_python

KERAS = Path(find_spec("keras").origin).parent

CHAIN = """
if backend() == "numpy":
    from keras.src.backend.numpy import *
elif backend() == "openvino":
    from keras_openvino.src import *
    from keras_openvino.src.layer import (
        OpenvinoLayer as BackendLayer,
    )
else:
    raise ValueError
if backend() == "openvino":
    special = 1
if name not in ("numpy", "openvino"):
    raise ValueError
"""
OURS = """elif backend() == "ocl":
    from keras_ocl.src import *
    from keras_ocl.src.layer import (
        OclLayer as BackendLayer,
    )
"""


def test_our_name_is_put_where_openvinos_is():
    before, after = CHAIN.split("elif", 1)
    assert with_ours(CHAIN) == f"{before}{OURS}elif{after}".replace('("numpy", "openvino")', '("numpy", "ocl", "openvino")')


def test_a_keras_of_another_kind_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no checkout of Keras"):
        listed(tmp_path, tmp_path)
    source = tmp_path / "keras" / "src"
    source.mkdir(parents=True)
    (tmp_path / "into").mkdir()
    with pytest.raises(SystemExit, match="keras_openvino.src"):
        listed(tmp_path, tmp_path / "into")


def test_the_package_has_what_keras_asks_for():
    output = run_python(
        """
        import importlib
        from keras_ocl import src
        names = ["IS_THREAD_SAFE", "SUPPORTS_SPARSE_TENSORS", "SUPPORTS_RAGGED_TENSORS", "SUPPORTS_COMPLEX_DTYPES", "distribution_lib",
                 "Variable", "compute_output_spec", "device_scope", "name_scope", "ops", "random", "rnn"]
        print([name for name in names if not hasattr(src, name)])
        import keras_ocl.backend as flat
        modules = ["core", "image", "linalg", "math", "nn", "numpy"]
        print([m for m in modules if getattr(src.ops, m) is not getattr(flat, m)])
        print([name for name in vars(src.ops.core) if not name.startswith("_") and not hasattr(src.ops, name)])
        print(callable(src.rnn.rnn), callable(src.rnn.lstm), callable(flat.rnn))
        from keras_ocl.src.export import OclExportArchive
        from keras_ocl.src.layer import OclLayer
        from keras_ocl.src.trainer import OclTrainer
        import keras
        print(issubclass(keras.Model, OclTrainer), issubclass(keras.Layer, OclLayer))
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == ["[]", "[]", "[]", "True True True", "True True"]


LOADED = """if backend() == "ocl":
    from keras_ocl.src import Variable
    raise LookupError("Keras loads keras_ocl.src itself")
"""
UNKNOWN = "ValueError Unable to import backend : ocl"  # what Keras says where nothing is edited


@pytest.mark.parametrize(
    "file, place, added, outcome",
    [
        ("__init__.py", "# Import backend functions.\n", LOADED, "LookupError Keras loads keras_ocl.src itself"),
        ("config.py", "# Default backend: TensorFlow.\n", '_PLUGGABLE_BACKENDS = frozenset(["ocl"])\n', UNKNOWN),
    ],
)
def test_the_hook_stands_aside_where_keras_lists_us(tmp_path, file, place, added, outcome):
    shutil.copytree(KERAS, tmp_path / "keras", ignore=shutil.ignore_patterns("__pycache__", "*_test.py"))
    chain = tmp_path / "keras" / "src" / "backend" / file
    source = chain.read_text()
    assert source.count(place) == 1
    chain.write_text(source.replace(place, added + place))
    output = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import keras_ocl.plugin
        try:
            import keras
        except Exception as error:
            print(type(error).__name__, error)
        """,
        KERAS_BACKEND="ocl",
    )
    assert output == outcome
