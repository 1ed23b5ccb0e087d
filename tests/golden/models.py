"""The models whose launches the golden file lists: what the source documents train, and one or more of each kind of layer.

Each function returns (model, x, y, batch size) or a model whose inputs say it all. Data is zeros: only shapes and dtypes count.
"""

import functools

import keras
import numpy as np
from keras import layers as L

MODELS = {}


def golden(function):
    """Decorator: adds the function to MODELS."""
    MODELS[function.__name__] = function
    return function


def compiled(model, optimizer="adam", loss="mse", batch=32, classes=None, metrics=()):
    """(model, x, y, batch) of a functional or sequential model; `classes`: of sparse labels."""
    model.compile(optimizer, loss, metrics=list(metrics))
    x = [np.zeros((batch, *t.shape[1:]), t.dtype) for t in model.inputs]
    y = np.zeros((batch, *(model.output_shape[1:-1] if classes else model.output_shape[1:])), "int32" if classes else "float32")
    return model, x[0] if len(x) == 1 else x, y, batch


def stack(*layers, shape, dtype=None, **options):
    """`compiled` of a Sequential model."""
    return compiled(keras.Sequential([keras.Input(shape, dtype=dtype), *layers]), **options)


CLASSES = {"loss": "categorical_crossentropy", "metrics": ["accuracy"]}

# ---- the source documents' networks


@golden
def xor():
    return stack(L.Dense(2, "tanh"), L.Dense(1, "tanh"), shape=(2,), optimizer=keras.optimizers.SGD(0.1), batch=4)


@golden
def mnist_one_hidden():
    return stack(L.Dense(16, "sigmoid"), L.Dense(10, "sigmoid"), shape=(784,), optimizer=keras.optimizers.SGD(0.5))


@golden
def mnist_three_hidden():
    hidden = [L.Dense(256, "sigmoid") for _ in range(3)]
    return stack(*hidden, L.Dense(10, "sigmoid"), shape=(784,), optimizer=keras.optimizers.SGD(0.5))


@golden
def mnist_dropout():
    hidden = [layer for _ in range(2) for layer in (L.Dense(512, "relu"), L.Dropout(0.2))]
    return stack(*hidden, L.Dense(10, "softmax"), shape=(784,), optimizer="rmsprop", batch=128, **CLASSES)


@golden
def six_hidden():
    hidden = [L.Dense(width, "relu") for width in (398, 199, 99, 50, 25, 13)]
    return stack(*hidden, L.Dense(10, "softmax"), shape=(784,), optimizer=keras.optimizers.SGD(0.01), loss="categorical_crossentropy")


def _small_cnn(size, filters, dense):
    convolutions = [layer for f in filters for layer in (L.Conv2D(f, 3, padding="same", activation="relu"), L.MaxPooling2D(2))]
    hidden = [L.Dense(width, "relu") for width in dense]
    top = (L.Flatten(), *hidden, L.Dense(10, "softmax"))
    return stack(*convolutions, *top, shape=(size, size, 3), optimizer=keras.optimizers.SGD(0.001), **CLASSES)


@golden
def small_cnn():
    return _small_cnn(32, (16, 32), (100,))


@golden
def small_cnn_deeper():
    return _small_cnn(40, (16, 32, 32), (128, 50))


@golden
def cifar_cnn():
    layers = []
    for filters in (32, 64):
        layers += [L.Conv2D(filters, 3, padding="same", activation="relu"), L.Conv2D(filters, 3, activation="relu")]
        layers += [L.MaxPooling2D(), L.Dropout(0.25)]
    layers += [L.Flatten(), L.Dense(512, "relu"), L.Dropout(0.5), L.Dense(10, "softmax")]
    return stack(*layers, shape=(32, 32, 3), optimizer=keras.optimizers.RMSprop(1e-4), **CLASSES)


class LocalResponseNormalization(L.Layer):
    def call(self, x):
        squares = keras.ops.pad(keras.ops.square(x), [[0, 0], [0, 0], [0, 0], [4, 4]])
        channels = x.shape[-1]
        total = sum(squares[..., i : i + channels] for i in range(9))
        return x / (1.0 + 0.001 / 9.0 * total) ** 0.75


@golden
def cifar_response_normalized():
    layers = [L.Conv2D(64, 5, padding="same", activation="relu"), L.MaxPooling2D(3, 2, padding="same"), LocalResponseNormalization()]
    layers += [L.Conv2D(64, 5, padding="same", activation="relu"), LocalResponseNormalization(), L.MaxPooling2D(3, 2, padding="same")]
    layers += [L.Flatten(), L.Dense(384, "relu"), L.Dense(192, "relu"), L.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"optimizer": keras.optimizers.SGD(0.1), "loss": loss, "batch": 128, "classes": 10, "metrics": ["accuracy"]}
    return stack(*layers, shape=(24, 24, 3), **options)


