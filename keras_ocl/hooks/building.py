"""Builds that succeed or are undone: after an error, objects that Keras was building are as before, so they can be built again.

Keras marks an optimizer as built, and appends a layer's variables, before all of them are made. Running out of memory or Ctrl-C in
between would leave objects that neither work nor can be built again.
"""

import contextlib
import functools
from contextvars import ContextVar

from keras.src.backend.common import global_state

_undo = ContextVar("keras_ocl_undo", default=None)  # for the enclosing build: the _States to return to, oldest first

_WAITING = "uninitialized_variables"  # Keras's list of variables made in a symbolic call, which get their values after it
_COUNTED = "_ocl_changes"  # a counter of hooks/hot_calls.py, which must never go back


class _State:
    """The attributes of an object, the contents of its lists, dicts and sets, and the state of its tracker."""

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
            kind = _plain(value)  # methods of the plain kind: those of Keras's own lists and dicts track new contents
            kind.clear(value)
            (list.extend if kind is list else kind.update)(value, before)
        if "_tracker" in own:
            own["_tracker"].locked = self._locked


def _plain(value):
    return next(kind for kind in (list, dict, set) if isinstance(value, kind))


@contextlib.contextmanager
def undone_on_error(*things):
    """Context manager in which `things` are built: after an exception they, and everything built inside for them, are as before."""
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
    """Wraps `build`, a method that makes an object's variables, so that an error undoes it."""

    @functools.wraps(build)
    def whole(self, *args, **kwargs):
        with undone_on_error(self):
            return build(self, *args, **kwargs)

    return whole


def bound_all_or_nothing(thing, build):
    """The same for `build`, a method that is bound to `thing` already."""

    @functools.wraps(build)
    def whole(*args, **kwargs):
        with undone_on_error(thing):
            return build(*args, **kwargs)

    return whole
