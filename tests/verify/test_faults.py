"""Planted faults are found by the cases of their family, and with that family kept out all is right."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.families import BY_NAME
from keras_ocl.kernels.schedule import families_of
from keras_ocl.verify.cases import CASES, steps
from keras_ocl.verify.process import verdicts
from keras_ocl.verify.request import REFUSED, RIGHT, WRONG
from tests.verify.faults import FAULTS, plant


def opened(schedule, without):
    """The device in use, opened again with a schedule and without some families."""
    device = runtime.current_device()
    return runtime.open_again(device, dataclasses.replace(device.traits, kind=schedule, schedule=schedule).without(without))


@pytest.mark.parametrize(("schedule", "name"), FAULTS)
def test_a_fault_is_found_and_kept_out(schedule, name):
    fault = FAULTS[schedule, name]
    family = BY_NAME[fault.family]
    device = opened(schedule, family.beside)
    planted = plant(device, fault)
    found = {verdict for _, verdict, _ in verdicts(device, family.name, short=True)}
    assert planted and found & {WRONG, REFUSED}, (planted, found)
    assert _right_without(schedule, fault, {family.name}) or _right_without(schedule, fault, {family.name, family.then})


def _right_without(schedule, fault, names):
    device = opened(schedule, names)
    plant(device, fault)
    return {verdict for _, verdict, _ in verdicts(device, fault.family, short=True)} == {RIGHT}


def test_training_is_right_without_what_is_wrong():
    fault = FAULTS["cpu", "lost tile of pixels"]
    (training,) = steps.cases(runtime.current_device().traits, True)
    device = opened("cpu", ())
    planted = plant(device, fault)
    assert "differ" in training.judge(device) and planted
    device = opened("cpu", {"convolutions"})
    plant(device, fault)
    assert training.judge(device) == ""


@pytest.mark.parametrize("schedule", ["cpu", "gpu"])
def test_there_is_no_false_alarm(schedule):
    for family in families_of(opened(schedule, ()).traits):
        if family.name != "steps":
            device = opened(schedule, family.beside)
            assert [(name, why) for name, verdict, why in verdicts(device, family.name, short=True) if verdict != RIGHT] == []


def test_narrow_vectors_are_right():
    """Those of many devices, and of one whose wide vectors are kept out: all cases, since texts differ with widths."""
    for family in ("pointwise", "products", "convolutions"):
        device = opened("cpu", {"wide_vectors", *BY_NAME[family].beside})
        assert device.traits.vector_width <= 4
        assert [(name, why) for name, verdict, why in verdicts(device, family) if verdict != RIGHT] == []


def test_what_takes_the_place_of_all_families_is_right():
    device = opened("gpu", BY_NAME.keys() - {"steps"})
    for family in CASES.keys() - {"steps", "winograd", "few_rows", "matrix_units"}:  # the last three have others' kernels in their place
        assert [(name, why) for name, verdict, why in verdicts(device, family, short=True) if verdict != RIGHT] == []
