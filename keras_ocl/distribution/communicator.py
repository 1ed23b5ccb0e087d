"""The interface of collectives, and the implementation for one process."""

import numpy as np


class Communicator:
    """The only process: rank 0 of 1, where every collective returns its argument. `mpi.MpiCommunicator` is for several processes.

    All methods are collective: every rank calls the same ones in the same order, with arrays of the same shapes and dtypes unless stated
    otherwise. Each call returns when its result is complete; calls from several threads run one after the other.

    Attributes:
        rank: this process's index, 0 to size - 1.
        size: the number of processes.
        overlaps: whether it is better to begin large sums one by one, while others are computed. Equal on all ranks.
    """

    rank = 0
    size = 1
    overlaps = False

    def all_reduce(self, arrays, kind, targets=()):
        """Combine arrays elementwise over all ranks; returns a list of NumPy arrays.

        Args:
            arrays: arrays of any shapes and dtypes. Arrays with the same dtype travel together.
            kind: "sum", "prod", "max", "min" (NaN if a rank has NaN), "and" or "or" (of the bits of integers). For bool, "sum" means
                "or" and "prod" means "and", as in NumPy.
            targets: arrays of the same shapes and dtypes, contiguous and not overlapping others, which may become the results.

        Raises:
            ValueError: an unknown kind.
            TypeError: a dtype that the kind does not support, such as "max" of complex numbers.
        """
        return [np.asarray(array) for array in arrays]

    def all_gather(self, array, axis, extents, target=None):
        """Concatenate the ranks' parts along `axis`; returns a NumPy array.

        Args:
            array: this rank's part.
            axis: the axis along which the parts may differ in extent.
            extents: the extent of each rank's part, equal on all ranks; may be 0.
            target: an array that may become the result, see `all_reduce`.

        Raises:
            ValueError: this rank's part does not have the extent that `extents` says.
        """
        array = np.asarray(array)
        check_extents(self, array.shape[axis], (extents[self.rank],), extents)
        return array

    def reduce_scatter(self, array, axis, extents, kind="sum", target=None):
        """Return this rank's part, along `axis`, of the result of `all_reduce`.

        Args:
            array: an array of the same shape on all ranks.
            axis: the axis along which it is divided.
            extents: the extent of each rank's part; they sum to the array's extent.
            kind, target: as for `all_reduce`.

        Raises:
            ValueError: the extents have another sum, or the kind is unknown.
            TypeError: a dtype that the kind does not support.
        """
        array = np.asarray(array)
        check_extents(self, array.shape[axis], extents, extents)
        return array

    def broadcast(self, array, root=0):
        """Return the array of rank `root`; the others pass one of the same shape and dtype, whose values do not matter."""
        return np.asarray(array)

    def gather_objects(self, thing):
        """Return a list of every rank's `thing`, which must be picklable, on all ranks."""
        return [thing]

    def barrier(self):
        """Return when all ranks have called it."""

    def split(self, color):
        """Return the Communicator of the ranks with an equal `color`, an int of at least 0, in the same order as here.

        Splits by the same colors return the same Communicator.
        """
        return Communicator()


def check_extents(communicator, extent, parts, extents):
    """Raise ValueError if `parts` do not sum to `extent`, or there is not one of `extents` for each rank."""
    if len(extents) != communicator.size or sum(parts) != extent or min(extents) < 0:
        raise ValueError(
            f"The extents {tuple(extents)} do not divide an array among {communicator.size} ranks that has {extent} along its axis on rank "
            f"{communicator.rank}."
        )
