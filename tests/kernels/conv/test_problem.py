"""What kernels derive from a convolution and the traits of a CPU."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.conv import Geometry, Problem

TRAITS = runtime.read_record("intel-cpu")


@pytest.mark.parametrize(
    "width, dtype, lanes, registers",
    [
        (16, "float32", 16, 32),
        (16, "float64", 8, 32),
        (16, "bfloat16", 16, 32),
        (8, "float32", 8, 16),
        (8, "float64", 4, 16),
        (1, "float32", 4, 16),
    ],
)
def test_vectors(width, dtype, lanes, registers):
    problem = Problem(dataclasses.replace(TRAITS, vector_width=width), Geometry.of((1, 9, 8), (3, 8, 8)), dtype, None)
    assert (problem.lanes, problem.registers(problem.lanes)) == (lanes, registers)


@pytest.mark.parametrize("outputs, groups, lanewise", [(6, 2, True), (30, 2, True), (32, 2, False), (6, 1, False)])
def test_lanes_run_across_groups_of_few_channels(outputs, groups, lanewise):
    traits, geometry = dataclasses.replace(TRAITS, vector_width=16), Geometry.of((1, 9, 8), (3, 8 // groups, outputs), groups=groups)
    problem = Problem(traits, geometry, "float32", None)
    assert problem.lanewise == lanewise and problem.channels * problem.groups == outputs
    assert problem.groups == (1 if lanewise else groups)


def test_axes():
    """Neighbouring dimensions in which each output reads one input are one axis, if merged."""
    problem = Problem(TRAITS, Geometry.of((2, 9, 8, 3), (1, 3, 3, 5), padding=(0, 1)), "float32", None)
    assert [axis.output for axis in problem.axes] == [2, 9, 8] and [axis.output for axis in problem.merged_axes] == [18, 8]


def test_each_device_has_a_unit_to_keep_busy():
    assert Problem(dataclasses.replace(TRAITS, compute_units=0), Geometry.of((1, 9, 8), (3, 8, 8)), "float32", None).units == 1
