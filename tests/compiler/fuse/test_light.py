"""Light operations: which values several kernels compute each, and which they load."""

import pytest

from keras_ocl import primitives as P
from tests.compiler.fuse.test_rows import CPU, GPU, centred, regions

SHAPE, COLUMN = (4096, 128), (4096,)


def normalised_gradient(x, mean):
    """What the gradient of a normalisation computes for each element of a gradient, of an input and its rows' means."""

    def of(upstream):
        return P.mul(upstream, P.sub(x, P.broadcast(mean, x.shape, (0,))))

    return of


def stored(record, function, *shapes):
    """The names of what the kernels of a function store, kernel by kernel."""
    return [sorted(n.name for n in r.outputs) for r in regions(record, function, *shapes)]


@pytest.mark.parametrize("record", [CPU, GPU])
def test_rows_and_sums_over_columns_compute_what_follows_from_arrays_that_both_load(record):
    def both(upstream, x, mean):
        product = normalised_gradient(x, mean)(upstream)
        return P.add(centred(product), P.mul(x, upstream)), P.reduce_sum(product, (0,))

    found = stored(record, both, SHAPE, SHAPE, COLUMN)
    assert sorted(found) == [["add"], ["reduce_sum"]]


@pytest.mark.parametrize("record", [CPU, GPU])
def test_what_takes_long_is_stored(record):
    def both(upstream, x, mean):
        product = P.exp(normalised_gradient(x, mean)(upstream))
        return P.add(centred(product), P.mul(x, upstream)), P.reduce_sum(product, (0,))

    found = stored(record, both, SHAPE, SHAPE, COLUMN)
    assert any("exp" in names for names in found)


@pytest.mark.parametrize("record", [CPU, GPU])
def test_kernels_that_would_load_two_arrays_for_one_load_that_one(record):
    def both(upstream, x):
        product = P.neg(P.mul(upstream, x))
        return P.reduce_sum(product, (0,)), P.exp(P.reduce_sum(product, (1,)))

    found = stored(record, both, SHAPE, SHAPE)
    assert any("neg" in names for names in found)


@pytest.mark.parametrize("record", [CPU, GPU])
def test_a_template_stores_what_its_epilogue_can(record):
    """Not its bare product, which both readers would add the bias to."""

    def both(a, b, bias):
        product = P.dot_general(a, b, ((1,), (0,)))
        total = P.neg(P.add(product, P.broadcast(bias, product.shape, (1,))))
        return P.exp(centred(total)), P.reduce_sum(total, (0,))

    template, *_ = regions(record, both, (4096, 256), (256, 128), (128,))
    assert template.anchor is not None and [n.name for n in template.outputs] == ["neg"]
