"""What collectives look like to those who call them, and a world of one process."""

import numpy as np


class Communicator:
    """The only process: rank 0 of 1, where every collective returns what it got. `mpi.MpiCommunicator` is that of several.

    All are collective: every rank calls the same ones in the same order, with arrays of the same shapes and dtypes where nothing else is
    said. Each call returns when its result is there, and one thread after the other is served.

    Attributes:
        rank: this process's place, 0 to size - 1.
        size: how many processes there are.
        overlaps: whether large sums are better begun one by one, while others are computed. Equal on all ranks.
    """

    rank = 0
    size = 1
    overlaps = False

    def all_reduce(self, arrays, kind, targets=()):
        """The arrays combined elementwise over all ranks, as a list of NumPy arrays.

        Args:
            arrays: arrays of any shapes and dtypes. Those of a dtype travel together.
            kind: "sum", "prod", "max", "min" (NaN if a rank has NaN), "and" or "or" (of the bits of integers). Of bool "sum" is "or" and
                "prod" is "and", as in NumPy.
            targets: arrays of the same shapes and dtypes, contiguous and apart from all others, which may become the results.

        Raises:
            ValueError: another kind.
            TypeError: a dtype that the kind does not go with, such as "max" of complex numbers.
        """
        return [np.asarray(array) for array in arrays]

    def all_gather(self, array, axis, extents, target=None):
        """The ranks' parts one after the other along `axis`, as a NumPy array.

        Args:
            array: this rank's part.
            axis: where the parts may differ in extent.
            extents: the extent of each rank's part, equal on all ranks; 0 is one too.
            target: see `all_reduce`.

        Raises:
            ValueError: this rank's part has another extent than `extents` says.
        """
        array = np.asarray(array)
        check_extents(self, array.shape[axis], (extents[self.rank],), extents)
        return array

    def reduce_scatter(self, array, axis, extents, kind="sum", target=None):
        """This rank's part, along `axis`, of what `all_reduce` would return.

        Args:
            array: an array of the same shape on all ranks.
            axis: where it is divided.
            extents: the extent of each rank's part; their sum is the array's.
            kind, target: as in `all_reduce`.

        Raises:
            ValueError: the extents have another sum; another kind.
            TypeError: a dtype that the kind does not go with.
        """
        array = np.asarray(array)
        check_extents(self, array.shape[axis], extents, extents)
        return array

    def broadcast(self, array, root=0):
        """The array of rank `root`; the others give one of the same shape and dtype, whose values do not matter."""
        return np.asarray(array)

    def gather_objects(self, thing):
        """Every rank's `thing`, which can be pickled, as a list on all ranks."""
        return [thing]

    def barrier(self):
        """Returns when all ranks have called it."""

    def split(self, color):
        """The Communicator of the ranks that give an equal `color`, an int of at least 0, in the order that they have here.

        Splits by the same colors give the same Communicator.
        """
        return Communicator()


def check_extents(communicator, extent, parts, extents):
    """Raise where the parts do not make up the extent, or are not one for each rank."""
    if len(extents) != communicator.size or sum(parts) != extent or min(extents) < 0:
        raise ValueError(
            f"The extents {tuple(extents)} do not divide an array among {communicator.size} ranks that has {extent} along its axis on rank "
            f"{communicator.rank}."
        )
