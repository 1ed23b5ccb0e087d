"""Keras's Variable on a device. Its value is a Tensor; inside a trace, the trace's current symbolic value."""

import numpy as np
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import in_stateless_scope

from keras_ocl import runtime
from keras_ocl.compiler.jit import own_copy
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.trace import tracing
from keras_ocl.core.variable import Owned
from keras_ocl.hooks.distribution import cut
from keras_ocl.ops.gradients import assigned


class Variable(KerasVariable):
    """A Keras variable whose storage is part of a slab on the device that was current when it was made.

    Under `keras.distribution.ModelParallel` a process holds only its part of a variable that the LayoutMap cuts; reading the whole value
    outside of compiled functions is then a collective of all processes.

    In a traced function, reading gives a symbolic value and assigning records a new one; compiled steps update the storage in place if
    nobody else holds it.
    """

    _holding = staticmethod(Owned.sharing)  # function from a Tensor to an Owned with its value; another for variables that a mesh cuts

    def _initialize(self, value):
        value = self._convert_to_tensor(value, self._dtype)
        if value.is_symbolic():
            raise ValueError(
                f"Variable {self._path}: the initial value (shape {tuple(value.shape)}) is computed in a compiled function."
                " Create variables outside, or from an initializer with `shape=`."
            )
        device = runtime.current_device() if value.storage.device is None else value.storage.device
        self._shape = value.shape
        holding = cut(self)
        if holding is not None:
            self._holding = holding
        self._owned = self._holding(value)
        if self._owned.is_held():
            own_copy(self, device)

    def _initialize_with_initializer(self, initializer):
        # Also when a layer is built during a trace: a variable's first value is computed immediately.
        token = active_tapes.set(())
        try:
            with tracing(None):
                super()._initialize_with_initializer(initializer)
        except runtime.OutOfMemory as error:  # the error names the random numbers, or whatever the initializer computed
            raise runtime.OutOfMemory(f"Variable {self._path} of shape {tuple(self._shape)}: {error}") from None
        finally:
            active_tapes.reset(token)

    def _direct_assign(self, value, before=None):
        """Assign a Tensor; gradients flow as if it replaced the value `before`, or the current value."""
        trace = current_trace.get()
        if trace is not None:
            trace.assign(self, assigned(self, value, before))
        elif value.is_symbolic():
            raise RuntimeError(
                f"Variable {self._path}: a tensor of a finished trace (shape {tuple(value.shape)}) cannot be assigned; assign within the"
                " compiled function, or return the tensor."
            )
        else:
            self._owned = self._holding(assigned(self, value, before))

    def _convert_to_tensor(self, value, dtype=None):
        from keras_ocl.ops.core import convert_to_tensor

        return convert_to_tensor(value, dtype=dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value.__array__(dtype))

    def _tape_value(self):
        """The raw value (no autocast) at this point: a concrete one, or the current trace's."""
        trace = current_trace.get()
        return self._owned.lend() if trace is None else trace.read(self)

    @property
    def _value(self):
        """Keras's name for the raw value outside of traces; None before there is one."""
        return None if self._owned is None else self._owned.lend()

    @_value.setter
    def _value(self, nothing):
        assert nothing is None  # Keras sets no other value; see _initialize and _direct_assign
        self._owned = None

    @property
    def value(self):
        """The current value, with the variable's shape, cast by the autocast scope."""
        if self._owned is None or in_stateless_scope():
            if self._owned is None or _scoped(self) is not None:
                return KerasVariable.value.fget(self)
        value = self._tape_value()
        for tape in active_tapes.get():
            tape.read(self, value)
        return self._maybe_autocast(value)


def _scoped(variable):
    """The value that a StatelessScope holds for `variable`, or None."""
    from keras.src.backend.common.stateless_scope import get_stateless_scope

    scope = get_stateless_scope()
    return None if scope is None else scope.get_current_value(variable)
