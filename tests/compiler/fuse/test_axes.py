"""Access maps against what primitives compute, and along which loops the axes of operands run."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.codegen import Analysis
from keras_ocl.compiler.fuse.axes import ANY, INNER, axis_map, reshape_map
from keras_ocl.compiler.trace import ir
from keras_ocl.core.access import ANYWHERE, ONLY, REGROUPED, Along, same_place
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.core.tensor import Tensor

PRIMITIVES = Primitive.registry
OVERLAPPING = {"window": (3, 1), "strides": (2, 1), "padding": ((1, 0), (0, 0)), "dilation": (1, 1)}
APART = {"window": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 1)), "dilation": (1, 1)}


def around(low, high, interior=(0, 0)):
    return {"low": low, "high": high, "interior": interior}


CASES = [  # a primitive, shapes of its operands and parameters
    ("broadcast", [(3,)], {"shape": (2, 3, 4), "dims": (1,)}),
    ("broadcast", [(1, 3)], {"shape": (4, 2, 3), "dims": (0, 2)}),
    ("broadcast", [()], {"shape": (2, 2), "dims": ()}),
    ("reshape", [(2, 6)], {"shape": (3, 4)}),
    ("reshape", [(2, 3, 2)], {"shape": (12,)}),
    ("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}),
    ("transpose", [(2, 3)], {"perm": (1, 0)}),
    ("reverse", [(3, 4)], {"axes": (1,)}),
    ("reverse", [(3, 4)], {"axes": (0, 1)}),
    ("slice", [(6, 5)], {"starts": (1, 0), "limits": (6, 4), "strides": (2, 1)}),
    ("slice", [(7,)], {"starts": (2,), "limits": (7,), "strides": (3,)}),
    ("stop_gradient", [(2, 3)], {}),
    ("pad", [(3, 2), ()], around((1, 0), (2, 3))),
    ("pad", [(4, 5), ()], around((-1, 2), (0, -2))),
    ("pad", [(3, 2), ()], around((0, 1), (0, 0), (2, 0))),
    ("concat", [(2, 3), (2, 1), (2, 4)], {"axis": 1}),
    ("concat", [(2, 3), (1, 3)], {"axis": 0}),
    *((f"reduce_{kind}", [(2, 3, 4)], {"axes": axes}) for kind in ("sum", "prod", "max", "min", "and", "or") for axes in ((1,), (0, 2))),
    *((f"partial_reduce_{kind}", [(5, 3)], {"axes": (0,), "axis": 0, "chunk": 2}) for kind in ("sum", "prod", "max", "min", "and", "or")),
    *((f"partial_{name}", [(5, 3), (3, 3)], {"axes": (0,), "axis": 0, "chunk": 2}) for name in ("deviations", "squares")),
    ("argmax", [(3, 4)], {"axis": 0, "dtype": "int32"}),
    ("argmin", [(3, 4)], {"axis": 1, "dtype": "int32"}),
    ("reduce_window", [(5, 3)], {"kind": "max", **OVERLAPPING}),
    ("reduce_window", [(4, 3)], {"kind": "sum", **APART}),
    ("window_argmax", [(5, 3)], {"kind": "max", **OVERLAPPING}),
    ("window_gather_sum", [(2, 3), (2, 3)], {"input_shape": (5, 3), **OVERLAPPING}),
    ("window_pick", [(5, 3), (2, 3)], OVERLAPPING),
    ("dynamic_slice", [(4, 3), (), ()], {"sizes": (2, 3)}),
    ("dynamic_slice", [(4, 1), (), ()], {"sizes": (3, 1)}),
    ("dynamic_update_slice", [(4, 3), (2, 3), (), ()], {}),
    ("dynamic_update_slice", [(3, 4), (3, 1), (), ()], {}),
    ("unpack_int4", [(3, 2)], {"axis": 0, "length": 5, "dtype": "int8"}),
    ("unpack_int4", [(2, 2)], {"axis": 1, "length": 4, "dtype": "uint8"}),
]
EXACT = (Kind.VIEW, Kind.MASKED, Kind.REDUCTION)  # of which each element that the map says counts


def node_of(name, shapes, params):
    """A graph's node, with operands of the dtypes that the primitive has."""
    last = "int32" if name in ("window_gather_sum", "window_pick") else "float32"
    kinds = ["bool" if name.endswith(("_and", "_or")) else "float32"] * len(shapes)
    if len(shapes) > 1 and name.startswith("window"):
        kinds[-1] = last
    if name.startswith("dynamic"):  # starts
        kinds = ["float32" if shape else "int32" for shape in shapes]
    if name == "unpack_int4":
        kinds = ["int8"]
    graph = ir.Graph()
    inputs = [graph.input(Tensor(shape, dtype)) for shape, dtype in zip(shapes, kinds, strict=True)]
    return graph.add(PRIMITIVES[name], tuple(inputs), params)


