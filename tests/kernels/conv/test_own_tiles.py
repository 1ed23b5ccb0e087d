"""Tiles that a device has of its own for single convolutions: where they fit they are used and compute the same, else estimates are."""

import dataclasses
import logging

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core.dim import Dim
from keras_ocl.kernels.conv import (
    Geometry,
    Problem,
    filter_grad_cpu,
    forward_cpu,
    winograd,
    winograd_cpu,
    winograd_gpu,
)
from keras_ocl.kernels.conv import gpu as conv_gpu
from keras_ocl.runtime.overrides import Overrides
from tests.kernels.conv.test_conv import PRECISION, compute, example, specs_of

PLAIN = Geometry.of((2, 9, 33, 16), (3, 3, 16, 32), padding=1)
STRIDED = Geometry.of((3, 16, 17, 7), (3, 2, 7, 20), padding=((1, 0), (0, 2)), strides=2)
GROUPED = Geometry.of((2, 8, 8, 12), (3, 3, 4, 24), padding=1, groups=3)
SEVERAL_IMAGES = Geometry.of((9, 4, 4, 8), (4, 4, 8, 19))
POINTWISE = Geometry.of((3, 10, 10, 24), (1, 1, 24, 48))
SQUARE = Geometry.of((9, 16, 16, 32), (3, 3, 32, 32), padding=1)


def problem_of(traits, g, what="forward", dtype="float32"):
    """The Problem that the schedule gets for one of the three functions."""
    if what == "input_grad":
        return Problem(traits, g.transposed(), dtype, None, transposed=True)
    return Problem(traits, g, dtype, None)


def own(traits, kind, key, **fields):
    """The traits with a device's own tile of a kind for the problems with this key."""
    return dataclasses.replace(traits, overrides=Overrides("own.toml", (), (), ((kind, key, tuple(fields.items())),)))


def with_own(problem, kind, **fields):
    """The problem on a device that has a tile with these fields for it."""
    return dataclasses.replace(problem, traits=own(problem.traits, kind, problem.key, **fields))


def test_keys_tell_what_a_choice_depends_on():
    traits = runtime.read_record("intel-cpu")
    assert problem_of(traits, PLAIN).key == "float32 input=2,9,33,16 filter=3,3,16,32 output=2,9,33,32 low=1,1"
    varying = Geometry.of((Dim(5, hint=3), 16, 17, 12), (3, 2, 4, 30), strides=(2, 1), padding=((1, 0), (0, 2)), dilation=2, groups=3)
    start = "bfloat16 input=3*,16,17,12 filter=3,2,4,30 output=3*,7,17,30 low=1,0 strides=2,1"
    assert problem_of(traits, varying, dtype="bfloat16").key == f"{start} dilation=2,2 groups=3"
    assert problem_of(traits, varying, "input_grad").key.endswith(" low=3,2 dilation=2,2 input_dilation=2,1 groups=3 transposed")


CPU = [
    ("forward", PLAIN, "convolution", dict(axis=2, pixels=3, vectors=3, width=8)),
    ("forward", PLAIN, "convolution", dict(axis=0, pixels=2, vectors=2, width=16)),
    ("forward", GROUPED, "convolution", dict(axis=2, pixels=3, vectors=2, width=4)),
    ("input_grad", STRIDED, "convolution", dict(axis=2, pixels=4, vectors=3, width=2)),
    ("input_grad", SEVERAL_IMAGES, "convolution", dict(axis=0, pixels=6, vectors=2, width=4)),
    ("forward", POINTWISE, "convolution", dict(axis=0, pixels=5, vectors=2, width=8)),
    ("filter_grad", POINTWISE, "filter_gradient", dict(rows=5, vectors=2, width=8)),
    ("filter_grad", PLAIN, "filter_gradient", dict(rows=3, vectors=3, width=8)),
    ("filter_grad", STRIDED, "filter_gradient", dict(rows=13, vectors=1, width=8)),
    ("filter_grad", GROUPED, "filter_gradient", dict(rows=3, vectors=2, width=4)),
    ("forward", SQUARE, "winograd", dict(blocks=3, rows=5, vectors=2, width=4)),
    ("input_grad", SQUARE, "winograd", dict(blocks=1, rows=3, vectors=1, width=8)),
]
GPU = [
    ("forward", PLAIN, "convolution", dict(across=4, down=2, rows=2, columns=4, depth=4)),
    ("forward", STRIDED, "convolution", dict(across=8, down=1, rows=1, columns=2, depth=8, steps=16)),
    ("input_grad", STRIDED, "convolution", dict(across=2, down=8, rows=4, columns=1, depth=2, steps=16)),
    ("input_grad", GROUPED, "convolution", dict(across=2, down=4, rows=2, columns=2, depth=8)),
    ("filter_grad", STRIDED, "filter_gradient", dict(across=4, down=4, rows=2, columns=2, depth=4, steps=64)),
    ("input_grad", POINTWISE, "convolution", dict(across=4, down=2, rows=2, columns=2, depth=4)),
    ("filter_grad", POINTWISE, "filter_gradient", dict(across=4, down=2, rows=2, columns=2, depth=4)),
    ("forward", SQUARE, "winograd", dict(outputs=4)),
    ("input_grad", SQUARE, "winograd", dict(outputs=2)),
    ("filter_grad", SQUARE, "winograd_gradient", dict(outputs=2)),
]


