"""Random functional models: layers on each other's results, the same on every backend."""

import math
from dataclasses import dataclass, field

import keras
import numpy as np
from hypothesis import strategies as st

from tests.fuzz.layers import LAYERS, MOST, SHARED, varying

_EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 8, 11])
WORDS = 7  # of an embedding
ANOTHER = (1, 13)  # a call that layers must fit too, so that what is unknown varies in models that are called once
# Where these change nothing, a backend may return their operand itself, on which Keras then still finds the mask: none are drawn.
_MOVERS = ("Reshape", "Permute", "Flatten", "Cropping", "ZeroPadding", "UpSampling")


@dataclass
class RandomModel:
    """
    inputs: shapes without the batch, whose unknown extents are None; () stands for (None,) words, of which 0 is padding.
    steps: (layer, positions of the operands among inputs and earlier results, arguments); ("again", operands, k) calls that of step k.
    calls: (batch, value of unknown extents), one after the other. Outputs are the results that no layer takes.
    remat: whether the layers compute their inner values again for the gradient. dropped: the steps whose results dropout follows, where
        `build` is asked for it.

    Its repr is Python that makes it again.
    """

    inputs: list
    steps: list = field(default_factory=list)
    calls: list = field(default_factory=lambda: [(3, 5)])
    seed: int = 0
    remat: bool = False
    dropped: list = field(default_factory=list)

    def used(self):
        """Positions of the inputs that layers take."""
        return [k for k in range(len(self.inputs)) if any(k in operands for _, operands, _ in self.steps)]

    def outputs(self):
        """Positions of the results that no layer takes."""
        first = len(self.inputs)
        return [k for k in range(first, first + len(self.steps)) if not any(k in operands for _, operands, _ in self.steps)]

    def shapes(self, call):
        """The inputs' shapes in a call, without the batch."""
        return [tuple(call[1] if n is None else n for n in shape or (None,)) for shape in self.inputs]

    def arrays(self, call):
        """The values of the used inputs in a call: float32, or int32 words that end in padding."""
        rng, made = np.random.default_rng(self.seed), []
        for shape, extents in zip(self.inputs, self.shapes(call), strict=True):
            values = rng.uniform(-1, 1, (call[0], *extents)).astype("float32")
            if not shape:
                values = rng.integers(1, WORDS, (call[0], *extents)).astype("int32")
                values[np.arange(extents[0]) >= rng.integers(1, extents[0] + 1, (call[0], 1))] = 0
            made.append(values)
        return [made[k] for k in self.used()]

    def layers(self):
        """For each step its layer, not built yet."""
        made = []
        with keras.RematScope("full" if self.remat and keras.backend.backend() == "ocl" else None):  # the reference needs none
            for k, (name, _, arguments) in enumerate(self.steps):
                made.append(made[arguments] if name == "again" else make_layer(name, arguments, f"layer{k}"))
        return made

    def build(self, dropout=False):
        """(a functional model, its layers by step), with weights as `set_weights` makes them."""
        layers = self.layers()
        known = {k: keras.Input(self.inputs[k] or (None,), dtype=None if self.inputs[k] else "int32") for k in self.used()}
        inputs = list(known.values())
        for k, ((_, operands, _), layer) in enumerate(zip(self.steps, layers, strict=True), len(self.inputs)):
            known[k] = call_layer(layer, [known[o] for o in operands])
            if dropout and k - len(self.inputs) in self.dropped:
                known[k] = keras.layers.Dropout(0.25, seed=self.seed + k)(known[k])
        model = keras.Model(inputs, [known[k] for k in self.outputs()])
        self.set_weights(layers)
        return model, layers

    def set_weights(self, layers, scale=lambda value: value):
        """Gives the layers' variables their values, each changed by `scale`."""
        rng = np.random.default_rng(self.seed + 1)
        for variable in variables(layers):
            value = rng.uniform(-0.6, 0.6, variable.shape).astype("float32")
            if variable.name in ("gamma", "moving_variance"):
                value = np.abs(value) + np.float32(0.5)
            variable.assign(scale(value.astype(variable.dtype)))


