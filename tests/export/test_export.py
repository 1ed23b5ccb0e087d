"""Exported ONNX models give in ONNX Runtime what predict gives, for any batch size."""

import importlib.util

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

from comparisons import cifar_cnn, mnist_mlp, xor

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def integers(below, *shape):
    return RNG.integers(0, below, shape).astype("int32")


def session(path):
    """ONNX Runtime's session; the file is checked first, shapes included."""
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(exported, inputs):
    """The outputs for a nest of arrays."""
    arrays = keras.tree.flatten(inputs)
    return exported.run(None, {i.name: a for i, a in zip(exported.get_inputs(), arrays, strict=True)})


def check(model, tmp_path, *batches, rtol=1e-4, atol=1e-5, **options):
    """Exports the model, its weights made random, and compares on inputs of several sizes. Returns the session."""
    model.predict(batches[0], verbose=0)
    for v in model.weights:
        if v.dtype.startswith("float"):
            value = normal(*v.shape)
            v.assign(0.5 + np.abs(value) if "variance" in v.path else 0.3 * value)
    expected = [keras.tree.flatten(model.predict(b, verbose=0)) for b in batches]
    path = str(tmp_path / "model.onnx")
    model.export(path, format="onnx", verbose=False, **options)
    exported = session(path)
    for batch, wanted in zip(batches, expected, strict=True):
        for result, value in zip(run(exported, batch), wanted, strict=True):
            assert result.dtype == value.dtype
            np.testing.assert_allclose(result, value, rtol=rtol, atol=atol)
    return exported


def signature(*shape):
    return [keras.InputSpec(shape=(None, *shape), dtype="float32")]


def sized(*shape, sizes=(1, 5)):
    return [normal(n, *shape) for n in sizes]


# ---- the models of comparisons/


