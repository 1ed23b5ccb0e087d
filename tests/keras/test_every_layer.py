"""Every layer of Keras's in the training step of a model: none asks for a value that is computed only later.

Steps are traced, with an unknown batch size, and not compiled: so all layers together take seconds.
"""

import keras
import numpy as np
import pytest
from keras import layers as L

from keras_ocl import runtime
from keras_ocl.compiler.jit import Call, Jitted
from keras_ocl.compiler.trace.family import Family
from keras_ocl.core import tree
from keras_ocl.core.dim import noting
from keras_ocl.core.facts import Facts

BATCH = 4
VECTORS, SEQUENCES, WAVES, INTEGERS = (6,), (8, 4), (64,), (5,)
IMAGES, VOLUMES = (12, 12, 3), (6, 6, 6, 2)


def numbered(dimensions, shape):
    """Layers that exist for 1, 2 and 3 dimensions."""
    names = {
        "AdaptiveAveragePooling": (2,), "AdaptiveMaxPooling": (2,), "AveragePooling": (2,), "MaxPooling": (2,), "GlobalAveragePooling": (),
        "GlobalMaxPooling": (), "Conv": (4, 3), "Conv{}Transpose": (4, 3), "Cropping": (1,), "ZeroPadding": (1,), "UpSampling": (2,),
        "SpatialDropout": (0.5,), "ConvLSTM": (2, 3),
    }  # fmt: skip
    for name, arguments in names.items():
        name = name.format(f"{dimensions}D") if "{}" in name else f"{name}{dimensions}D"
        yield name, lambda name=name, arguments=arguments: getattr(L, name)(*arguments), [(3, *shape) if "LSTM" in name else shape]


CASES = [*numbered(1, SEQUENCES), *numbered(2, IMAGES), *numbered(3, VOLUMES)]


def case(shapes, **made):
    CASES.extend((name.split("__")[0], make, shapes) for name, make in made.items())


