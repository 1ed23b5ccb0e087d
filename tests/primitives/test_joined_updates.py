"""Parts of a tensor, updated and put together again: one update of the tensor where that is the same."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(0)


def zero():
    return P.constant(0, "int32")


def part(x, axis, k, n=1):
    """`n` slices of `x` along an axis; one without the axis."""
    lows = tuple(k if i == axis else 0 for i in range(len(x.shape)))
    limits = tuple(k + n if i == axis else m for i, m in enumerate(x.shape))
    found = P.slice(x, lows, limits)
    return found if n != 1 else P.reshape(found, (*x.shape[:axis], *x.shape[axis + 1 :]))


def stack(parts, axis):
    return P.concat([P.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts], axis)


def cache(x, rows, place):
    """As a model's: x (batch, layers, 2, length, features), rows (layers, 2, batch, 1, features)."""
    layers = []
    for k in range(x.shape[1]):
        layer = part(x, 1, k)
        both = [
            P.dynamic_update_slice(part(layer, 1, j), P.reshape(part(part(rows, 0, k), 0, j), rows.shape[2:]), (zero(), place, zero()))
            for j in range(2)
        ]
        layers.append(stack(both, 1))
    return stack(layers, 1)


def names(compiled):
    (one,) = compiled.traces
    return [launch.name for launch in one.executable.launches]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("batch,layers,length", [(1, 1, 5), (2, 3, 7), (3, 2, 1)])
def test_a_cache_is_updated_as_a_whole(batch, layers, length, dynamic):
    compiled = Jitted(cache, dynamic=dynamic)
    x, rows = RNG.normal(size=(batch, layers, 2, length, 4)).astype("f4"), RNG.normal(size=(layers, 2, batch, 1, 4)).astype("f4")
    for place in (0, length - 1, length + 3):
        want = x.copy()
        want[:, :, :, min(place, length - 1)] = rows.transpose(2, 0, 1, 3, 4)[:, :, :, 0]
        np.testing.assert_array_equal(to_numpy(compiled(x, rows, np.int32(place))), want)
    if not dynamic and length > 1:
        assert [name for name in names(compiled) if "update" in name] == ["dynamic_update_slice"]


def test_in_a_loop_the_whole_is_updated_in_place():
    def fill(x, rows):
        def step(k, carries, slices):
            return [cache(carries[0], P.mul(rows, P.broadcast(P.convert(k, "float32"), rows.shape, ())), k)], []

        return P.scan(step, [x], [], 6)[0][0]

    compiled = Jitted(fill)
    x, rows = np.zeros((1, 3, 2, 6, 4), "f4"), RNG.normal(size=(3, 2, 1, 1, 4)).astype("f4")
    want = rows.transpose(2, 0, 1, 3, 4) * np.arange(6, dtype="f4").reshape(6, 1)
    np.testing.assert_array_equal(to_numpy(compiled(x, rows)), want)
    (one,) = compiled.traces
    (loop,) = (launch for launch in one.executable.launches if hasattr(launch, "variants"))
    assert len(loop.variants) == 1  # it does not alternate between two buffers


def test_pieces_along_the_axis_that_is_joined():
    """Of several slices each, and an update that covers them."""

    def function(x, u, place):
        pieces = [(0, 2), (2, 3)]
        updated = [P.dynamic_update_slice(part(x, 0, k, n), part(u, 0, k, n), (zero(), place)) for k, n in pieces]
        return P.concat(updated, 0)

    x, u = RNG.normal(size=(7, 9)).astype("f4"), RNG.normal(size=(5, 4)).astype("f4")
    want = x[:5].copy()
    want[:, 3:7] = u
    np.testing.assert_array_equal(to_numpy(Jitted(function)(x, u, np.int32(3))), want)


def other_place(x, u, place):
    one = P.add(place, P.constant(1, "int32"))
    return [P.dynamic_update_slice(part(x, 0, k), part(u, 0, k), (p,)) for k, p in enumerate((place, one, place))]


def other_order(x, u, place):
    return [P.dynamic_update_slice(part(x, 0, k), part(u, 0, k), (place,)) for k in (1, 0, 2)]


def gap(x, u, place):
    return [P.dynamic_update_slice(part(x, 0, k), part(u, 0, k), (place,)) for k in (0, 2, 3)]


def twice(x, u, place):
    return [P.dynamic_update_slice(part(x, 0, k), part(u, 0, k), (place,)) for k in (0, 0, 1)]


def other_whole(x, u, place):
    return [P.dynamic_update_slice(part(w, 0, k), part(u, 0, k), (place,)) for k, w in enumerate((x, P.neg(x), x))]


def other_sizes(x, u, place):
    return [P.dynamic_update_slice(part(x, 0, k), P.slice(part(u, 0, k), (0,), (n,)), (place,)) for k, n in enumerate((2, 1, 2))]


def strided(x, u, place):
    spread = P.slice(x, (0, 0), (6, 9), (2, 1))
    return [P.dynamic_update_slice(part(spread, 0, k), part(u, 0, k), (place,)) for k in range(3)]


def one_plain(x, u, place):
    return [part(x, 0, 0), *(P.dynamic_update_slice(part(x, 0, k), part(u, 0, k), (place,)) for k in (1, 2))]


EXPECTED = {
    other_place: (range(3), (2, 3, 2), (2, 2, 2)),
    other_order: ((1, 0, 2), (2, 2, 2), (2, 2, 2)),
    gap: ((0, 2, 3), (2, 2, 2), (2, 2, 2)),
    twice: ((0, 0, 1), (2, 2, 2), (2, 2, 2)),
    other_sizes: (range(3), (2, 2, 2), (2, 1, 2)),
    one_plain: (range(3), (2, 2, 2), (0, 2, 2)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [*EXPECTED, other_whole, strided], ids=lambda f: f.__name__)
def test_what_is_no_update_of_the_whole(rows, axis):
    x, u = RNG.normal(size=(6, 9)).astype("f4"), RNG.normal(size=(6, 2)).astype("f4")
    if rows is other_whole:
        parts = [np.where(np.isin(np.arange(9), (2, 3)), np.r_[0, 0, u[k], [0] * 5], x[k] * (-1 if k == 1 else 1)) for k in range(3)]
    elif rows is strided:
        parts = [np.where(np.isin(np.arange(9), (2, 3)), np.r_[0, 0, u[k], [0] * 5], x[2 * k]) for k in range(3)]
    else:
        parts = []
        for k, place, n in zip(*EXPECTED[rows], strict=True):
            row = x[k].copy()
            row[place : place + n] = u[k, :n]
            parts.append(row)
    found = Jitted(lambda *arrays: stack(rows(*arrays), axis))(x, u, np.int32(2))
    np.testing.assert_array_equal(to_numpy(found), np.stack(parts, axis).astype("f4"))
