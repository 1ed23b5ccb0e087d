"""Fake quantization, quantized layers and models, adapters of low rank."""

import dataclasses

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import GradientTape, runtime

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted


def nudged(low, high, bits, narrow):
    """The quantization range in which zero has a number of its own, and its step; Jacob et al. 2018, section 3."""
    first, last = int(narrow), 2**bits - 1
    low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
    step = (high - low) / (last - first)
    zero = np.clip(np.floor(first - low / step + 0.5), first, last)
    return (first - zero) * step, (last - zero) * step, step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "low, high, bits, narrow, axis",
    [
        ([0.5], [128.0], 8, False, None),
        ([-127.1], [-0.1], 8, True, None),
        ([-0.1], [63.4], 7, False, None),
        ([0.0, 0.1, -63.1, -0.1], [126.0, 63.1, -0.1, 62.9], 7, True, 1),
    ],
)
def test_fake_quantization_and_its_gradients(low, high, bits, narrow, axis, compiled):
    bottom, top, step = nudged(low, high, bits, narrow)
    # Around both edges and the first step, one column per channel; and what each should become.
    inner = [bottom + 0.01, bottom + step - 0.01, bottom + step + 0.01, top - 0.01]
    x = np.stack([bottom - step, bottom - 0.01, *inner, top + 0.01, top + step]).astype("float32")
    expected = np.stack([bottom, bottom, bottom, bottom + step, bottom + step, top, top, top])
    upstream = np.random.default_rng(0).normal(size=x.shape).astype("float32")

    def loss(x, low, high):
        out = keras.quantizers.fake_quant_with_min_max_vars(x, low, high, num_bits=bits, narrow_range=narrow, axis=axis)
        return ops.sum(out * upstream), out

    function = keras_ocl.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, out), gradients = (keras_ocl.jit(function) if compiled else function)(x, np.float32(low), np.float32(high))
    np.testing.assert_allclose(out, expected, atol=1e-4)
    below, above = x <= bottom, x >= top
    wanted = [np.where(below | above, 0, upstream), np.where(below, upstream, 0).sum(0), np.where(above, upstream, 0).sum(0)]
    for gradient, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-6)
    for dtype, tolerance in (("bfloat16", 1.0), ("float16", 0.1)):
        out = keras.quantizers.fake_quant_with_min_max_vars(ops.cast(expected, dtype), low, high, bits, narrow, axis)
        assert out.dtype == dtype
        np.testing.assert_allclose(ops.cast(out, "float32"), expected, atol=tolerance)


@pytest.mark.parametrize(
    "layer, outputs",
    [(lambda: keras.layers.Dense(32), 32), (lambda: keras.layers.EinsumDense("ab,bc->ac", output_shape=[32]), 32)],
    ids=["Dense", "EinsumDense"],
)
def test_float8_training(layer, outputs):
    """Scales and histories of the largest values follow what was seen; the kernel learns from products of 8-bit values."""
    layer = layer()
    layer.build((None, 16))
    layer.quantize("float8")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)

    @keras_ocl.jit
    def step(x, upstream):
        with GradientTape() as tape:
            y = layer(x, training=True)
            loss = ops.sum(y * ops.cast(upstream, y.dtype))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    def rounded(a, scale, dtype):
        bound = float(ml_dtypes.finfo(dtype).max)
        return np.clip(a / scale, -bound, bound).astype(dtype).astype("float32") * np.float32(scale)

    rng = np.random.default_rng(0)
    history, scale = {name: np.zeros(1024, "float32") for name in "xkg"}, dict.fromkeys("xkg", 1.0)
    dtypes = {"x": ml_dtypes.float8_e4m3fn, "k": ml_dtypes.float8_e4m3fn, "g": ml_dtypes.float8_e5m2}
    for _ in range(3):
        used = dict(scale)  # a step computes with the scales from before it
        seen = {
            "x": rng.normal(size=(16, 16)).astype("float32"),
            "k": np.array(layer._kernel),
            "g": rng.normal(size=(16, outputs)).astype("float32"),
        }
        for name, a in seen.items():
            largest = history[name].max()
            if largest > 0:
                scale[name] = largest / float(ml_dtypes.finfo(dtypes[name]).max)
            history[name] = np.roll(history[name], -1)
            history[name][0] = np.abs(a).max()
        step(seen["x"], seen["g"])
        for name, stem in (("x", "inputs"), ("k", "kernel"), ("g", "outputs_grad")):
            np.testing.assert_allclose(getattr(layer, f"{stem}_amax_history"), history[name], rtol=1e-6)
            np.testing.assert_allclose(getattr(layer, f"{stem}_scale"), scale[name], rtol=1e-6)
        x, g = (rounded(seen[name], used[name], dtypes[name]) for name in "xg")
        np.testing.assert_allclose(layer._kernel, seen["k"] - 0.1 * x.T @ g, rtol=1e-4, atol=1e-4)


