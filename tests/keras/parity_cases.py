"""What the parity tests run on both backends. Executed as a script it runs every case and writes the results to the file named."""

import sys

import keras
import numpy as np
from keras import layers

if keras.config.backend() == "tensorflow":
    import tensorflow

    tensorflow.config.run_functions_eagerly(True)  # a few steps of small models: tracing them and XLA take far longer

STEPS = 5


def data(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def seeded_weights(model, seed=7):
    """Weights that do not depend on a backend's generator; positive where a variance must be."""
    rng = np.random.default_rng(seed)
    weights = []
    for v in model.weights:
        if not str(v.dtype).startswith("float"):
            weights.append(keras.ops.convert_to_numpy(v))
            continue
        w = rng.normal(scale=0.3, size=tuple(v.shape)).astype("float32")
        weights.append(np.abs(w) + 0.5 if "variance" in v.name or "gamma" in v.name else w)
    model.set_weights(weights)


def head(*body):
    return [*body, layers.Flatten(), layers.Dense(3)]


# name -> (input shape, layers), each followed by Flatten and Dense(3) unless it says otherwise
MODELS = {
    "dense": ((6,), lambda: [layers.Dense(5, activation="tanh"), layers.Dense(4, activation="relu", use_bias=False)]),
    "conv1d": (
        (12, 3),
        lambda: [layers.Conv1D(4, 3, strides=2, activation="relu"), layers.Conv1D(4, 2, padding="causal", dilation_rate=2)],
    ),
    "conv2d": ((9, 8, 3), lambda: [layers.Conv2D(6, 3, activation="relu", padding="same"), layers.Conv2D(4, (2, 3), strides=2, groups=2)]),
    "conv2d_dilated": ((9, 9, 2), lambda: [layers.Conv2D(4, 3, dilation_rate=2, padding="same"), layers.Conv2D(4, 3, padding="valid")]),
    "conv2d_channels_first": (
        (3, 8, 8),
        lambda: [
            layers.Permute((2, 3, 1)),
            layers.Conv2D(4, 3),
            layers.MaxPooling2D(),
        ],
    ),
    "conv3d": ((5, 6, 5, 2), lambda: [layers.Conv3D(3, 3, activation="relu"), layers.MaxPooling3D((1, 2, 1))]),
    "depthwise": (
        (8, 8, 3),
        lambda: [layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="relu"), layers.DepthwiseConv2D(3, strides=2)],
    ),
    "depthwise1d": ((10, 3), lambda: [layers.DepthwiseConv1D(3, depth_multiplier=2)]),
    "separable": ((8, 8, 3), lambda: [layers.SeparableConv2D(5, 3, activation="relu"), layers.SeparableConv2D(4, 3, padding="same")]),
    "separable1d": ((10, 3), lambda: [layers.SeparableConv1D(5, 3)]),
    "conv_transpose": (
        (4, 4, 3),
        lambda: [layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"), layers.Conv2DTranspose(2, 3)],
    ),
    "conv1d_transpose": ((5, 3), lambda: [layers.Conv1DTranspose(4, 3, strides=2)]),
    "conv3d_transpose": ((3, 3, 3, 2), lambda: [layers.Conv3DTranspose(2, 2, strides=2)]),
    "pool1d": ((12, 4), lambda: [layers.MaxPooling1D(3, strides=2, padding="same"), layers.Dense(4), layers.AveragePooling1D(2)]),
    "pool2d": (
        (9, 9, 3),
        lambda: [
            layers.Dense(4),
            layers.MaxPooling2D(3, strides=2, padding="same"),
            layers.Dense(4),
            layers.AveragePooling2D(2, padding="same"),
        ],
    ),
    "pool3d": (
        (6, 6, 6, 2),
        lambda: [layers.Dense(2), layers.AveragePooling3D(2), layers.Dense(2), layers.MaxPooling3D(2, padding="same")],
    ),
    "global_max1d": ((7, 3), lambda: [layers.Dense(4), layers.GlobalMaxPooling1D()]),
    "global_average1d": ((7, 3), lambda: [layers.Dense(4), layers.GlobalAveragePooling1D()]),
    "global_max2d": ((5, 5, 3), lambda: [layers.Dense(4), layers.GlobalMaxPooling2D()]),
    "global_average3d": ((3, 4, 3, 2), lambda: [layers.Dense(4), layers.GlobalAveragePooling3D()]),
    "shapes": (
        (6, 8, 2),
        lambda: [
            layers.Dense(3),
            layers.Permute((2, 1, 3)),
            layers.Reshape((12, 4, 3)),
            layers.ZeroPadding2D(((1, 0), (2, 1))),
            layers.Cropping2D(1),
        ],
    ),
    "shapes1d": ((6, 2), lambda: [layers.Dense(3), layers.ZeroPadding1D(2), layers.Cropping1D((1, 0)), layers.UpSampling1D(2)]),
    "shapes3d": (
        (2, 3, 2, 2),
        lambda: [layers.Dense(3), layers.ZeroPadding3D(1), layers.Cropping3D(((0, 1), (1, 0), (0, 0))), layers.UpSampling3D(2)],
    ),
    "up_nearest": ((4, 4, 2), lambda: [layers.Dense(3), layers.UpSampling2D(2)]),
    "up_bilinear": ((4, 4, 2), lambda: [layers.Dense(3), layers.UpSampling2D((2, 3), interpolation="bilinear")]),
    "repeat": ((5,), lambda: [layers.Dense(4), layers.RepeatVector(3)]),
    "embedding": ((7,), lambda: [layers.Embedding(11, 4)]),
    "batch_norm": ((5, 5, 3), lambda: [layers.Conv2D(4, 2), layers.BatchNormalization(), layers.ReLU(), layers.BatchNormalization(axis=1)]),
    "layer_norm": ((5, 6), lambda: [layers.Dense(4), layers.LayerNormalization(), layers.LayerNormalization(axis=[1, 2])]),
    "group_norm": ((5, 5, 4), lambda: [layers.Dense(4), layers.GroupNormalization(2), layers.UnitNormalization()]),
    "rms_norm": ((5, 4), lambda: [layers.Dense(4), layers.RMSNormalization()]),
    "activation_layers": (
        (6,),
        lambda: [layers.Dense(8), layers.PReLU(), layers.Dense(8), layers.LeakyReLU(), layers.ELU(), layers.Softmax()],
    ),
    "regularized": (
        (6,),
        lambda: [layers.Dense(5, kernel_regularizer="l1", bias_regularizer="l2", activity_regularizer=keras.regularizers.L1L2(0.01, 0.01))],
    ),
    "constrained": (
        (6,),
        lambda: [
            layers.Dense(5, kernel_constraint=keras.constraints.UnitNorm(), bias_constraint=keras.constraints.NonNeg()),
            layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        ],
    ),
    "einsum": ((5, 6), lambda: [layers.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de")]),
    "attention": ((5, 6), lambda: [Attend()]),
    "merge": ((6,), lambda: [Merge()]),
    "nested": (
        (8, 8, 2),
        lambda: [keras.Sequential([layers.Conv2D(3, 3), layers.BatchNormalization()]), layers.Rescaling(0.5), layers.ReLU()],
    ),
    "time_distributed": ((4, 5), lambda: [layers.TimeDistributed(layers.Dense(3, activation="tanh"))]),
    "simple_rnn": ((6, 3), lambda: [layers.SimpleRNN(4, return_sequences=True), layers.SimpleRNN(3)]),
    "lstm": ((6, 3), lambda: [layers.LSTM(4, return_sequences=True), layers.LSTM(3, go_backwards=True)]),
    "gru": ((6, 3), lambda: [layers.Bidirectional(layers.GRU(4, return_sequences=True)), layers.GRU(3)]),
    "recurrent_cells_of_layers": ((7, 3), lambda: [layers.LSTM(4, use_cudnn=False, return_sequences=True), layers.GRU(3, use_cudnn=False)]),
    "recurrent_unrolled": ((6, 3), lambda: [layers.LSTM(4, unroll=True, return_sequences=True), layers.GRU(3, unroll=True)]),
    "lstm_bidirectional": (
        (7, 3),
        lambda: [
            layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode="sum"),
            layers.Bidirectional(layers.LSTM(3, recurrent_activation="hard_sigmoid", use_bias=False)),
        ],
    ),
    "lstm_masked": (
        (7, 3),
        lambda: [
            Padded(),
            layers.Masking(),
            layers.LSTM(4, return_sequences=True),
            layers.LSTM(4, return_sequences=True, go_backwards=True),
        ],
    ),
    "gru_masked": (
        (7, 3),
        lambda: [
            Padded(),
            layers.Masking(),
            layers.Bidirectional(layers.GRU(4, return_sequences=True, reset_after=False)),
            layers.TimeDistributed(layers.Dense(4)),
            layers.SimpleRNN(3),
        ],
    ),
    "cells": (
        (7, 3),
        lambda: [
            layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True),
            layers.RNN(layers.StackedRNNCells([layers.SimpleRNNCell(4), GatedCell(3)])),
        ],
    ),
    "states": ((7, 3), lambda: [Handed()]),
    "conv_lstm1d": ((6, 7, 2), lambda: [layers.ConvLSTM1D(3, 3, padding="same", return_sequences=True), layers.ConvLSTM1D(2, 2)]),
    "conv_lstm2d": ((6, 5, 4, 2), lambda: [layers.ConvLSTM2D(3, 2, return_sequences=True, go_backwards=True), layers.ConvLSTM2D(2, 2)]),
    "conv_lstm3d": ((5, 3, 4, 3, 2), lambda: [layers.ConvLSTM3D(2, 2, padding="same")]),
}


class Padded(layers.Layer):
    """Zeros from some step on, another one for each row, and one in between."""

    def call(self, x):
        steps = keras.ops.arange(x.shape[1])[None]
        rows = keras.ops.arange(keras.ops.shape(x)[0])[:, None]
        return x * keras.ops.cast((steps < x.shape[1] - rows) & (steps != 1), x.dtype)[..., None]


class GatedCell(layers.Layer):
    """A cell of a user's with two states."""

    def __init__(self, units):
        super().__init__()
        self.units, self.state_size, self.output_size = units, [units, units], units
        self.gate, self.candidate = layers.Dense(units, activation="sigmoid"), layers.Dense(units, activation="tanh")

    def build(self, shape):
        self.gate.build((None, shape[-1] + self.units))
        self.candidate.build((None, shape[-1] + self.units))

    def call(self, x, states):
        h, count = states
        both = keras.ops.concatenate([x, h], -1)
        gate = self.gate(both)
        h = gate * h + (1 - gate) * self.candidate(both)
        return h + 0.1 * count, [h, count + gate]


class Handed(layers.Layer):
    """One layer's last states begin another."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.LSTM(4, return_state=True), layers.GRU(4, return_sequences=True, return_state=True)

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x):
        y, h, c = self.first(x)
        z, last = self.second(x, initial_state=h + c)
        return keras.ops.concatenate([y, last, keras.ops.sum(z, 1)], -1)


class Backwards(layers.Layer):
    """A stateful layer from the last step to the first, of which the last states are results too."""

    def __init__(self):
        super().__init__()
        self.inner = layers.LSTM(4, return_sequences=True, return_state=True, go_backwards=True, stateful=True)

    def build(self, shape):
        self.inner.build(shape)

    def reset_state(self):
        self.inner.reset_state()

    def call(self, x):
        y, h, c = self.inner(x)
        return y * h[:, None] + c[:, None]


class Attend(layers.Layer):
    def __init__(self):
        super().__init__()
        self.heads = layers.MultiHeadAttention(2, 3)

    def build(self, shape):
        self.heads.build(shape, shape)

    def call(self, x):
        return self.heads(x, x, use_causal_mask=True)


class Merge(layers.Layer):
    """Two branches through every merging layer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = layers.Dense(4), layers.Dense(4)
        self.merging = [
            layers.Add(),
            layers.Subtract(),
            layers.Multiply(),
            layers.Average(),
            layers.Maximum(),
            layers.Minimum(),
            layers.Dot(axes=1),
        ]
        self.joined = layers.Concatenate()

    def build(self, shape):
        self.one.build(shape)
        self.two.build(shape)

    def call(self, x):
        a, b = self.one(x), self.two(x)
        return self.joined([m([a, b]) for m in self.merging])


def train(model, x, y, optimizer=None, loss="mse", steps=STEPS):
    seeded_weights(model)
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss)
    losses = [float(model.train_on_batch(x, y)) for _ in range(steps)]
    return np.array([*losses, float(np.abs(model.predict(x, verbose=0)).mean())])