def make_layer(name, arguments, called=None):
    """A layer of Keras; wrappers have another's (name, arguments) among theirs."""
    if "layer" in arguments:
        arguments = arguments | {"layer": make_layer(*arguments["layer"])}
    return getattr(keras.layers, name)(**arguments, name=called)


def call_layer(layer, operands):
    """Layers that merge take a list, attention takes a query and a value."""
    if len(operands) == 1 or isinstance(layer, keras.layers.MultiHeadAttention):
        return layer(*operands)
    return layer(operands)


def variables(layers):
    """The variables of a model's layers, step after step."""
    return list({id(v): v for layer in layers for v in layer.weights}.values())


@st.composite
def models(draw, layers=6):
    """Models of up to so many layers, each of which fits what it is called on in every call."""
    some = st.lists(_EXTENTS, min_size=1, max_size=3).map(tuple)
    text = st.tuples(st.none(), _EXTENTS)
    image = st.tuples(st.none(), st.none(), _EXTENTS)
    inputs = draw(st.lists(some | text | image | st.just(()), min_size=1, max_size=2))
    model = RandomModel(inputs, calls=draw(st.lists(st.tuples(_EXTENTS, _EXTENTS), min_size=1, max_size=3, unique=True)))
    model.seed = draw(st.integers(0, 99))
    fitting = [*model.calls, ANOTHER]
    known = [[model.shapes(call)[k] for call in fitting] for k in range(len(inputs))]
    for k, shape in enumerate(inputs):  # words first become vectors
        if not shape:
            arguments = {"input_dim": WORDS, "output_dim": draw(_EXTENTS), "mask_zero": draw(st.booleans())}
            model.steps.append(("Embedding", [k], arguments))
    known += [[(*s, step[2]["output_dim"]) for s in known[step[1][0]]] for step in model.steps]
    fit = [k for k in range(len(known)) if k >= len(inputs) or inputs[k]]
    wanted = len(model.steps) + draw(st.integers(1, layers))
    for _ in range(4 * layers):
        if len(model.steps) >= wanted:
            break
        name = draw(st.sampled_from(sorted(LAYERS)))
        arity, arguments = LAYERS[name]
        operands = [fit[-1 - draw(st.integers(0, len(fit) - 1))] for _ in range(arity)]
        shapes = [known[k] for k in operands]
        taken = arguments(draw, name, *shapes)
        if taken is None:
            continue
        step = (name, operands, taken)
        if name in SHARED and draw(st.booleans()):
            same = [k for k, s in enumerate(model.steps) if s[0] == name and [known[o] for o in s[1]] == shapes]
            step = ("again", operands, draw(st.sampled_from(same))) if same else step
            taken = model.steps[step[2]][2] if same else taken
        result = _shapes_of(name, taken, shapes, fitting)
        if name.startswith(_MOVERS) and result == shapes[0]:
            continue
        if result is None or varying(result)[-1] or max(map(math.prod, result)) > MOST:
            continue
        model.steps.append(step)
        fit.append(len(known))
        known.append(result)
    model.remat = draw(st.booleans())
    model.dropped = sorted(draw(st.sets(st.sampled_from(range(len(model.steps)))))) if model.steps else []
    return model


def _shapes_of(name, arguments, operands, calls):
    """The shapes of a layer's result in each call, or None where an extent is not positive."""
    found = []
    for c, (batch, _) in enumerate(calls):
        inputs = [keras.KerasTensor((batch, *shapes[c])) for shapes in operands]
        shape = tuple(call_layer(make_layer(name, arguments), inputs).shape[1:])
        if min(shape, default=1) < 1:
            return None
        found.append(shape)
    return found
