"""Small versions of the models people build, trained for a few steps. Executed as a module it runs every case and writes the results.

Every case returns what the backends are compared by: the losses of its first steps, from the same weights on the same data.
Models with embeddings are trained by SGD: on TensorFlow, Keras 3.15's Adam squares the gradients of an embedding's row before it sums them.
"""

import sys

import keras
import numpy as np
from keras import layers, ops

from tests.keras.parity_cases import seeded_weights

if keras.config.backend() == "tensorflow":
    import tensorflow
    from tensorflow import GradientTape

    tensorflow.config.run_functions_eagerly(True)  # a few steps of small models: tracing them and XLA take far longer
else:
    from keras_ocl import GradientTape

STEPS = 5


def train(model, batches):
    """The loss of each step."""
    return [float(model.train_on_batch(*batch, return_dict=True)["loss"]) for batch in batches]


# ---- an encoder-decoder transformer, with causal and padding masks

WORDS, WIDTH, HEADS = 12, 16, 2


class Positions(layers.Layer):
    """Embedding of tokens and of their positions; the token 0 is padding."""

    supports_masking = True

    def __init__(self, length):
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        self.positions = layers.Embedding(length, WIDTH)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x, mask=None):
        return self.tokens.compute_mask(x)


def attention(queries, values=None, causal=False):
    values = queries if values is None else values
    attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(queries, values, use_causal_mask=causal)
    return layers.LayerNormalization()(layers.Add()([queries, attended]))


def feed_forward(x):
    return layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="gelu")(x))]))


def transformer():
    """Copies a sequence backwards; sentences of 2 to 7 words, padded to 7."""
    source, target = keras.Input((7,), dtype="int32"), keras.Input((6,), dtype="int32")
    encoded = feed_forward(attention(Positions(7)(source)))
    decoded = attention(Positions(6)(target), causal=True)
    decoded = feed_forward(attention(decoded, encoded))
    model = keras.Model([source, target], layers.Dense(WORDS)(decoded))
    seeded_weights(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, weighted_metrics=["accuracy"])
    rng = np.random.default_rng(0)
    words, lengths = rng.integers(1, WORDS, (16, 7)), rng.integers(2, 8, 16)
    words[np.arange(7) >= lengths[:, None]] = 0
    backwards = words[:, ::-1]
    return train(model, [([words, backwards[:, :-1]], backwards[:, 1:])] * STEPS)


# ---- custom training steps: a GAN, a variational autoencoder


