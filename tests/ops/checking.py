"""Running a function both eagerly and compiled."""

import numpy as np

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted


def both(function, *arrays, tolerance=1e-5):
    """The NumPy value(s) of function(*tensors), the same eagerly, jitted, and jitted with an unknown first extent."""
    tensors = [from_numpy(np.asarray(a)) for a in arrays]
    eager = _values(function(*tensors))
    for jitted in (Jitted(function), Jitted(function, dynamic=(0,))):
        for a, b in zip(eager, _values(jitted(*tensors)), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(b.astype("f8"), a.astype("f8"), rtol=tolerance, atol=tolerance)
    return eager[0] if len(eager) == 1 else eager


def _values(result):
    return [to_numpy(r) for r in (result if isinstance(result, (tuple, list)) else (result,))]
