"""Losses in eager code are compiled like layers (hot_calls.py): after a few calls, or at once under a tape."""

import weakref

import numpy as np
from keras.src.backend import config
from keras.src.losses.losses import LossFunctionWrapper

from keras_ocl import runtime
from keras_ocl.core import tree
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.trace import NotTraced
from keras_ocl.hooks.hot_calls import HOT, Calls, elsewhere, of_keras, simple
from keras_ocl.ops.conversion import convert_to_tensor

_losses = weakref.WeakKeyDictionary()  # loss -> _Loss


class _Loss:
    """The Calls of one loss, under a tape and without, valid while its settings equal `state`."""

    __slots__ = ("plain", "state", "taped")

    def __init__(self, state):
        self.plain, self.taped, self.state = Calls(), Calls(), state


def call(loss, y_true, y_pred, sample_weight):
    """The value of a `keras.losses.Loss`; NotImplemented if Keras's own code shall compute it, op by op."""
    tapes = active_tapes.get()
    if elsewhere(tapes) or not isinstance(loss, LossFunctionWrapper) or not of_keras(type(loss)) or not of_keras(loss.fn):
        return NotImplemented
    leaves, structure = tree.flatten((y_true, y_pred, sample_weight))
    args = tree.unflatten(structure, [convert_to_tensor(x, loss.dtype) if isinstance(x, np.ndarray) else x for x in leaves])
    logits = [getattr(t, "_keras_logits", None) for t in tree.flatten(y_pred)[0]]
    if not simple((args, logits, *loss._fn_kwargs.values()), {}):
        return NotImplemented
    state = loss.fn, loss.reduction, loss.dtype, *loss._fn_kwargs.items()
    known = _losses.get(loss)
    if known is None or known.state != state:
        known = _losses[loss] = _Loss(state)
    calls = known.taped if tapes else known.plain
    if calls.hot is None:
        calls.number += 1
        calls.hot = bool(tapes) or calls.number > HOT or None  # under a tape, kernels for its single operations would take longer to build
    if not calls.hot:
        return NotImplemented
    try:
        return calls.run(tapes, lambda: (_function(loss), ()), loss.name, _context, (*args, logits), {})
    except NotTraced as error:
        error.told(f"the loss {loss.name}")
        return NotImplemented


def _function(loss):
    kept = weakref.ref(loss)

    def value(y_true, y_pred, sample_weight, logits):
        for scores, before in zip(tree.flatten(y_pred)[0], logits, strict=True):
            if before is not None:
                scores._keras_logits = before
        try:
            return kept()(y_true, y_pred, sample_weight)
        except runtime.FAILURES:
            raise
        except Exception as error:
            raise NotTraced from error

    return value


def _context():
    return config.floatx(), config.epsilon(), config.image_data_format()
