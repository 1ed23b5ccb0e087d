"""Batches of which every rank gives its own rows (`auto_shard_dataset=False`): the whole batch is their concatenation in rank order.

Before each step the ranks tell one another their numbers of rows. A rank whose data have ended takes part with zero rows until all have.
"""

import itertools
import zlib

import numpy as np

from keras_ocl.core import dtypes, tree
from keras_ocl.core.dim import key
from keras_ocl.core.tensor import Tensor
from keras_ocl.distribution.layout import Axis, Shard, whole

_ENDED = -1  # instead of a number of rows, once a rank's data have ended


class OwnRows:
    """A batch; `data`, a nest of arrays, has this rank's rows.

    Args:
        ends: bounds of the ranks' rows in the whole batch: 0, then the end of each rank's rows.
    """

    def __init__(self, data, ends):
        self.data, self.ends = data, ends

    def arguments(self):
        """Stand-ins for the whole batch in a signature, and arrays with the lengths of the inner `ends`; they take almost no memory."""
        leaves, structure = tree.flatten(self.data)
        stand_ins = [_empty(leaf, self.ends[-1]) if _has_rows(leaf) else leaf for leaf in leaves]
        return tree.unflatten(structure, stand_ins), *self._marks()

    def arrays(self):
        """This rank's arrays, in the order of those of `arguments`."""
        leaves, _ = tree.flatten(self.data)
        return [leaf for leaf in leaves if type(leaf) is Tensor or isinstance(leaf, (np.ndarray, np.generic))] + self._marks()

    def _marks(self):
        return [np.broadcast_to(np.False_, (end,)) for end in self.ends[1:-1]]


def agree(ranks, data):
    """The OwnRows of the next step, or None if all ranks' data have ended. Collective.

    Args:
        ranks: the Communicator of the ranks that give rows.
        data: this rank's batch, a nest of arrays with equally many rows, and other values that are equal on all ranks; None if its data
            have ended.

    Raises:
        ValueError: arrays have different numbers of rows, or other shapes, dtypes or structure than another rank's.
    """
    described = None if data is None else _described(data)
    mine = (_ENDED, 0) if data is None else (_rows(data, ranks.rank), zlib.crc32(repr(described).encode()))
    counts, digests = ranks.all_gather(np.array([mine], np.int64), 0, (1,) * ranks.size).T
    active = [k for k, n in enumerate(counts) if n != _ENDED]
    if not active:
        return None
    if len(active) < ranks.size or len(set(digests)) > 1:
        everybody = ranks.gather_objects((described, data is not None and _without_rows(data)))
        first = everybody[active[0]]
        for k in active:
            if everybody[k][0] != first[0]:
                raise ValueError(
                    f"auto_shard_dataset=False: the batch of rank {k} is {_shown(everybody[k][0])}, where that of rank {active[0]} is"
                    f" {_shown(first[0])}; ranks may differ in the number of rows only."
                )
        data = first[1] if data is None else data
    return OwnRows(data, (0, *(int(n) for n in np.cumsum(np.maximum(counts, 0)))))


def batches(ranks, own):
    """Yield the OwnRows of all steps, until every rank's iterator over batches (this rank's: `own`) has ended."""
    for data in itertools.chain(own, itertools.repeat(None)):
        found = agree(ranks, data)
        if found is None:
            return
        yield found


def layouts(inputs, axis, ranks, shares):
    """Layouts of the arguments of a step with OwnRows: (a list of them, the Shard of all rows of this rank).

    Args:
        inputs: the trace's input Tensors, in the order of `OwnRows.arrays`.
        axis: the mesh axis along which batches are cut, over the ranks and within each over its devices.
        shares: each part's number of rows in relation to the other parts of its rank.
    """
    data, marks = inputs[: len(inputs) - ranks.size + 1], inputs[len(inputs) - ranks.size + 1 :]
    rows = next(x.shape[0] for x in data if len(x.shape))
    of_ranks = (0, *(x.shape[0] for x in marks), rows)
    devices, ends = axis.size // ranks.size, [0]
    for k, (begin, end) in enumerate(itertools.pairwise(of_ranks)):
        before = [*itertools.accumulate(shares[k * devices : (k + 1) * devices])]
        ends += [begin + (end - begin) * n // before[-1] for n in before]
    cut = Shard(axis, rows, ends=tuple(ends))
    found = [(cut, *whole(len(x.shape) - 1)) if len(x.shape) and key(x.shape[0]) == key(rows) else whole(len(x.shape)) for x in data]
    mine = cut if devices == 1 else Shard(Axis("ranks", ranks.size, ranks.rank), rows, ends=of_ranks)
    return found + [whole(1) for _ in marks], mine


def _has_rows(leaf):
    return (type(leaf) is Tensor or isinstance(leaf, np.ndarray)) and len(leaf.shape) > 0


def _empty(leaf, rows):
    """An array like `leaf` with `rows` rows, all of which share one number's memory."""
    dtype = dtypes.numpy_dtype(leaf.dtype) if type(leaf) is Tensor else leaf.dtype
    return np.broadcast_to(np.zeros((), dtype), (rows, *leaf.shape[1:]))


def _rows(data, rank):
    """The number of rows that all arrays of a batch have."""
    extents = [leaf.shape[0] for leaf in tree.flatten(data)[0] if _has_rows(leaf)]
    if len(set(extents)) != 1:
        raise ValueError(f"auto_shard_dataset=False: the arrays of rank {rank}'s batch have {extents} rows; all need as many.")
    return extents[0]


def _described(data):
    """(structure, description of each leaf without its number of rows), which must be equal on all ranks."""
    leaves, structure = tree.flatten(data)
    return structure, [(*leaf.shape[1:], str(leaf.dtype)) if _has_rows(leaf) else type(leaf).__name__ for leaf in leaves]


def _shown(described):
    return f"{len(described[1])} arrays of rows of " + ", ".join(map(str, described[1]))


def _without_rows(data):
    leaves, structure = tree.flatten(data)
    return tree.unflatten(structure, [np.array(_empty(leaf, 0)) if _has_rows(leaf) else leaf for leaf in leaves])
