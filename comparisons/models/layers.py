"""Layers and activations that the studies' networks need and Keras does not have."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("comparisons")
class LocalResponseNormalization(keras.layers.Layer):
    """Local response normalisation across channels (Krizhevsky et al. 2012, section 3.3), as tf.nn.lrn computes it.

    y[..., c] = x[..., c] / (bias + alpha * sum of x[..., j] ** 2 over j in c - radius ... c + radius) ** beta, channels that do not exist
    counting as zero. Input and output: floats of one shape, channels last.

    Raises ValueError for a radius that is no whole number of at least 0.
    """

    def __init__(self, radius=5, bias=1.0, alpha=1.0, beta=0.5, **options):
        super().__init__(**options)
        if int(radius) != radius or radius < 0:
            raise ValueError(f"{type(self).__name__}: radius is {radius!r}, but must be a whole number of at least 0")
        self.radius, self.bias, self.alpha, self.beta = int(radius), bias, alpha, beta

    def call(self, x):
        channels = x.shape[-1]
        squares = ops.pad(ops.square(x), [(0, 0)] * (len(x.shape) - 1) + [(self.radius, self.radius)])
        total = sum(squares[..., shift : shift + channels] for shift in range(2 * self.radius + 1))
        return x * ops.power(self.bias + self.alpha * total, -self.beta)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "radius": self.radius, "bias": self.bias, "alpha": self.alpha, "beta": self.beta}


LRN = LocalResponseNormalization


@keras.saving.register_keras_serializable("comparisons")
def scaled_tanh(x):
    """Return 1.7159 tanh(2 x / 3), which has its largest curvature at 1 and maps 1 to 1 (LeCun et al. 1998)."""
    return 1.7159 * ops.tanh(x * (2 / 3))


@keras.saving.register_keras_serializable("comparisons")
def hard_sigmoid(x):
    """Return clip(0.2 x + 0.5, 0, 1), the hard sigmoid of Keras 2; that of Keras 3 is relu6(x + 3) / 6."""
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)