def run_model(name):
    shape, body = MODELS[name]
    x = np.random.default_rng(0).integers(0, 11, (4, *shape)) if name == "embedding" else data((4, *shape))
    model = keras.Sequential([layers.Input(shape, dtype="int32" if name == "embedding" else "float32"), *head(*body())])
    return train(model, x, data((4, 3), 1), keras.optimizers.SGD(0.002), steps=3)


STATEFUL = {
    "layers": (
        (5, 3),
        lambda: [
            layers.LSTM(4, stateful=True, return_sequences=True),
            layers.GRU(4, stateful=True, return_sequences=True, reset_after=False, unroll=True),
            layers.SimpleRNN(3, stateful=True),
        ],
    ),
    "cells": ((6, 3), lambda: [Backwards(), layers.RNN(GatedCell(3), stateful=True)]),
    "masked": (
        (7, 3),
        lambda: [
            Padded(),
            layers.Masking(),
            layers.Bidirectional(layers.LSTM(4, stateful=True, return_sequences=True)),
            layers.GRU(3, stateful=True),
        ],
    ),
    "bidirectional": ((5, 3), lambda: [layers.Bidirectional(layers.GRU(3, stateful=True, return_sequences=True), merge_mode="mul")]),
    "conv_lstm1d": ((5, 4, 2), lambda: [layers.ConvLSTM1D(3, 2, stateful=True)]),
}


