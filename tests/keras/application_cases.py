"""One training step of an architecture of keras.applications, on the backend in use. A module: NAME FILE FLOATX writes the results."""

import sys

import keras
import numpy as np

CLASSES, BATCH = 10, 4

# name -> (extent of the images, mean of biases). Half of an architecture's gradients would be noise, were its ReLUs' inputs near
# their kink: with hundreds of thousands of them, some change sides by rounding alone. Biases keep the inputs away from it.
MODELS = {
    "ConvNeXtTiny": (64, 0.0),
    "DenseNet121": (64, 2.5),
    "EfficientNetB0": (64, 0.0),
    "EfficientNetV2B0": (64, 0.0),
    "InceptionResNetV2": (128, 2.5),
    "InceptionV3": (128, 2.5),
    "MobileNet": (64, 2.5),
    "MobileNetV2": (64, 2.5),
    "MobileNetV3Large": (64, 0.0),
    "MobileNetV3Small": (64, 0.0),
    "NASNetMobile": (64, 2.5),
    "ResNet50": (64, 2.5),
    "ResNet50V2": (64, 2.5),
    "VGG16": (32, 2.5),
    "VGG19": (32, 2.5),
    "Xception": (96, 2.5),
}


def build(name):
    """The architecture with weights that do not depend on a backend's generator, and without its random layers."""
    extent, bias = MODELS[name]
    model = getattr(keras.applications, name)(weights=None, input_shape=(extent, extent, 3), classes=CLASSES, classifier_activation=None)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
        elif type(layer).__name__ == "StochasticDepth":
            layer.drop_path_rate = 0.0
    rng = np.random.default_rng(7)
    for v in model.weights:
        if not str(v.dtype).startswith("float"):
            continue
        w = rng.standard_normal(size=tuple(v.shape), dtype="float32")
        if w.ndim > 1:
            inputs = (0, 1) if w.ndim == 4 and "depthwise" in v.path else tuple(range(w.ndim - 1))
            fan = np.prod([w.shape[axis] for axis in inputs])
            w = (w - w.mean(inputs, keepdims=True) if fan > 1 else w) / np.sqrt(fan, dtype="float32")
        elif "variance" in v.name:
            w = 1 + 0.1 * np.abs(w)
        elif "gamma" in v.name:
            w = 1 + 0.1 * w
        else:
            w = 0.3 * w + (bias if v.name in ("beta", "bias") else 0)
        v.assign(w)
    return model


def run(name):
    """Outputs in inference, and the loss, all gradients and the moving statistics of one step of `train_on_batch`, by name.

    The gradients are the momenta of SGD after its first step. Outputs are logits.
    """
    model = build(name)
    rng = np.random.default_rng(1)
    extent, _ = MODELS[name]
    images = rng.standard_normal(size=(BATCH, extent, extent, 3), dtype="float32")
    if any(isinstance(layer, keras.layers.Rescaling) for layer in model.layers):
        images = np.clip(127.5 + 60 * images, 0, 255)
    optimizer = keras.optimizers.SGD(0.001, momentum=0.5)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    results = {"outputs": model.predict_on_batch(images)}
    results["loss"] = model.train_on_batch(images, rng.integers(0, CLASSES, BATCH))
    for k, (v, momentum) in enumerate(zip(model.trainable_variables, optimizer.momentums, strict=True)):
        results[f"gradient {k} {v.path}"] = keras.ops.convert_to_numpy(momentum) / -0.001
    for k, v in enumerate(model.non_trainable_variables):
        if "moving" in v.name:
            results[f"statistic {k} {v.path}"] = keras.ops.convert_to_numpy(v)
    return {key: np.asarray(value) for key, value in results.items()}


if __name__ == "__main__":
    keras.config.set_floatx(sys.argv[3])
    if keras.config.backend() == "tensorflow":
        import tensorflow

        tensorflow.config.run_functions_eagerly(True)  # two calls: tracing them takes longer
    np.savez(sys.argv[2], **run(sys.argv[1]))