class GAN(keras.Model):
    """The step of Keras's guide: first the discriminator on real and generated examples, then the generator against it."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_loss_tracker, self.g_loss_tracker = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data):
        real, noise = data
        generated = self.generator(noise)
        combined = ops.concatenate([generated, real], axis=0)
        labels = ops.concatenate([ops.ones((ops.shape(noise)[0], 1)), ops.zeros((ops.shape(real)[0], 1))], axis=0)
        with GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights, strict=True))
        with GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((ops.shape(noise)[0], 1)), self.discriminator(self.generator(noise)))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights, strict=True))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


def gan():
    """Convolutional, on 8x8 images. The noise comes with the data, as the backends draw different numbers."""
    discriminator = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(8, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(2 * 2 * 4),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Reshape((2, 2, 4)),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
        ]
    )
    seeded_weights(discriminator)
    seeded_weights(generator)
    model = GAN(discriminator, generator)
    model.compile(keras.optimizers.Adam(0.003), keras.optimizers.Adam(0.003), keras.losses.BinaryCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(STEPS * 12, 4)).astype("float32")
    real = rng.uniform(size=(STEPS * 12, 8, 8, 1)).astype("float32")
    losses = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append([logs["d_loss"], logs["g_loss"]])

    model.fit(real, noise, batch_size=12, shuffle=False, verbose=0, callbacks=[Look()])
    return losses


class Sampling(layers.Layer):
    """Draws z from its mean and the logarithm of its variance."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class VAE(keras.Model):
    """The step of Keras's guide: the error of the reconstruction and the divergence from a normal distribution."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction_loss", "kl_loss")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        with GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            error = ops.mean(ops.sum(keras.losses.binary_crossentropy(data, self.decoder(z)), axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            total = error + divergence
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (total, error, divergence), strict=True):
            tracker.update_state(value)
        return {m.name: m.result() for m in self.metrics}


def vae():
    """The mean loss of each of 10 epochs, on 8x8 images of a bar. The backends draw different numbers, so these agree only roughly."""
    images = keras.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(images)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
    encoder = keras.Model(images, [mean, log_variance, Sampling()([mean, log_variance])])
    latent = keras.Input((2,))
    x = layers.Reshape((4, 4, 4))(layers.Dense(4 * 4 * 4, activation="relu")(latent))
    x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
    decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x))
    seeded_weights(encoder)
    seeded_weights(decoder)
    model = VAE(encoder, decoder)
    model.compile(keras.optimizers.Adam(0.01))
    places = np.random.default_rng(0).integers(0, 8, 256)
    bars = (np.abs(np.arange(8) - places[:, None]) <= 1).astype("float32")
    data = np.broadcast_to(bars[:, None, :, None], (256, 8, 8, 1)).copy()
    return model.fit(data, batch_size=32, epochs=10, shuffle=False, verbose=0).history["loss"]


# ---- images, sequences, films


def unet():
    """Segmentation: two levels down and up, with batch normalization and skip connections."""

    def block(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((16, 16, 3))
    first = block(inputs, 4)
    second = block(layers.MaxPooling2D()(first), 8)
    x = block(layers.MaxPooling2D()(second), 8)
    x = block(layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), second]), 8)
    x = block(layers.Concatenate()([layers.Conv2DTranspose(4, 2, strides=2)(x), first]), 4)
    model = keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))
    seeded_weights(model)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    rng = np.random.default_rng(0)
    images = rng.normal(size=(4, 16, 16, 3)).astype("float32")
    return train(model, [(images, images.argmax(-1))] * STEPS)


def tagger():
    """A bidirectional LSTM that marks every word that occurred before in its sentence; padding is masked."""
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(9, 6, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    model = keras.Model(words, layers.TimeDistributed(layers.Dense(2, activation="softmax"))(x))
    seeded_weights(model)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    rng = np.random.default_rng(0)
    sentences, lengths = rng.integers(1, 9, (8, 6)), rng.integers(1, 7, 8)
    sentences[np.arange(6) >= lengths[:, None]] = 0
    tags = np.array([[w in s[:k] for k, w in enumerate(s)] for s in sentences.tolist()], "int32")
    return [*train(model, [(sentences, tags)] * STEPS), *model.predict(sentences, verbose=0).ravel()]


def forecaster():
    """Two ConvLSTMs that foresee the next picture of a film of a moving square."""
    film = keras.Input((4, 8, 8, 1))
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True, activation="relu")(film)
    x = layers.ConvLSTM2D(4, 3, padding="same")(layers.BatchNormalization()(x))
    model = keras.Model(film, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
    seeded_weights(model)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    films = np.zeros((6, 5, 8, 8, 1), "float32")
    for k, (row, column) in enumerate(np.random.default_rng(0).integers(0, 4, (6, 2))):
        for t in range(5):
            films[k, t, row : row + 3, (column + t) % 8] = 1
    return train(model, [(films[:, :4], films[:, 4])] * STEPS)


# ---- reinforcement learning


def dqn():
    """Deep Q-learning on a corridor of six cells with a reward at its end: acts by predict_on_batch, learns by train_on_batch.

    Returns the losses of the first steps, whether all greedy actions lead to the reward at the end, and the number of updates.
    """
    cells = np.eye(6, dtype="float32")

    def network():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(16, activation="relu"), layers.Dense(2)])
        seeded_weights(model)
        model.compile(keras.optimizers.Adam(0.02), "huber")
        return model

    model, target = network(), network()
    rng = np.random.default_rng(0)
    memory, losses, here = [], [], 0
    for step in range(160):
        explore, random_action = rng.uniform() < 0.5, int(rng.integers(2))
        action = random_action if explore else int(model.predict_on_batch(cells[here : here + 1])[0].argmax())
        there = max(here - 1, 0) if action == 0 else here + 1
        memory.append((here, action, float(there == 5), there))
        here = 0 if there == 5 else there
        if len(memory) >= 16:
            chosen = [memory[k] for k in rng.integers(0, len(memory), 16)]
            state, action, reward, following = (np.array(c) for c in zip(*chosen, strict=True))
            best = target.predict_on_batch(cells[following]).max(1)
            q = np.array(model.predict_on_batch(cells[state]))
            q[np.arange(16), action] = reward + 0.8 * np.where(reward > 0, 0.0, best)
            losses.append(float(model.train_on_batch(cells[state], q)))
        if step % 20 == 0:
            target.set_weights(model.get_weights())
    solved = np.all(model.predict_on_batch(cells[:5]).argmax(1) == 1)
    return [*losses[:STEPS], float(solved), len(losses)]


CASES = {f.__name__: f for f in (transformer, gan, vae, unet, tagger, forecaster, dqn)}


def run(case):
    return np.asarray(CASES[case](), "float64")


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    np.savez(sys.argv[1], **{case: run(case) for case in CASES})
