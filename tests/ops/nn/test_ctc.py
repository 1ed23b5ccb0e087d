"""CTC against sums over all alignments."""

import itertools

import numpy as np
import pytest

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.ops.nn.ctc import ctc_decode, ctc_loss
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(4)


def labelling(path, blank):
    return tuple(c for i, c in enumerate(path) if c != blank and (i == 0 or c != path[i - 1]))


def all_labellings(logits, blank):
    """{labels: probability}."""
    p = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    found = {}
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        key = labelling(path, blank)
        found[key] = found.get(key, 0) + np.prod([p[t, c] for t, c in enumerate(path)])
    return found


@pytest.mark.parametrize("blank", [0, 2])
def test_loss(blank):
    logits = RNG.normal(size=(4, 5, 3)).astype("f4")
    other = [c for c in range(3) if c != blank]
    target = np.array([[other[0], other[1], other[0]], [other[0], other[0], blank], [other[1], blank, blank], [blank] * 3], "i4")
    lengths, times = np.array([3, 2, 1, 0], "i4"), np.array([5, 4, 2, 3], "i4")
    expected = [-np.log(all_labellings(logits[i, : times[i]].astype("f8"), blank)[tuple(target[i, : lengths[i]])]) for i in range(4)]
    found = both(lambda t, o, n, m: ctc_loss(t, o, n, m, blank), target, logits, lengths, times)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_loss_gradient():
    logits = RNG.normal(size=(2, 4, 3))
    fixed = [from_numpy(np.array(a, "i4")) for a in ([[1, 2], [1, 1]], [2, 2], [4, 3])]
    check_gradient(lambda o: ctc_loss(fixed[0], o, fixed[1], fixed[2]), logits, second=False)


def test_gradient_where_paths_tie():
    """As of a head that begins at zero."""
    fixed = [from_numpy(np.array(a, "i4")) for a in ([[1, 2, 3], [1, 1, 0]], [3, 2], [6, 4])]
    check_gradient(lambda o: ctc_loss(fixed[0], o, fixed[1], fixed[2]), np.zeros((2, 6, 4)), second=False)


def test_greedy():
    best = np.array([[0, 1, 1, 0, 1, 2], [2, 2, 0, 1, 1, 1]])
    logits = np.eye(3)[best].astype("f4") * 5
    lengths = np.array([6, 3], "i4")
    paths, scores = both(lambda x, n: ctc_decode(x, n), logits, lengths)
    assert paths[0].tolist() == [[1, 1, 2, -1, -1, -1], [2, -1, -1, -1, -1, -1]]
    np.testing.assert_allclose(scores, [[-30], [-15]])
    paths, _ = ctc_decode(from_numpy(logits), from_numpy(lengths), merge_repeated=False)
    assert to_numpy(paths)[0, 0].tolist() == [1, 1, 1, 2, -1, -1]


def test_beam_search_finds_the_most_probable():
    logits = RNG.normal(size=(3, 5, 4)).astype("f4") * 2
    lengths = np.array([5, 3, 4], "i4")
    paths, scores = both(lambda x, n: ctc_decode(x, n, strategy="beam_search", beam_width=60, top_paths=3, mask_index=1), logits, lengths)
    assert paths.shape == (3, 3, 5) and scores.shape == (3, 3)
    for i, n in enumerate(lengths):
        ranked = sorted(all_labellings(logits[i, :n].astype("f8"), 1).items(), key=lambda item: -item[1])
        for k in range(3):
            assert tuple(c for c in paths[k, i] if c >= 0) == ranked[k][0]
            np.testing.assert_allclose(scores[i, k], np.log(ranked[k][1]), rtol=1e-5)


def test_errors():
    with pytest.raises(ValueError, match="Invalid strategy"):
        ctc_decode(from_numpy(np.zeros((1, 2, 3), "f4")), from_numpy(np.array([2], "i4")), strategy="best")
    with pytest.raises(ValueError, match="expected to be a tensor of shape"):
        ctc_loss(np.zeros(3, "i4"), np.zeros((1, 2, 3), "f4"), [1], [2])
