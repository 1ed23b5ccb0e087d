"""Register tiles add outer products, of some rows or all, with an element for each row or each lane; halves of a register are added."""

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.kernels.prelude import vector_type
from keras_ocl.kernels.register_tile import RegisterTile, halved
from keras_ocl.kernels.spec import Args
from tests.kernels.launching import launch, named

STEPS = 7


def computed(rows, vectors, lanes, step, left, right, begin=None):
    """The sums, (rows, vectors x lanes), after STEPS times the statements `step(tile)`; left and right: the operands of each step."""
    device, args = runtime.current_device(), Args()
    x, w = args.pointer(named("x"), "float32"), args.pointer(named("w"), "float32")
    y = args.pointer(named("y"), "float32", out=True)
    tile = RegisterTile(rows, vectors, f"float{lanes}")
    assert tile.sums == [f"s{r}_{v}" for r in range(rows) for v in range(vectors)]
    body = f"{tile.begin(begin)}for (int q = 0; q < {STEPS}; ++q) {{\n"
    body += f"__global const float* a = {x} + q * {left[0].size};\n__global const float* b = {w} + q * {right[0].size};\n{step(tile)}}}\n"
    body += tile.each(lambda r, v, name: f"vstore{lanes}({name}, 0, {y} + {(r * vectors + v) * lanes});\n")
    result = device.upload(np.full((rows, vectors * lanes), 77, "float32"))
    launch(device, [args.kernel("tile", body, (1,), title="a tile")], {"x": device.upload(left), "w": device.upload(right), "y": result})
    return device.download(result, "float32", (rows, vectors * lanes))


def drawn(*shape):
    return np.random.default_rng(len(shape)).integers(-8, 9, shape).astype("float32")


@pytest.mark.parametrize("rows,vectors,lanes", [(1, 1, 4), (3, 2, 8), (6, 2, 4), (2, 3, 16)])
@pytest.mark.parametrize("some", [None, slice(1, None)])
def test_outer_products(rows, vectors, lanes, some):
    left, right = drawn(STEPS, rows), drawn(STEPS, vectors * lanes)
    loads = [f"vload{lanes}({v}, b)" for v in range(vectors)]
    chosen = None if some is None else range(rows)[some]
    got = computed(rows, vectors, lanes, lambda tile: tile.step("a[{}]".format, loads, chosen), left, right)
    want = left.T @ right
    if some is not None:
        want[: some.start] = 0  # the other rows keep what they had
    np.testing.assert_array_equal(got, want)


def test_elements_of_lanes():
    rows, vectors, lanes = 3, 2, 4
    left, right = drawn(STEPS, rows, vectors * lanes), drawn(STEPS, vectors * lanes)

    def step(tile):
        loads = [f"vload{lanes}({v}, b)" for v in range(vectors)]
        return tile.step(lambda r, v: f"vload{lanes}({r * vectors + v}, a)", loads, by_lane=True)

    np.testing.assert_array_equal(computed(rows, vectors, lanes, step, left, right), np.einsum("qrn,qn->rn", left, right))


def test_sums_begin_with_given_values():
    left, right = drawn(STEPS, 2), drawn(STEPS, 4)
    got = computed(2, 1, 4, lambda tile: tile.step("a[{}]".format, ["vload4(0, b)"]), left, right, lambda r, v: f"(float4)({r}.5f)")
    np.testing.assert_array_equal(got, left.T @ right + [[0.5], [1.5]])


def test_halves_of_a_register():
    def named(before, lanes):
        return f"{before}_{lanes}"

    statements = "const float2 x_2 = x.lo + x.hi;\nconst float x_2_1 = x_2.lo + x_2.hi;\n"
    assert halved(lambda lanes: vector_type("float", lanes), "x", 4, named) == (statements, "x_2_1")
    assert halved(lambda lanes: vector_type("float", lanes), "x", 2, named, until=2) == ("", "x")
    larger = halved(lambda lanes: vector_type("float", lanes), "x", 2, named, op=lambda a, b, lanes: f"larger{lanes}({a}, {b})")
    assert larger == ("const float x_1 = larger1(x.lo, x.hi);\n", "x_1")
