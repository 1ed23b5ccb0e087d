"""The three scripts are plain Keras, and each trains on the OpenCL backend by itself."""

import ast
import importlib
import os
import re
import subprocess
import sys

import pytest

from comparisons import studies

SCRIPTS = ("xor", "mnist_mlp", "cifar_cnn")
PLAIN = {"argparse", "sys", "time", "keras", "numpy", "sklearn"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_nothing_of_ours(root, name):
    tree = ast.parse((root / "comparisons" / f"{name}.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import works only inside our package"
            imported.add(node.module.split(".")[0])
    assert "keras" in imported
    assert imported <= PLAIN


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_have_the_sizes_of_their_rows(name):
    script, row = importlib.import_module(f"comparisons.{name}"), studies.find("scripts").row(name)
    assert (script.BATCH_SIZE, script.EPOCHS) == (row.batch, row.full.epochs)


def run_script(root, name, *arguments, backend="ocl"):
    """Run a script as a user would; return the finished process, its output in stdout."""
    return subprocess.run(
        [sys.executable, str(root / "comparisons" / f"{name}.py"), *arguments],
        env=dict(os.environ, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )


def accuracy(process, name):
    """Return the test accuracy of a script's last line, which must be of backend ocl."""
    assert process.returncode == 0, process.stdout
    assert f"{name}: backend ocl" in process.stdout
    assert "keras_ocl runs on" in process.stdout  # which device
    found = re.findall(rf"{name}: .*test accuracy ([0-9.]+), [0-9.]+ s", process.stdout)
    assert found, process.stdout
    return float(found[-1])


def test_xor_trains(root):
    process = run_script(root, "xor", "--starts", "4")
    assert accuracy(process, "xor") >= 0.5
    assert int(re.search(r"solved (\d+) of 4", process.stdout)[1]) >= 1


def test_mnist_mlp_trains(root, mnist):
    process = run_script(root, "mnist_mlp", "--data", mnist, "--epochs", "1")
    assert accuracy(process, "mnist_mlp") >= 0.94


def test_cifar_cnn_trains(root, cifar):
    process = run_script(root, "cifar_cnn", "--data", cifar, "--epochs", "1")
    assert accuracy(process, "cifar_cnn") >= 0.2


@pytest.mark.slow
def test_mnist_mlp_reaches_98_percent(root, mnist):
    process = run_script(root, "mnist_mlp", "--data", mnist, "--expect", "0.98")
    assert accuracy(process, "mnist_mlp") >= 0.98


def test_accuracy_below_the_expected_is_a_failure(root):
    process = run_script(root, "xor", "--starts", "1", "--epochs", "1", "--expect", "1.1")
    assert process.returncode != 0
    assert "below the expected 1.1" in process.stdout


@pytest.mark.parametrize("name", SCRIPTS[1:])
def test_missing_data_file_is_a_failure(root, name):
    process = run_script(root, name, "--data", "missing.npz")
    assert process.returncode != 0
    assert "missing.npz" in process.stdout
