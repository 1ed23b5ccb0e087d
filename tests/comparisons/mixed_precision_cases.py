"""Small networks of every kind, trained in a dtype policy. As a module, given a file and names, it trains these and writes losses."""

import sys

import keras
import numpy as np
from keras import layers

POLICIES = ("mixed_bfloat16", "mixed_float16")
STEPS, BATCH, BATCHES, CLASSES = 50, 16, 5, 4
IMAGE, SEQUENCE, WORDS = (12, 12, 3), (10, 8), 20


def mlp(x):
    x = layers.Dropout(0.0)(layers.Dense(48, activation="relu")(x))
    return layers.Dropout(0.0)(layers.Dense(24, activation="tanh")(x))


def layer_norm_mlp(x):
    for units in (40, 24):
        x = layers.Dense(units, activation="gelu")(layers.LayerNormalization()(x))
    return layers.LayerNormalization()(x)


def cnn(x):
    for filters in (8, 12):
        x = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x))
        x = layers.MaxPooling2D()(layers.ReLU()(x))
    return layers.Flatten()(x)


def convolutions(x):
    """With strides, of one pixel, depthwise, and transposed."""
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="tanh")(x)
    x = layers.DepthwiseConv2D(3, padding="same", activation="tanh")(layers.Conv2D(12, 1, activation="tanh")(x))
    x = layers.Conv2DTranspose(6, 3, strides=2, padding="same", activation="tanh")(x)
    return layers.Flatten()(layers.Conv2D(8, 5, strides=3)(x))


def residual(x):
    """A block whose shortcut is the identity, then one whose shortcut is a convolution."""
    x = layers.Conv2D(8, 3, padding="same")(x)
    x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))]))
    y = layers.BatchNormalization()(layers.Conv2D(12, 3, strides=2, padding="same", use_bias=False)(x))
    return layers.Flatten()(layers.ReLU()(layers.Add()([layers.Conv2D(12, 1, strides=2)(x), y])))


def separable(x):
    x = layers.BatchNormalization()(layers.SeparableConv2D(8, 3, padding="same", depth_multiplier=2)(x))
    x = layers.AveragePooling2D(2)(layers.Activation("silu")(x))
    return layers.Flatten()(layers.SeparableConv2D(10, 3, strides=2, activation="silu")(x))


def unet(x):
    """Down and up again, with concatenations across."""
    first = layers.Conv2D(6, 3, padding="same", activation="silu")(x)
    second = layers.Conv2D(8, 3, padding="same", activation="silu")(layers.AveragePooling2D(2)(first))
    x = layers.Conv2D(10, 3, padding="same", activation="silu")(layers.AveragePooling2D(2)(second))
    x = layers.Concatenate()([layers.UpSampling2D()(x), second])
    x = layers.Concatenate()([layers.Conv2DTranspose(6, 2, strides=2)(x), first])
    return layers.Flatten()(layers.Conv2D(4, 3, strides=2, activation="silu")(x))


def lstm(x):
    return layers.LSTM(16)(x)


def gru(x):
    return layers.GRU(16)(x)


def transformer(x):
    x = layers.Dense(16)(x)
    x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x)]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(16)(layers.Dense(32, activation="gelu")(x))]))
    return layers.GlobalAveragePooling1D()(x)


def mixer(x):
    """Of steps and of channels in turn."""
    mixed = layers.Dense(10)(layers.Dense(20, activation="gelu")(layers.Permute((2, 1))(layers.LayerNormalization()(x))))
    x = layers.Add()([x, layers.Permute((2, 1))(mixed)])
    x = layers.Add()([x, layers.Dense(8)(layers.Dense(24, activation="gelu")(layers.LayerNormalization()(x)))])
    return layers.Flatten()(layers.LayerNormalization()(x))


def embedding(x):
    return layers.Dense(16, activation="relu")(layers.GlobalAveragePooling1D()(layers.Embedding(WORDS, 12)(x)))


NETWORKS = {  # name -> (shape of an example, the layers before the logits, the learning rate)
    "mlp": ((20,), mlp, 0.05),
    "layer_norm_mlp": ((20,), layer_norm_mlp, 0.05),
    "cnn": (IMAGE, cnn, 0.01),
    "convolutions": (IMAGE, convolutions, 0.03),
    "residual": (IMAGE, residual, 0.01),
    "separable": (IMAGE, separable, 0.02),
    "unet": (IMAGE, unet, 0.02),
    "lstm": (SEQUENCE, lstm, 0.05),
    "gru": (SEQUENCE, gru, 0.05),
    "transformer": (SEQUENCE, transformer, 0.05),
    "mixer": (SEQUENCE, mixer, 0.05),
    "embedding": (SEQUENCE[:1], embedding, 0.05),
}


def examples(name):
    """Examples, and classes that their sums over parts of an example tell, so that a network learns them."""
    shape, _, _ = NETWORKS[name]
    rng, count = np.random.default_rng(sum(name.encode())), BATCH * BATCHES
    x = rng.integers(0, WORDS, (count, *shape)) if name == "embedding" else rng.normal(size=(count, *shape)).astype("float32")
    parts = x.reshape(count, -1) @ rng.normal(size=(x[0].size, CLASSES))
    return x, parts.argmax(1)


def compiled(inputs, body, classes, optimizer):
    """A classifier whose logits are float32, as Keras's guide to mixed precision has them."""
    model = keras.Model(inputs, layers.Dense(classes, dtype="float32")(body(inputs)))
    rng = np.random.default_rng(7)  # for weights that do not depend on a backend's generator; biases and scales stay 0 and 1
    for v in (v for v in model.trainable_variables if len(v.shape) > 1):
        inputs_of_one = np.prod(v.shape[:2] if v.name == "depthwise_kernel" else v.shape[:-1])
        v.assign(rng.normal(scale=inputs_of_one**-0.5, size=tuple(v.shape)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False if keras.config.backend() == "tensorflow" else "auto")
    return model


def trained(name, policy):
    """Train a network on the examples in their order: {"losses": those of STEPS steps, "update": the first step's of all weights}."""
    keras.config.set_dtype_policy(policy)
    try:
        shape, body, rate = NETWORKS[name]
        x, y = examples(name)
        inputs = keras.Input(shape, dtype="int32" if name == "embedding" else None)
        model = compiled(inputs, body, CLASSES, keras.optimizers.SGD(rate, momentum=0.9))
        losses, before = [], weights(model)
        for step in range(STEPS):
            at = slice(step % BATCHES * BATCH, step % BATCHES * BATCH + BATCH)
            model.reset_metrics()
            losses.append(float(model.train_on_batch(x[at], y[at], return_dict=True)["loss"]))
            if not step:
                update = weights(model) - before
        return {"losses": np.array(losses), "update": update}
    finally:
        keras.config.set_dtype_policy("float32")


def weights(model):
    """All trainable weights in one array."""
    return np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in model.trainable_variables])


if __name__ == "__main__":
    results = {}
    for name in sys.argv[2:]:
        for policy in ("float32", *POLICIES):
            results.update({f"{name} {policy} {what}": values for what, values in trained(name, policy).items()})
    np.savez(sys.argv[1], **results)
