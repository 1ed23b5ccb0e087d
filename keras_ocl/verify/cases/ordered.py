"""Scans, sorts and scatters: what has an order."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import integers, normal, wide


def scans(traits, short):
    """The cases of scans, along rows and columns, long enough to be cut."""
    shapes = [((2, 20011), 1), ((20011, 3), 0)] + ([] if short else [((300, 70), 1), ((1, 70001), 1), ((5, 4099, 2), 1)])
    return [case for shape, axis in shapes for case in _scans(shape, axis)]


def _scans(shape, axis):
    x, whole, decay = normal("scanned", *shape), integers("scanned", -99, 99, *shape), abs(normal("decay", *shape)) % 0.9

    def function(x, whole, decay):
        return [
            P.cumsum(x, axis),
            P.cumsum(whole, axis, reverse=True),
            P.cummax(x, axis),
            P.cummin(whole, axis),
            P.linear_recurrence(decay, x, axis),
        ]

    def recurrence(decay, x):
        found, state = np.empty(shape), 0
        for k in range(shape[axis]):
            at = (slice(None),) * axis + (k,)
            state = found[at] = decay[at] * state + x[at]
        return found

    def wanted():
        back = np.flip(np.flip(whole, axis).cumsum(axis, dtype=np.int32), axis)
        extremes = np.maximum.accumulate(x, axis), np.minimum.accumulate(whole, axis)
        return [wide(x).cumsum(axis), back, *extremes, recurrence(wide(decay), wide(x))]

    def scales():
        _, back, most, least, _ = wanted()
        # Errors of whole numbers and of extremes are far above these.
        return [abs(wide(x)).cumsum(axis), abs(back) * 1e-9, abs(wide(most)), abs(least) * 1e-9, recurrence(wide(decay), abs(wide(x)))]

    names = ("running sums", "running sums of int32 from the end", "running maxima", "running minima of int32", "recurrence")
    return _split(Case(f"scans {list(shape)} along {axis}", function, (x, whole, decay), wanted, 40, scales, names), (1, 2, 3))


def _split(case, exact):
    """The Case as two: of the results at the positions `exact`, bit for bit, and of the others."""
    others = [k for k in range(len(case.names)) if k not in exact]

    def part(places, ulps):
        return Case(
            case.name + ("" if ulps else ", exact"),
            lambda *xs: [case.function(*xs)[k] for k in places],
            case.arrays,
            lambda: [case.wanted()[k] for k in places],
            ulps,
            (lambda: [case.scales()[k] for k in places]) if ulps else None,
            [case.names[k] for k in places],
        )

    return [part(others, case.ulps), part(exact, 0)]


def sorts(traits, short):
    """The cases of sorting and of the greatest elements."""
    shapes = [(3, 1000), (2, 5003)] if short else [(3, 1000), (2, 5003), (70, 33), (1, 20011), (5, 1)]
    return [case for shape in shapes for case in _sorts(shape)]


def _sorts(shape):
    x, whole = normal("sorted", *shape), integers("sorted", 0, 50, *shape)
    x[:1, ::17] = np.nan
    whole[:, 1 % shape[1]] = 60  # its place is far from where it is
    x[1:] = -np.sort(-x[1:], 1)
    places = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()

    def function(x, whole, places):
        return [P.sort((x,), 1)[0], *P.sort((whole, places), 1)]

    def wanted():
        order = np.argsort(whole, 1, kind="stable")
        return [np.sort(x, 1), np.take_along_axis(whole, order, 1), order]

    yield Case(f"sorting {list(shape)}", function, (x, whole, places), wanted, names=("floats with NaN", "int32", "positions"))
    count = min(7, shape[1])

    def greatest():
        order = np.argsort(-whole, 1, kind="stable")[:, :count]
        return [np.take_along_axis(whole, order, 1), order]

    yield Case(
        f"the {count} greatest of {list(shape)}", lambda x: list(P.top_k(x, count)), (whole,), greatest, names=("values", "positions")
    )


def scatters(traits, short):
    """The cases of scatters with repeated indices, and some out of range."""
    sizes = [(101, 33, 700), (2003, 4, 4501)] if short else [(101, 33, 700), (5003, 4, 9001), (7, 300, 64), (20011, 1, 5000), (3, 3, 1)]
    return [case for size in sizes for case in _scatters(*size)]


def _scatters(rows, columns, count):
    x, updates = normal("scattered", rows, columns), normal("updates", count, columns)
    indices = integers("indices", 0, rows + 2, count)  # two of them are out of range
    inside = indices < rows

    def function(x, indices, updates):
        return [P.scatter(x, (indices,), updates, (0,), mode) for mode in ("set", "max", "min")]

    def wanted():
        found = [x.copy() for _ in range(3)]
        found[0][indices[inside]] = updates[inside]
        np.maximum.at(found[1], indices[inside], updates[inside])
        np.minimum.at(found[2], indices[inside], updates[inside])
        return found

    size = f"{count} rows into {rows} x {columns}"
    yield Case(f"scatters of {size}", function, (x, indices, updates), wanted, names=("set", "max", "min"))

    def sums(x):
        found = np.zeros((rows, columns))
        np.add.at(found, indices[inside], wide(x)[inside])
        return found

    def adding(x, indices, updates):
        return [P.scatter(x, (indices,), updates, (0,), "add"), P.scatter_new((rows, columns), (indices,), updates, (0,))]

    arrays, most = (x, indices, updates), 4 + (count / rows) ** 0.5 * 4
    scales = lambda: [abs(wide(x)) + sums(abs(updates)), sums(abs(updates))]  # noqa: E731
    yield Case(f"sums of {size}", adding, arrays, lambda: [wide(x) + sums(updates), sums(updates)], most, scales, ("added", "into zeros"))