@pytest.mark.parametrize("name", ["xor", "mnist_mlp", "cifar_cnn"])
def test_the_main_models(tmp_path, name):
    shape = {"xor": (2,), "mnist_mlp": (784,), "cifar_cnn": (32, 32, 3)}[name]
    model = {"xor": xor, "mnist_mlp": mnist_mlp, "cifar_cnn": cifar_cnn}[name].build_model(shape)
    exported = check(model, tmp_path, *sized(*shape))
    (given,), (result,) = exported.get_inputs(), exported.get_outputs()
    assert (given.shape, result.shape) == (["batch", *shape], ["batch", *model.output_shape[1:]])
    stored = {i.name for i in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert {v.path for v in model.weights} <= stored


# ---- kinds of layers


def test_recurrent(tmp_path):
    inputs = keras.Input((3, 3))
    hidden = L.Bidirectional(L.LSTM(4, return_sequences=True))(inputs)
    hidden, state = L.GRU(4, return_sequences=True, return_state=True)(hidden)
    check(keras.Model(inputs, [L.SimpleRNN(3, go_backwards=True)(hidden), state]), tmp_path, *sized(3, 3))


def test_recurrent_over_masked_words(tmp_path):
    model = keras.Sequential([keras.Input((5,), dtype="int32"), L.Embedding(7, 4, mask_zero=True), L.LSTM(3), L.Dense(2)])
    check(model, tmp_path, integers(7, 1, 5), integers(7, 6, 5))


def test_recurrent_over_any_length(tmp_path):
    inputs = keras.Input((None, 3))
    hidden = L.Bidirectional(L.LSTM(4, return_sequences=True))(inputs)
    last, state = L.GRU(5, return_state=True)(hidden)
    check(keras.Model(inputs, [hidden, last, state]), tmp_path, normal(1, 6, 3), normal(4, 9, 3))
    kinds = [n.op_type for n in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds.count("Scan") == 3


def test_masked_words_of_any_number(tmp_path):
    words = keras.Input((None,), dtype="int32")
    hidden = L.Embedding(7, 4, mask_zero=True)(words)
    cell = L.RNN(L.StackedRNNCells([L.GRUCell(3), L.SimpleRNNCell(2)]), return_sequences=True)
    check(keras.Model(words, cell(hidden)), tmp_path, integers(3, 1, 8), integers(3, 4, 6))


def test_loops(tmp_path):
    class Loops(L.Layer):
        def call(self, x):
            total, each = ops.scan(lambda carry, row: (carry + row, ops.tanh(carry * row)), x[0], x, reverse=True)
            counted = ops.fori_loop(0, 9, lambda i, v: v * 0.5 + ops.cast(i, v.dtype) * x, x)
            grown = ops.while_loop(lambda v: ops.max(v) < 100.0, lambda v: (v * 2.0 + ops.abs(x),), (ops.abs(x),))
            return total, each, counted, grown[0]

    check(keras.Sequential([keras.Input((3,)), Loops()]), tmp_path, normal(6, 3), normal(11, 3))


def transformer(length):
    words = keras.Input((length,), dtype="int32")
    hidden = L.Embedding(11, 8)(words)
    attended = L.MultiHeadAttention(2, 4)(hidden, hidden, use_causal_mask=True)
    hidden = L.LayerNormalization()(L.Add()([hidden, attended]))
    more = L.Dense(8)(L.Dense(16, activation="gelu")(hidden))
    hidden = L.LayerNormalization()(hidden + more)
    return keras.Model(words, [hidden, L.Dense(3, activation="softmax")(L.GlobalAveragePooling1D()(hidden))])


def test_attention(tmp_path):
    check(transformer(6), tmp_path, integers(11, 1, 6), integers(11, 5, 6))


def test_attention_of_any_length(tmp_path):
    exported = check(transformer(None), tmp_path, integers(11, 1, 6), integers(11, 5, 3))
    assert exported.get_inputs()[0].shape == ["batch", "dim_0_1"] and exported.get_outputs()[0].shape == ["batch", "dim_0_1", 8]


def test_convolutions(tmp_path):
    inputs = keras.Input((9, 8, 4))
    x = L.Conv2D(6, 3, strides=2, padding="same", groups=2)(inputs)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    x = L.SeparableConv2D(5, 3, dilation_rate=2, padding="same", activation="silu")(x)
    x = L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1)(x)
    x = L.Conv2DTranspose(3, 2, strides=3)(x)
    check(keras.Model(inputs, x), tmp_path, *sized(9, 8, 4))


def test_convolutions_of_other_ranks(tmp_path):
    line, cube = keras.Input((12, 3)), keras.Input((4, 5, 4, 2))
    x = L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")(line)
    x = L.Conv1DTranspose(3, 4, strides=2)(x)
    y = L.Conv3D(3, 2, padding="same")(cube)
    y = L.MaxPooling3D((2, 1, 2))(y)
    model = keras.Model([line, cube], [x, y])
    check(model, tmp_path, *([normal(n, 12, 3), normal(n, 4, 5, 4, 2)] for n in (1, 3)))


def test_channels_first(tmp_path):
    first = {"data_format": "channels_first"}
    model = keras.Sequential([keras.Input((3, 8, 7)), L.Conv2D(4, 3, **first), L.AveragePooling2D(2, **first)])
    check(model, tmp_path, *sized(3, 8, 7))


def test_pooling(tmp_path):
    inputs = keras.Input((9, 8, 3))
    outputs = [
        L.MaxPooling2D(3, strides=2, padding="same")(inputs),
        L.AveragePooling2D(3, strides=2, padding="same")(inputs),
        L.AveragePooling2D(2)(inputs),
        L.GlobalMaxPooling2D()(inputs),
        L.GlobalAveragePooling2D(keepdims=True)(inputs),
        L.AdaptiveAveragePooling2D((2, 3))(inputs),
        L.MaxPooling1D(2)(L.Reshape((36, 6))(inputs)),
    ]
    check(keras.Model(inputs, outputs), tmp_path, *sized(9, 8, 3))


def test_shapes_and_activations(tmp_path):
    inputs = keras.Input((4, 6))
    x = L.Dropout(0.5)(L.GaussianNoise(1.0)(inputs))
    activations = "gelu elu selu softplus swish hard_sigmoid mish log_softmax leaky_relu celu".split()
    x = L.Concatenate(axis=1)([L.Activation(a)(x) for a in activations])
    x = L.Flatten()(L.Permute((2, 1))(x))
    x = L.Reshape((6, 4, -1))(x)
    x = L.ZeroPadding2D((1, 2))(L.UpSampling2D(2)(L.Cropping2D(((1, 0), (0, 1)))(x)))
    x = L.UpSampling2D(2, interpolation="bilinear")(x)
    check(keras.Model(inputs, x), tmp_path, *sized(4, 6))


def test_normalizations(tmp_path):
    inputs = keras.Input((5, 6))
    layers = [L.LayerNormalization(axis=(1, 2)), L.GroupNormalization(3), L.RMSNormalization(), L.BatchNormalization(axis=1)]
    check(keras.Model(inputs, [layer(inputs) for layer in layers]), tmp_path, *sized(5, 6))


def test_residual_model(tmp_path):
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(2):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(x)))
        x = L.Add()([x, y])
    x = L.GlobalAveragePooling2D()(x)
    check(keras.Model(inputs, L.Dense(3, activation="softmax")(x)), tmp_path, *sized(8, 8, 3))


# ---- unknown extents


def test_images_of_any_size(tmp_path):
    inputs = keras.Input((None, None, 3))
    x = L.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    pooled = L.AveragePooling2D(3, strides=2, padding="same")(x)
    up = L.Conv2DTranspose(2, 3, strides=2, padding="same")(x)
    mean = L.GlobalAveragePooling2D()(L.MaxPooling2D(2)(x))
    exported = check(keras.Model(inputs, [pooled, up, L.Dense(2)(mean)]), tmp_path, normal(1, 9, 12, 3), normal(2, 14, 7, 3))
    assert exported.get_inputs()[0].shape == ["batch", "dim_0_1", "dim_0_2", 3]


