"""Starting weights drawn by NumPy, so that every backend starts at the same point.

Each weight is drawn from the distribution that its layer's initializer names (Glorot & Bengio 2010, He et al. 2015, Saxe et al. 2014), but
by NumPy's generator: the backends' own would draw other numbers. Weights of one axis (biases, scales, statistics) stay as they are built.
"""

import numpy as np

SCALING = {  # as VarianceScaling(scale, mode, distribution)
    "GlorotUniform": (1.0, "fan_avg", "uniform"),
    "GlorotNormal": (1.0, "fan_avg", "truncated_normal"),
    "HeUniform": (2.0, "fan_in", "uniform"),
    "HeNormal": (2.0, "fan_in", "truncated_normal"),
    "LecunUniform": (1.0, "fan_in", "uniform"),
    "LecunNormal": (1.0, "fan_in", "truncated_normal"),
}
TRUNCATED = 0.87962566103423978  # standard deviation of a normal cut off at two deviations


def initializers(model):
    """Return {id of a weight: its layer's initializer} of the weights whose layers name one."""
    found = {}
    for layer in model._flatten_layers():
        for weight in [*layer._trainable_variables, *layer._non_trainable_variables]:
            name = {"recurrent_kernel": "recurrent"}.get(weight.name, weight.name)
            initializer = getattr(layer, f"{name}_initializer", None)
            if initializer is not None:
                found[id(weight)] = initializer
    return found


def weights(model, initial, seed):
    """Return the model's weights drawn from `seed`, in the order of `model.weights`; `initial` are the ones it was built with."""
    generator = np.random.default_rng(seed)
    named = initializers(model)
    return [
        draw(generator, named.get(id(variable)), value.shape).astype(value.dtype) if value.ndim > 1 else value
        for variable, value in zip(model.weights, initial, strict=True)
    ]


def draw(generator, initializer, shape):
    """Return a float32 array of `shape` as the Keras `initializer` would draw it; Glorot-uniform where that is None.

    Drawn and rounded as float32 whatever the weight's dtype, so that a float64 run starts at the same point.
    Raises NotImplementedError for an initializer that is not known here, naming it.
    """
    kind = "GlorotUniform" if initializer is None else type(initializer).__name__
    given = {} if initializer is None else initializer.get_config()
    if kind in SCALING or kind == "VarianceScaling":
        values = _scaled(generator, shape, *SCALING.get(kind) or (given["scale"], given["mode"], given["distribution"]))
    elif kind == "RandomUniform":
        values = generator.uniform(given["minval"], given["maxval"], shape)
    elif kind == "RandomNormal":
        values = generator.normal(given["mean"], given["stddev"], shape)
    elif kind == "TruncatedNormal":
        values = given["mean"] + given["stddev"] * _truncated(generator, shape)
    elif kind in ("Orthogonal", "OrthogonalInitializer"):
        values = given["gain"] * _orthogonal(generator, shape)
    elif kind in ("Zeros", "Ones", "Constant"):
        values = np.full(shape, {"Zeros": 0.0, "Ones": 1.0}.get(kind, given.get("value")))
    else:
        raise NotImplementedError(f"the initializer {kind} has no rule in comparisons.start: add one, so that backends start alike")
    return values.astype("float32", copy=False)


def _scaled(generator, shape, scale, mode, distribution):
    receptive = int(np.prod(shape[:-2]))
    fan_in, fan_out = receptive * shape[-2], receptive * shape[-1]
    scale /= {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    if distribution == "uniform":
        limit = np.sqrt(3 * scale)
        return np.float32(limit) * (2 * generator.random(shape, np.float32) - 1)
    if distribution == "truncated_normal":
        return np.float32(np.sqrt(scale) / TRUNCATED) * _truncated(generator, shape)
    return np.float32(np.sqrt(scale)) * generator.standard_normal(shape, np.float32)


def _truncated(generator, shape):
    """Standard normal values within two deviations: those outside are drawn again."""
    values = generator.standard_normal(shape, np.float32)
    outside = np.abs(values) > 2
    while outside.any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
        outside = np.abs(values) > 2
    return values


def _orthogonal(generator, shape):
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))  # uniform over the orthogonal matrices
    return (q if rows >= columns else q.T).reshape(shape)
