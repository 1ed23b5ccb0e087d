"""Packages that are too old are named, with those that are not."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from keras_ocl import cli
from keras_ocl.runtime import versions
from tests.keras.tensorflow_process import ROOT

OLD = 'import importlib.metadata, sys; importlib.metadata.version = lambda name: "2024.2.6"; sys.modules["pyopencl"] = None; '
SAID = "keras_ocl does not support pyopencl 2024.2.6. Supported is pyopencl 2024.2.7 and later: pip install 'pyopencl>=2024.2.7'."


def test_an_older_pyopencl_is_refused_before_anything_else():
    result = subprocess.run([sys.executable, "-c", f"{OLD}import keras_ocl.runtime"], capture_output=True, text=True, timeout=60)
    assert result.stderr.splitlines()[-1] == f"ImportError: {SAID}"


def test_doctor_names_it():
    code = f"{OLD}from keras_ocl import cli; raise SystemExit(cli.main(['doctor']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and result.stdout.splitlines()[-1] == f"no device can be used: {SAID}", result.stderr


@pytest.mark.parametrize("version, named", [("3.14.0", True), ("3.15.2", False), ("(not installed)", False)])
def test_doctor_names_another_keras(monkeypatch, capsys, version, named):
    real = cli._version
    monkeypatch.setattr(cli, "_version", lambda name: version if name == "keras" else real(name))
    assert cli.main(["doctor"]) == 0
    assert (f"keras {version} is not supported: pip install 'keras>=3.15,<3.16'" in capsys.readouterr().out) == named


def test_pip_installs_what_is_supported():
    oldest = ".".join(map(str, versions.OLDEST_PYOPENCL))
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert f"pyopencl>={oldest}" in project["dependencies"]
