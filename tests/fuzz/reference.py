"""Random models on TensorFlow in float64, in one process of its own that answers through pipes: `python -m tests.fuzz.reference`."""

import os
import pickle
import subprocess
import sys
from functools import partial
from unittest import mock

from tests.keras.tensorflow_process import ROOT

_RUNS = 3  # with noise
_NOISE = 8 * 1.2e-7  # rounding errors of a few units of float32 per layer


class Reference:
    """The process. Use as a context manager."""

    def __enter__(self):
        environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.reference"]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __call__(self, model, targets):
        """For each call of the model a list of runs, the first exact and others with noise; each is the dict that `_step` returns.

        `targets`: for each call those of all outputs. RuntimeError holds the error of TensorFlow where it cannot run the model.
        """
        pickle.dump((model, targets), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer


def _dtype(array):
    return "float64" if array.dtype == "float32" else str(array.dtype)


def _noisy(rng, value):
    return value if rng is None else value * (1 + _NOISE * rng.uniform(-1, 1, tuple(value.shape)))


def _moments(moments, noisy, *arguments, **options):
    """Normalization subtracts a product with the mean, and so rounds at its size even where the difference is 0."""
    mean, variance = moments(*arguments, **options)
    return noisy(mean), variance


def _rounded(operation_fn, noisy, operation, **context):
    """What Keras's functional models call in an operation's place: the operation, then noise. The result's mask stays.

    Operations that compute masks are among a model's: what is not floating stays too.
    """
    from keras.src.backend import get_keras_mask, set_keras_mask

    def call(*arguments, **options):
        value = operation_fn(operation, **context)(*arguments, **options)
        changed = noisy(value) if value.dtype.is_floating else value
        if get_keras_mask(value) is not None:
            set_keras_mask(changed, get_keras_mask(value))
        return changed

    return call


def _run(model, built, layers, call, targets, rng):
    """What a call of the model makes, exact or, with `rng`, with noise.

    Keras's own functional model runs the layers: attention takes masks away from its operands, so other layers' masks depend on the order.
    """
    from keras.src import backend
    from keras.src.models import functional

    noisy = partial(_noisy, rng)
    moments = mock.patch.object(backend.nn, "moments", partial(_moments, backend.nn.moments, noisy))
    with moments, mock.patch.object(functional, "operation_fn", partial(_rounded, functional.operation_fn, noisy)):
        return _step(model, built, layers, call, targets, noisy)


def _step(model, built, layers, call, targets, noisy):
    """What a call of the model predicts, its loss, and the gradients and variables after a step: dict of lists of arrays."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tests.fuzz.models import variables

    def outputs(training):
        return keras.tree.flatten(built(inputs, training=training))

    model.set_weights(layers, noisy)
    inputs = [tf.constant(a, _dtype(a)) for a in model.arrays(call)]
    made = {"predicted": [r.numpy() for r in outputs(False)]}
    floats = [x for x in inputs if x.dtype.is_floating]
    parts = variables(layers)
    trained = [v for v in parts if v.trainable]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        loss = sum(keras.losses.MeanSquaredError()(t, o) for t, o in zip(targets, outputs(True), strict=True))
    sources = [v.value for v in trained] + floats
    found = tape.gradient(loss, sources)
    gradients = [np.zeros(s.shape) if g is None else tf.convert_to_tensor(g).numpy() for g, s in zip(found, sources, strict=True)]
    made["loss"] = [loss.numpy()]
    made["gradients of inputs"] = gradients[len(trained) :]
    steps = dict(zip(map(id, trained), gradients, strict=False))
    made["variables after a step"] = [np.asarray(v) - steps.get(id(v), 0) for v in parts]
    return made


def _add(x1, x2):
    """Keras's own adds a value of shape (heads, 1) along axis 1 if that has as many elements: it takes it for a bias of channels."""
    import keras
    import tensorflow as tf

    dtype = keras.backend.result_type(*(getattr(x, "dtype", type(x)) for x in (x1, x2)))
    return tf.add(keras.ops.convert_to_tensor(x1, dtype), keras.ops.convert_to_tensor(x2, dtype))


def _serve():
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not reach the pipe
    import keras
    import numpy as np
    from keras.src import backend

    backend.numpy.add = _add
    keras.config.set_floatx("float64")
    while True:
        try:
            model, targets = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            keras.backend.clear_session()
            built, layers = model.build()
            answer = []
            for call, wanted in zip(model.calls, targets, strict=True):
                noises = [None] + [np.random.default_rng(k) for k in range(_RUNS)]
                answer.append([_run(model, built, layers, call, wanted, rng) for rng in noises])
        except Exception as error:  # TensorFlow lacks what the model asks for
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
