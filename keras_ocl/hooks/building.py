"""Builds that are done or not done: after an error, what Keras was building is as it was, so that it can be built again.

Keras marks an optimizer as built, and appends a layer's variables, before all of them are made; out of memory or Ctrl-C between the two
would leave objects that neither work nor build again.
"""

import contextlib
import functools
from contextvars import ContextVar

from keras.src.backend.common import global_state

_undo = ContextVar("keras_ocl_undo", default=None)  # of the build around: the states to return to, oldest first

_WAITING = "uninitialized_variables"  # Keras's list of variables that were made in a symbolic call, and get their values after it
_COUNTED = "_ocl_changes"  # by hooks/hot_calls.py, and never back


class _State:
    """The attributes of an object, what its lists, dicts and sets hold, and what its tracker knows."""

    def __init__(self, thing):
        self._thing, own = thing, vars(thing)
        self._attributes = dict(own)
        held = [value for value in own.values() if isinstance(value, (list, dict, set))]
        tracker = own.get("_tracker")
        if tracker is not None:
            held += [*(store for _, store in tracker.config.values()), *tracker.stored_ids.values()]
            self._locked = tracker.locked
        self._held = [(value, _plain(value)(value)) for value in held]

    def restore(self):
        own = vars(self._thing)
        changes = own.get(_COUNTED)
        own.clear()
        own.update(self._attributes)
        if changes is not None:
            own[_COUNTED] = changes
        for value, before in self._held:
            kind = _plain(value)  # its methods: those of Keras's own lists and dicts track what they are given
            kind.clear(value)
            (list.extend if kind is list else kind.update)(value, before)
        if "_tracker" in own:
            own["_tracker"].locked = self._locked


def _plain(value):
    return next(kind for kind in (list, dict, set) if isinstance(value, kind))


@contextlib.contextmanager
def undone_on_error(*things):
    """Context in which `things` are built: where it ends in an exception they are as before, with all that was built for them inside."""
    around, states = _undo.get(), [_State(thing) for thing in things]
    waiting = list(global_state.get_global_attribute(_WAITING, ()))
    token = _undo.set(states)
    try:
        yield
    except BaseException:
        for state in reversed(states):
            state.restore()
        global_state.set_global_attribute(_WAITING, waiting)
        raise
    finally:
        _undo.reset(token)
    if around is not None:
        around.extend(states)


def all_or_nothing(build):
    """`build`, a method that makes an object's variables."""

    @functools.wraps(build)
    def whole(self, *args, **kwargs):
        with undone_on_error(self):
            return build(self, *args, **kwargs)

    return whole


def bound_all_or_nothing(thing, build):
    """The same of `build`, which is bound to `thing` already."""

    @functools.wraps(build)
    def whole(*args, **kwargs):
        with undone_on_error(thing):
            return build(*args, **kwargs)

    return whole
