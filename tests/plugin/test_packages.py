"""The edit of packages that build on Keras, on a package of that name and on the installed one."""

import importlib.util
from pathlib import Path

import pytest

from keras_ocl.plugin.edits import EDITS_OF_PACKAGE
from tests.plugin.process import run_python

TASK = '''
import keras


class Task:
    """A task."""

    run_eagerly = False
    name = "task"
    generate_function = None
    runs = 0

    def generate_step(self, x, times=1):
        self.runs += 1
        return keras.ops.while_loop(lambda n, x: n < times, lambda n, x: (n + 1, x * 2.0), (keras.ops.zeros((), "int32"), x))[1]

    def make_generate_function(self):
        """The function."""
        if self.generate_function is not None:
            return self.generate_function

        self.generate_function = self.generate_step
        if keras.config.backend() == "torch":
            self.generate_function = None
        return self.generate_function


class Odd(Task):
    def make_generate_function(self):
        return self.generate_step
'''
USE = """
    import sys, warnings
    sys.path.insert(0, {folder!r})
    warnings.simplefilter("always")
    import keras  # as keras_hub/__init__.py does before its tasks
    import numpy as np
    from keras_hub.src.task import Odd, Task
    x = np.ones(3, "float32")
    for kind in {kinds}:
        task = kind()
        task.run_eagerly = {eager}
        with warnings.catch_warnings(record=True) as told:
            for k in range(3):
                y = task.make_generate_function()(x, times=3)
        print(task.runs, float(y[0]), [str(w.message) for w in told])
"""


@pytest.fixture
def package(tmp_path):
    (tmp_path / "keras_hub" / "src").mkdir(parents=True)
    for folder in ("", "src"):
        (tmp_path / "keras_hub" / folder / "__init__.py").touch()
    (tmp_path / "keras_hub" / "src" / "task.py").write_text(TASK)
    return str(tmp_path)


def use(package, kinds="[Task]", eager=False, backend="ocl"):
    return run_python(USE.format(folder=package, kinds=kinds, eager=eager), KERAS_BACKEND=backend).splitlines()


def test_generation_is_compiled(package):
    assert use(package) == ["1 8.0 []"]


def test_not_where_the_task_runs_eagerly(package):
    assert use(package, eager=True) == ["3 8.0 []"]


def test_another_way_to_compile_stays_eager_and_is_told_once(package):
    (line,) = use(package, "[Odd]")
    assert line.startswith("3 8.0 ['keras_ocl does not know how this version of keras_hub compiles Odd.generate")
    assert line.count("keras_ocl") == 1


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_other_backends_do_not_notice(package):
    assert use(package, "[Task, Odd]", backend="tensorflow") == ["3 8.0 []"] * 2


def test_attention_is_one_operation(package):
    """Where KerasHub asks for backends by name."""
    attention = 'def fused_attention_op_available():\n    """Whether."""\n    return keras.config.backend() == "jax"\n'
    Path(package, "keras_hub", "src", "attention.py").write_text(f"import keras\n\n{attention}")
    code = f"""
        import keras, sys
        sys.path.insert(0, {package!r})
        from keras_hub.src.attention import fused_attention_op_available
        print(fused_attention_op_available())
        """
    assert run_python(code, KERAS_BACKEND="ocl") == "True"


def test_the_installed_package_has_what_is_edited():
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras-hub is not installed")
    (root,) = importlib.util.find_spec("keras_hub").submodule_search_locations
    generates, attends = EDITS_OF_PACKAGE["keras_hub"]
    texts = {path: path.read_text() for path in Path(root).rglob("*.py")}
    for path, text in texts.items():
        assert text.count(f"def {generates.scope}(") == text.count(f"        {generates.statement}\n"), path
    assert sum(text.count(f"def {generates.scope}(") for text in texts.values())
    assert sum(text.count(f"\ndef {attends.scope}():\n") for text in texts.values()) == 1