def label(value):
    return value if isinstance(value, str) else ""


def reached(access, place, index, shape, result):
    """Whether the result at `index` may read the operand's element at `place`, as the map tells."""
    if REGROUPED in access:
        return np.ravel_multi_index(place, shape) == np.ravel_multi_index(index, result) if shape and result else True
    for entry, at in zip(access, place, strict=True):
        if isinstance(entry, Along) and at != index[entry.axis] * entry.stride + entry.start:
            return False
        if entry is ONLY and at != 0:
            return False
    return True


def dependences(node, position):
    """Bool array over the result's axes, then the operand's: which elements of the result change with which of the operand."""
    rng = np.random.default_rng(0)
    base = []
    for x in node.inputs:
        if x.dtype == "bool":
            base.append(np.full(x.shape, "and" in node.name))
        elif x.dtype in ("int32", "int8"):
            base.append(rng.integers(0, 3, x.shape).astype(x.dtype))
        else:
            base.append((rng.permutation(int(np.prod(x.shape))).reshape(x.shape) + 1).astype("f4"))
    changes = {"bool": (True, False), "int32": (0, 1, 2), "int8": (0, -1), "float32": (-100.5, 100.5)}[node.inputs[position].dtype]

    def run(arrays):
        return to_numpy(node.primitive(*map(from_numpy, arrays), **node.params))

    before, shape = run(base), node.inputs[position].shape
    found = np.zeros((*before.shape, *shape), bool)
    for place in np.ndindex(*shape):
        for value in changes:
            arrays = [np.array(a) for a in base]
            arrays[position][place] = value
            found[(..., *place)] |= run(arrays) != before
    return found


@pytest.mark.parametrize("name,shapes,params", CASES, ids=label)
def test_maps_say_what_is_read(name, shapes, params):
    node = node_of(name, shapes, params)
    for position, x in enumerate(node.inputs):
        access = node.primitive.access(node, position)
        assert len(access) == len(x.shape)
        found = dependences(node, position)
        said = np.zeros_like(found)
        for index in np.ndindex(*node.shape):
            for place in np.ndindex(*x.shape):
                said[(*index, *place)] = reached(access, place, index, x.shape, node.shape)
        assert not (found & ~said).any(), f"operand {position} is read where {access} does not say"
        if node.kind in EXACT and ANYWHERE not in access and name != "argmax" and not name.startswith("partial"):
            if position == 0 or node.primitive.joined_axis is not None:
                np.testing.assert_array_equal(found, said, err_msg=f"operand {position}: {access}")


def test_every_map_is_tested():
    tested = {name for name, *_ in CASES}
    mapped = {name for name, p in PRIMITIVES.items() if p._access is not None}
    assert mapped - tested == {"hold"}  # which only the body of a loop has


def operands(primitive):
    """Nodes that the elementwise primitive takes, and its parameters: the first that its shape rule accepts."""
    params = {"dtype": "int32"} if primitive.name in ("convert", "bitcast") else {}
    dtypes = ("complex64",) if primitive.name in ("real", "imag") else ("float32", "int32", "bool", "complex64")
    for count in (1, 2, 3):
        for kinds in itertools.product(dtypes, repeat=count):
            graph = ir.Graph()
            inputs = tuple(graph.input(Tensor((2, 3), dtype)) for dtype in kinds)
            try:
                return graph.add(primitive, inputs, params)
            except (TypeError, ValueError):
                continue
    raise AssertionError(f"no operands for {primitive}")


@pytest.mark.parametrize("name", [name for name, p in PRIMITIVES.items() if p.kind is Kind.ELEMENTWISE])
def test_elementwise_primitives_read_where_they_compute(name):
    """An analysis loads each operand at the index that it was asked for, and nowhere else."""
    node = operands(PRIMITIVES[name])
    analysis = Analysis(set(node.inputs))
    nest = analysis.nest("root", node.shape)
    index = [Affine.of(analysis.open_loop(nest, i)) for i in range(2)]
    analysis.value(node, index)
    for position, x in enumerate(node.inputs):
        assert node.primitive.access(node, position) == same_place(2)
        assert {tuple(i.key for i in read) for read in analysis.reads[x]} == {tuple(i.key for i in index)}
    assert set(analysis.reads) == set(node.inputs)


