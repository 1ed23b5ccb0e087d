"""Each way of choosing this backend, in a fresh process."""

import importlib.util
import json

import pytest

from tests.plugin.process import run_python

SHOW_BACKEND = "import keras; print(keras.config.backend(), type(keras.ops.ones((2,))).__module__.partition('.')[0])"
OURS = "ocl keras_ocl"
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")


@pytest.fixture
def home(tmp_path):
    """A folder for Keras's configuration, and a way to write it."""

    def write(backend):
        (tmp_path / "keras.json").write_text(json.dumps({"backend": backend}))
        return tmp_path

    return write


def test_environment_variable(home):
    assert run_python(SHOW_BACKEND, home=home("tensorflow"), KERAS_BACKEND="ocl") == OURS


def test_keras_json(home):
    assert run_python(SHOW_BACKEND, home=home("ocl")) == OURS


def test_empty_environment_variable_counts_as_unset(home):
    assert run_python(SHOW_BACKEND, home=home("ocl"), KERAS_BACKEND="") == OURS


def test_import_before_keras(home):
    assert run_python("import keras_ocl\n" + SHOW_BACKEND, home=home("tensorflow")) == OURS


def test_import_does_not_override_the_environment():
    output = run_python("import os, keras_ocl; print(os.environ['KERAS_BACKEND'])", KERAS_BACKEND="jax")
    assert output == "jax"


def test_a_part_imported_before_keras_loads_keras_first():
    output = run_python("""
        import keras_ocl.ops.numpy as first
        import sys, keras
        from keras.src import backend
        print(keras.config.backend(), backend.numpy is first, sys.modules["keras_ocl.ops.numpy"] is first)
    """)
    assert output == "ocl True True"


@needs_tensorflow
def test_other_backend_and_back(home):
    output = run_python(
        """
        import inspect, sys
        import keras
        from keras.src.utils.backend_utils import DynamicBackend

        print(keras.config.backend(), sorted(name for name in sys.modules if name.startswith("keras_ocl")))
        try:
            DynamicBackend().set_backend("ocl")
        except ValueError:
            print("Keras as it is")

        def loss_after_training():
            import keras
            import numpy as np
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
            x = np.arange(12, dtype="float32").reshape(4, 3) / 12
            model.fit(x, x.sum(1, keepdims=True) + 1, batch_size=4, epochs=2, verbose=0)
            return round(float(model.evaluate(x, x.sum(1, keepdims=True) + 1, verbose=0)), 4)

        losses, runtimes = [loss_after_training()], []
        for name in ["ocl", "tensorflow", "ocl"]:
            keras.config.set_backend(name)
            import keras
            losses.append(loss_after_training())
            if name == "ocl":
                import keras_ocl.runtime
                runtimes.append((keras_ocl.runtime, keras_ocl.runtime.current_device()))
            print(keras.config.backend(), "tensorflow" in type(keras.ops.ones(2)).__module__)
        print(len(set(losses)), losses[0] > 0)
        print(runtimes[0][0] is runtimes[1][0], runtimes[0][1] is runtimes[1][1])
        """,
        home=home("tensorflow"),
    )
    assert output.splitlines() == [
        "tensorflow ['keras_ocl', 'keras_ocl.plugin', 'keras_ocl.plugin.edits', 'keras_ocl.plugin.finder']",
        "Keras as it is",
        "ocl False",
        "tensorflow True",
        "ocl False",
        "1 True",
        "True True",
    ]


@needs_tensorflow
def test_other_backend_in_the_environment_loads_nothing_of_ours(home):
    output = run_python(
        "import sys, keras; print(keras.config.backend(), [name for name in sys.modules if name.startswith('keras_ocl')])",
        home=home("ocl"),
        KERAS_BACKEND="tensorflow",
    )
    assert output == "tensorflow []"


def test_dynamic_backend():
    output = run_python(
        """
        from keras.src.utils.backend_utils import DynamicBackend
        backend = DynamicBackend()
        print(backend.name, backend.numpy.__name__, backend.nn.__name__)
        backend.set_backend("ocl")
        print(backend.shape(backend.numpy.ones((2, 3))))
        try:
            backend.set_backend("unknown")
        except ValueError as error:
            print("ValueError")
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == ["ocl keras_ocl.ops.numpy keras_ocl.ops.nn", "(2, 3)", "ValueError"]


def test_keras_takes_our_classes():
    output = run_python(
        """
        import keras
        from keras.src.export.saved_model import BackendSavedModelExportArchive
        for cls in [keras.Variable, keras.Layer, keras.Model, keras.Optimizer, BackendSavedModelExportArchive]:
            print(*[base.__module__ + "." + base.__name__ for base in cls.__mro__ if base.__module__.startswith("keras_ocl")])
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == [
        "keras_ocl.hooks.variable.Variable",
        "keras_ocl.hooks.layer.OclLayer",
        "keras_ocl.hooks.trainer.OclTrainer keras_ocl.hooks.layer.OclLayer",
        "keras_ocl.hooks.optimizer.OclOptimizer",
        "keras_ocl.export.OclExportArchive",
    ]


def test_source_text_of_edited_modules_is_found():
    output = run_python(
        """
        import inspect, keras
        from keras.src.optimizers import optimizer
        print(inspect.getsource(keras.Layer).splitlines()[1][:12], inspect.getsourcelines(keras.Layer.build)[0][-1].strip()[:20])
        print(type(optimizer.__loader__).__name__, optimizer.__spec__.loader is optimizer.__loader__)
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines()[0].startswith("class Layer(")
    assert output.splitlines()[1] == "SourceFileLoader True"


def test_nothing_is_written_to_keras(tmp_path):
    output = run_python(
        """
        import sys, pathlib, keras
        from keras.src.optimizers import optimizer
        print(list(pathlib.Path(sys.pycache_prefix).rglob("optimizers/optimizer.*.pyc")))
        print(len(list(pathlib.Path(sys.pycache_prefix).rglob("optimizers/base_optimizer.*.pyc"))))
        """,
        KERAS_BACKEND="ocl",
        PYTHONPYCACHEPREFIX=str(tmp_path / "bytecode"),
        PYTHONDONTWRITEBYTECODE="",
    )
    assert output.splitlines() == ["[]", "1"]


def test_export_of_a_saved_model_is_refused(tmp_path):
    output = run_python(
        f"""
        import keras
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        try:
            model.export({str(tmp_path / "model")!r})
        except NotImplementedError as error:
            print(error)
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.startswith("`export_saved_model` only currently supports the tensorflow, jax and torch backends.")
