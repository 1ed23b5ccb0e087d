"""What is computed again inside a kernel, and what is stored."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.fuse.regions import Region
from keras_ocl.compiler.jit import Jitted
from keras_ocl.kernels.indent import indented


def test_chains_of_small_products_are_not_nested():
    """Each product is small enough to be computed where it is used, but products inside products multiply."""

    def multiply(a, b):
        return P.dot_general(a, b, ((1,), (0,)))

    def orthogonal(x):
        for _ in range(5):
            gram = P.dot_general(x, x, ((1,), (1,)))
            x = P.add(x, multiply(P.add(gram, multiply(gram, gram)), x))
        return x

    x = np.random.default_rng(0).normal(size=(5, 10)).astype("float32") / 20
    compiled = Jitted(orthogonal)
    result = to_numpy(compiled(x))
    expected = x.astype("float64")
    for _ in range(5):
        gram = expected @ expected.T
        expected = expected + (gram + gram @ gram) @ expected
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    (only,) = compiled.traces
    sources = [launch.body for launch in only.executable.launches]
    assert len(sources) <= 15 and max(map(len, sources)) < 10_000, [len(s) for s in sources]


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5])
def test_a_product_of_few_terms_is_fused_on_gpus(terms, monkeypatch):
    """As the gradient of a classifier of two classes is, into the sums that follow it."""

    def sums(a, b):
        return P.reduce_sum(P.mul(product := P.dot_general(a, b, ((1,), (0,))), product), (1,))

    rng = np.random.default_rng(terms)
    a, b = (rng.normal(size=shape).astype("float32") for shape in ((37, terms), (terms, 301)))
    with runtime.device_scope(runtime.RecordDevice("sm_90", runtime.read_record("sm_90"))):
        assert len(Jitted(sums).compiled(a, b).executable.launches) == (1 if terms <= 4 else 2)
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule="gpu"))
    want = np.square(a.astype("float64") @ b).sum(1)
    np.testing.assert_allclose(to_numpy(Jitted(sums)(a, b)), want, rtol=2e-6)


def test_what_one_element_is_updated_with_is_computed_once():
    """As a generated text's next token, which is the argmax of all logits: it stands outside the loop over the text."""

    def write(text, logits, place):
        token = P.argmax(logits, axis=1, dtype="int32")
        return P.dynamic_update_slice(text, P.reshape(token, (1, 1)), (P.constant(0, "int32"), place))

    text, logits = np.arange(40, dtype="int32")[None], np.random.default_rng(0).normal(size=(1, 500)).astype("float32")
    compiled = Jitted(write)
    result = to_numpy(compiled(text, logits, np.int32(7)))
    np.testing.assert_array_equal(result, np.where(np.arange(40) == 7, logits.argmax(), text))
    (only,) = compiled.traces
    for launch in only.executable.launches:
        assert not any(line.startswith("    ") and "for (" in line for line in indented(launch.body).splitlines()), launch.body


def test_regions_know_what_depends_on_them():
    """Edges come in any order and regions merge; a search says the same."""

    def search(region):
        seen, stack = set(), [region]
        while stack:
            new = stack.pop().consumers - seen
            seen |= new
            stack += new
        return seen

    rng = np.random.default_rng(3)
    for _ in range(20):
        regions = [Region((4,), k) for k in range(30)]
        edges = [(a, b) for a in range(30) for b in range(a + 1, 30) if rng.random() < 0.06]
        rng.shuffle(edges)
        for a, b in edges:
            regions[a].feed([regions[b]])
        for _ in range(8):
            a, b = (regions[k] for k in rng.choice(len(regions), 2, replace=False))
            if not (a.reaches(b) or b.reaches(a)):
                a.absorb(b)
                regions.remove(b)
            for r in regions:
                assert {other for other in regions if r.reaches(other)} == search(r)
                assert r.producers == {other for other in regions if r in other.consumers}
