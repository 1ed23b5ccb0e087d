"""The optimizer base that Keras mixes into its optimizers on this backend."""

from keras.src.optimizers import base_optimizer

from keras_ocl.hooks.building import all_or_nothing


class OclOptimizer(base_optimizer.BaseOptimizer):
    """Keras's own update rules: traced, they become one compiled step.

    Gradient accumulation, EMA overwriting and loss scaling use `ops.cond` with branches that assign variables,
    which the tracer turns into selections; nothing needs to be done differently here.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = all_or_nothing(cls.build)

    @all_or_nothing
    def build(self, variables):
        super().build(variables)

    @property
    def _ocl_operation(self):
        """What profiles call an update: the optimizer's class."""
        return type(self).__name__
