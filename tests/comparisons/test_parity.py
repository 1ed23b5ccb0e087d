"""The OpenCL backend trains as TensorFlow does: from the same weights, on the same examples, each in a process of its own."""

import pytest

from comparisons import studies, study_runner
from comparisons.criteria import FIRST_STEPS
from comparisons.workers import EXACT, Workers


def compare(name, data=None, study="scripts", **changes):
    """Run script `name` on ocl and tensorflow, in the study "parity" also on tensorflow in float64; return the verdicts by name."""
    study = studies.find(study)
    backends = ("ocl", "tensorflow", *(["tensorflow" + EXACT] if study.name == "parity" else []))
    settings = study_runner.Settings("full", backends, "tensorflow", data=data, **changes)
    results = []
    with Workers() as workers:
        for job in study_runner.jobs(study, settings, "out", [name]):
            result, output = workers.run(job, timeout=3600)
            assert "error" not in result, output
            results.append(result)
    verdicts = {v["name"]: v for criterion in study.criteria for v in criterion(results, "tensorflow")}
    print(*(f"{v['row']}: {v['text']}" for v in verdicts.values()), sep="\n")
    return verdicts


def check(verdicts, *names):
    """Fail unless exactly these verdicts were reached, all positive."""
    assert set(verdicts) == set(names)
    assert all(v["passed"] for v in verdicts.values()), [v["text"] for v in verdicts.values()]


def test_xor_losses_agree(tensorflow):
    check(compare("xor", study="parity"), "first steps", "long run")


def test_mnist_mlp_first_losses_agree(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, study="parity", steps=FIRST_STEPS), "first steps")


def test_cifar_cnn_first_losses_agree(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, study="parity", steps=FIRST_STEPS), "first steps")


@pytest.mark.slow
def test_mnist_mlp_losses_agree(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, study="parity"), "first steps", "long run")


@pytest.mark.slow
def test_cifar_cnn_losses_agree(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, study="parity"), "first steps", "long run")


@pytest.mark.slow
def test_xor_solves_the_same_starts(tensorflow):
    check(compare("xor", steps=0), "same starts solved")


@pytest.mark.slow
def test_mnist_mlp_reaches_98_percent(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, steps=0), "test accuracy")


@pytest.mark.slow
def test_cifar_cnn_reaches_tensorflows_accuracy(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, steps=0), "test accuracy")
