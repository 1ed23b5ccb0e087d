"""The optimizer base that Keras mixes into its optimizers on this backend."""

from keras.src.optimizers import base_optimizer


class OclOptimizer(base_optimizer.BaseOptimizer):
    """Keras's own update rules: traced, they become one compiled step.

    Gradient accumulation, EMA overwriting and loss scaling use `ops.cond` with branches that assign variables,
    which the tracer turns into selections; nothing needs to be done differently here.
    """

    @property
    def _ocl_operation(self):
        """What profiles call an update: the optimizer's class."""
        return type(self).__name__