@pytest.mark.parametrize("schedule, what, g, kind, fields", [*(("cpu", *case) for case in CPU), *(("gpu", *case) for case in GPU)])
def test_an_own_tile_computes_the_same(schedule, what, g, kind, fields, device):
    usual = dataclasses.replace(device.traits, schedule=schedule, vector_width=16)
    key = problem_of(usual, g, what).key
    traits = own(usual, kind, key.removesuffix(" transposed") if schedule == "cpu" else key, **fields)
    texts, own_texts = ([spec.source("f") for spec in specs_of(what, t, g, "float32")[0]] for t in (usual, traits))
    assert texts != own_texts, "the tile is not used, or is the estimate's"
    arrays, wanted = example(g)
    got, want = compute(device, traits, what, g, arrays, "float32"), wanted[what]
    np.testing.assert_allclose(got, want, rtol=0, atol=PRECISION["float32"] * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("schedule", ["cpu", "gpu"])
@pytest.mark.parametrize("what, kind", [("forward", "convolution"), ("input_grad", "convolution"), ("filter_grad", "filter_gradient")])
def test_an_own_direct_tile_goes_before_other_algorithms(schedule, what, kind):
    """Before Winograd's, products of pixels, and the kernels of few channels."""
    traits = dataclasses.replace(runtime.read_record("intel-cpu" if schedule == "cpu" else "sm_90"), vector_width=16, local_memory=2**20)
    cpu = dict(axis=2, pixels=4, vectors=2, width=16) if kind == "convolution" else dict(rows=4, vectors=2, width=16)
    fields = cpu if schedule == "cpu" else dict(across=16, down=8, rows=4, columns=4, depth=8)
    large, other = Geometry.of((64, 56, 56, 64), (3, 3, 64, 64), padding=1), "Winograd"
    if (schedule, what) == ("cpu", "filter_grad"):
        large, other = Geometry.of((2, 16, 16, 64), (1, 1, 64, 64)), "matrix product"
    key = problem_of(traits, large, what).key
    direct = own(traits, kind, key.removesuffix(" transposed") if schedule == "cpu" else key, **fields)
    assert any(other in spec.title for spec in specs_of(what, traits, large, "float32")[0])
    assert not any(other in spec.title for spec in specs_of(what, direct, large, "float32")[0])
    few = Geometry.of((2, 9, 15, 35), (3, 3, 35, 3), padding=1)
    if (schedule, what) == ("cpu", "forward"):
        fields = dict(axis=2, pixels=5, vectors=1, width=4)
        titles = [
            [spec.title for spec in specs_of(what, t, few, "float32")[0]]
            for t in (traits, own(traits, kind, problem_of(traits, few).key, **fields))
        ]
        assert len(titles[0]) == 2 and titles[1] == ["convolution: 5 pixels x 1 vectors of channels per tile"]


def refused(choose, problem, kind, fields, says, caplog):
    caplog.set_level(logging.WARNING, "keras_ocl")
    assert choose(with_own(problem, kind, **fields)) == choose(problem)
    assert caplog.messages and all(says in message for message in caplog.messages), caplog.messages


DIRECT = dict(axis=2, pixels=4, vectors=2, width=16)


@pytest.mark.parametrize(
    "g, fields, says",
    [
        (PLAIN, dict(axis=2, pixels=4, vectors=2), "'width'"),
        (PLAIN, {**DIRECT, "axis": 1}, "axis = 1 is neither 0 nor 2"),
        (PLAIN, {**DIRECT, "axis": "2"}, "axis = '2' is neither 0 nor 2"),
        (PLAIN, {**DIRECT, "vectors": 0}, "vectors = 0 is not a positive number"),
        (PLAIN, {**DIRECT, "width": 12}, "width = 12 is no power of two up to 16"),
        (PLAIN, {**DIRECT, "width": 32}, "width = 32 is no power of two up to 16"),
        (PLAIN, {**DIRECT, "vectors": 3}, "3 vectors of 16 are more than 32 channels need"),
        (PLAIN, {**DIRECT, "pixels": 15}, "it takes 33 of 32 registers"),
        (PLAIN, {**DIRECT, "axis": 0}, "its 4 pixels are more than the 2 of its axis"),
    ],
)
def test_a_cpus_direct_tile_that_does_not_fit_is_refused(g, fields, says, caplog):
    traits = dataclasses.replace(runtime.read_record("intel-cpu"), vector_width=16)
    refused(forward_cpu.choose_tile, problem_of(traits, g), "convolution", fields, says, caplog)


@pytest.mark.parametrize(
    "fields, says",
    [
        (dict(rows=15, vectors=2, width=16), "it takes 33 of 32 registers"),
        (dict(rows=13, vectors=1, width=8, filter=(3, 1, 4, 32)), "13 rows are more than 12"),
        (dict(rows=1, vectors=1, width=8, input_dilation=2), "without input dilation"),
    ],
)
def test_a_cpus_tile_of_a_filter_gradient_that_does_not_fit_is_refused(fields, says, caplog):
    traits = dataclasses.replace(runtime.read_record("intel-cpu"), vector_width=16)
    filter, spread = fields.pop("filter", (3, 3, 4, 32)), fields.pop("input_dilation", 1)
    g = Geometry.of((2, 9, 33, 4), filter, padding=1, input_dilation=spread)
    refused(filter_grad_cpu.own_tile, problem_of(traits, g), "filter_gradient", fields, says, caplog)


WINOGRAD = dict(blocks=1, rows=4, vectors=2, width=16)


@pytest.mark.parametrize(
    "g, fields, says",
    [
        (STRIDED, WINOGRAD, "3 x 3 filters of stride 1"),
        (SQUARE, {**WINOGRAD, "blocks": 0}, "blocks = 0 is not a positive number"),
        (SQUARE, {**WINOGRAD, "blocks": 64}, "its 532480 bytes of local memory are more than 32768"),
        (SQUARE, {**WINOGRAD, "rows": 16}, "it takes 35 of 32 registers"),
        (SQUARE, {**WINOGRAD, "vectors": 3, "width": 8}, "32 and 32 channels are no whole vectors of 8"),
    ],
)
def test_a_cpus_winograd_tile_that_does_not_fit_is_refused(g, fields, says, caplog):
    traits = dataclasses.replace(runtime.read_record("intel-cpu"), vector_width=16, local_memory=2**15)
    refused(winograd_cpu.choose_tile, problem_of(traits, g), "winograd", fields, says, caplog)


@pytest.mark.parametrize(
    "g, fields, says",
    [
        (GROUPED, dict(outputs=2), "3 x 3 filters of stride 1"),
        (SQUARE, dict(outputs=3), "outputs is neither 2 nor 4"),
        (SQUARE, dict(tiles=3), "'tiles'"),
        (
            dataclasses.replace(SQUARE, input=(2**20, 16, 16, 32), output=(2**20, 16, 16, 32)),
            dict(outputs=2),
            "too much of the device's memory",
        ),
    ],
)
def test_a_gpus_winograd_that_does_not_fit_is_refused(g, fields, says, caplog):
    refused(winograd_gpu.choose, problem_of(runtime.read_record("sm_90"), g), "winograd", fields, says, caplog)
    refused(winograd_gpu.choose_gradient, problem_of(runtime.read_record("sm_90"), g), "winograd_gradient", fields, says, caplog)


@pytest.mark.parametrize("kind", ["convolution", "filter_gradient"])
def test_a_gpus_direct_tile_that_does_not_fit_is_refused(kind, caplog):
    """By the rules of products' tiles, which are tested with those."""
    fields = dict(across=64, down=32, rows=1, columns=1, depth=8)
    refused(lambda p: conv_gpu.own_tile(p, kind), problem_of(runtime.read_record("sm_90"), PLAIN), kind, fields, "2048 work-items", caplog)


def test_own_transforms_are_those_of_winograds_algorithm():
    problem = problem_of(runtime.read_record("sm_90"), Geometry.of((1, 4, 4, 2), (3, 3, 2, 2)))
    assert winograd_gpu.choose(problem) is winograd_gpu.choose_gradient(problem) is None
    assert winograd_gpu.choose(with_own(problem, "winograd", outputs=4)) is winograd.FOUR
    assert winograd_gpu.choose_gradient(with_own(problem, "winograd_gradient", outputs=2)) is winograd.TWO