def run_stateful(name):
    """Losses of fit, predictions that go on from the states it left, and these states; then the same from zero states."""
    shape, body = STATEFUL[name]
    model = keras.Sequential([layers.Input(batch_shape=(3, *shape)), *head(*body())])
    states = [v for layer in model.layers for v in recurrent_states(layer)]
    x, y = data((9, *shape)), data((9, 3), 1)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    seeded_weights(model)
    results = []
    for epochs in (2, 1):
        results.append(model.fit(x, y, batch_size=3, epochs=epochs, shuffle=False, verbose=0).history["loss"])
        results += [keras.ops.convert_to_numpy(s) for s in states]
        results.append(model.predict(x[:6], batch_size=3, verbose=0))
        results += [keras.ops.convert_to_numpy(s) for s in states]
        for layer in model.layers:
            if hasattr(layer, "reset_state"):
                layer.reset_state()
    return np.concatenate([np.ravel(r) for r in results])


def recurrent_states(layer):
    inner = [layer.forward_layer, layer.backward_layer] if isinstance(layer, layers.Bidirectional) else [getattr(layer, "inner", layer)]
    return [s for one in inner for s in keras.tree.flatten(getattr(one, "states", None) or [])]


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "Adafactor": {},
    "Nadam": {},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Lion": {},
    "Lamb": {},
    "Muon": {},
}
SCHEDULES = {
    "ExponentialDecay": (0.1, 2, 0.5),
    "PiecewiseConstantDecay": ([1, 3], [0.1, 0.05, 0.01]),
    "PolynomialDecay": (0.1, 4),
    "InverseTimeDecay": (0.1, 2, 0.5),
    "CosineDecay": (0.1, 4),
    "CosineDecayRestarts": (0.1, 2),
}