def test_an_extent_that_is_used_as_a_number(tmp_path):
    class Counting(L.Layer):
        def call(self, x):
            return x * len(range(x.shape[1]))

    model = keras.Sequential([keras.Input((None, 3)), Counting(name="counting")])
    with pytest.raises(ValueError, match="layer .*counting computes with the number .* unknown; give `input_signature` a fixed shape"):
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False, input_signature=signature(None, 3))
    check(model, tmp_path, *sized(4, 3), input_signature=signature(4, 3))


@pytest.mark.parametrize("limit", [3, 100, 5000, 20_000])
def test_a_branch_that_depends_on_an_unknown_extent(tmp_path, limit):
    """Whatever stands for the extent takes one side of it."""

    class Branching(L.Layer):
        def call(self, x):
            return x * 2 if x.shape[1] > limit else x * 3

    model = keras.Sequential([keras.Input((None, 3)), Branching(name="branching")])
    message = r"layer .*branching computes something else where the unknown extent '\w+' is \d+; give .* a fixed shape"
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False, input_signature=signature(None, 3))
    check(model, tmp_path, *sized(4, 3), input_signature=signature(4, 3))


# ---- kinds of models and signatures


class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, inputs, training=False):
        x = self.dense(inputs["x"])
        return {"sum": x + inputs["y"], "noise": keras.random.dropout(x, 0.5) if training else x}


def test_subclassed_model(tmp_path):
    check(Scaled(), tmp_path, *({"x": normal(n, 4), "y": normal(n, 3)} for n in (1, 5)))


def test_signatures(tmp_path):
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    for spec, shape in [
        (keras.InputSpec(shape=(3, 4), dtype="float32", name="custom"), [3, 4]),
        (keras.KerasTensor((3, 4), name="custom"), ["batch", 4]),
        (ops.ones((3, 4)), ["batch", 4]),
    ]:
        (given,) = check(model, tmp_path, normal(3, 4), input_signature=[spec]).get_inputs()
        assert (given.shape, given.name) == (shape, getattr(spec, "name", "input_0"))


@pytest.mark.parametrize("version", [17, 18, 21, None])
def test_opset_version(tmp_path, version):
    model = keras.Sequential([keras.Input((6, 4)), L.Conv1D(3, 2), L.Softmax(), L.GlobalMaxPooling1D()])
    check(model, tmp_path, *sized(6, 4), opset_version=version)
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == (version or 18)
    with pytest.raises(ValueError, match="`opset_version` must lie between 17 and .* Received: 9"):
        model.export(tmp_path / "model.onnx", format="onnx", opset_version=9)


def test_export_leaves_the_model_as_it_was(tmp_path, capsys):
    model = keras.Sequential([keras.Input((4,)), L.Dense(2), L.Dropout(0.5), L.BatchNormalization()])
    x = normal(3, 4)
    before, weights = model.predict(x, verbose=0), model.get_weights()
    model.export(tmp_path / "model.onnx", format="onnx")
    assert "Saved artifact at" in capsys.readouterr().out
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_than_a_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_ocl.export._LARGEST_FILE", 100)
    check(keras.Sequential([keras.Input((40,)), L.Dense(20)]), tmp_path, *sized(40))
    assert (tmp_path / "model.onnx.data").stat().st_size >= 40 * 20 * 4


# ---- what cannot be exported


def test_layers_without_onnx_operators(tmp_path):
    class Sampling(L.Layer):
        def call(self, x):
            return x + keras.random.normal(ops.shape(x), seed=keras.random.SeedGenerator(1))

    class Transformed(L.Layer):
        def call(self, x):
            return ops.cholesky(ops.matmul(x, ops.transpose(x, (0, 2, 1))))

    for layer, message in [
        (Sampling(name="sampling"), "`random_bits` of layer .*sampling cannot be exported: an ONNX model keeps no state"),
        (Transformed(name="transformed"), "`cholesky` of layer .*transformed cannot be exported: ONNX has no such decomposition"),
    ]:
        model = keras.Sequential([keras.Input((3, 3)), layer])
        with pytest.raises(NotImplementedError, match=message):
            model.export(tmp_path / "model.onnx", format="onnx", input_signature=signature(3, 3))


@pytest.mark.parametrize(
    ("format", "error", "message"),
    [
        ("tf_saved_model", NotImplementedError, "`export_saved_model` only currently supports the tensorflow, jax and torch backends"),
        ("openvino", NotImplementedError, "needs the openvino, tensorflow, jax or torch backend"),
        ("litert", ValueError, "requires TensorFlow or PyTorch backend"),
        ("torch", ValueError, "requires PyTorch backend"),
    ],
)
def test_other_formats_name_the_backends_they_need(tmp_path, format, error, message):
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    with pytest.raises(error, match=message):
        model.export(str(tmp_path / "model.xml"), format=format, verbose=False)


def test_without_the_package(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else found(name, *rest))
    with pytest.raises(ImportError, match=r"needs the package onnx: pip install 'keras-ocl\[export\]'"):
        model.export(tmp_path / "model.onnx", format="onnx", input_signature=signature(4))
