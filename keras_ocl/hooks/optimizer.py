"""The optimizer base that Keras mixes into its optimizers on this backend."""

import weakref

from keras.src.backend import name_scope
from keras.src.distribution.distribution_lib import distribution
from keras.src.optimizers import base_optimizer
from keras.src.optimizers.schedules.learning_rate_schedule import LearningRateSchedule

from keras_ocl import runtime
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core.primitive import active_tapes
from keras_ocl.core.trace import NotTraced
from keras_ocl.core.variable import is_variable
from keras_ocl.hooks.building import all_or_nothing
from keras_ocl.hooks.hot_calls import PLAIN, SMALL, elsewhere, of_keras, simple

_updates = weakref.WeakKeyDictionary()  # optimizer -> the Jitted of its updates, or False if they cannot be traced


class OclOptimizer(base_optimizer.BaseOptimizer):
    """Keras's own update rules; a trace turns them into one compiled step.

    Gradient accumulation, EMA overwriting and loss scaling use `ops.cond` with branches that assign variables; the tracer turns these into
    selects, so nothing needs to be done differently here.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = all_or_nothing(cls.build)

    @all_or_nothing
    def build(self, variables):
        super().build(variables)

    def _backend_apply_gradients(self, grads, trainable_variables):
        """Clip, decay and apply. In eager code updates run compiled: at once for few variables, else from the second time on."""
        update = super()._backend_apply_gradients
        alone = not active_tapes.get() and distribution() is None
        if not alone or elsewhere(()) or not self._of_keras() or not simple(grads, {}):
            return update(grads, trainable_variables)
        jitted = _updates.get(self)
        if jitted is None:
            jitted = _updates[self] = _jitted(self, super()._backend_apply_gradients.__func__)
            if len(trainable_variables) > SMALL:
                return update(grads, trainable_variables)
        if jitted:
            try:
                return jitted.run((list(grads), list(trainable_variables)), {})
            except NotTraced as error:
                _updates[self] = False
                error.told(f"the optimizer {self.name}")
        return update(grads, trainable_variables)

    def _of_keras(self):
        """Whether an update runs only Keras's own code, with no effect but assigned variables."""
        rate = self._learning_rate
        return of_keras(type(self)) and (is_variable(rate) or isinstance(rate, LearningRateSchedule) and of_keras(type(rate)))

    @property
    def _ocl_operation(self):
        """The name of an update in profiles: the optimizer's class."""
        return type(self).__name__


def _jitted(optimizer, function):
    """The Jitted of `function`, a method of the optimizer; the optimizer's plain settings are part of its signatures."""
    kept = weakref.ref(optimizer)

    def update(grads, trainable_variables):
        optimizer = kept()
        try:
            with name_scope(optimizer.name, caller=optimizer):  # again, for profiles: the enclosing scope is not part of the trace
                function(optimizer, grads, trainable_variables)
        except runtime.FAILURES:
            raise
        except Exception as error:
            raise NotTraced from error

    def settings():
        found = vars(kept())
        return id(found["_learning_rate"]), *(item for item in found.items() if isinstance(item[1], PLAIN))

    return Jitted(update, name=optimizer.name, context=settings)
