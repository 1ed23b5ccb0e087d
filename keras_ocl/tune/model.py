"""The problems of one model: what the kernels of its training and inference steps ask a tile for."""

from keras_ocl import lowering
from keras_ocl.kernels.overrides import asked
from keras_ocl.tune.problem import measurable


def problems(target, traits):
    """(Problems of the model that a command line names, the largest first; the number of others, which only fused kernels have).

    target: as for lowering.load(). The batch size is the one that it gives, or 32: tiles are for a batch size.
    """
    with asked() as seen:
        lowering.lower(lowering.load(target), traits, train=None, name="this device")
    return measurable(seen.problems)
