"""Variables that are assigned in a differentiated function, on both backends. Executed as a script it runs every case, op by op, and writes
the results to the file named."""

import sys

import keras
import numpy as np
from keras import layers, ops

TENSORFLOW = keras.config.backend() == "tensorflow"
if TENSORFLOW:
    from tensorflow import GradientTape
    from tensorflow import function as jit
else:
    from keras_ocl import GradientTape, jit

X = np.array([0.5, -1.0, 2.0], "float32")


def data(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def normalize(v):
    v.assign(v / ops.norm(v))


# name -> function of the variables v and w (trainable), s (not trainable) and a tensor x: a scalar


def read_assign_read(v, w, s, x):
    before = ops.sum(v * x)
    normalize(v)
    return before + ops.sum(ops.square(v) * x)


def assign_read(v, w, s, x):
    normalize(v)
    return ops.sum(ops.square(v) * x)


def assign_twice(v, w, s, x):
    total = ops.sum(ops.sin(v) * x)
    v.assign(v * 0.5 + w)
    total += ops.sum(ops.square(v) * x)
    v.assign(v * w)
    return total + ops.sum(ops.exp(v) * x)


def assign_add_and_sub(v, w, s, x):
    v.assign_add(x * w)
    total = ops.sum(ops.square(v))
    v.assign_sub(w)
    return total + ops.sum(v * v * v)


def what_assign_returns(v, w, s, x):
    """It is the value as it was computed, through which gradients flow."""
    new = v.assign(ops.tanh(v) * w)
    return ops.sum(new * x) + ops.sum(ops.square(v))


def the_value_that_was_computed(v, w, s, x):
    new = v * w
    v.assign(new)
    return ops.sum(ops.square(new) * v)


def of_another_variable(v, w, s, x):
    v.assign(ops.square(w))
    return ops.sum(v * v * w * x)


def exchanged(v, w, s, x):
    old, other = v * 1.0, w * 1.0
    v.assign(other)
    w.assign(old)
    return ops.sum(ops.square(v) * x) + ops.sum(w * w * w)


def only_assigned(v, w, s, x):
    v.assign(w * x)
    return ops.sum(w * x)


def not_trainable(v, w, s, x):
    s.assign(v * w)
    return ops.sum(s * v) + ops.sum(ops.square(s) * w)


def condition(v, w, s, x, limit=0.0):
    def yes():
        total = ops.sum(v * x)
        v.assign(ops.square(v) * w)
        return total + ops.sum(v * w)

    result = ops.cond(ops.sum(x) > limit, yes, lambda: ops.sum(v * v))
    return result + ops.sum(ops.square(v) * x)


def condition_not_met(v, w, s, x):
    return condition(v, w, s, x, 100.0)


def both_branches(v, w, s, x):
    def assigning(factor):
        v.assign(v * factor)
        return ops.sum(ops.sin(v))

    return ops.cond(ops.sum(x) > 0, lambda: assigning(w), lambda: assigning(0.5)) + ops.sum(ops.square(v) * x)


def loop(v, w, s, x, steps=7):
    def step(i, total):
        total = total + ops.sum(ops.sin(v) * x)
        v.assign(v * 0.9 + 0.1 * w)
        return total + ops.sum(ops.square(v) * w)

    return ops.fori_loop(0, steps, step, ops.sum(v) * 0.5) + ops.sum(ops.exp(v))


def short_loop(v, w, s, x):
    return loop(v, w, s, x, 2)


def loop_that_only_assigns(v, w, s, x):
    def step(i, total):
        v.assign(v * w)
        return total * 0.9 + x

    return ops.sum(ops.fori_loop(0, 6, step, x)) + ops.sum(ops.square(v) * x)


def limited_while_loop(v, w, s, x):
    def step(i, total):
        normalize(v)
        v.assign_add(w * 0.25)
        return i + 1, total + ops.sum(ops.square(v) * x)

    return ops.while_loop(lambda i, total: i < 5, step, (ops.sum(ops.cast(x > 100, "int32")), ops.sum(v)), maximum_iterations=8)[1]


def condition_in_a_loop(v, w, s, x):
    def step(i, total):
        def assigning():
            v.assign(v * w)
            return ops.sum(v * x)

        return total + ops.cond(ops.equal(i % 2, 0), assigning, lambda: ops.sum(ops.sin(v)))

    return ops.fori_loop(0, 6, step, ops.sum(v))


def not_trainable_in_a_loop(v, w, s, x):
    def step(i, total):
        s.assign(0.5 * s + v)
        return total + ops.sum(s * v * w)

    return ops.fori_loop(0, 6, step, ops.sum(v))


FUNCTIONS = [
    read_assign_read, assign_read, assign_twice, assign_add_and_sub, what_assign_returns, the_value_that_was_computed, of_another_variable,
    exchanged, only_assigned, not_trainable, condition, condition_not_met, both_branches, loop, short_loop, loop_that_only_assigns,
    limited_while_loop, condition_in_a_loop, not_trainable_in_a_loop,
]  # fmt: skip


def variables():
    v, w = keras.Variable([1.0, -2.0, 0.5]), keras.Variable([0.25, 1.5, -0.75])
    return v, w, keras.Variable([0.5, 0.25, -1.0], trainable=False)


def gradients(function, compiled, wrapper=lambda f: f):
    """The result, its gradients by the trainable variables (zeros where there is none), and what all variables hold after two calls."""
    v, w, s = variables()

    def differentiated(x):
        with GradientTape() as tape:
            result = wrapper(lambda x: function(v, w, s, x))(x)
        return [result, *tape.gradient(result, [k.value for k in (v, w)] if TENSORFLOW else [v, w], unconnected_gradients="zero")]

    call = jit(differentiated) if compiled else differentiated
    results = [*call(ops.convert_to_tensor(X)), *call(ops.convert_to_tensor(X))]
    return np.concatenate([np.ravel(ops.convert_to_numpy(r)) for r in (*results, v, w, s)])


# ---- models


class Clipped(layers.Layer):
    """Assigns its weights between two uses of them."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")
        self.uses = self.add_weight(shape=(), initializer="zeros", trainable=False, name="uses")

    def call(self, x):
        x = x @ ops.convert_to_tensor(self.kernel)
        self.kernel.assign(ops.clip(self.kernel, -0.3, 0.3) * 0.9)
        self.uses.assign_add(1.0)
        return ops.tanh(x) @ ops.convert_to_tensor(self.kernel)


class Normalizing(layers.SimpleRNNCell):
    """A cell that normalises its recurrent weights in each step of time."""

    def call(self, x, states, training=False):
        self.recurrent_kernel.assign(self.recurrent_kernel / ops.norm(self.recurrent_kernel))
        return super().call(x, states, training=training)


class Assigning(keras.Model):
    """A model whose train_step assigns a weight between the forward pass and the loss's penalty."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        x, y = batch
        with GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
            self.dense.kernel.assign(self.dense.kernel * 0.8)
            loss = loss + 0.1 * ops.sum(ops.square(self.dense.kernel)) + ops.mean(ops.square(self(x) - y))
        weights = self.trainable_weights
        gradients = tape.gradient(loss, [v.value for v in weights] if TENSORFLOW else weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"value": loss}


# name -> (input shape, layers of a sequential model, or the model)
MODELS = {
    "spectral_normalization": ((5,), lambda: [layers.SpectralNormalization(layers.Dense(6)), layers.Activation("tanh")]),
    "spectral_convolution": ((6, 6, 2), lambda: [layers.SpectralNormalization(layers.Conv2D(4, 3), power_iterations=2)]),
    "clipped": ((4,), lambda: [Clipped(), Clipped()]),
    "normalizing_cell": ((7, 3), lambda: [layers.RNN(Normalizing(4))]),
    "batch_normalization": ((5,), lambda: [layers.Dense(4, use_bias=False), layers.BatchNormalization(), layers.Activation("relu")]),
    "train_step": ((5,), Assigning),
}


OPTIMIZERS = "sgd", "adam"


def losses(name, optimizer="adam", eagerly=False):
    """Losses of four steps, and the weights after them."""
    shape, make = MODELS[name]
    made = make()
    model = made if isinstance(made, keras.Model) else keras.Sequential([keras.Input(shape), *made, layers.Flatten(), layers.Dense(3)])
    x, y = data((8, *shape)), data((8, 3), 1)
    model(x)
    rng = np.random.default_rng(3)
    model.set_weights([np.abs(rng.normal(0, 0.5, w.shape)).astype("float32") + 0.1 for w in model.get_weights()])
    model.compile(keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.01}}), "mse", run_eagerly=eagerly)
    history = model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0).history
    history = history.get("value", history.get("loss"))
    return np.concatenate([history, *(np.ravel(w) for w in model.get_weights())])


if __name__ == "__main__":
    found = {f.__name__: gradients(f, compiled=False) for f in FUNCTIONS}
    found |= {f"{name} {optimizer}": losses(name, optimizer, eagerly=True) for name in MODELS for optimizer in OPTIMIZERS}
    np.savez(sys.argv[1], **found)
