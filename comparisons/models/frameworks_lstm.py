"""The recurrent networks of the frameworks study: sentiment of IMDB reviews, and rain from an hour of radar readings."""

import keras
from keras import layers

from comparisons.models import command
from comparisons.models.layers import hard_sigmoid

WORDS, LENGTH = 5000, 500
READINGS, FEATURES = 19, 24
UNIFORM = {"minval": -0.05, "maxval": 0.05}  # Keras 2's "uniform"


def lstms(count, cells, **options):
    """Return `count` stacked LSTMs of `cells` cells, of which the last gives its last output only."""
    return [layers.LSTM(cells, return_sequences=i < count - 1, recurrent_activation=hard_sigmoid, **options) for i in range(count)]


def imdb_lstm(shape=(LENGTH,), lstm_layers=1, cells=100):
    """Return the compiled IMDB-LSTM: Embedding 32, LSTM (tanh; hard sigmoid), Dense 1; binary crossentropy, Adam 0.001.

    shape: (words of a review,); inputs are numbers of words below 5000.
    """
    model = keras.Sequential(
        [
            keras.Input(shape, dtype="int32"),
            layers.Embedding(WORDS, 32, embeddings_initializer=keras.initializers.RandomUniform(**UNIFORM)),
            *lstms(lstm_layers, cells),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.001), "binary_crossentropy", metrics=["accuracy"])
    return model


def hmdir_lstm(shape=(READINGS, FEATURES), lstm_layers=1, cells=35):
    """Return the compiled HMDIR-LSTM: LSTM (sigmoid; hard sigmoid; kernel uniform, recurrent Glorot), Dense 1; RMSprop 0.001.

    shape: (readings, features). The loss is the mean absolute error, by which the data's contest ranked; the document states none.
    """
    initial = {"kernel_initializer": keras.initializers.RandomUniform(**UNIFORM), "recurrent_initializer": "glorot_uniform"}
    model = keras.Sequential(
        [keras.Input(shape), *lstms(lstm_layers, cells, activation="sigmoid", **initial), layers.Dense(1, activation="linear")]
    )
    model.compile(keras.optimizers.RMSprop(0.001), "mean_absolute_error", metrics=["mae"])
    return model


def networks():
    """Return {name: command.Network}."""
    return {
        "IMDB-LSTM": command.Network(imdb_lstm, (LENGTH,), 64, 3, classes=1, words=WORDS),
        "HMDIR-LSTM": command.Network(hmdir_lstm, (READINGS, FEATURES), 256, 100, classes=None),
    }


if __name__ == "__main__":
    command.main(networks(), __doc__)
