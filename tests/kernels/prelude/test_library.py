"""The prelude's functions: which exist, what they call, and their order."""

import re

import pytest

from keras_ocl.kernels.prelude import draws, floats, integers, library, transcendentals

TABLES = (draws.BOTH, draws.FLOAT, draws.DOUBLE, floats.BOTH, floats.FLOAT, floats.DOUBLE, transcendentals.FLOAT)
TABLES += (integers.SIGNED, integers.UNSIGNED, integers.BOTH)
TYPES = "float double char uchar short ushort int uint long ulong".split()
STEMS = sorted({*integers.SINGLE, *(f"{name}_{ctype}" for table in TABLES for name in table for ctype in TYPES)})


@pytest.mark.parametrize("width", [1, 16])
def test_what_is_called_is_declared(width):
    """A call in a template that is no placeholder would leave the callee out of the program."""
    stems = [stem for stem in STEMS if library.exists(stem)]
    assert len(stems) > 100
    for stem in stems:
        text, calls = library.helper(f"{stem}_{width}")
        called = {name for name in re.findall(r"\b([a-z]\w*_\d+)\(", text) if library.exists(name.rpartition("_")[0])}
        assert called - {f"{stem}_{width}"} == set(calls)


def test_callees_come_first():
    names = library.ordered({"tanh_float_16", "erf_float_16", "tan_float_16"})
    assert names == library.ordered(["tan_float_16", "tanh_float_16", "erf_float_16"])
    assert len(set(names)) == len(names)
    assert names.index("sin_float_16") < names.index("tan_float_16")


def test_unknown_names():
    with pytest.raises(KeyError, match="no OpenCL helper function is called 'cosine_float_1'"):
        library.helper("cosine_float_1")
