"""Layouts of tensors on a mesh of parts: whole on each part, or with an axis sharded ("cut") along an axis of the mesh."""

from typing import NamedTuple

from keras_ocl.core.dim import key, product


class Axis:
    """An axis of a mesh: `size` parts, of which this one has index `place`.

    Attributes:
        name: its name in Keras's DeviceMesh.
        shares: whole numbers in whose ratio the parts divide what is cut.
        group: the communicator along this axis (all_reduce, all_gather, reduce_scatter); None for a mesh that only plans.
    """

    def __init__(self, name, size, place=0, group=None, shares=None):
        self.name, self.size, self.place, self.group = name, size, place, group
        self.shares = tuple(shares or (1,) * size)
        self._before = [sum(self.shares[:k]) for k in range(size + 1)]

    def bounds(self, rows, place=None):
        """[begin, end) of the rows of part `place` (default: this one), out of `rows` rows, which may be a Dim."""
        place, whole = self.place if place is None else place, self._before[-1]
        return rows * self._before[place] // whole, rows * self._before[place + 1] // whole

    def __repr__(self):
        return f"{self.name}[{self.place} of {self.size}]"


class Shard(NamedTuple):
    """The sharding of a tensor's axis along `axis` of the mesh.

    The axis consists of `outer` runs of `rows` rows of `block` elements. A part has the same rows of every run: those from `ends[place]` to
    `ends[place + 1]`, or without `ends` those that `axis` assigns to it.
    """

    axis: Axis
    rows: int
    block: int = 1
    outer: int = 1
    ends: tuple | None = None

    @property
    def key(self):
        return self.axis.name, key(self.rows), key(self.block), key(self.outer), self.ends and tuple(map(key, self.ends))

    @property
    def contiguous(self):
        """Whether a part is one contiguous range of the tensor's axis."""
        return key(self.outer) == 1

    def bounds(self, place=None):
        """[begin, end) in elements of each run, for part `place` (default: this one)."""
        place = self.axis.place if place is None else place
        begin, end = self.axis.bounds(self.rows, place) if self.ends is None else self.ends[place : place + 2]
        return begin * self.block, end * self.block

    def extent(self):
        """The number of elements along the axis that this part has."""
        begin, end = self.bounds()
        return (end - begin) * self.outer

    def extents(self):
        """The number of elements of a run that each part has, in order."""
        bounds = (self.bounds(place) for place in range(self.axis.size))
        return [end - begin for begin, end in bounds]


def layout_key(layout):
    """A hashable value that is equal for equal layouts."""
    return tuple(None if shard is None else shard.key for shard in layout)


def whole(rank):
    """The layout of a tensor with `rank` axes that each part has whole."""
    return (None,) * rank


def local_shape(shape, layout):
    """The shape of this part of a tensor with this shape and layout."""
    return tuple(n if shard is None else shard.extent() for n, shard in zip(shape, layout, strict=True))


def bounds(shape, layout):
    """[begin, end) of this part of a tensor, for each axis."""
    return [(0, n) if shard is None else shard.bounds() for n, shard in zip(shape, layout, strict=True)]


def reshaped(shape, layout, new):
    """The layout after a row-major reshape from `shape` to `new`; None if parts would not consist of whole rows of one axis."""
    result = [None] * len(new)
    for i, shard in enumerate(layout):
        if shard is None:
            continue
        place, moved = _row_axis(shape, i, shard, new)
        if place is None or result[place] is not None:
            return None
        result[place] = moved
    return tuple(result)


def _row_axis(shape, i, shard, new):
    """(axis of `new` that has the rows of the cut axis i of `shape`, its Shard); Nones if there is none."""
    runs, row = product(shape[:i]) * shard.outer, shard.block * product(shape[i + 1 :])
    for j, n in enumerate(new):
        before, inner = product(new[:j]), product(new[j + 1 :])
        outer, block = _quotient(runs, before), _quotient(row, inner)
        if outer is not None and block is not None and key(outer * shard.rows * block) == key(n):
            return j, shard._replace(block=block, outer=outer)
    return None, None


def _quotient(n, by):
    """n / by if that is exact for all values of unknown extents, else None."""
    if key(by) == 0:
        return None
    result = n // by
    return result if key(result * by) == key(n) else None