@golden
def all_convolutional():
    def conv(filters, size, strides=1):
        penalty = keras.regularizers.l2(1e-3)
        return L.Conv2D(filters, size, strides=strides, padding="same", activation="relu", kernel_regularizer=penalty)

    layers = [L.Dropout(0.2), conv(96, 3), conv(96, 3), conv(96, 3, 2), L.Dropout(0.5), conv(192, 3), conv(192, 3), conv(192, 3, 2)]
    layers += [L.Dropout(0.5), conv(192, 3), conv(192, 1), conv(10, 1), L.GlobalAveragePooling2D(), L.Softmax()]
    return stack(*layers, shape=(32, 32, 3), optimizer=keras.optimizers.SGD(0.05, momentum=0.9), batch=100, **CLASSES)


@golden
def wide_residual():
    x = i = L.Input((32, 32, 3))
    x = L.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for stage, filters in enumerate((32, 64, 128)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            h = L.Activation("relu")(L.BatchNormalization()(x))
            shortcut = x if x.shape[-1] == filters else L.Conv2D(filters, 1, strides=strides, use_bias=False)(h)
            h = L.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(h)
            h = L.Conv2D(filters, 3, padding="same", use_bias=False)(L.Activation("relu")(L.BatchNormalization()(h)))
            x = L.Add()([h, shortcut])
    x = L.GlobalAveragePooling2D()(L.Activation("relu")(L.BatchNormalization()(x)))
    model = keras.Model(i, L.Dense(10, "softmax")(x))
    return compiled(model, keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), batch=128, **CLASSES)


@golden
def irradiance_mlp():
    return stack(L.Dense(50, "relu"), L.Dense(1), shape=(50,), batch=1000)


@golden
def irradiance_wide_mlp():
    return stack(*(L.Dense(width, "relu") for width in (3200, 1600, 832)), L.Dense(1), shape=(50,), batch=1000)


@golden
def irradiance_cnn():
    layers = [L.Conv2D(32, 3, activation="relu"), L.Conv2D(64, 3, activation="relu"), L.MaxPooling2D(), L.Dropout(0.25)]
    return stack(*layers, L.Flatten(), L.Dense(128, "relu"), L.Dropout(0.5), L.Dense(1), shape=(50, 50, 1), batch=128, metrics=["mae"])


@golden
def reviews_lstm():
    layers = [L.Embedding(5000, 32), L.LSTM(100, recurrent_activation="hard_sigmoid"), L.Dense(1, "sigmoid")]
    return stack(*layers, shape=(500,), dtype="int32", batch=64, loss="binary_crossentropy", metrics=["accuracy"])


@golden
def transformer():
    i = keras.Input((128,), dtype="int32")
    x = L.Embedding(2000, 128)(i)
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 32)(x, x))
        x = L.LayerNormalization()(x + L.Dense(128)(L.Dense(512, "gelu")(x)))
    model = keras.Model(i, L.Dense(2, "softmax")(L.GlobalAveragePooling1D()(x)))
    return compiled(model, loss="sparse_categorical_crossentropy", classes=2, metrics=["accuracy"])


# ---- other kinds of layers


@golden
def gru_two_layers():
    return stack(L.GRU(48, return_sequences=True), L.GRU(32), L.Dense(4, "softmax"), shape=(30, 20), **CLASSES)


@golden
def bidirectional_masked():
    layers = [
        L.Embedding(1000, 24, mask_zero=True),
        L.Bidirectional(L.LSTM(20, return_sequences=True)),
        L.TimeDistributed(L.Dense(5, "softmax")),
    ]
    return stack(*layers, shape=(25,), dtype="int32", loss="sparse_categorical_crossentropy", classes=5)


@golden
def simple_rnn_stateful_dropout():
    return stack(L.SimpleRNN(30, dropout=0.1, recurrent_dropout=0.1), L.Dense(1), shape=(12, 7))


@golden
def convolutional_lstm():
    return stack(L.ConvLSTM2D(8, 3, padding="same"), L.Conv2D(1, 3, padding="same"), shape=(5, 16, 16, 1), batch=8)


@golden
def decoder_grouped_queries():
    i = keras.Input((64,), dtype="int32")
    x = L.Embedding(500, 64)(i)
    for _ in range(2):
        h = L.RMSNormalization()(x)
        x = x + L.GroupQueryAttention(16, 4, 2)(h, h, use_causal_mask=True)
        x = x + L.Dense(64)(L.Dense(256, "silu")(L.RMSNormalization()(x)))
    return compiled(keras.Model(i, L.Dense(500)(x)), "adamw", keras.losses.SparseCategoricalCrossentropy(True), 16, 500)