def small():
    return keras.Sequential([layers.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3)])


def run_optimizer(name):
    return train(small(), data((8, 6)), data((8, 3), 1), getattr(keras.optimizers, name)(learning_rate=0.02, **OPTIMIZERS[name]))


def run_schedule(name):
    schedule = getattr(keras.optimizers.schedules, name)(*SCHEDULES[name])
    return train(small(), data((8, 6)), data((8, 3), 1), keras.optimizers.SGD(schedule))


LOSSES = {
    "BinaryCrossentropy": ("unit", {"label_smoothing": 0.1}),
    "BinaryFocalCrossentropy": ("unit", {"apply_class_balancing": True}),
    "CategoricalCrossentropy": ("onehot", {"from_logits": True, "label_smoothing": 0.1}),
    "CategoricalFocalCrossentropy": ("onehot", {"from_logits": True}),
    "SparseCategoricalCrossentropy": ("class", {"from_logits": True}),
    "CategoricalHinge": ("onehot", {}),
    "Hinge": ("sign", {}),
    "SquaredHinge": ("sign", {}),
    "KLDivergence": ("unit", {}),
    "Poisson": ("unit", {}),
    "CosineSimilarity": ("real", {}),
    "Huber": ("real", {"delta": 0.5}),
    "LogCosh": ("real", {}),
    "MeanAbsoluteError": ("real", {}),
    "MeanAbsolutePercentageError": ("positive", {}),
    "MeanSquaredError": ("real", {}),
    "MeanSquaredLogarithmicError": ("positive", {}),
    "Tversky": ("unit", {}),
    "Dice": ("unit", {}),
    "CTC": ("ctc", {}),
}


