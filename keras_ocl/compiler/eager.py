"""Eager execution: the compiler on a one-node graph, with a cache.

Extents are arguments of eager kernels, so that arrays of other sizes reuse them: each distinct extent of
the inputs becomes a Dim whose hint is its power-of-two size class. Results that consist of rows of their operands are copied by the driver.
"""

import math

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.cache import Cache, number
from keras_ocl.compiler.deferred import Deferred
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.compiler.trace import ir
from keras_ocl.core import dtypes, primitive
from keras_ocl.core.dim import Dim, power_above
from keras_ocl.core.primitive import Kind
from keras_ocl.core.tensor import Tensor
from keras_ocl.kernels.schedule import schedule_of

_PROBES = (1500450271, 1190494759, 1870414469, 2123456789, 1299709, 2038074743, 1000003, 15485863, 32452843, 49979687, 67867967, 86028121)


def size_class(n):
    """The power of two not below n, at least 16: eager tuning decisions see only this."""
    return max(16, power_above(n)) if n > 0 else 0


class Extents:
    """A function that replaces extents by Dims; equal extents by the same Dim. Extents from -1 to 1 stay numbers."""

    def __init__(self):
        self._known = {}

    def __call__(self, n):
        if isinstance(n, bool) or not isinstance(n, int) or -1 <= n <= 1:
            return n
        d = self._known.get(n)
        if d is None:
            probe = _PROBES[len(self._known) % len(_PROBES)] + 2 * (len(self._known) // len(_PROBES))
            d = self._known[n] = Dim(n, size_class(abs(n)) * (1 if n > 0 else -1), probe * (1 if n > 0 else -1))
        return d


def _compile(device, prim, signature, params):
    extents = Extents()
    graph = ir.Graph(schedule_of(device.traits).splitting)
    nodes, made = [], []
    for shape, dtype, same_as, deferred in signature:
        if same_as is not None:
            nodes.append(nodes[same_as])
            continue
        read = shape if deferred is None else deferred[1]
        node = graph.input(Tensor(tuple(extents(n) for n in read), dtype))
        made.append(node)
        if deferred is not None:
            view, _, given = deferred
            node = graph.lowered(view, [node], _with_extents(view, dict(given), extents))
        nodes.append(node)
    wrapped = _with_extents(prim, params, extents)
    if prim.multiple_results:
        node = graph.add(prim, nodes, wrapped)
        graph.outputs = [graph.project(node, k) for k in range(len(node.results))]
    else:
        graph.outputs = [graph.lowered(prim, nodes, wrapped)]
    return Executable(device, graph, made, (), all_arguments=True, name=prim.name)


def _with_extents(prim, params, extents):
    return {k: _wrap(v, extents) if k in prim.dynamic_extents else v for k, v in params.items()}


def _wrap(value, extents):
    return tuple(_wrap(v, extents) for v in value) if isinstance(value, tuple) else extents(value)


def execute(prim, inputs, params, results):
    """Run one primitive on concrete tensors; returns one Storage per result (see core.primitive.bind)."""
    if prim.flat:
        return [inputs[0].storage]  # tensors are contiguous and never written to while shared
    device = inputs[0].storage.device if inputs else runtime.current_device()
    if prim.literal is not None:
        return [_literal(device, prim.literal(**params), results[0][1])]
    check_supported(prim, device, [dtype for _, dtype in results])
    if prim.deferred:
        (x,), ((shape, _),) = inputs, results
        return [Deferred(prim, tuple(params.items()), x.storage, x.shape, x.dtype, shape, _write)]
    return _launched(device, prim, inputs, params, results)


def _write(deferred, source):
    """The Storage of a Deferred result, computed from the Storage of its source."""
    prim, result = deferred.primitive, (deferred.shape, deferred.dtype)
    return _launched(source.device, prim, [Tensor(deferred.extents, deferred.dtype, source)], dict(deferred.params), [result])[0]


def _launched(device, prim, inputs, params, results):
    rows = None if prim.rows is None else prim.rows(inputs, params)
    if rows is not None:
        return [_copied(prim, device, inputs, rows, *results[0])]
    storages, first = [], {}
    signature = []
    elementwise = prim.kind is Kind.ELEMENTWISE
    for position, x in enumerate(inputs):
        storage, deferred = x.storage, None
        same = first.get(id(storage)) if storage.device is device else None
        if same is not None and signature[same][:2] == (x.shape, x.dtype):
            signature.append((x.shape, x.dtype, same, None))
            continue
        first.setdefault(id(storage), position)
        if elementwise and type(storage) is Deferred and storage.shape == x.shape:
            source = storage.source()
            if source is not None:
                deferred = storage.primitive, storage.extents, storage.params
                x = Tensor(storage.extents, x.dtype, source)
        signature.append((x.shape if deferred is None else storage.shape, x.dtype, None, deferred))
        storages.append(on_device(x, device))
    key = tuple(sorted((k, _typed(v)) for k, v in params.items()))
    identity = (device, prim.name, tuple(signature), key)
    return compiled_once(identity, lambda: _compile(device, prim, signature, params), _cache_of(prim)).run(storages)


def _literal(device, value, dtype):
    """The Storage of a number."""
    return number((device, dtype, _typed(value)), lambda: device.upload(np.asarray(value, dtypes.numpy_dtype(dtype))))


def _copied(prim, device, inputs, rows, shape, dtype):
    """The Storage of a result that consists of Rows of its operands, which the driver copies."""
    size = dtypes.itemsize(dtype)
    result = device.allocate(size * math.prod(shape), prim.name)
    copies = [
        (on_device(inputs[r.operand], device), *(size * n for n in (r.start, r.pitch, r.to, r.to_pitch, r.length)), r.count)
        for r in rows
        if r.length and r.count
    ]
    if copies:
        device.copy_rows(result, copies)
        _count()
    return result


def _typed(value):
    """A hashable form of a value that tells 1 from 1.0 and True."""
    if isinstance(value, tuple):
        return tuple(_typed(v) for v in value)
    return (type(value).__name__, value.hex() if isinstance(value, float) else value)


_cache = Cache()
_executed = 0


def compiled_once(identity, compile, cache=_cache):
    """The compiled function for this hashable identity: from the cache, or else what `compile()` returns."""
    found = cache.get(identity)
    if found is None:
        found = cache.add(identity, compile())
    found.used = Cache.now
    _count()
    return found


def _count():
    global _executed
    _executed += 1


def executed():
    """Approximate number of operations that eager code has run: threads may lose one another's increments."""
    return _executed


def _cache_of(prim):
    """The cache of a primitive's kernels; a user's own primitive has one of its own, which lives as long as the primitive."""
    if prim.registered:
        return _cache
    if prim.cache is None:
        prim.cache = Cache()
    return prim.cache


def on_device(tensor, device):
    """The tensor's Storage on `device`; a copy through the host if it lies on another device."""
    storage = tensor.storage
    if type(storage) is Deferred:
        storage = storage.written()
    if storage.device is device:
        return storage
    return device.upload(storage.device.download(storage, dtypes.numpy_dtype(tensor.dtype), tensor.shape))


def check_supported(what, device, names):
    """Raises a TypeError that names the operation `what` if the device lacks one of the dtypes `names`."""
    if device.traits.fp64:
        return
    for dtype in names:
        if dtypes.needs_double(dtype):
            usable = "complex64" if dtypes.is_complex(dtype) else "float32"
            raise TypeError(f"{what}: {device} has no {dtype}; use {usable} (keras.config.set_floatx or dtype={usable!r})")


primitive.install_eager(execute)
