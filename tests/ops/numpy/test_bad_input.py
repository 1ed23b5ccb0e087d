"""Bad input to keras.ops.core and keras.ops.numpy: refused in one sentence, before anything is enqueued."""

import numpy as np
import pytest
from keras import ops

import keras_ocl
from tests.ops.bad_input import array, check_compiled, check_eager, identity

A, V, T = array(3, 4), array(5), array(2, 3, 4)
INTS = array(3, 4, dtype="int32")
COMPLEX = array(3, 4, dtype="complex64")
INDEX = array(3, 1, dtype="int32")

CASES = [
    # core
    ("convert_to_tensor", ([[1.0], [2.0, 3.0]],), ValueError, ["inhomogeneous"]),
    ("convert_to_tensor", (None,), TypeError, ["NoneType"]),
    ("convert_to_tensor", (["a", "b"],), TypeError, ["not supported"]),
    ("cast", (A, "int3"), ValueError, ["int3"]),
    ("shape", (None,), TypeError, ["NoneType"]),
    ("scatter", (INDEX, array(3, 5), (4, 4)), ValueError, ["scatter", "(3, 5)", "(3, 4)"]),
    ("scatter", (array(3, 3, dtype="int32"), array(3), (4, 4)), ValueError, ["scatter", "(3, 3)", "coordinates"]),
    ("scatter", (array(3, 0, dtype="int32"), array(3), (4, 4)), ValueError, ["scatter", "(3, 0)", "coordinates"]),
    ("scatter", (array(3, 1), array(3, 4), (4, 4)), TypeError, ["scatter", "float32", "integers"]),
    ("scatter", (INDEX, array(3, 4, dtype="bool"), (4, 4)), TypeError, ["scatter", "bool", "cast"]),
    ("scatter_update", (A, INDEX, array(2, 3, 4)), ValueError, ["scatter_update", "(2, 3, 4)", "(3, 4)"]),
    ("scatter_update", (A, INDEX, A, "median"), ValueError, ["reduction", "median"]),
    ("slice", (A, (0,), (2, 2)), ValueError, ["start_indices", "(3, 4)"]),
    ("slice", (A, (0, 0), (4, 4)), ValueError, ["slice", "(4, 4)", "(3, 4)"]),
    ("slice_update", (A, (0, 0), array(2)), ValueError, ["slice_update", "(2,)", "(3, 4)"]),
    ("slice_update", (A, (0, 0), array(4, 4)), ValueError, ["(4, 4)", "(3, 4)"]),
    ("unstack", (A, None, 2), ValueError, ["axis 2"]),
    ("unstack", (A, 2), ValueError, ["unstack", "num=2", "(3, 4)", "3"]),
    ("unstack", (A, 3, -1), ValueError, ["unstack", "num=3", "(3, 4)", "4"]),
    ("saturate_cast", (A, "int3"), ValueError, ["int3"]),
    # elementwise
    ("add", (A, array(4, 3)), ValueError, ["add", "(3, 4)", "(4, 3)", "broadcast"]),
    ("subtract", (A, array(2, 4)), ValueError, ["subtract", "(3, 4)", "(2, 4)"]),
    ("maximum", (A, array(5)), ValueError, ["maximum", "(3, 4)", "(5,)"]),
    ("power", (A, array(0, 4)), ValueError, ["power", "(3, 4)", "(0, 4)"]),
    ("equal", (A, array(3, 3)), ValueError, ["equal", "(3, 4)", "(3, 3)"]),
    ("where", (array(2, dtype="bool"), A, A), ValueError, ["where", "(2,)", "(3, 4)"]),
    ("where", (array(3, 4, dtype="bool"), A), ValueError, ["x1", "x2"]),
    ("negative", (array(3, dtype="bool"),), TypeError, ["negative", "bool"]),
    ("floor", (COMPLEX,), TypeError, ["floor", "complex64"]),
    ("erf", (COMPLEX,), TypeError, ["erf", "complex64", "real"]),
    ("maximum", (COMPLEX, COMPLEX), TypeError, ["max", "complex64"]),
    ("less", (COMPLEX, COMPLEX), TypeError, ["complex64"]),
    ("bitwise_invert", (A,), TypeError, ["float32"]),
    ("bitwise_and", (A, A), TypeError, ["bitwise_and", "float32"]),
    ("left_shift", (A, A), TypeError, ["float32"]),
    ("gcd", (A, A), TypeError, ["gcd", "float32"]),
    ("ldexp", (A, A), TypeError, ["ldexp", "float32"]),
    ("arctan2", ("a", A), TypeError, ["not supported"]),
    # shape
    ("reshape", (A, (5, 2)), ValueError, ["reshape", "(3, 4)", "(5, 2)"]),
    ("reshape", (A, (5, -1)), ValueError, ["reshape", "(3, 4)", "(5, -1)"]),
    ("reshape", (A, (-1, -1)), ValueError, ["-1"]),
    ("reshape", (A, (-3, -4)), ValueError, ["-3"]),
    ("broadcast_to", (A, (4, 3)), ValueError, ["broadcast_to", "(3, 4)", "(4, 3)"]),
    ("transpose", (A, (0, 0)), ValueError, ["transpose", "(0, 0)"]),
    ("transpose", (A, (0, 1, 2)), ValueError, ["axis 2"]),
    ("concatenate", ([A, V],), ValueError, ["concatenate", "(3, 4)", "(5,)"]),
    ("concatenate", ([A, A], 2), ValueError, ["axis 2"]),
    ("concatenate", ([],), ValueError, ["concatenate", "at least one"]),
    ("stack", ([A, T],), ValueError, ["stack", "(3, 4)", "(2, 3, 4)"]),
    ("stack", ([],), ValueError, ["stack", "at least one"]),
    ("hstack", ([],), ValueError, ["hstack", "at least one"]),
    ("vstack", ([A, T],), ValueError, ["(3, 4)", "(2, 3, 4)"]),
    ("split", (A, 3, 1), ValueError, ["split", "axis 1", "3"]),
    ("split", (A, 0, 1), ValueError, ["split", "positive", "0"]),
    ("split", (A, 2, 2), ValueError, ["axis 2"]),
    ("squeeze", (A, 0), ValueError, ["squeeze", "(3, 4)"]),
    ("expand_dims", (A, 5), ValueError, ["5"]),
    ("moveaxis", (A, (0, 1), (0,)), ValueError, ["moveaxis", "2", "1"]),
    ("swapaxes", (A, 0, 3), ValueError, ["axis 3"]),
    ("flip", (A, 2), ValueError, ["axis 2"]),
    ("fliplr", (V,), ValueError, ["fliplr", "(5,)"]),
    ("rot90", (V,), ValueError, ["2 dimensions"]),
    ("roll", (A, (1, 2, 3), (0, 1)), ValueError, ["roll", "3 shifts", "2 axes"]),
    ("repeat", (A, [1, 2], 0), ValueError, ["repeat", "2", "3"]),
    ("repeat", (A, -1, 0), ValueError, ["negative"]),
    ("tile", (A, -1), ValueError, ["negative"]),
    ("pad", (A, ((1, 1), (1, 1), (1, 1))), ValueError, ["pad_width"]),
    ("pad", (A, 1, "sideways"), ValueError, ["sideways"]),
    ("pad", (array(0, 4), 1, "reflect"), ValueError, ["(0, 4)", "none"]),
    ("pad", (array(0, 4), 1, "wrap"), ValueError, ["(0, 4)", "none"]),
    # indexing
    ("take", (A, array(2, dtype="int32"), 2), ValueError, ["axis 2"]),
    ("take", (A, array(2), 0), TypeError, ["indices", "integers", "float32"]),
    ("take", (array(0, 4), array(2, dtype="int32"), 0), ValueError, ["gather", "(0, 4)", "no elements"]),
    ("take_along_axis", (A, array(2, dtype="int32"), 0), ValueError, ["take_along_axis", "rank"]),
    ("take_along_axis", (A, array(2, 2, dtype="int32"), 1), ValueError, ["take_along_axis", "(3, 1)", "(2, 1)"]),
    ("diagonal", (V,), ValueError, ["axis 1", "dimension 1"]),
    ("diag", (T,), ValueError, ["diag", "(2, 3, 4)"]),
    ("diagonal", (A, 0, 1, 1), ValueError, ["axis1", "same"]),
    ("searchsorted", (A, V), ValueError, ["1-D", "(3, 4)"]),
    ("searchsorted", (V, V, "middle"), ValueError, ["searchsorted", "middle"]),
    ("digitize", (V, A), ValueError, ["digitize", "(3, 4)"]),
    ("select", ([], [], 0), ValueError, ["condlist", "empty"]),
    # reduction
    ("sum", (A, 2), ValueError, ["axis 2"]),
    ("mean", (A, (0, 0)), ValueError, ["twice", "(0, 0)"]),
    ("max", (array(3, 0), 1), ValueError, ["(3, 0)", "no elements"]),
    ("argmax", (array(3, 0), 1), ValueError, ["argmax", "(3, 0)", "no elements"]),
    ("argmin", (A, -3), ValueError, ["axis -3"]),
    ("max", (COMPLEX,), TypeError, ["complex64"]),
    ("average", (A, 1, array(3)), ValueError, ["average", "3 weights", "extent 4"]),
    ("quantile", (A, 1.5), ValueError, ["quantile", "1.5"]),
    ("percentile", (A, -1.0), ValueError, ["percentile"]),
    ("quantile", (A, array(1, 2)), ValueError, ["quantile", "(1, 2)"]),
    ("quantile", (A, 0.5, None, "guess"), ValueError, ["guess"]),
    ("bincount", (T.astype("int32"),), ValueError, ["bincount", "(2, 3, 4)"]),
    ("bincount", (V,), TypeError, ["bincount", "float32", "cast"]),
    ("bincount", (INTS, array(3)), ValueError, ["bincount", "(3,)", "(3, 4)"]),
    ("cumsum", (A, 2), ValueError, ["axis 2"]),
    ("std", (A, 2), ValueError, ["axis 2"]),
    # sorting
    ("sort", (A, 2), ValueError, ["axis 2"]),
    ("sort", (COMPLEX,), TypeError, ["complex64"]),
    ("argpartition", (A, 7), ValueError, ["argpartition", "7"]),
    # products
    ("matmul", (A, A), ValueError, ["matmul", "(3, 4)", "4 and 3"]),
    ("matmul", (A, np.float32(2)), ValueError, ["matmul", "()", "multiply"]),
    ("matmul", (array(2, 3, 4), array(3, 4, 5)), ValueError, ["matmul", "(2,)", "(3,)"]),
    ("dot", (A, A), ValueError, ["dot", "(3, 4)"]),
    ("inner", (A, V), ValueError, ["(3, 4)", "(5,)"]),
    ("vdot", (A, V), ValueError, ["vdot", "12", "5"]),
    ("tensordot", (A, A, 1), ValueError, ["tensordot", "(3, 4)"]),
    ("tensordot", (A, A, 3), ValueError, ["tensordot", "axes=3", "ranks"]),
    ("einsum", ("ij,jk->ik", A, A), ValueError, ["einsum", "'j'"]),
    ("einsum", ("ijk->i", A), ValueError, ["einsum", "'ijk'", "(3, 4)"]),
    ("einsum", ("ij->ik", A), ValueError, ["einsum"]),
    ("cross", (array(3, 4), array(3, 4)), ValueError, ["cross", "4"]),
    ("correlate", (A, V), ValueError, ["correlate", "(3, 4)"]),
    # creation
    ("zeros", ((2, -1),), ValueError, ["negative"]),
    ("arange", (0, 5, 0), ValueError, ["arange", "step"]),
    ("arange", ("a",), TypeError, ["'a'"]),
    ("eye", (-2,), ValueError, ["negative"]),
    ("full", ((2, 3), array(4)), ValueError, ["(4,)", "(2, 3)"]),
    ("vander", (A,), ValueError, ["1"]),
]  # fmt: skip
TRACEABLE = {"add", "scatter", "reshape", "take", "max", "argmax", "matmul", "einsum", "concatenate", "sort", "floor", "where"}


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_is_refused(case):
    check_eager(case)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in TRACEABLE and any(isinstance(a, np.ndarray) for a in c[1])], ids=identity)
def test_is_refused_in_a_compiled_function(case):
    check_compiled(case)


def test_a_value_is_not_known_while_tracing():
    for name in ("nonzero", "unique"):
        with pytest.raises(RuntimeError, match="depends on the values.*run_eagerly"):
            keras_ocl.jit(getattr(ops, name))(ops.convert_to_tensor(INTS))


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "tanh", "sigmoid", "erf", "sin", "sqrt", "softplus", "gelu", "silu", "round"])
def test_nan_of_any_payload_stays(name):
    x = np.array([0x7FFFFFFF, 0x7FC00001, 0xFFFFFFFF, 0xFFC00123, 0x7F800001, 0x7FC00000, 0x7FD5A5A5] * 5, "uint32").view("float32")
    assert np.isnan(np.asarray(getattr(ops, name)(x))).all()