def run_loss(name):
    kind, options = LOSSES[name]
    rng = np.random.default_rng(3)
    if kind == "ctc":
        model = keras.Sequential([layers.Input((8, 6)), layers.Dense(5)])
        return train(model, data((4, 8, 6)), rng.integers(1, 5, (4, 3)).astype("int32"), loss=keras.losses.CTC())
    activation = {"unit": "sigmoid", "positive": "softplus"}.get(kind)
    model = keras.Sequential([layers.Input((6,)), layers.Dense(3, activation=activation)])
    y = {
        "unit": lambda: rng.integers(0, 2, (8, 3)).astype("float32"),
        "onehot": lambda: np.eye(3, dtype="float32")[rng.integers(0, 3, 8)],
        "class": lambda: rng.integers(0, 3, 8),
        "sign": lambda: rng.integers(0, 2, (8, 3)).astype("float32") * 2 - 1,
        "real": lambda: rng.normal(size=(8, 3)).astype("float32"),
        "positive": lambda: rng.uniform(0.5, 2, (8, 3)).astype("float32"),
    }[kind]()
    return train(model, data((8, 6)), y, loss=getattr(keras.losses, name)(**options))


METRICS = {
    "Accuracy": ("class", {}),
    "BinaryAccuracy": ("unit", {}),
    "CategoricalAccuracy": ("onehot", {}),
    "SparseCategoricalAccuracy": ("sparse", {}),
    "TopKCategoricalAccuracy": ("onehot", {"k": 2}),
    "SparseTopKCategoricalAccuracy": ("sparse", {"k": 2}),
    "BinaryCrossentropy": ("unit", {}),
    "CategoricalCrossentropy": ("onehot", {}),
    "SparseCategoricalCrossentropy": ("sparse", {}),
    "AUC": ("unit", {}),
    "Precision": ("unit", {}),
    "Recall": ("unit", {}),
    "PrecisionAtRecall": ("unit", {"recall": 0.5}),
    "RecallAtPrecision": ("unit", {"precision": 0.5}),
    "SensitivityAtSpecificity": ("unit", {"specificity": 0.5}),
    "SpecificityAtSensitivity": ("unit", {"sensitivity": 0.5}),
    "TruePositives": ("unit", {}),
    "TrueNegatives": ("unit", {}),
    "FalsePositives": ("unit", {}),
    "FalseNegatives": ("unit", {}),
    "F1Score": ("onehot", {}),
    "FBetaScore": ("onehot", {"beta": 2.0, "average": "macro"}),
    "Hinge": ("sign", {}),
    "SquaredHinge": ("sign", {}),
    "CategoricalHinge": ("onehot", {}),
    "KLDivergence": ("unit", {}),
    "Poisson": ("unit", {}),
    "LogCoshError": ("real", {}),
    "MeanSquaredError": ("real", {}),
    "RootMeanSquaredError": ("real", {}),
    "MeanAbsoluteError": ("real", {}),
    "MeanAbsolutePercentageError": ("unit", {}),
    "MeanSquaredLogarithmicError": ("unit", {}),
    "CosineSimilarity": ("real", {}),
    "R2Score": ("real", {}),
    "PearsonCorrelation": ("real", {}),
    "ConcordanceCorrelation": ("real", {}),
    "IoU": ("class", {"num_classes": 3, "target_class_ids": [0, 1]}),
    "BinaryIoU": ("unit", {}),
    "MeanIoU": ("class", {"num_classes": 3}),
    "OneHotIoU": ("onehot", {"num_classes": 3, "target_class_ids": [0, 2]}),
    "OneHotMeanIoU": ("onehot", {"num_classes": 3}),
}


