"""What a region's epilogue tells the template that it belongs to."""

import pytest
from keras import ops, random

import keras_ocl
from keras_ocl.kernels.gemm import dispatch


@pytest.mark.parametrize(
    "epilogue,uniform",
    [
        (lambda y, bias: y, 0),
        (lambda y, bias: ops.relu(y + bias), 0),
        (lambda y, bias: y * 0.25 + 3.0, 2),
        (lambda y, bias: ops.where(random.uniform(y.shape, seed=1) < 0.2, 0.0, y * 1.25), 7),
    ],
)
def test_an_epilogue_counts_what_is_the_same_for_all_elements(monkeypatch, epilogue, uniform):
    seen, plan = [], dispatch.plan

    def recorded(*args, sink, **options):
        seen.append(sink.uniform)
        return plan(*args, sink=sink, **options)

    monkeypatch.setattr("keras_ocl.kernels.gemm.plan", recorded)
    a, b, bias = ops.ones((32, 24)), ops.ones((24, 40)), ops.ones((40,))
    keras_ocl.jit(lambda a, b, bias: epilogue(ops.matmul(a, b), bias))(a, b, bias)
    assert seen == [uniform]
