"""The OpenCL backend trains as TensorFlow does: from the same weights, on the same examples, each in a process of its own."""

import dataclasses

import pytest

from comparisons import criteria, runner
from comparisons.workers import Workers


def compare(name, data=None, exact=False, **changes):
    """Run script `name` on ocl and tensorflow, and with `exact` on tensorflow in float64; return the verdicts by name."""
    script = runner.SCRIPTS[name]
    job = runner.Job(name, "ocl", epochs=script.epochs, starts=script.starts, step_starts=script.step_starts, data=data)
    job = dataclasses.replace(job, **changes)
    jobs = [job, dataclasses.replace(job, backend="tensorflow")]
    if exact:
        jobs.append(dataclasses.replace(job, backend="tensorflow", floatx="float64"))
    results = []
    with Workers() as workers:
        for job in jobs:
            result, output = workers.run(job, timeout=3600)
            assert "error" not in result, output
            results.append(result)
    verdicts = {v["name"]: v for v in criteria.judge(results, "tensorflow")}
    print(*(f"{v['script']}: {v['text']}" for v in verdicts.values()), sep="\n")
    return verdicts


def check(verdicts, *names):
    """Fail unless exactly these verdicts were reached, all positive."""
    assert set(verdicts) == set(names)
    assert all(v["passed"] for v in verdicts.values()), [v["text"] for v in verdicts.values()]


def test_xor_losses_agree(tensorflow):
    check(compare("xor", exact=True, train=False), "first steps", "long run")


def test_mnist_mlp_first_losses_agree(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, exact=True, train=False, steps=criteria.FIRST_STEPS), "first steps")


def test_cifar_cnn_first_losses_agree(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, exact=True, train=False, steps=criteria.FIRST_STEPS), "first steps")


@pytest.mark.slow
def test_mnist_mlp_losses_agree(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, exact=True, train=False), "first steps", "long run")


@pytest.mark.slow
def test_cifar_cnn_losses_agree(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, exact=True, train=False), "first steps", "long run")


@pytest.mark.slow
def test_xor_solves_the_same_starts(tensorflow):
    check(compare("xor", steps=0), "same starts solved")


@pytest.mark.slow
def test_mnist_mlp_reaches_98_percent(tensorflow, mnist):
    check(compare("mnist_mlp", mnist, steps=0), "test accuracy")


@pytest.mark.slow
def test_cifar_cnn_reaches_tensorflows_accuracy(tensorflow, cifar):
    check(compare("cifar_cnn", cifar, steps=0), "test accuracy")