def metric_data(kind, seed):
    """Targets and predictions; another number of them for each seed."""
    rng = np.random.default_rng(seed)
    n = 9 - seed
    classes = rng.integers(0, 3, n)
    chances = rng.dirichlet(np.ones(3), n).astype("float32")
    if kind == "class":
        return classes, rng.integers(0, 3, n)
    if kind == "sparse":
        return classes, chances
    if kind == "onehot":
        return np.eye(3, dtype="float32")[classes], chances
    if kind == "unit":
        return rng.integers(0, 2, (n, 1)).astype("float32"), rng.uniform(0.01, 0.99, (n, 1)).astype("float32")
    if kind == "sign":
        return rng.integers(0, 2, (n, 1)).astype("float32") * 2 - 1, rng.normal(size=(n, 1)).astype("float32")
    return rng.normal(size=(n, 2)).astype("float32"), rng.normal(size=(n, 2)).astype("float32")


def run_metric(name):
    kind, options = METRICS[name]
    metric = getattr(keras.metrics, name)(**options)
    results = []
    for seed in range(3):
        metric.update_state(*metric_data(kind, seed))
        results.append(np.mean(keras.ops.convert_to_numpy(metric.result())))
    return np.array(results)


ACTIVATIONS = (
    "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear log_sigmoid log_softmax mish relu relu6"
    " selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid squareplus tanh tanh_shrink threshold"
).split()


def run_activation(name):
    function = getattr(keras.activations, name)
    options = {"threshold": 0.3, "default_value": 0.1} if name == "threshold" else {}
    outputs = keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(data((5, 6)) * 2), **options))
    activate = layers.Lambda(lambda x: function(x, **options), output_shape=(4,) if name == "glu" else (8,))
    model = keras.Sequential([layers.Input((6,)), layers.Dense(8), activate, layers.Dense(3)])
    return np.concatenate([outputs.ravel(), train(model, data((8, 6)), data((8, 3), 1))])


CASES = {
    **{f"model {name}": (run_model, name) for name in MODELS},
    **{f"stateful {name}": (run_stateful, name) for name in STATEFUL},
    **{f"optimizer {name}": (run_optimizer, name) for name in OPTIMIZERS},
    **{f"schedule {name}": (run_schedule, name) for name in SCHEDULES},
    **{f"loss {name}": (run_loss, name) for name in LOSSES},
    **{f"metric {name}": (run_metric, name) for name in METRICS},
    **{f"activation {name}": (run_activation, name) for name in ACTIVATIONS},
}


def run(case):
    function, name = CASES[case]
    return np.asarray(function(name), "float64")


if __name__ == "__main__":
    keras.config.disable_traceback_filtering()
    results = {}
    for case in CASES:
        try:
            results[case] = run(case)
        except Exception as error:
            error.add_note(f"in the case {case!r}")
            raise
    np.savez(sys.argv[1], **results)
