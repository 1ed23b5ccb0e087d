"""Families of kernels: what takes their place, and that their cases reach them."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import jit
from keras_ocl.kernels.families import BY_NAME, FAMILIES
from keras_ocl.kernels.schedule import families_of, get, schedule_of
from keras_ocl.verify.cases import CASES


def test_families_are_fields_of_schedules_or_inside_them():
    fields = {field.name for field in dataclasses.fields(get("cpu"))}
    inside = {*get("cpu").inside, *get("gpu").inside}
    for family in FAMILIES:
        assert fields.issuperset(family.fields) and bool(family.fields) != (family.name in {*inside, "matrix_units", "steps"})
        assert {*family.beside} <= BY_NAME.keys() and (not family.then or family.then in BY_NAME)
    assert CASES.keys() == BY_NAME.keys() >= inside


@pytest.mark.parametrize("name", ["intel-cpu", "sm_90", "mali_g78"])
def test_a_schedule_without_families(name):
    traits = runtime.read_record(name)
    assert schedule_of(traits) is get(traits.schedule) and traits.quarantine == frozenset()
    without = schedule_of(traits.without({"products", "unknown"}))
    assert without.product is get("reference").product and without.attention is get(traits.schedule).attention
    assert without.name == traits.schedule and schedule_of(traits.without({"products", "unknown"})) is without
    assert schedule_of(traits.without({"steps"})) is get("reference")
    found = [family.name for family in families_of(traits)]
    assert found == [family.name for family in families_of(traits.without({"products"}))] and found[-1] == "steps"
    assert ("loops" in found) == (traits.schedule == "gpu") and ("matrix_units" in found) == (name == "sm_90")
    assert families_of(dataclasses.replace(traits, schedule="reference", matrix_units=(), matrix_rates=())) == []


def _kernels(traits, case):
    """The texts of a case's kernels on a device of these traits."""
    device, found = runtime.RecordDevice("record", traits), set()
    build = device.programs.build
    device.programs.build = lambda specs, *others, **options: build(found.update(specs := list(specs)) or specs, *others, **options)
    with runtime.device_scope(device):
        jit(case.function, dynamic=False)(*map(from_numpy, case.arrays))
    return {source for _, source, *_ in found}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.name != "steps"], ids=lambda family: family.name)
@pytest.mark.parametrize("name", ["intel-cpu", "sm_90"])
def test_cases_reach_their_family(name, family):
    """Some kernels of a case are others where the family is kept out."""
    traits = runtime.read_record(name)
    if family not in families_of(traits):
        pytest.skip("this device has no such kernels")
    cases = CASES[family.name](traits, True)
    assert any(_kernels(traits.without(family.beside), c) != _kernels(traits.without({*family.beside, family.name}), c) for c in cases)
