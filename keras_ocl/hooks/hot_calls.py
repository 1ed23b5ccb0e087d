"""Layers that are called repeatedly outside of compiled functions: after a few calls they run as compiled functions themselves.

Examples: `model(x)` in a loop, a layer in an environment's step, features taken layer by layer, a training loop with a tape. Otherwise
Python would bind, launch and wait for each operation. The outermost layer of Keras's own is compiled; layers with a user's code run as
written, and the Keras layers inside them are compiled one by one. Under one tape that can be asked for one gradient, a call is one
equation, whose gradient is compiled too.
"""

import weakref

from keras.src.backend import config
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.variables import get_autocast_scope

from keras_ocl import runtime
from keras_ocl.compiler import eager
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.pullback import Differentiable
from keras_ocl.core import checks, tree
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import NotTraced

HOT = 8  # calls run op by op before a layer is compiled, so that a model called once, to build it, costs no compilation
SMALL = 32  # most sublayers of a layer that a tape compiles at its first call: kernels of single operations take longer to build

# Layers whose calls do unknown things, or have effects beyond their results and variables.
_ELSEWHERE = {"ActivityRegularization", "FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper"}
_BEFORE_CALLS = ("_initializer", "_regularizer", "_constraint")  # endings of attributes whose functions are not used by calls
PLAIN = (bool, int, float, str)


class Calls:
    """Counts the calls of one function, either those under a tape or those without, and holds the compiled function.

    Attributes:
        number: number of calls run op by op.
        hot: None while calls are counted; then whether the function is compiled (True) or stays op by op.
        step: the compiled function: a Jitted, or under a tape a Differentiable.
    """

    __slots__ = ("hot", "number", "step")

    def __init__(self):
        self.number, self.hot, self.step = 0, None, None

    def run(self, tapes, make, name, context, args, kwargs):
        """Run the compiled function; raises NotTraced if it cannot be traced, and the function then stays op by op for good.

        `make()` returns the function to compile and the variables that it uses.
        """
        if self.step is None:
            function, variables = make()
            self.step = Differentiable(function, variables, name, context) if tapes else Jitted(function, name=name, context=context)
        try:
            return self.step.run(*tapes, args, kwargs)
        except NotTraced:
            self.hot = False
            raise


class _Layer:
    """The state of one layer.

    Attributes:
        plain, taped: its Calls without a tape and under one.
        seen, parts: value of `_changes` at the last check; (id, number of changes) of each layer inside.
    """

    __slots__ = ("parts", "plain", "seen", "taped")

    def __init__(self, layer):
        self.plain, self.taped = Calls(), Calls()
        self.seen, self.parts = _changes, _parts(layer)


_layers = weakref.WeakKeyDictionary()  # layer -> _Layer
_changes = 0  # number of changes of layers' attributes


def changed(layer, name, value):
    """Note that a layer's attribute is set: traces may depend on its old value."""
    global _changes
    own = vars(layer)
    if own.get(name, own) is not value:
        own["_ocl_changes"] = own.get("_ocl_changes", 0) + 1
        _changes += 1


def call(layer, plain, args, kwargs):
    """Call `layer`, whose inputs and state are ready: by `plain(*args, **kwargs)`, or by the compiled equivalent."""
    tapes = active_tapes.get()
    if elsewhere(tapes) or not simple(args, kwargs):
        return plain(*args, **kwargs)
    known = _layers.get(layer)
    if known is None or known.seen != _changes and not _unchanged(layer, known):
        known = _layers[layer] = _Layer(layer)
    calls = known.taped if tapes else known.plain
    if tapes and calls.hot is None and len(known.parts) <= SMALL:
        calls.hot = _known(layer)
    if not calls.hot:
        calls.number = number = calls.number + 1
        before = eager.executed()
        result = plain(*args, **kwargs)
        if calls.hot is None and number >= HOT:
            calls.hot = eager.executed() - before > 1 and _known(layer)  # a single kernel is launched as fast directly
        return result
    try:
        result, marks = calls.run(tapes, lambda: (_step(layer, plain.__func__), layer.variables), layer.name, _context, args, kwargs)
    except NotTraced as error:
        result = plain(*args, **kwargs)
        error.told(f"the layer {layer.name}")
        return result
    if marks:
        for tensor, (mask, logits) in zip(_tensors(result), marks, strict=True):
            _mark(tensor, mask, logits)
    return result


def elsewhere(tapes):
    """Whether a call is traced, checked or in a stateless scope, or may be differentiated more than once."""
    if current_trace.get() is not None or checks.active() or in_stateless_scope():
        return True
    return bool(tapes) and (len(tapes) > 1 or type(tapes[0]) is not GradientTape or tapes[0].persistent)


def simple(args, kwargs):
    """Whether all arguments are plain values or tensors on the current device without masks (which layers read and remove)."""
    device, found = runtime.current_device(), False
    for leaf in tree.flatten((args, kwargs))[0]:
        if type(leaf) is Tensor:
            if leaf.storage is None or leaf.storage.device is not device or get_keras_mask(leaf) is not None:
                return False
            found = True
        elif not isinstance(leaf, PLAIN):
            return False
    return found


def _parts(layer):
    return [(id(part), vars(part).get("_ocl_changes", 0)) for part in layer._flatten_layers()]


def _unchanged(layer, known):
    if _parts(layer) != known.parts:
        return False
    known.seen = _changes
    return True


def _known(layer):
    """Whether a call runs only Keras's own code, with no effect but its results and assigned variables."""
    for part in layer._flatten_layers():
        kind = type(part)
        if not kind.__module__.startswith(("keras.src.layers.", "keras.src.models.")) or kind.__name__ in _ELSEWHERE:
            return False
        if part is not layer and part.activity_regularizer is not None:
            return False
        values = [value for name, value in vars(part).items() if not name.endswith(_BEFORE_CALLS)]
        if not all(of_keras(value) for value in values if callable(value)):
            return False
        if not all(of_keras(operation) for operation in getattr(part, "operations", ())):
            return False
    return True


def of_keras(value):
    """Whether a function, class or object is defined in Keras or in this package."""
    return str(getattr(value, "__module__", "")).startswith(("keras.", "keras_ocl."))


def _step(layer, function):
    """A function that calls `function`, a method of `layer`, and returns (results, [(mask, logits) that Keras attached to each tensor])."""
    kept = weakref.ref(layer)

    def step(*args, **kwargs):
        try:
            result = function(kept(), *args, **kwargs)
        except runtime.FAILURES:
            raise
        except Exception as error:
            raise NotTraced from error
        marks = [(get_keras_mask(t), getattr(t, "_keras_logits", None)) for t in _tensors(result)]
        return result, marks if any(part is not None for mark in marks for part in mark) else []

    return step


def _tensors(nest):
    return [leaf for leaf in tree.flatten(nest)[0] if type(leaf) is Tensor]


def _mark(tensor, mask, logits):
    if mask is not None:
        set_keras_mask(tensor, mask)
    if logits is not None:
        tensor._keras_logits = logits


def _context():
    """The settings that a trace of a layer depends on beside its arguments, and the training flag of the layers around it."""
    autocast, around = get_autocast_scope(), global_state.get_global_attribute("current_call_ctx")
    training, flash = around and around.get_value("training"), global_state.get_global_attribute("flash_attention")
    return config.floatx(), config.epsilon(), config.image_data_format(), flash, autocast and autocast.dtype, training