def classifier():
    return keras.Sequential(
        [
            keras.layers.Input((6,), dtype="int32"),
            keras.layers.Embedding(20, 16),
            keras.layers.EinsumDense("abc,cd->abd", output_shape=(None, 24), bias_axes="d", activation="relu"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(10),
        ]
    )


@pytest.mark.parametrize("mode, tolerance", [("int8", 0.03), ("int4", 0.3), ("float8", 0.1)])
def test_quantized_models_predict_nearly_the_same(mode, tolerance, tmp_path):
    model = classifier()
    x = np.random.default_rng(0).integers(0, 20, (8, 6))
    before = model.predict(x, verbose=0)
    model.quantize(mode)
    after = model.predict(x, verbose=0)
    assert 0 < np.abs(after - before).max() <= tolerance * np.abs(before).max()
    np.testing.assert_allclose(model(x), after, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "quantized.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "quantized.keras").predict(x, verbose=0), after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule, rows", [(None, 3), ("gpu", 3), ("gpu", 40)])
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("name", ["dense", "einsum"])
def test_weights_of_four_bits_are_read_as_they_are_stored(name, block, schedule, rows, monkeypatch):
    """One kernel of a prediction for few rows, beside the groups' numbers."""
    device = runtime.current_device()
    if schedule:
        monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule=schedule))
    layer = keras.layers.Dense(64) if name == "dense" else keras.layers.EinsumDense("ab,bcd->acd", (4, 16), bias_axes="cd")
    model = keras.Sequential([keras.layers.Input((48,)), layer])
    x, kernel = np.random.default_rng(1).normal(size=(rows, 48)).astype("float32"), np.asarray(layer.kernel).reshape(48, 64)
    model.quantize(config=keras.quantizers.Int4QuantizationConfig(block_size=block))
    compiled = keras_ocl.jit(lambda x: model(x))
    got = np.asarray(compiled(x)).reshape(rows, 64)
    assert 0 < np.abs(got - x @ kernel).max() < 0.2 * np.abs(x @ kernel).max()
    stored, scale = keras.quantizers.unpack_int4(layer._kernel, 64, axis=-1), np.asarray(layer.kernel_scale).astype("float64")
    stored = np.asarray(stored).astype("float64")
    if block is None:
        weights = stored / scale.reshape(-1)
    else:
        groups = np.arange(48) // block
        weights = (stored - np.asarray(layer.kernel_zero).reshape(3, 64)[groups]) * scale.reshape(3, 64)[groups]
    np.testing.assert_allclose(got, x @ weights, rtol=1e-4, atol=1e-4)
    (step,) = compiled.traces
    if device.traits.schedule != "reference":
        assert len(step.executable.launches) <= (1 if block is None else 2)


@pytest.mark.parametrize("mode", [None, "int8"])
def test_adapters_of_low_rank(mode, tmp_path):
    """Only the adapters train, the result is x (W + A B), and saving merges them."""
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(5)
    model = keras.Sequential([keras.layers.Input((8,)), layer])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8)).astype("float32"), rng.normal(size=(32, 5)).astype("float32")
    layer.enable_lora(2)
    if mode:
        model.quantize(mode)
    base, untouched = np.array(layer._kernel), np.array(layer.bias)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    losses = model.fit(x, y, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(layer._kernel, base)
    assert {w.path.split("/")[-1] for w in model.trainable_weights} == {"bias", "lora_kernel_a", "lora_kernel_b"}
    assert np.any(np.array(layer.bias) != untouched) and np.any(np.array(layer.lora_kernel_b) != 0)
    predicted = model.predict(x, verbose=0)
    if mode is None:
        kernel = base + np.array(layer.lora_kernel_a, "float64") @ np.array(layer.lora_kernel_b, "float64")
        np.testing.assert_allclose(predicted, x @ kernel + np.array(layer.bias), rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "merged.keras")
    loaded = keras.models.load_model(tmp_path / "merged.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), predicted, atol=1e-4 if mode is None else 0.1)
