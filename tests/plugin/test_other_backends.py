"""Programs that use another backend, or no Keras at all, go on untouched, whatever has become of this package."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
import zipapp
from pathlib import Path

import pytest

from tests.plugin.process import run_python

ROOT = Path(__file__).parents[2]
SHOW = """
    import sys
    import keras
    print(keras.config.backend(), sorted(name for name in sys.modules if name.startswith("keras_ocl")))
    print([type(finder).__name__ for finder in sys.meta_path if type(finder).__module__.startswith("keras_ocl")])
"""
UNTOUCHED = ["numpy []", "[]"]


class Environment:
    """An environment of its own with this checkout's `.pth` file and an editable installation whose source may move."""

    def __init__(self, folder):
        venv.create(folder / "env", symlinks=os.name != "nt", with_pip=False)
        self.python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        purelib = Path(run_python("import sysconfig; print(sysconfig.get_path('purelib'))", "-I", python=self.python))
        self.pth = purelib / "keras_ocl.pth"
        shutil.copy(ROOT / "keras_ocl" / "plugin" / "keras_ocl.pth", self.pth)
        self.source = folder / "source" / "keras_ocl"
        (purelib / "_editable_impl_keras_ocl.pth").write_text(str(self.source.parent))
        # The dependencies are this environment's, without what is installed of this package there.
        for path in sys.path:
            if path.endswith(("site-packages", "dist-packages")):
                for entry in os.scandir(path):
                    if "keras_ocl" not in entry.name and not entry.name.endswith(".pth") and not (purelib / entry.name).exists():
                        (purelib / entry.name).symlink_to(entry.path)

    def run(self, code, *options, backend="", json_backend="numpy", home):
        """(what it prints, its errors): lines of each; Keras's own error when it cannot import a backend is no failure."""
        (home / "keras.json").write_text(json.dumps({"backend": json_backend}))
        guarded = "try:\n" + textwrap.indent(textwrap.dedent(code), "    ") + "\nexcept ValueError as error:\n    print(error)\n"
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("KERAS_", "PYTHON"))}
        variables |= {"KERAS_HOME": str(home)} | ({"KERAS_BACKEND": backend} if backend else {})
        command = [self.python, *options, "-c", guarded]
        result = subprocess.run(command, env=variables, cwd=home, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines(), result.stderr.splitlines()


@pytest.fixture
def needs_numpy_backend():
    pytest.importorskip("jax", reason="Keras's NumPy backend imports it")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if os.name == "nt":
        pytest.skip("links to the dependencies need rights on Windows")
    return Environment(tmp_path_factory.mktemp("environment"))


def whole(source):
    pass


def gone(source):
    shutil.rmtree(source)


def gone_but_for_empty_folders(source):
    gone(source)
    (source / "plugin" / "__pycache__").mkdir(parents=True)


def broken(source):
    (source / "plugin" / "finder.py").write_text("this is no Python")


def half_there(source):
    (source / "plugin" / "edits.py").unlink()


@pytest.fixture
def put_source(environment):
    def put(state):
        shutil.rmtree(environment.source.parent, ignore_errors=True)
        environment.source.mkdir(parents=True)
        shutil.copy(ROOT / "keras_ocl" / "__init__.py", environment.source)
        shutil.copytree(ROOT / "keras_ocl" / "plugin", environment.source / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
        state(environment.source)

    return put


lost = pytest.mark.parametrize("state", [gone, gone_but_for_empty_folders, broken, half_there], ids=lambda state: state.__name__)


def test_the_environment_runs_this_checkouts_hook(needs_numpy_backend, environment, put_source, tmp_path):
    """What the other tests here do not see would otherwise be absent for another reason."""
    put_source(whole)
    printed, errors = environment.run(SHOW, home=tmp_path)
    assert printed[0].startswith("numpy ['keras_ocl', 'keras_ocl.plugin'") and printed[1] == "['BackendFinder']" and errors == []


@lost
def test_numpy_goes_on_where_the_package_is_lost(needs_numpy_backend, environment, put_source, tmp_path, state):
    put_source(state)
    printed, errors = environment.run(SHOW, home=tmp_path)
    assert printed[0].startswith("numpy ") and printed[1:] == UNTOUCHED[1:] and errors == []
    assert environment.run(SHOW, backend="numpy", json_backend="ocl", home=tmp_path) == (UNTOUCHED, [])


@lost
@pytest.mark.parametrize("asked", [{"backend": "ocl"}, {"json_backend": "ocl"}], ids=["variable", "keras.json"])
def test_one_warning_where_ocl_was_asked_for_and_the_package_is_lost(environment, put_source, tmp_path, state, asked):
    put_source(state)
    printed, errors = environment.run(SHOW, home=tmp_path, **asked)
    assert printed == ["Unable to import backend : ocl"]
    assert sum("UserWarning" in line for line in errors) == 1
    assert "keras_ocl cannot be imported" in errors[0] and "pip install --force-reinstall keras-ocl" in errors[0]


def test_a_configuration_that_cannot_be_read_asks_for_nothing(needs_numpy_backend, environment, put_source, tmp_path):
    put_source(gone)
    for home in (tmp_path / "missing", tmp_path):
        printed = run_python("import keras", python=environment.python, home=home, PYTHONWARNINGS="", KERAS_BACKEND="numpy")
        assert printed == ""
    (tmp_path / "keras.json").write_text("no json")
    code = "import keras.src.backend.config; print('went on')"
    (tmp_path / "keras").mkdir()  # an empty Keras, which does not look for TensorFlow
    for name in ("keras/__init__.py", "keras/src/__init__.py", "keras/src/backend/__init__.py", "keras/src/backend/config.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    result = subprocess.run(
        [environment.python, "-c", code], env={"KERAS_HOME": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (result.stdout, result.stderr) == ("went on\n", "")


def test_a_keras_that_is_built_otherwise_goes_on(environment, put_source, tmp_path):
    """Keras 2 has no keras.src.backend.config; the same program in a zip archive has no files on disk either."""
    put_source(whole)
    files = {
        "__main__.py": "import keras; print(keras.answer)",
        "keras/__init__.py": "from keras.src.backend import answer",
        "keras/src/__init__.py": "",
        "keras/src/backend.py": "answer = 42",
    }
    for name, text in files.items():
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(text)
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    for program in ("app", "app.pyz"):
        for variables, out, error in (({}, "42\n", ""), ({"KERAS_BACKEND": "ocl"}, "", "keras_ocl does not support Keras")):
            command = [environment.python, tmp_path / program]
            result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
            assert result.stdout == out and (error in result.stderr if error else result.stderr == "")


@pytest.mark.parametrize("options", [["-S"], ["-I"], ["-I", "-S"], ["-E", "-s"]], ids=" ".join)
def test_isolated_interpreters_load_nothing_more(environment, put_source, tmp_path, options):
    put_source(gone)
    code = "import sys; print(sorted(sys.modules)); print([getattr(f, '__name__', type(f).__name__) for f in sys.meta_path])"
    (modules, finders), errors = environment.run(code, *options, home=tmp_path)
    aside = environment.pth.rename(environment.pth.with_suffix(".aside"))
    try:
        (modules_without, finders_without), _ = environment.run(code, *options, home=tmp_path)
    finally:
        aside.rename(environment.pth)
    assert modules == modules_without and errors == []
    assert finders.count("KerasOclHook") == ("-S" not in options) and "KerasOclHook" not in finders_without


def test_a_zipapp_runs_as_it_does_without(environment, put_source, tmp_path):
    put_source(gone)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import sys, json; print(len(sys.modules), sys.argv[1:], 'keras' in sys.modules)")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")

    def run():
        return subprocess.run([environment.python, tmp_path / "app.pyz", "x"], capture_output=True, text=True, timeout=300)

    with_hook = run()
    aside = environment.pth.rename(environment.pth.with_suffix(".aside"))
    try:
        without = run()
    finally:
        aside.rename(environment.pth)
    assert (with_hook.stdout, with_hook.stderr) == (without.stdout, "") and "['x'] False" in with_hook.stdout
