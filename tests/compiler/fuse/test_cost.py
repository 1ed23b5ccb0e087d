"""What fusion stores and what it computes again: the partitions of graphs that repeat work, not their times."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.fuse import cost
from keras_ocl.compiler.fuse.regions import Region
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.trace.ir import Graph
from keras_ocl.core.primitive import Primitive
from keras_ocl.core.tensor import Tensor
from tests.compiler.cut_search import Cut
from tests.compiler.random_chains import Chain
from tests.drivers import need_signed_zeros

POOL = ((1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (0, 1), (0, 1), (0, 0)), (1, 1, 1, 1))


class Function:
    """A function with an input for it, as Cut takes it."""

    def __init__(self, function, shape):
        self.function, self.array = function, np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("float32")

    def __call__(self, x):
        return self.function(x)


def like(value, x):
    return P.full(x.shape, value, x.dtype)


def neighbours(x, reach=4):
    """The sum of 2 * reach + 1 neighbours along the last axis."""
    zero = P.constant(0.0, x.dtype)
    padded = P.pad(x, zero, (0, 0, 0, reach), (0, 0, 0, reach))
    parts = [P.slice(padded, (0, 0, 0, k), (*x.shape[:3], x.shape[3] + k)) for k in range(2 * reach + 1)]
    total = parts[0]
    for part in parts[1:]:
        total = P.add(total, part)
    return total


def evaluations(cut):
    """How often the kernels evaluate each node that they do not load, an element: a dict."""
    places = {}
    for region in cut.regions:
        for node, indices in region.places.items():
            if region.anchor is not node and (node in region.outputs or node not in cut.materialised):
                places.setdefault(node, []).extend(indices)
    return {node: cost.evaluations(indices) / cost.size(node) for node, indices in places.items()}


def test_a_pooling_gradient_is_not_repeated_in_shifted_terms():
    """The gradient of normalisation over channels (LRN) reads the gradient of an overlapping max-pool at nine shifts."""

    def step(x):
        behind = P.window_gather_sum(P.tanh(P.reduce_window(x, "max", *POOL)), P.window_argmax(x, *POOL), x.shape, *POOL)
        return P.mul(x, neighbours(P.mul(behind, P.pow(x, like(-1.7, x)))))

    repeats = evaluations(Cut(Function(step, (32, 12, 12, 64))))
    dear = {n: r for n, r in repeats.items() if cost.price(n) > 10}
    assert {n.name for n in dear} == {"window_gather_sum", "tanh", "reduce_window", "window_argmax", "pow"}
    assert max(dear.values()) <= 1, dear


def test_what_costs_less_than_a_load_is_repeated():
    """One product of what is loaded anyway is formed at each of three shifts: one kernel."""
    cut = Cut(Function(lambda x: neighbours(P.mul(x, x), 1), (32, 12, 12, 64)))
    assert len(cut.regions) == 1
    (square,) = [n for n in cut.graph.live() if n.name == "mul"]
    assert evaluations(cut)[square] == pytest.approx(3)


def test_small_graphs_stay_one_kernel():
    """A launch costs more than to repeat a transcendental function of a few hundred elements."""
    assert len(Cut(Function(lambda x: neighbours(P.tanh(x)), (2, 2, 2, 32))).regions) == 1
    assert len(Cut(Function(lambda x: neighbours(P.tanh(x)), (64, 12, 12, 64))).regions) == 2


def test_what_a_product_of_tensors_is_part_of_twice_is_priced_once():
    """Shared subexpressions double with every step; a price that adds them up again would store all."""

    def squares(x):
        y = x
        for _ in range(40):
            y = P.mul(P.add(y, y), y)
        return P.mul(y, x)

    assert len(Cut(Function(squares, (64, 12, 12, 64))).regions) == 1


def test_places_are_the_indices_that_differ():
    """Two ways to one index are one place; a slice of a pad back to the tensor itself is none of its own."""
    places, region = cost.Places(), Region((4, 8), 0)

    graph = Graph()

    def node(primitive, x, *operands, **params):
        return graph.add(Primitive.registry[primitive], (x, *operands), params)

    x = graph.input(Tensor((4, 8), "float32"))
    zero = graph.add(Primitive.registry["constant"], (), {"value": 0.0, "dtype": "float32"})
    padded = node("pad", x, zero, low=(0, 1), high=(0, 1), interior=(0, 0))
    back = node("slice", padded, starts=(0, 1), limits=(4, 9), strides=(1, 1))
    shifted = node("slice", padded, starts=(0, 2), limits=(4, 10), strides=(1, 1))
    turned = node("transpose", node("transpose", x, perm=(1, 0)), perm=(1, 0))
    root = places.results(region, region.space)
    assert places.operand(padded, 0, places.operand(back, 0, root)) == root
    assert places.operand(padded, 0, places.operand(shifted, 0, root)) != root
    assert places.operand(turned.inputs[0], 0, places.operand(turned, 0, root)) == root
    row = node("reduce_sum", x, axes=(1,))
    assert cost.evaluations([places.operand(row, 0, root[:1])]) == 32
    assert cost.evaluations([root[:1]]) == 4


@pytest.mark.parametrize(
    "seed, stored",
    [
        (107, ["mul", "exp"]),
        (125, ["mul", "concat", "exp", "div"]),
        (134, ["tanh", "window_argmax", "mul", "mul"]),
        (142, ["mul", "partial_reduce_sum", "logistic", "transpose"]),
        (156, ["partial_reduce_sum", "logistic", "mul", "mul", "partial_reduce_sum", "mul", "mul"]),
        (160, ["exp", "reduce_sum", "mul", "mul", "mul"]),
        (163, ["div", "concat"]),
        (202, ["tanh", "window_argmax", "mul"]),
        (317, ["mul", "mul", "pad", "exp", "reduce_max", "exp", "reduce_sum", "div", "mul"]),
        (356, ["mul", "mul", "mul", "transpose"]),
        (394, ["partial_reduce_sum", "logistic", "mul", "mul"]),
        (415, ["exp", "mul", "tanh", "concat", "partial_reduce_sum", "logistic", "mul", "mul"]),
    ],
)
def test_chains_that_were_slower_than_their_best_cut(seed, stored):
    """Found by cut_search. Transcendental functions ran without vectors, because of masks, reshapes or strided loads beside them; lanes
    gathered the operands of a chain behind a transpose (356, 415); masks were priced an element that are known a row (156); a pad's rows
    ended in partial vectors of a long chain (317); broadcasts were stored because of a reshape behind them (394).
    """
    if runtime.current_device().traits.schedule != "cpu":
        pytest.skip("the partition of CPUs, whose kernels have explicit vectors")
    regions = Cut(Chain(seed)).regions
    assert [n.name for n in sorted((n for r in regions for n in r.outputs), key=lambda n: n.order)] == stored


@pytest.mark.parametrize("seed", range(8))
def test_random_chains_compute_what_their_operations_do(seed):
    chain = Chain(seed, 1 << 13)
    x = from_numpy(chain.array)
    np.testing.assert_allclose(to_numpy(Jitted(chain)(x)), to_numpy(chain(x)), rtol=1e-4, atol=1e-5, err_msg=repr(chain))


@pytest.mark.parametrize("width", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("low, high", [(2, 3), (-1, 4), (40, 0)])
def test_pads_and_joints_along_the_lanes(width, low, high):
    """Lanes beyond a row, beyond the tensor's first and last element, and rows shorter than a vector."""
    if width + low < 1:
        pytest.skip("crops more than there is")
    array = np.random.default_rng(width).normal(size=(3, width)).astype("float32")

    def step(x):
        padded = P.pad(P.tanh(x), P.constant(7.0, x.dtype), (0, low), (0, high))
        return P.concat((padded, x, P.neg(x)), 1)

    cropped = np.tanh(array.astype("float64"))[:, max(0, -low) :]
    expected = np.concatenate([np.pad(cropped, ((0, 0), (max(0, low), high)), constant_values=7.0), array, -array], 1)
    np.testing.assert_allclose(to_numpy(Jitted(step)(from_numpy(array))), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.25, 1.75, 2.0, -0.25, -0.5, -0.75, -1.5, -1.75, -2.0])
def test_powers_of_fourths(exponent):
    if exponent < 0 and exponent % 1:
        need_signed_zeros()
    array = np.array([0.0, -0.0, 1e-30, 0.3, 1.0, 7.5, 1e18, np.inf, -np.inf, -2.0, np.nan], "float32")
    if exponent % 1 == 0:
        array = np.abs(array)
    cut = Cut(type("Power", (), {"array": array, "__call__": lambda self, x: P.pow(x, like(exponent, x))})())
    assert "pow" not in {n.name for n in cut.graph.live()}
    with np.errstate(all="ignore"):
        expected = np.power(array.astype("float64"), np.full(array.shape, exponent)).astype("float32")  # ** takes a root for 0.5
    np.testing.assert_allclose(to_numpy(cut.run(cut.x)), expected, rtol=1e-6)