# ---- along which loops


def mapped(name, shapes, params, along, position=0):
    return axis_map(node_of(name, shapes, params), position, along)


def test_axes_of_operands_run_along_the_loops_of_the_results():
    assert mapped("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}, (5, 6, 7)) == (6, 7, 5)
    assert mapped("broadcast", [(1, 3)], {"shape": (4, 2, 3), "dims": (1, 2)}, (5, 6, 7)) == (None, 7)
    assert mapped("reverse", [(3, 4)], {"axes": (1,)}, (5, None)) == (5, None)
    assert mapped("slice", [(6, 5)], {"starts": (1, 0), "limits": (6, 4), "strides": (2, 1)}, (ANY, 3)) == (ANY, 3)
    assert mapped("stop_gradient", [(2, 3)], {}, (8, 9)) == (8, 9)
    assert mapped("reduce_sum", [(2, 3, 4)], {"axes": (1,)}, (5, 7)) == (5, INNER + 1, 7)
    assert mapped("argmax", [(3, 4)], {"axis": 0, "dtype": "int32"}, (5,)) == (INNER, 5)
    assert mapped("partial_reduce_sum", [(5, 3)], {"axes": (0,), "axis": 0, "chunk": 2}, (4, 6)) == (INNER, 6)
    assert mapped("reshape", [(2, 1, 3)], {"shape": (2, 3)}, (5, 6)) == (5, None, 6)


def test_of_masked_and_windowed_ones_only_the_whole_index_is_known():
    assert mapped("pad", [(3, 2), ()], around((1, 0), (0, 0)), (5, 6)) == (ANY, ANY)
    assert mapped("concat", [(2, 3), (2, 1)], {"axis": 1}, (5, 6), 1) == (ANY, ANY)
    assert mapped("reduce_window", [(4, 3)], {"kind": "sum", **APART}, (5, 6)) == (ANY, ANY)


@pytest.mark.parametrize("name,shapes,params", [c for c in CASES if PRIMITIVES[c[0]].kind is Kind.VIEW], ids=label)
def test_axes_of_views_depend_on_their_loop_alone(name, shapes, params):
    """Distinct numbers tell which element of the operand each of the result is."""
    node = node_of(name, shapes, params)
    (x,) = node.inputs
    if not x.shape:
        return
    numbers = np.arange(np.prod(x.shape), dtype="f4").reshape(x.shape)
    place = np.unravel_index(to_numpy(node.primitive(from_numpy(numbers), **params)).astype(int), x.shape)
    for at, loop in zip(place, axis_map(node, 0, tuple(range(len(node.shape)))), strict=True):
        if loop is None:
            assert not at.any()
        elif loop != ANY:
            along = np.moveaxis(at, loop, 0).reshape(node.shape[loop], -1)
            assert (along == along[:, :1]).all()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([1, 1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
def test_axes_that_a_reshape_leaves_alone(old, data):
    """An axis keeps its loop only where its index is the loop's, for every element."""
    size, shape = int(np.prod(old)), []
    while size > 1:
        shape.append(data.draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0])))
        size //= shape[-1]
    for at in sorted(data.draw(st.lists(st.integers(0, 4), max_size=2))):
        shape.insert(min(at, len(shape)), 1)
    result = reshape_map(tuple(shape), tuple(old), tuple(range(len(shape))))
    assert len(result) == len(old)
    new = np.indices(shape)
    was = np.unravel_index(np.arange(np.prod(old, dtype=int)).reshape(shape), old)
    for n, loop, at in zip(old, result, was, strict=True):
        assert (loop is None) == (n == 1)
        if n != 1 and loop != ANY:
            np.testing.assert_array_equal(at, new[loop])
    if [n for n in old if n > 1] == [n for n in shape if n > 1]:
        assert ANY not in result


def test_a_reshape_in_the_middle():
    assert reshape_map((2, 12, 5), (2, 3, 4, 5), (7, 8, 9)) == (7, ANY, ANY, 9)
    assert reshape_map((2, 3, 4, 5), (2, 12, 5), (6, 7, 8, 9)) == (6, ANY, 9)
    assert reshape_map((6, 4), (4, 6), (8, 9)) == (ANY, ANY)


def test_extents_that_are_equal_by_chance_are_not_one_axis():
    a, b = Dim(4), Dim(4)
    assert reshape_map((a, b), (a, b), (8, 9)) == (8, 9)
    assert reshape_map((b, a), (a, b), (8, 9)) == (ANY, ANY)
