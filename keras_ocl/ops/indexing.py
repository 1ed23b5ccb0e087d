"""Indexing Tensors as NumPy arrays are: x[ints, slices, None, ..., integer arrays, masks]."""

import operator

import numpy as np
from keras.src.backend.common.variables import Variable as KerasVariable

from keras_ocl import primitives as P
from keras_ocl.core.dim import ceil_div, maximum, minimum
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor, from_host
from keras_ocl.ops.numpy.indexing import nonzero
from keras_ocl.ops.promotion import broadcast
from keras_ocl.ops.slicing import index_dtype, wrapped


def getitem(x, key):
    """x[key] for every index NumPy knows. Negative indices count from the end; array indices out of range are clipped."""
    key = list(key) if isinstance(key, tuple) else [key]
    key = _expand_masks([_as_index(k) for k in key])
    used = sum(1 for k in key if k is not None and k is not Ellipsis)
    if used > x.ndim:
        raise IndexError(f"too many indices: {used} for a tensor of shape {tuple(x.shape)}.")
    at = next((i for i, k in enumerate(key) if k is Ellipsis), None)
    if at is None:
        key.append(Ellipsis)
        at = len(key) - 1
    if any(k is Ellipsis for k in key[at + 1 :]):
        raise IndexError("an index can only have a single ellipsis ('...').")
    key[at : at + 1] = [slice(None)] * (x.ndim - used)
    return _basic(x, key)


def _as_index(k):
    if k is None or k is Ellipsis or isinstance(k, slice) or (isinstance(k, int) and not isinstance(k, bool)):
        return k
    if isinstance(k, KerasVariable):
        k = k.value
    if isinstance(k, Tensor):
        return k
    if isinstance(k, np.generic) and np.issubdtype(k.dtype, np.integer):
        return int(k)
    if isinstance(k, (list, tuple)) and any(isinstance(e, (Tensor, KerasVariable)) for e in k):
        return convert_to_tensor(list(k))
    array = np.asarray(k)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype("int32")
    if array.dtype.kind not in "iub":
        raise IndexError(f"only integers, slices, `...`, None and integer or bool arrays are valid indices, got {k!r:.60}.")
    return array


def _expand_masks(key):
    """Bool masks as the integer indices of their true elements, one array per axis."""
    result = []
    for k in key:
        if isinstance(k, np.ndarray) and k.dtype == bool:
            result.extend(np.nonzero(k) if k.ndim else np.nonzero(k.reshape(1)))
        elif isinstance(k, Tensor) and k.dtype == "bool":
            result.extend(nonzero(k))
        else:
            result.append(k)
    return result


def _basic(x, key):
    """Ints, slices and None by slicing; arrays left over go to `_advanced`."""
    arrays = [i for i, k in enumerate(key) if isinstance(k, (np.ndarray, Tensor))]
    # With arrays present an int counts as one for where NumPy puts the new axes.
    places = [i for i, k in enumerate(key) if isinstance(k, (np.ndarray, Tensor, int))] if arrays else []
    front = bool(places) and places[-1] - places[0] + 1 != len(places)
    starts, limits, strides, backwards, shape, gathered = [], [], [], [], [], []
    axis = target = 0
    for k in key:
        if k is None:
            shape.append(1)
            target += 1
            continue
        n = x.shape[axis]
        low, high, step, flip = 0, n, 1, False
        if isinstance(k, slice):
            low, high, step, flip, extent = _range(k, n)
            shape.append(extent)
            target += 1
        elif isinstance(k, int):
            if not -n <= k < n:
                raise IndexError(f"index {int(k)} is out of range for axis {axis} with extent {n}.")
            low = k if k >= 0 else n + k
            high = low + 1
        else:
            gathered.append((target, k, n))
            shape.append(n)
            target += 1
        starts.append(low)
        limits.append(high)
        strides.append(step)
        if flip:
            backwards.append(axis)
        axis += 1
    if any(not isinstance(k, slice) or k != slice(None) for k in key if k is not None):
        if any(s != 0 or h is not n or t != 1 for s, h, t, n in zip(starts, limits, strides, x.shape, strict=True)):
            x = P.slice(x, tuple(starts), tuple(limits), tuple(strides))
        if backwards:
            x = P.reverse(x, tuple(backwards))
    if tuple(shape) != x.shape:
        x = P.reshape(x, tuple(shape))
    return _advanced(x, gathered, front) if gathered else x


def _range(k, n):
    """A slice of an axis of extent n: (start, limit, stride, whether reversed, extent), all Dims kept."""
    step = 1 if k.step is None else _index(k.step)
    if step == 0:
        raise ValueError("slice step cannot be zero.")
    if step > 0:
        low = 0 if k.start is None else _clamp(_index(k.start), n, 0)
        high = n if k.stop is None else _clamp(_index(k.stop), n, 0)
        high = high if k.start is None else maximum(low, high)
        return low, high, step, False, ceil_div(high - low, step)
    start = n - 1 if k.start is None else minimum(_clamp(_index(k.start), n, -1), n - 1)
    stop = -1 if k.stop is None else _clamp(_index(k.stop), n, -1)
    extent = maximum(ceil_div(start - stop, -step), 0)
    if extent == 0:
        return 0, 0, 1, False, 0
    low = start + (extent - 1) * step
    return low, start + 1, -step, True, extent


def _index(v):
    return v if isinstance(v, int) else operator.index(v)


def _clamp(v, n, least):
    """A slice bound counted from the start of the axis, limited to [least, n]."""
    return minimum(v, n) if v >= 0 else maximum(v + n, least)


def _advanced(x, gathered, front):
    """Integer arrays at the axes `gathered` names: gather, with their common shape in place of the axes."""
    axes = [axis for axis, _, _ in gathered]
    indices = []
    for _, k, n in gathered:
        if isinstance(k, np.ndarray):
            if k.size and (k.min() < -n or k.max() >= n):
                raise IndexError(f"an index array has values from {k.min()} to {k.max()}, out of range for an axis of extent {n}.")
            k = from_host(np.where(k < 0, k.astype(np.int64) + n, k) if k.dtype.kind == "i" else k, index_dtype(n))
        else:
            check_indices("indexing", k, n)
        indices.append(wrapped(k, n))
    if len({i.dtype for i in indices}) > 1:
        indices = [P.convert(i, "int64") if i.dtype != "int64" else i for i in indices]
    indices = broadcast("indexing", *indices)
    result = P.gather(x, tuple(indices), tuple(axes))
    rank = indices[0].ndim
    position = 0 if front else axes[0]
    if position == 0 or rank == 0:
        return result
    rest = list(range(rank, result.ndim))
    return P.transpose(result, tuple(rest[:position] + list(range(rank)) + rest[position:]))
