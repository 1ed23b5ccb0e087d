"""Loops as operations of random programs, and rematerialisation: `scan`, `fori_loop`, `while_loop` and `remat` of a few drawn pieces."""

import contextlib

import keras
import numpy as np
from hypothesis import strategies as st
from keras import ops

from tests.fuzz.operations import MOST, elements, operation

_PIECES = {  # of a body: (carry by keras.ops, by NumPy); they keep the shape, and values small
    "tanh": (ops.tanh, np.tanh),
    "half": (lambda c: c * 0.5 + 0.25, lambda c: c * 0.5 + 0.25),
    "sin": (lambda c: ops.sin(c) + c * 0.25, lambda c: np.sin(c) + c * 0.25),
    "flip": (lambda c: ops.flip(c, -1), lambda c: np.flip(c, -1)),
    "mean": (lambda c: ops.tanh(c - ops.mean(c, -1, keepdims=True)), lambda c: np.tanh(c - np.mean(c, -1, keepdims=True))),
    "product": (lambda c: c * ops.sigmoid(c), lambda c: c * 0.5 * (1 + np.tanh(c / 2))),
}


_rounds = [lambda value: value]  # the last: what the reference does to each value inside a loop


@contextlib.contextmanager
def rounding(function):
    """Inside, `function` stands for the rounding of each value that a loop's step of the reference makes."""
    _rounds.append(function)
    try:
        yield
    finally:
        _rounds.pop()


def _body(pieces, ours):
    def run(c):
        for piece in pieces:
            c = _PIECES[piece][0](c) if ours else _rounds[-1](_PIECES[piece][1](c))
        return c

    return run


def _pieces(draw, shape):
    fit = sorted(set(_PIECES) - (set() if shape and shape[-1] else {"flip", "mean"}))
    return {"pieces": draw(st.lists(st.sampled_from(fit), min_size=1, max_size=3))}


def _times(draw, shape):
    return _pieces(draw, shape) | {"times": draw(st.integers(0, 5))} if elements(shape) <= MOST // 4 else None


def _fori(x, pieces, times):
    return ops.fori_loop(0, times, lambda k, c: _body(pieces, True)(c + 0.25 * ops.cast(k, c.dtype)), x)


def _their_fori(x, pieces, times):
    for k in range(times):
        x = _body(pieces, False)(x + 0.25 * k)
    return x


def _while(x, pieces, times):
    start = ops.convert_to_tensor(0, "int32")
    return ops.while_loop(lambda k, c: k < times, lambda k, c: (k + 1, _body(pieces, True)(c)), (start, x), times)[1]


def _their_while(x, pieces, times):
    for _ in range(times):
        x = _body(pieces, False)(x)
    return x


def _rows(draw, shape):
    if not shape or elements(shape) > MOST // 4:
        return None
    return _pieces(draw, shape[1:]) | {"reverse": draw(st.booleans())}


def _scan(x, pieces, reverse):
    """Every state, and the last added to each."""

    def step(carry, row):
        carry = _body(pieces, True)(carry * 0.5 + row)
        return carry, carry

    last, states = ops.scan(step, ops.zeros(x.shape[1:], x.dtype), x, reverse=reverse)
    return states + last


def _their_scan(x, pieces, reverse):
    carry, states = np.zeros(x.shape[1:]), np.empty(x.shape)
    for k in range(len(x))[:: -1 if reverse else 1]:
        carry = states[k] = _body(pieces, False)(carry * 0.5 + x[k])
    return states + carry  # which may cancel


def _remat(x, pieces):
    return keras.remat(_body(pieces, True))(x)


def _their_remat(x, pieces):
    return _body(pieces, False)(x)


operation("remat", _remat, _their_remat, _pieces)
operation("fori_loop", _fori, _their_fori, _times)
operation("while_loop", _while, _their_while, _times)
operation("scan", _scan, _their_scan, _rows)
