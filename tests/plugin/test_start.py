"""What the plug-in costs a Python that may never use it."""

import ast
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.plugin.process import run_python

LINE = (Path(__file__).parents[2] / "keras_ocl" / "plugin" / "keras_ocl.pth").read_text()
# The `.pth` line as Python runs it at start, and what it adds to the loaded modules.
LIST_IMPORTS = f"""
    import os, sys
    before = set(sys.modules)
    exec({LINE!r})
    print(sorted(set(sys.modules) - before))
"""


def test_pth_file_is_one_line_and_installed():
    assert LINE.startswith("import ") and LINE.count("\n") == 1 and LINE.endswith("\n")
    assert (Path(sysconfig.get_path("purelib")) / "keras_ocl.pth").read_text() == LINE


def test_start_imports_nothing():
    assert run_python(LIST_IMPORTS, "-I", "-S") == "[]"


@pytest.fixture
def no_hook(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "KerasOclHook"])


def test_start_takes_less_than_a_millisecond(no_hook):
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        exec(LINE, {})
        best = min(best, time.perf_counter() - start)
        del sys.meta_path[0]
    assert best < 1e-3


def test_the_line_may_run_twice(no_hook):
    """As Python 3.11 does in a virtual environment."""
    before = len(sys.meta_path)
    for _ in range(2):
        exec(LINE, {})
    assert len(sys.meta_path) == before + 1


def test_start_loads_nothing_of_ours_for_other_imports():
    loaded = run_python("import json, sys; print([name for name in sys.modules if name.startswith('keras')])", KERAS_BACKEND="ocl")
    assert loaded == "[]"


def test_import_loads_neither_keras_nor_numpy_nor_pyopencl():
    loaded = set(run_python("import sys, keras_ocl; print(*sys.modules)").split())
    assert "keras_ocl" in loaded
    assert not {"keras", "numpy", "pyopencl", "ml_dtypes", "keras_ocl.plugin.rewrite"} & loaded


def test_public_names_are_listed_and_unknown_ones_refused():
    listed, unknown = run_python("import keras_ocl; print(dir(keras_ocl), hasattr(keras_ocl, 'nothing'), sep='\\n')").splitlines()
    names = "__version__ devices memory_info jit grad value_and_grad GradientTape profile custom_op clear_cache".split()
    assert set(names) <= set(ast.literal_eval(listed))
    assert unknown == "False"


def test_public_names_resolve():
    output = run_python("import keras_ocl; print([name for name in keras_ocl.__all__ if not hasattr(keras_ocl, name)])")
    assert output == "[]"
