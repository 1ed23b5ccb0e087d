"""Minimum cuts against all cuts, one by one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from keras_ocl.compiler.fuse.min_cut import INFINITE, Network


def _cut(edges, side):
    return sum(capacity for start, end, capacity in edges if not side[start] and side[end])


@given(st.integers(2, 7), st.data())
def test_the_cut_is_the_least_of_all(vertices, data):
    vertex = st.integers(0, vertices - 1)
    edges = data.draw(st.lists(st.tuples(vertex, vertex, st.integers(0, 9)), max_size=20))
    network = Network(vertices)
    for edge in edges:
        network.edge(*edge)
    side = network.sink_side(0, vertices - 1)
    assert not side[0] and side[-1]
    cuts = [(False, *middle, True) for middle in itertools.product((False, True), repeat=vertices - 2)]
    least = min(_cut(edges, cut) for cut in cuts)
    assert _cut(edges, side) == least
    assert sum(side) == min(sum(cut) for cut in cuts if _cut(edges, cut) == least)


def test_infinite_edges_are_never_cut():
    network = Network(4)
    for edge in ((0, 1, 5), (1, 2, INFINITE), (2, 3, 7), (0, 2, 1)):
        network.edge(*edge)
    assert network.sink_side(0, 3) == [False, True, True, True]


def test_long_chains_are_linear():
    """No recursion, and one phase for all paths of one length."""
    count = 20_000
    network = Network(count)
    for k in range(count - 1):
        network.edge(k, k + 1, 3 if k == 100 else INFINITE)
    side = network.sink_side(0, count - 1)
    assert side.index(True) == 101 and all(side[101:])
