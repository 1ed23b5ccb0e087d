"""Placement: the axes of a mesh, and the axis along which batches are cut."""

from keras_ocl.distribution.division import Metered
from keras_ocl.distribution.drift import Drift
from keras_ocl.distribution.layout import Axis
from keras_ocl.distribution.step import Part


class Placement:
    """The role of one part of a mesh in a step.

    Args:
        shape, names: those of the mesh, row-major over the ranks of `communicator`.
        batch_axis: the name of the axis along which batches are cut.
        communicator: the Communicator of all parts (distribution/communicator.py).
        shares: relative numbers of rows that the parts along the batch axis get.
        compared: number of steps between checks that all parts have equal values; 0 for none.
        measured: whether batches are divided by the parts' measured speeds.

    Attributes:
        axes: name -> Axis.
        drift: the Drift that compares the parts.
        world: the Communicator of all ranks.
        communicator: the Communicator of all parts, a Metered if they are measured.
        ranks: the Communicator of the ranks that can each give rows of a batch; None if all have the same rows.
        kind: the class of compiled steps.
    """

    kind = Part

    def __init__(self, shape, names, batch_axis, communicator, shares=None, compared=0, measured=False):
        self.world, self.measured = communicator, measured
        self.communicator = communicator = Metered(communicator) if measured else communicator
        place, self.axes = communicator.rank, {}
        for k, (size, name) in enumerate(zip(shape, names, strict=True)):
            stride = 1
            for n in shape[k + 1 :]:
                stride *= n
            here = place // stride % size
            group = communicator if size == communicator.size else communicator.split(place - here * stride)
            self.axes[name] = Axis(name, size, here, group, shares if name == batch_axis else None)
        self.batch_axis = self.axes[batch_axis]
        self.ranks = self.batch_axis.group if self.batch_axis.size > 1 else None
        self.drift = Drift(communicator, compared)
