"""What is built for users: the files of the wheel and the source distribution, and that the wheel trains from an environment of its own."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import keras_ocl
from tests.plugin.process import run_python

ROOT = Path(__file__).parents[1]
NAME = f"keras_ocl-{keras_ocl.__version__}"

XOR = """
    import keras, keras_ocl, sys
    assert keras_ocl.__file__.startswith(sys.prefix), keras_ocl.__file__
    keras.utils.set_random_seed(1)
    x = keras.ops.convert_to_tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = keras.ops.convert_to_tensor([[0.0], [1.0], [1.0], [0.0]])
    model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy")
    model.fit(x, y, batch_size=4, epochs=200, verbose=0)
    print(keras.config.backend(), keras_ocl.__version__, *(model.predict(x, verbose=0)[:, 0].round().astype(int)))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, built from the source distribution, and the source distribution."""
    for package in ("build", "hatchling"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"builds need the package {package}: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-I", "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / f"{NAME}-py3-none-any.whl", folder / f"{NAME}.tar.gz"


def sources():
    """The package's files, named as in an archive."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "keras_ocl").rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_files_of_the_wheel(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"{NAME}.dist-info/METADATA").decode()
    beside = {name for name in names if not name.startswith(f"{NAME}.dist-info/")}
    assert beside == sources() - {"keras_ocl/plugin/keras_ocl.pth"} | {"keras_ocl.pth"}  # where Python runs it at start
    assert "keras_ocl/py.typed" in names and f"{NAME}.dist-info/licenses/LICENSE" in names
    assert "Classifier: Typing :: Typed" in metadata and "\n# keras_ocl\n" in metadata


def test_files_of_the_source_distribution(built):
    with tarfile.open(built[1]) as sdist:
        names = {member.name.removeprefix(f"{NAME}/") for member in sdist.getmembers() if member.isfile()}
    others = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert names == sources() | others


def environment(folder):
    """A fresh environment in `folder`: its Python, and the folder of its packages."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    return python, Path(run_python("import sysconfig; print(sysconfig.get_path('purelib'))", "-I", python=python))


def pip(python, *arguments):
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *arguments], check=True, capture_output=True, timeout=300)


def test_the_wheel_trains_in_an_environment_of_its_own(built, tmp_path):
    python, purelib = environment(tmp_path)
    pip(python, "install", "--no-deps", "--no-index", built[0])
    # The dependencies are this environment's. Python does not run the `.pth` files there, so that the backend is the wheel's.
    (purelib / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith(("site-packages", "dist-packages"))))
    assert run_python(XOR, "-I", python=python, KERAS_BACKEND="ocl") == f"ocl {keras_ocl.__version__} 0 1 1 0"


@pytest.mark.parametrize("editable", [False, True])
def test_nothing_is_left_once_it_is_uninstalled(built, tmp_path, editable):
    python, purelib = environment(tmp_path / "environment")
    files = set((tmp_path / "environment").rglob("*"))
    what = built[0]
    if editable:
        pytest.importorskip("editables", reason="hatchling's editable builds need the package editables: pip install '.[test]'")
        source = tmp_path / "source"
        for name in ("keras_ocl", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", ".gitignore"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / name)
        build = f"from hatchling.build import build_editable; print(build_editable({str(tmp_path)!r}))"
        result = subprocess.run([sys.executable, "-I", "-c", build], cwd=source, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        what = tmp_path / result.stdout.strip()
    pip(python, "install", "--no-deps", "--no-index", what)
    show = "import keras_ocl, sys; print(keras_ocl.__file__, sum(getattr(f, '__name__', '') == 'KerasOclHook' for f in sys.meta_path))"
    file, hooks = run_python(show, "-I", python=python).split()
    assert file.startswith(str(source if editable else purelib)) and hooks == "1" and (purelib / "keras_ocl.pth").exists()
    pip(python, "uninstall", "--yes", "keras-ocl")
    assert set((tmp_path / "environment").rglob("*")) <= files
