"""What PyInstaller needs to bundle a program that uses this backend."""

import ast
import importlib.util
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.plugin.process import run_python

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "keras_ocl" / "__pyinstaller"


def test_the_entry_point_names_the_folder_of_hooks():
    (place,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pyinstaller40"].values()
    module, _, function = place.partition(":")
    (folder,) = getattr(import_module(module), function)()
    assert Path(folder).samefile(HOOKS)
    assert importlib.util.find_spec("keras.src.backend") and (HOOKS / "hook-keras.src.backend.py").is_file()
    hooks = ast.literal_eval((HOOKS / "rthooks.dat").read_text())
    assert all((HOOKS / "rthooks" / name).is_file() for names in hooks.values() for name in names)


def test_a_bundled_program_waits_for_keras_as_an_installed_python_does():
    output = run_python(f"""
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "KerasOclHook"]
        sys._MEIPASS = {str(ROOT)!r}
        exec(open({str(HOOKS / "rthooks" / "pyi_rth_keras_ocl.py")!r}).read())
        print([finder.__name__ for finder in sys.meta_path if getattr(finder, "__name__", "") == "KerasOclHook"])
        print([name for name in sys.modules if name.startswith("keras")])
    """)
    assert output.splitlines() == ["['KerasOclHook']", "[]"]


PROGRAM = """
import os
os.environ["KERAS_BACKEND"] = "ocl"
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(keras.ops.ones((8, 4)), keras.ops.ones((8, 2)), verbose=0)
print(keras.config.backend(), model.predict(keras.ops.ones((1, 4)), verbose=0).shape)
"""


@pytest.mark.slow
def test_one_folder_trains(tmp_path):
    if importlib.util.find_spec("PyInstaller") is None:
        pytest.skip("needs PyInstaller, in an environment into which keras-ocl is installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", "program.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=1800)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = tmp_path / "dist" / "program" / "program"
    result = subprocess.run([program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.stdout.splitlines() == ["ocl (1, 2)"], result.stderr