case(
    [VECTORS],
    Activation=lambda: L.Activation("relu"),
    ActivityRegularization=lambda: L.ActivityRegularization(0.1),
    AlphaDropout=lambda: L.AlphaDropout(0.5),
    BatchNormalization=L.BatchNormalization,
    Dense=lambda: L.Dense(3),
    Discretization=lambda: L.Discretization([0.0, 0.5]),
    Discretization__one_hot=lambda: L.Discretization([0.0, 0.5], output_mode="one_hot"),
    Dropout=lambda: L.Dropout(0.5),
    ELU=L.ELU,
    EinsumDense=lambda: L.EinsumDense("ab,bc->ac", 5),
    GaussianDropout=lambda: L.GaussianDropout(0.5),
    GaussianNoise=lambda: L.GaussianNoise(0.5),
    GroupNormalization=lambda: L.GroupNormalization(2),
    Identity=L.Identity,
    Lambda=lambda: L.Lambda(lambda x: x * 2),
    LayerNormalization=L.LayerNormalization,
    LeakyReLU=L.LeakyReLU,
    Normalization=lambda: L.Normalization(mean=[0.5] * 6, variance=[2.0] * 6),
    PReLU=L.PReLU,
    RMSNormalization=L.RMSNormalization,
    ReLU=L.ReLU,
    RepeatVector=lambda: L.RepeatVector(3),
    Rescaling=lambda: L.Rescaling(2.0),
    Softmax=L.Softmax,
    SpectralNormalization=lambda: L.SpectralNormalization(L.Dense(3)),
    UnitNormalization=L.UnitNormalization,
)
case(
    [SEQUENCES],
    Bidirectional=lambda: L.Bidirectional(L.LSTM(3)),
    DepthwiseConv1D=lambda: L.DepthwiseConv1D(3),
    Flatten=L.Flatten,
    GRU=lambda: L.GRU(3, dropout=0.5, recurrent_dropout=0.5),
    LSTM=lambda: L.LSTM(3, dropout=0.5, recurrent_dropout=0.5, return_sequences=True),
    Masking=L.Masking,
    Permute=lambda: L.Permute((2, 1)),
    RNN=lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(2), L.GRUCell(3), L.SimpleRNNCell(2)])),
    Reshape=lambda: L.Reshape((4, 8)),
    SeparableConv1D=lambda: L.SeparableConv1D(4, 3),
    SimpleRNN=lambda: L.SimpleRNN(3, unroll=True),
    TimeDistributed=lambda: L.TimeDistributed(L.Dropout(0.5)),
)
case([WAVES], MelSpectrogram=lambda: L.MelSpectrogram(fft_length=16, sequence_stride=8, num_mel_bins=4))
case([(*WAVES, 1)], STFTSpectrogram=lambda: L.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16))
case([INTEGERS], Embedding=lambda: L.Embedding(7, 3, mask_zero=True), ReversibleEmbedding=lambda: L.ReversibleEmbedding(7, 3))
case(
    [INTEGERS],
    CategoryEncoding=lambda: L.CategoryEncoding(5),
    CategoryEncoding__counts=lambda: L.CategoryEncoding(5, output_mode="count"),
)
case([VECTORS] * 2, **{n: getattr(L, n) for n in ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")})
case([VECTORS] * 2, Dot=lambda: L.Dot(1))
case([SEQUENCES] * 2, Attention=lambda: L.Attention(dropout=0.5), AdditiveAttention=lambda: L.AdditiveAttention(dropout=0.5))
case(
    [SEQUENCES] * 2,
    MultiHeadAttention=lambda: L.MultiHeadAttention(2, 3, dropout=0.5),
    GroupQueryAttention=lambda: L.GroupQueryAttention(3, 2, 1, dropout=0.5),
)
case(
    [IMAGES],
    AugMix=L.AugMix,
    AutoContrast=L.AutoContrast,
    CenterCrop=lambda: L.CenterCrop(8, 8),
    ContrastLimitedAdaptiveHistogramEqualization=L.ContrastLimitedAdaptiveHistogramEqualization,
    CutMix=L.CutMix,
    DepthwiseConv2D=lambda: L.DepthwiseConv2D(3),
    Equalization=L.Equalization,
    MixUp=L.MixUp,
    Pipeline=lambda: L.Pipeline([L.RandomFlip(), L.RandomRotation(0.2)]),
    RandAugment=L.RandAugment,
    RandomBrightness=lambda: L.RandomBrightness(0.5),
    RandomColorDegeneration=lambda: L.RandomColorDegeneration(0.5),
    RandomColorJitter=lambda: L.RandomColorJitter((0, 1), 0.5, 0.5, 0.5, 0.5),
    RandomContrast=lambda: L.RandomContrast(0.5),
    RandomElasticTransform=L.RandomElasticTransform,
    RandomErasing=lambda: L.RandomErasing(1.0),
    RandomFlip=L.RandomFlip,
    RandomGaussianBlur=L.RandomGaussianBlur,
    RandomGrayscale=L.RandomGrayscale,
    RandomHue=lambda: L.RandomHue(0.5),
    RandomInvert=L.RandomInvert,
    RandomPerspective=L.RandomPerspective,
    RandomPosterization=lambda: L.RandomPosterization(3),
    RandomRotation=lambda: L.RandomRotation(0.3),
    RandomSaturation=lambda: L.RandomSaturation(0.5),
    RandomSharpness=lambda: L.RandomSharpness(0.5),
    RandomShear=lambda: L.RandomShear(0.5, 0.5),
    RandomTranslation=lambda: L.RandomTranslation(0.3, 0.3),
    RandomZoom=lambda: L.RandomZoom(0.3),
    Resizing=lambda: L.Resizing(8, 8),
    Resizing__cropped=lambda: L.Resizing(8, 8, crop_to_aspect_ratio=True),
    Resizing__padded=lambda: L.Resizing(8, 8, pad_to_aspect_ratio=True),
    SeparableConv2D=lambda: L.SeparableConv2D(4, 3),
    Solarization=L.Solarization,
)
WITHIN = {"GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"}  # in cases of others
NOT_IN_MODELS = {
    "base classes": "InputLayer Layer Wrapper",
    "other frameworks": "FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper",
    "for tf.data, as they read values by TensorFlow": "Hashing HashedCrossing IntegerLookup StringLookup TextVectorization",
    "for tf.data, as its result has another shape in training": "RandomCrop",
    "of bounding boxes alone": "MaxNumBoundingBoxes",
}


def test_every_layer_is_listed():
    classes = {n: c for n, c in vars(L).items() if isinstance(c, type) and issubclass(c, L.Layer)}
    listed = {getattr(L, name) for name, *_ in CASES} | {getattr(L, n) for n in WITHIN}
    listed |= {getattr(L, n) for names in NOT_IN_MODELS.values() for n in names.split()}
    assert {n for n, c in classes.items() if c not in listed} == set()


class Around(keras.Model):
    """A model of one layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        if isinstance(self.layer, (L.MultiHeadAttention, L.GroupQueryAttention)):
            return self.layer(*inputs)
        return self.layer(inputs)


def ready(make, shapes, integers):
    """A compiled model, and a batch for it."""
    inputs = [np.ones((BATCH, *shape), "int32" if integers else "float32") for shape in shapes]
    specs = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in inputs]
    inputs, specs = (inputs, specs) if len(inputs) > 1 else (inputs[0], specs[0])
    model = Around(make())
    target = np.zeros(tuple(BATCH if n is None else n for n in model(specs, training=True).shape), "float32")
    model.compile("sgd", "mse")
    return model, (inputs, target)


def trace(model, batch):
    """Traces the model's training step with an unknown batch size."""
    leaves, structure = tree.flatten(((batch,), {}))
    call = Call(Jitted(model.train_step), leaves, structure, runtime.current_device())
    extents = tuple(n for shape in call.shapes for n in shape)
    family = Family(call.shapes, (0,), {})
    family.see(extents)
    unknown, unknowns = family.unknowns(extents)
    with noting(Facts(unknowns)):
        call.trace(unknown)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("name, make, shapes", CASES, ids=[name for name, *_ in CASES])
def test_in_a_training_step(name, make, shapes):
    trace(*ready(make, shapes, shapes == [INTEGERS]))


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_of_images_otherwise():
    """The layers of images, which compute in many ways of their own: channels first, and in half precision."""
    keras.config.set_image_data_format("channels_first")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for _, make, shapes in CASES:
            if shapes == [IMAGES]:
                trace(*ready(make, [(3, 12, 12)], False))
    finally:
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy("float32")
