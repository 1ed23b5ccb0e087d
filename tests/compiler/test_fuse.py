"""What is computed again inside a kernel, and what is stored."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted


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
    (only,) = compiled._compiled.values()
    sources = [launch.body for launch in only.executable.launches]
    assert len(sources) <= 15 and max(map(len, sources)) < 10_000, [len(s) for s in sources]
