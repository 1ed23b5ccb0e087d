"""Primitive: an operation of the array language and its rules; bind() applies one."""

from contextvars import ContextVar

from keras_ocl.core.origin import NOWHERE, current_origin
from keras_ocl.core.tensor import Tensor

# The trace being recorded (None: eager), and the gradient tapes that are listening, innermost last.
current_trace = ContextVar("keras_ocl_trace", default=None)
active_tapes = ContextVar("keras_ocl_tapes", default=())


class Primitive:
    """One operation. Rules are attributes, defined side by side in keras_ocl/primitives.

    shape(*inputs, **params) -> (shape, dtype), or a list of them for several results
    vjp(ct, out, *inputs, **params) -> gradients for the inputs (None: no gradient); `ct` and `out` are
        lists where the primitive has several results, and a missing cotangent is None
    pointwise(gen, node, index) -> Register: the value at an index, as code (see compiler/generator/)
    kernels(builder, node, sink) -> [KernelSpec]: for operations with a kernel template of their own
    host(arrays, **params) -> arrays: a declared host operation (LAPACK)
    loop: True where `params` hold a Body that the compiler lowers and repeats (see primitives/loop.py)
    registered: False for those of users, which `registry` does not list

    `params` must be hashable.
    """

    registry = {}

    def __init__(self, name, shape, vjp=None, pointwise=None, kernels=None, host=None, several=False, loop=False, registered=True):
        self.name, self.shape, self.vjp = name, shape, vjp
        self.pointwise, self.kernels, self.host, self.several = pointwise, kernels, host, several
        self.loop = loop
        if registered:
            Primitive.registry[name] = self

    def __repr__(self):
        return self.name

    def __call__(self, *inputs, **params):
        return bind(self, inputs, params)


class Equation:
    """`outputs = primitive(*inputs, **params)`; `origin` (an Origin) says which layer and operation it came from.

    Equations of different `tag` are not merged, however equal.
    """

    __slots__ = ("primitive", "inputs", "params", "outputs", "origin", "tag")

    def __init__(self, primitive, inputs, params, outputs, origin=NOWHERE, tag=0):
        self.primitive, self.inputs, self.params, self.outputs, self.origin = primitive, inputs, params, outputs, origin
        self.tag = tag

    def __repr__(self):
        return f"{[o.shape for o in self.outputs]} = {self.primitive}({[i.shape for i in self.inputs]}, {self.params})"


_eager = None  # installed by the compiler: (primitive, inputs, params, results) -> [Storage]


def install_eager(execute):
    """Called by the compiler: `execute(primitive, inputs, params, results)` returns one Storage a result."""
    global _eager
    _eager = execute


def bind(primitive, inputs, params):
    """Apply a primitive: record it when tracing, else run it. Returns a Tensor, or a tuple for several results."""
    results = primitive.shape(*inputs, **params)
    if not primitive.several:
        results = (results,)
    for shape, _ in results:
        for n in shape:
            if n < 0:
                raise ValueError(f"{primitive}: a result of shape {tuple(shape)} has a negative extent; check the sizes that were given.")
    trace = current_trace.get()
    if trace is None:
        for x in inputs:
            if x.storage is None:
                raise RuntimeError(
                    f"{primitive}: a tensor of a finished trace was used (shape {tuple(x.shape)}). A jitted function's values exist only"
                    " while it is traced: return them, or run eagerly (run_eagerly=True)."
                )
        storages = _eager(primitive, inputs, params, results)
        outputs = tuple(Tensor(s, d, storage) for (s, d), storage in zip(results, storages, strict=True))
        tapes = active_tapes.get()
        equation = Equation(primitive, inputs, params, outputs, current_origin.get()) if tapes else None
    else:
        outputs = tuple(Tensor(s, d, None, trace) for s, d in results)
        equation = Equation(primitive, inputs, params, outputs, current_origin.get(), trace.tag)
        trace.equations.append(equation)
        tapes = active_tapes.get()
    for tape in tapes:
        tape.record(equation)
    return outputs if primitive.several else outputs[0]
