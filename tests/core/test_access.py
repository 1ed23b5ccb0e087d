"""Access maps give the index at which an operand is read, and the axes along which a view can be partitioned."""

import pytest

from keras_ocl.core import factors
from keras_ocl.core.access import ONLY, Along, index_in_operand, same_place
from keras_ocl.core.index import Affine, Var
from keras_ocl.primitives import movement

ROW, COLUMN = Var("i", 4), Var("j", 6)
INDEX = Affine.of(ROW), Affine.of(COLUMN)


@pytest.mark.parametrize(
    "access, terms",
    [
        (same_place(2), [({ROW: 1}, 0), ({COLUMN: 1}, 0)]),
        ((Along(1), ONLY, Along(0)), [({COLUMN: 1}, 0), ({}, 0), ({ROW: 1}, 0)]),
        ((Along(0, 2, 3), Along(1, -1, 5)), [({ROW: 2}, 3), ({COLUMN: -1}, 5)]),
        ((), []),
    ],
)
def test_a_map_gives_the_operands_index(access, terms):
    assert [(found.terms, found.constant) for found in index_in_operand(access, INDEX)] == terms


class Tensor:
    def __init__(self, *shape):
        self.shape, self.dtype = shape, "float32"


@pytest.mark.parametrize(
    "name, params, shapes, operand, result",
    [
        ("transpose", {"perm": (1, 0)}, ((4, 6), (6, 4)), (1, 0), (0, 1)),
        ("reverse", {"axes": (1,)}, ((4, 6), (4, 6)), (0, None), (0, None)),
        ("broadcast", {"shape": (4, 6, 3), "dims": (0, 1)}, ((4, 1), (4, 6, 3)), (0, None), (0, 1, 2)),
        ("slice", {"starts": (0, 1), "limits": (4, 3), "strides": (1, 1)}, ((4, 6), (4, 2)), (0, None), (0, None)),
        ("slice", {"starts": (0, 0), "limits": (4, 6), "strides": (2, 1)}, ((4, 6), (2, 6)), (None, 1), (None, 1)),
        ("reshape", {"shape": (24,)}, ((4, 6), (24,)), (None, None), (None,)),
    ],
)
def test_views_are_partitioned_along_the_axes_that_they_keep(name, params, shapes, operand, result):
    primitive = getattr(movement, f"{name}_p")
    seen = factors.Seen((Tensor(*shapes[0]),), (Tensor(*shapes[1]),), params, lambda tensor: None)
    found = factors.of(primitive, seen)
    assert (found.operands, found.results) == ((operand,), (result,))


def test_a_part_of_a_slice_has_its_own_limits():
    params = {"starts": (0, 1), "limits": (4, 3), "strides": (1, 1)}
    seen = factors.Seen((Tensor(4, 6),), (Tensor(4, 2),), params, lambda tensor: None)
    assert factors.of(movement.slice_p, seen).resized(params, (2, 2)) == params | {"limits": (2, 3)}
