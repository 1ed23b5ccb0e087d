"""What must hold of every model: predictions, a training step and gradients are TensorFlow's, eager and compiled, call after call."""

import keras
import numpy as np

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.gradient import value_and_grad
from tests.fuzz.checks import EPSILON, KEEP, compare, keeping
from tests.fuzz.models import variables

_EPSILON = EPSILON["float32"]


def tolerances(runs, key):
    """(results in float64, how far each element may be off), of the exact run and those with noise; as for programs."""
    wanted = runs[0][key]
    spread = [np.max([np.abs(r[key][k] - w) for r in runs[1:]], axis=0) for k, w in enumerate(wanted)]
    return wanted, [16 * s + 16 * _EPSILON * max(1.0, float(np.abs(w).max(initial=0))) for s, w in zip(spread, wanted, strict=True)]


def finite(answer):
    """Whether all results of the reference are numbers, of a size that float32 has room for."""
    values = [v for runs in answer for run in runs for part in run.values() for v in part]
    return all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 1e4 for v in values)


def check_model(model, reference):
    """Returns whether TensorFlow can run the model in all calls; AssertionError where a result of ours is another."""
    built, layers = model.build()
    rng = np.random.default_rng(model.seed + 2)
    targets = []
    for call in model.calls:
        shapes = built.compute_output_shape([a.shape for a in model.arrays(call)])
        targets.append([rng.uniform(-1, 1, s).astype("float32") for s in shapes])
    try:
        answer = reference(model, targets)
    except RuntimeError:
        return False
    if not finite(answer):
        return False

    def check(what, key, got, runs):
        compare(f"{what}: {key}", got, *tolerances(runs, key))

    def step(what, call, wanted, runs):
        model.set_weights(layers)
        loss = trained.train_on_batch(model.arrays(call), wanted)
        check(what, "loss", [np.asarray(loss if np.ndim(loss) == 0 else loss[0])], runs)
        check(what, "variables after a step", [np.asarray(v) for v in variables(layers)], runs)

    trained = keras.Model(built.inputs, built.outputs)
    for eagerly in (True, False):
        trained.compile(keras.optimizers.SGD(1.0), ["mse"] * len(built.outputs), run_eagerly=eagerly)
        for call, wanted, runs in zip(model.calls, targets, answer, strict=True):
            what = f"{'eager' if eagerly else 'compiled'}, of batch and length {call}"
            model.set_weights(layers)
            predicted = trained.predict_on_batch(model.arrays(call))
            check(what, "predicted", predicted if isinstance(predicted, list) else [predicted], runs)
            step(what, call, wanted, runs)
    _check_inputs(model, built, layers, targets[0], answer[0], check)
    check_keeping(model, targets[0])
    return True


def check_keeping(model, targets):
    """A compiled training step with dropout gives the same variables, whatever it keeps for its gradient."""
    built, layers = model.build(dropout=True)
    dropouts = [(layer.seed_generator.state, np.asarray(layer.seed_generator.state)) for layer in built.layers if _drops(layer)]
    arrays = model.arrays(model.calls[0])
    trained = keras.Model(built.inputs, built.outputs)

    def step(noise=lambda value: value):
        for state, first in dropouts:
            state.assign(first)
        model.set_weights(layers, noise)
        loss = trained.train_on_batch([noise(a) if a.dtype == "float32" else a for a in arrays], targets)
        return {"loss": [np.asarray(loss if np.ndim(loss) == 0 else loss[0])], "variables": [np.asarray(v) for v in variables(layers)]}

    def noisy(seed):
        rng = np.random.default_rng(seed)
        return lambda value: value * (1 + 8 * _EPSILON * rng.uniform(-1, 1, value.shape)).astype(value.dtype)

    runs = []
    for way in KEEP:
        trained.compile(keras.optimizers.SGD(1.0), ["mse"] * len(built.outputs))
        with keeping(way):
            if not runs:
                runs = [step(), *(step(noisy(seed)) for seed in range(3))]
                continue
            for key, got in step().items():
                compare(f"compiled, keeping {way}: {key}", got, *tolerances(runs, key))


def _drops(layer):
    return isinstance(layer, keras.layers.Dropout)


def _check_inputs(model, built, layers, wanted, runs, check):
    """The gradients of the inputs, by a tape and compiled."""
    inputs = [from_numpy(a) for a in model.arrays(model.calls[0])]
    floats = tuple(k for k, x in enumerate(inputs) if x.dtype == "float32")
    if not floats:
        return

    def loss(*values):
        outputs = built(list(values), training=True)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        parts = [keras.losses.MeanSquaredError()(t, o) for t, o in zip(wanted, outputs, strict=True)]
        return sum(parts[1:], parts[0])

    gradient = value_and_grad(loss, floats)
    for what, function in (("tape", gradient), ("compiled gradient", Jitted(gradient))):
        model.set_weights(layers)
        check(what, "gradients of inputs", [to_numpy(g) for g in function(*inputs)[1]], runs)