@golden
def attention_without_scores():
    i = keras.Input((96, 48))
    x = i + L.MultiHeadAttention(3, 16, flash_attention=True)(i, i, use_causal_mask=True)
    x = L.GroupQueryAttention(16, 4, 2, flash_attention=True)(x, x)
    return compiled(keras.Model(i, L.Dense(1)(x)), batch=8)


@golden
def volumes():
    layers = [L.Conv3D(8, 3, activation="relu"), L.MaxPooling3D(2), L.BatchNormalization(), L.Conv3D(16, 3, activation="relu")]
    return stack(*layers, L.GlobalAveragePooling3D(), L.Dense(3, "softmax"), shape=(16, 16, 16, 1), batch=8, **CLASSES)


@golden
def depthwise_separable():
    layers = [L.Conv2D(16, 3, strides=2, padding="same"), L.DepthwiseConv2D(3, padding="same"), L.BatchNormalization(), L.ReLU(6.0)]
    layers += [L.SeparableConv2D(32, 3, strides=2, padding="same"), L.GroupNormalization(8), L.Activation("silu")]
    return stack(*layers, L.Conv2D(32, 3, groups=4), L.GlobalMaxPooling2D(), L.Dense(10), shape=(48, 48, 3), loss="huber")


@golden
def transposed_autoencoder():
    layers = [L.Conv2D(16, 3, strides=2, padding="same", activation="relu"), L.Conv2D(8, 3, strides=2, padding="same", activation="relu")]
    layers += [L.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu"), L.UpSampling2D(2, interpolation="bilinear")]
    return stack(*layers, L.Conv2D(1, 3, padding="same", activation="sigmoid"), shape=(28, 28, 1), loss="binary_crossentropy")


@golden
def dilated_sequences():
    layers = [L.Conv1D(32, 3, padding="causal", dilation_rate=rate, activation="relu") for rate in (1, 2, 4, 8)]
    return stack(*layers, L.AveragePooling1D(2), L.SpatialDropout1D(0.1), L.Conv1D(1, 1), shape=(256, 4))


@golden
def mixer():
    i = keras.Input((64, 96))
    x = i
    for _ in range(2):
        h = L.Permute((2, 1))(L.LayerNormalization()(x))
        x = x + L.Permute((2, 1))(L.Dense(64)(L.Dense(128, "gelu")(h)))
        x = x + L.EinsumDense("abc,cd->abd", (64, 96), bias_axes="d")(L.LayerNormalization()(x))
    return compiled(keras.Model(i, L.Dense(10)(L.GlobalAveragePooling1D()(x))), "lion", "mae")


@golden
def mixture_of_experts():
    i = keras.Input((40,))
    weight, expert = keras.ops.top_k(L.Dense(4, "softmax")(i), 2)
    outputs = keras.ops.stack([L.Dense(24, "relu")(i) for _ in range(4)], axis=1)
    chosen = keras.ops.take_along_axis(outputs, expert[..., None], axis=1)
    x = keras.ops.sum(chosen * weight[..., None], axis=1)
    return compiled(keras.Model(i, L.Dense(3)(keras.ops.cumsum(keras.ops.sort(x), axis=-1))), "adagrad")


@golden
def half_precision():
    layers = [L.Conv2D(16, 3, activation="relu", dtype="mixed_float16"), L.Flatten(), L.Dense(64, "relu", dtype="mixed_bfloat16")]
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    return stack(*layers, L.Dense(10, "softmax", dtype="float32"), shape=(20, 20, 3), optimizer=optimizer, **CLASSES)


@golden
def two_inputs():
    a, b = keras.Input((20,)), keras.Input((6,), dtype="int32")
    x = L.Concatenate()([L.Dense(32, "relu")(a), L.Flatten()(L.Embedding(50, 8)(b))])
    x = L.UnitNormalization()(L.GaussianNoise(0.1)(x))
    x = L.Dot(axes=1)([x, L.Dense(80, "tanh")(x)])
    return compiled(keras.Model([a, b], x), "nadam", "log_cosh")


# ---- whole networks of keras.applications


def _application(make, size, **options):
    model = make(weights=None, input_shape=(size, size, 3), classes=10, **options)
    return compiled(model, keras.optimizers.SGD(0.01), "categorical_crossentropy", 8)


APPLICATIONS = {"MobileNetV2": 96, "EfficientNetB0": 64, "ResNet50": 64, "DenseNet121": 64}  # name -> size of its images
for _name, _size in APPLICATIONS.items():
    MODELS[_name] = functools.partial(_application, getattr(keras.applications, _name), _size)
