"""The finder: installed once, and a keeper of process state."""

import pytest

from tests.plugin.process import run_python


def test_installation_is_idempotent():
    output = run_python("""
        import sys, keras_ocl.plugin
        first, count = keras_ocl.plugin.install(), len(sys.meta_path)
        for name in [name for name in sys.modules if name.startswith("keras")]:
            del sys.modules[name]
        import keras_ocl.plugin
        print(keras_ocl.plugin.install() is first, len(sys.meta_path) == count)
    """)
    assert output == "True True"


def test_process_state_survives_what_set_backend_does():
    output = run_python("""
        import sys
        import keras_ocl, keras_ocl.core.dim, keras_ocl.runtime
        before, spec = dict(sys.modules), keras_ocl.core.dim.__spec__
        for name in [name for name in sys.modules if name.startswith("keras")]:
            del sys.modules[name]
        import keras_ocl
        print(keras_ocl is before["keras_ocl"], hasattr(keras_ocl, "core"))
        from keras_ocl.core import dim
        import keras_ocl.runtime
        print([sys.modules[name] is before[name] for name in ["keras_ocl.core", "keras_ocl.core.dim", "keras_ocl.runtime"]])
        print(dim.__spec__ is spec, type(spec.loader).__name__, type(dim.__loader__).__name__)
    """)
    assert output.splitlines() == ["False False", "[True, True, True]", "True SourceFileLoader SourceFileLoader"]


def test_reload_runs_a_kept_module_again():
    output = run_python("""
        import importlib
        from keras_ocl.core import dtypes
        dtypes.marker = 1
        before = dtypes.__dict__.copy()
        function = next(value for value in before.values() if type(value).__name__ == "function")
        importlib.reload(dtypes)
        print(getattr(dtypes, function.__name__) is function)
    """)
    assert output == "False"


def test_a_module_that_fails_to_load_is_not_kept():
    output = run_python("""
        import keras_ocl.core, os, sys, tempfile
        with tempfile.TemporaryDirectory() as folder:
            keras_ocl.core.__path__.append(folder)
            path = os.path.join(folder, "broken_then_fine.py")
            open(path, "w").write("raise ValueError('broken')")
            try:
                import keras_ocl.core.broken_then_fine
            except ValueError as error:
                print(error)
            open(path, "w").write("value = 'fine, and longer than before'")
            import importlib
            importlib.invalidate_caches()
            import keras_ocl.core.broken_then_fine
            print(keras_ocl.core.broken_then_fine.value)
    """)
    assert output.splitlines() == ["broken", "fine, and longer than before"]


@pytest.mark.parametrize("missing", ["keras.src.layers.layer", "keras.src.optimizers.optimizer"])
def test_keras_with_another_construct_is_refused(missing):
    output = run_python(f"""
        import keras_ocl
        from keras_ocl.plugin import rewrite
        from keras_ocl.plugin.edits import EDITS
        EDITS[{missing!r}] = tuple(edit._replace(binds="Unheard") for edit in EDITS[{missing!r}])
        try:
            import keras
        except ImportError as error:
            print(type(error).__name__, error)
    """)
    assert output.startswith("UnsupportedKeras keras_ocl does not support Keras 3.")
    assert missing in output and "Unheard" in output and "pip install 'keras>=3.15" in output


@pytest.mark.parametrize("version", ["3.14.1", "3.16.0"])
def test_another_keras_is_refused_before_anything_of_ours_is_imported(version):
    output = run_python(
        f"""
        import sys, types
        other = sys.modules["keras.src.version"] = types.ModuleType("keras.src.version")
        other.__version__ = {version!r}
        try:
            import keras
        except ImportError as error:
            print(type(error).__name__, error)
        print([name for name in sys.modules if name.startswith("keras_ocl.") and not name.startswith("keras_ocl.plugin")])
        """,
        KERAS_BACKEND="ocl",
    )
    remedy = "Supported is Keras >=3.15,<3.16: pip install 'keras>=3.15,<3.16', or look for a newer keras-ocl."
    assert output.splitlines() == [f"UnsupportedKeras keras_ocl does not support Keras {version}. {remedy}", "[]"]


def test_keras_without_sources_is_refused():
    output = run_python("""
        import keras_ocl
        from keras_ocl.plugin.finder import EditingLoader
        from importlib.machinery import SourceFileLoader
        SourceFileLoader.get_source = lambda self, name: None
        try:
            import keras
        except ImportError as error:
            print(error)
    """)
    assert "the source text of keras.src.backend" in output and "is not installed" in output
