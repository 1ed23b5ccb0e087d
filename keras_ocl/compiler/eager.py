"""Eager execution: the compiler on a one-node graph, with a cache.

Extents are arguments of eager kernels, so that arrays of other sizes reuse them: each distinct extent of
the inputs becomes a Dim whose hint is its power-of-two size class.
"""

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler import ir
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.executable import Executable
from keras_ocl.core import dtypes, primitive
from keras_ocl.core.dim import Dim, power_above
from keras_ocl.core.tensor import Tensor
from keras_ocl.kernels.schedule import schedule_of

_PROBES = (1500450271, 1190494759, 1870414469, 2123456789, 1299709, 2038074743, 1000003, 15485863, 32452843, 49979687, 67867967, 86028121)


def size_class(n):
    """The power of two not below n, at least 16: eager tuning decisions see only this."""
    return max(16, power_above(n)) if n > 0 else 0


class Extents:
    """Replaces extents by Dims; equal extents by equal Dims."""

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
    nodes = []
    made = {}
    for position, (shape, dtype, same_as) in enumerate(signature):
        if same_as is None:
            made[position] = graph.input(Tensor(tuple(extents(n) for n in shape), dtype))
            nodes.append(made[position])
        else:
            nodes.append(made[same_as])
    wrapped = {k: _wrap(v, extents) if k in prim.dynamic_extents else v for k, v in params.items()}
    if prim.multiple_results:
        node = graph.add(prim, nodes, wrapped)
        graph.outputs = [graph.project(node, k) for k in range(len(node.results))]
    else:
        graph.outputs = [graph.lowered(prim, nodes, wrapped)]
    return Executable(device, graph, list(made.values()), (), all_arguments=True, name=prim.name)


def _wrap(value, extents):
    return tuple(_wrap(v, extents) for v in value) if isinstance(value, tuple) else extents(value)


def execute(prim, inputs, params, results):
    """Run one primitive on concrete tensors; returns one Storage per result (see core.primitive.bind)."""
    if prim.flat:
        return [inputs[0].storage]  # tensors are contiguous and never written to while shared
    device = inputs[0].storage.device if inputs else runtime.current_device()
    if prim.literal is not None:
        ((_, dtype),) = results
        return [device.upload(np.asarray(prim.literal(**params), dtypes.numpy_dtype(dtype)))]
    check_supported(prim, device, [dtype for _, dtype in results])
    storages, first = [], {}
    signature = []
    for position, x in enumerate(inputs):
        same = first.get(id(x.storage)) if x.storage.device is device else None
        if same is not None and signature[same][:2] == (x.shape, x.dtype):
            signature.append((x.shape, x.dtype, same))
            continue
        first.setdefault(id(x.storage), position)
        signature.append((x.shape, x.dtype, None))
        storages.append(on_device(x, device))
    key = tuple(sorted((k, _typed(v)) for k, v in params.items()))
    identity = (device, prim.name, tuple(signature), key)
    return compiled_once(identity, lambda: _compile(device, prim, signature, params), _cache_of(prim)).run(storages)


def _typed(value):
    """Hashable that tells 1 from 1.0 and True."""
    if isinstance(value, tuple):
        return tuple(_typed(v) for v in value)
    return (type(value).__name__, value.hex() if isinstance(value, float) else value)


_cache = Cache()
_executed = 0


def compiled_once(identity, compile, cache=_cache):
    """What `compile` returned for this hashable identity, if that is still in the cache."""
    found = cache.get(identity)
    if found is None:
        found = cache.add(identity, compile())
    found.used = Cache.now
    global _executed
    _executed += 1
    return found


def executed():
    """How many operations eager code has run, by and large: threads may miss one of one another's."""
    return _executed


def _cache_of(prim):
    """A user's own primitive has its own cache, which goes with it."""
    if prim.registered:
        return _cache
    if prim.cache is None:
        prim.cache = Cache()
    return prim.cache


def on_device(tensor, device):
    """The tensor's storage on `device`; a copy through the host if it lives elsewhere."""
    storage = tensor.storage
    if storage.device is device:
        return storage
    return device.upload(storage.device.download(storage, dtypes.numpy_dtype(tensor.dtype), tensor.shape))


def check_supported(what, device, names):
    """TypeError naming the operation `what` when the device lacks one of the dtypes `names`."""
    if device.traits.fp64:
        return
    for dtype in names:
        if dtypes.needs_double(dtype):
            usable = "complex64" if dtypes.is_complex(dtype) else "float32"
            raise TypeError(f"{what}: {device} has no {dtype}; use {usable} (keras.config.set_floatx or dtype={usable!r})")


primitive.install_eager(execute)
