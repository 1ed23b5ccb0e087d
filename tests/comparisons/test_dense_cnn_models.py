"""The networks of the dense and the CNN study: parameter counts, the document's worked examples, the studies' rows and criteria."""

import copy

import keras
import numpy as np
import pytest

from comparisons import criteria
from comparisons.measures import spread
from comparisons.models import cnn as cnn_models
from comparisons.models import dense as dense_models
from comparisons.studies import cnn, dense, equivalence, layer_times

TOLERANCE = dict(rtol=2e-5, atol=2e-6)


# ---- parameter counts


@pytest.mark.parametrize("name, count", [("model_0", 210_998), ("model_1", 326_198), ("model_2", 123_824)])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_cnn_has_the_documents_parameters(name, count, data_format):
    build, size = cnn_models.MODELS[name], 32 if name == "model_0" else 40
    shape = (3, size, size) if data_format == "channels_first" else (size, size, 3)
    assert build(shape, data_format=data_format).count_params() == count


def test_one_cnn_is_smaller_and_one_larger():
    counts = [build().count_params() for build in cnn_models.MODELS.values()]
    assert counts[0] == min(counts) == 66_122 and counts[-1] == max(counts) == 946_890


def test_cnn_options_are_the_documents_ambiguities():
    model = cnn_models.model_0(last_hidden="sigmoid", reduction="sum_over_batch_size")
    assert [layer.activation.__name__ for layer in model.layers if isinstance(layer, keras.layers.Dense)] == ["sigmoid", "softmax"]
    assert model.loss.reduction == "sum_over_batch_size" and cnn_models.model_0().loss.reduction == "sum"
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-3)
    assert float(cnn_models.model_2().optimizer.learning_rate) == pytest.approx(1e-5)


def test_he_weights_are_not_cut_off():
    kernel = np.asarray(cnn_models.model_1().get_weights()[4])  # of the first dense layer, 3,200 x 100
    assert kernel.std() == pytest.approx(np.sqrt(2 / 3200), rel=0.02)
    assert np.abs(kernel).max() > 3.5 * np.sqrt(2 / 3200)  # a truncated normal ends at 2.3 of its deviations


@pytest.mark.parametrize("name", dense_models.NETS)
def test_mnist_net_has_its_parameters(name):
    widths = [int(width) for width in name.split("-")]
    model = dense_models.mlp(hidden=dense_models.NETS[name])
    assert model.count_params() == sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))
    assert {layer.activation.__name__ for layer in model.layers} == {"sigmoid"}


def test_xor_net_learns():
    model = dense_models.xor()
    model.set_weights([np.array(w, "float32") for w in ([[1, -1], [1, -1]], [-0.5, 1.5], [[1], [1]], [-0.5])])
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
    y = np.array([[0], [1], [1], [0]], "float32")
    model.fit(np.tile(x, (200, 1)), np.tile(y, (200, 1)), batch_size=4, epochs=5, shuffle=False, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] == 1.0 and model.count_params() == 9


# ---- the document's worked examples, against its formulas in float64


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def softmax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def correlate(x, k):
    """Cross-correlation of (rows, columns) without padding."""
    rows, columns = x.shape[0] - k.shape[0] + 1, x.shape[1] - k.shape[1] + 1
    return np.array([[np.sum(x[i : i + k.shape[0], j : j + k.shape[1]] * k) for j in range(columns)] for i in range(rows)])


def network_gradients(model, x, y):
    """Return (outputs, gradients) of a model compiled with the summed cross-entropy, computed by the backend."""
    outputs = np.asarray(model.predict(x, verbose=0))
    return outputs, equivalence.gradients(model, x, y)


def compiled(*layers):
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.CategoricalCrossentropy(reduction="sum"))
    return model


def drawn(model, seed):
    """Put seeded weights, biases too, into the model; return them in float64."""
    generator = np.random.default_rng(seed)
    model.set_weights([generator.normal(0, 0.7, w.shape).astype("float32") for w in model.get_weights()])
    return [np.asarray(w, "float64") for w in model.get_weights()]


def test_worked_example_2_3_softmax():
    """Two inputs, three sigmoid units, softmax."""
    model = compiled(keras.Input((2,)), keras.layers.Dense(3, "sigmoid"), keras.layers.Dense(2, "softmax"))
    w1, b1, w2, b2 = drawn(model, 1)
    x, y = np.array([[0.5, -1.2], [2.0, 0.3], [-0.7, 0.9]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    z = sigmoid(x @ w1 + b1)
    o = softmax(z @ w2 + b2)
    d2 = o - y
    d1 = d2 @ w2.T * z * (1 - z)
    outputs, found = network_gradients(model, x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(outputs, o, **TOLERANCE)
    for ours, expected in zip(found, [x.T @ d1, d1.sum(0), z.T @ d2, d2.sum(0)], strict=True):
        np.testing.assert_allclose(ours, expected, **TOLERANCE)


def test_worked_example_two_hidden_layers():
    """A hidden layer with ReLU, one with sigmoid, softmax."""
    dense = keras.layers.Dense
    model = compiled(keras.Input((3,)), dense(4, "relu"), dense(3, "sigmoid"), dense(2, "softmax"))
    w1, b1, w2, b2, w3, b3 = drawn(model, 2)
    x = np.random.default_rng(3).normal(size=(5, 3)).astype("float32").astype("float64")
    y = np.eye(2)[[0, 1, 1, 0, 1]]
    a1 = x @ w1 + b1
    z1 = np.maximum(a1, 0)
    z2 = sigmoid(z1 @ w2 + b2)
    o = softmax(z2 @ w3 + b3)
    d3 = o - y
    d2 = d3 @ w3.T * z2 * (1 - z2)
    d1 = d2 @ w2.T * (a1 > 0)
    outputs, found = network_gradients(model, x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(outputs, o, **TOLERANCE)
    assert 0 < np.mean(a1 > 0) < 1
    for ours, expected in zip(found, [x.T @ d1, d1.sum(0), z1.T @ d2, d2.sum(0), z2.T @ d3, d3.sum(0)], strict=True):
        np.testing.assert_allclose(ours, expected, **TOLERANCE)


@pytest.mark.parametrize("size, padding", [(3, 0), (2, 1)])
def test_worked_example_of_a_convolution(size, padding):
    """3x3 input, 2x2 kernel, no padding (3.125-3.139), and 2x2 input, 2x2 kernel, padding 1 (3.194-3.201): dK, db and dX.

    A 1x1 convolution before it gives an input gradient that its own weight's gradient shows, as dX summed up with the images.
    """
    layers = keras.layers
    model = compiled(
        keras.Input((size, size, 1)),
        layers.Conv2D(1, 1),
        layers.ZeroPadding2D(padding),
        layers.Conv2D(1, 2, activation="relu"),
        layers.Flatten(),
        layers.Dense(2, "softmax"),
    )
    k0, b0, k, b, w, c = drawn(model, 4 + size)
    x = np.random.default_rng(7).normal(size=(4, size, size, 1)).astype("float32").astype("float64")
    y = np.eye(2)[[0, 1, 0, 1]]
    kernel, expected, outputs = k[:, :, 0, 0], [np.zeros_like(v) for v in (k0, b0, k, b, w, c)], []
    for image, target in zip(x[..., 0], y, strict=True):
        hidden = np.pad(image * k0.item() + b0.item(), padding)
        a = correlate(hidden, kernel) + b.item()
        z = np.maximum(a, 0)
        o = softmax(z.ravel() @ w + c)
        outputs.append(o)
        delta = o - target
        dy = (w @ delta).reshape(a.shape) * (a > 0)
        dx = correlate(np.pad(dy, 1), kernel[::-1, ::-1])  # full, with the kernel flipped both ways
        dx = dx[padding : dx.shape[0] - padding, padding : dx.shape[1] - padding]  # padding needs no gradient
        expected[0] += np.sum(dx * image)
        expected[1] += dx.sum()
        expected[2][:, :, 0, 0] += correlate(hidden, dy)
        expected[3] += dy.sum()
        expected[4] += np.outer(z.ravel(), delta)
        expected[5] += delta
    found_outputs, found = network_gradients(model, x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(found_outputs, outputs, **TOLERANCE)
    for ours, each in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, each, **TOLERANCE)


# ---- the studies' rows


def test_dense_study_has_the_25_nets_and_the_documents_table():
    rows = [row for row in dense.ROWS if row.table == "mnist"]
    assert [row.name for row in rows] == list(dense_models.NETS) and len(rows) == 25
    assert rows[0].document["OpenCL CPU s"] == 66.3 and rows[-1].document["Keras/TF accuracy"] == 0.9514
    assert all(len(row.document) == 8 for row in rows)
    assert dense.STUDY.row("2-2-1").full.repeats == 100
    assert dense.weights_of(rows[0]) == 12_730


def test_document_ratios_are_those_of_its_text():
    documents = [row.document for row in dense.ROWS if row.table == "mnist"]
    ratios = [figures["OpenCL CPU s"] / figures["Keras/TF s"] for figures in documents]
    assert (round(min(ratios), 1), round(max(ratios), 1)) == (2.0, 4.5)


def test_cnn_study_has_its_rows():
    names = [row.name for row in cnn.STUDY.rows]
    assert names[:5] == ["smaller", "Model 0", "Model 1", "Model 2", "larger"]
    for model in ("Model 0", "Model 1", "Model 2"):
        assert {f"{model}, one unit", f"{model}, data-parallel", f"{model}, ranks"} <= set(names)
    assert {"Model 2, by layer", "larger, by layer", "matrix products"} <= set(names) and len(cnn.LAYERS) == 12
    assert [cnn.STUDY.row(name).full.examples for name in names[1:4]] == [1000, 1000, 2000]


@pytest.mark.parametrize(
    "name, gradient, expected",
    [("sequential/conv_0", False, "Conv_fwd_0"), ("sequential_3/pool_2", True, "Pool_back_2"), ("sequential/dense", True, None)],
)
def test_layers_get_the_documents_names(name, gradient, expected):
    assert layer_times.operation(name, gradient) == expected


# ---- criteria, on made-up results


def times(median, width=0.1):
    return spread([median - width, median, median + width])


def trained(row, backend, accuracies=(0.95, 0.96, 0.94), ms=1.0, **more):
    starts = [{"train_loss": [0.1], "test_loss": 0.1, "test_accuracy": value} for value in accuracies]
    return dict(row=row, backend=backend, starts=starts, fit_ms=times(ms), epoch_s=times(ms), real=True, epochs=1) | more


def passed(criterion, *results):
    """Return whether each verdict was positive."""
    return [v["passed"] for v in criterion(list(results), "tensorflow")]


def test_dense_accuracy_must_be_within_the_noise():
    name = "784-16-10"
    base = trained(name, "tensorflow")
    criterion = dense.accuracy_within_noise
    assert passed(criterion, trained(name, "ocl", (0.951, 0.961, 0.941)), base) == [True]
    assert passed(criterion, trained(name, "ocl", (0.93, 0.94, 0.92)), base) == [False]
    still = trained(name, "tensorflow", (0.95, 0.95))
    assert passed(criterion, trained(name, "ocl", (0.9509, 0.9509)), still) == [True]
    assert passed(criterion, trained(name, "ocl", (0.9515, 0.9515)), still) == [False]
    assert passed(criterion, trained(name, "ocl", real=False), base) == []
    assert passed(criterion, dict(row=name, backend="ocl", error="out of memory"), base) == []


def test_slower_is_only_what_the_spread_allows():
    """Training and inference are judged, each where both backends have it; of a single measurement a tenth is chance."""
    base = trained("any", "tensorflow", ms=1.0, predict_ms=times(1.0))
    for ms, fine in ((0.5, True), (1.05, True), (1.5, False)):
        assert passed(criteria.no_slower, trained("any", "ocl", ms=ms), base) == [fine]
        assert passed(criteria.no_slower, trained("any", "ocl", ms=1.0, predict_ms=times(ms)), base) == [True, fine]
        assert passed(criteria.no_slower, trained("any", "ocl", ms=ms, step_ms=times(1.0)), base | {"step_ms": times(1.0)}) == [True]
    once = trained("any", "tensorflow") | {"fit_ms": spread([1.0])}
    assert [passed(criteria.no_slower, once | {"backend": "ocl", "fit_ms": spread([ms])}, once)[0] for ms in (1.09, 1.11)] == [True, False]
    assert passed(criteria.no_slower, trained("another", "ocl", ms=9.0), base) == []


def test_xor_must_solve_the_same_starts():
    base = trained("2-2-1", "tensorflow", (1.0, 0.5, 1.0))
    assert passed(dense.xor_starts, trained("2-2-1", "ocl", (1.0, 0.75, 1.0)), base) == [True]
    assert passed(dense.xor_starts, trained("2-2-1", "ocl", (0.5, 1.0, 1.0)), base) == [False]


def test_callbacks_and_files_are_judged():
    logs = [{"loss": 0.5, "accuracy": 0.1}, {"loss": 0.4, "accuracy": 0.2}]
    good = dict(row="HDF5 written", backend="ocl", told=logs, history=logs, epochs=2)
    assert passed(dense.callbacks_told, good, good | {"told": logs[:1]}) == [True, False]
    assert passed(dense.callbacks_told, good | {"told": logs[:1], "history": logs[:1]}) == [False]
    read = dict(row="HDF5 read", backend="ocl", loaded={"tensorflow": {"weights": 1e-7, "model": 2e-7, "moved": 0.3}})
    bad, idle = copy.deepcopy(read), copy.deepcopy(read)
    bad["loaded"]["tensorflow"]["model"] = 1e-3
    idle["loaded"]["tensorflow"]["moved"] = 0.0  # the file's weights were there before it was loaded
    assert passed(dense.files_load_anywhere, read, bad, idle) == [True, False, False]


def test_shared_memory_must_not_be_slower():
    def result(copied, seconds, sharing):
        name = dense.transfer(32, copied).name
        return dict(row=name, backend="ocl", epoch_s=times(seconds, 0.01), sharing=sharing, written_mib=120.0 if copied else 60.0)

    copied = result(True, 1.0, "copied")
    assert passed(dense.shared_no_worse, result(False, 0.8, "shared"), copied) == [True]
    assert passed(dense.shared_no_worse, result(False, 1.2, "shared"), copied) == [False]
    assert passed(dense.shared_no_worse, result(False, 1.2, "copied"), copied) == []
    assert dense.zero_copy_gain([result(False, 0.8, "shared"), copied])[0][2] == [[32, "ocl", "shared", 2.0, 1.25]]


def compared(backend, output=0.0, gradient=0.0, loss=0.0, chaos=1e-3, steps=60):
    """Return a CNN's result whose outputs, gradients and losses are off by so much."""
    generator = np.random.default_rng(0)
    tensor = generator.normal(size=1000)
    tensor = tensor + gradient * np.linalg.norm(tensor) * generator.normal(size=1000) / np.sqrt(1000)
    record = {"norm": float(np.linalg.norm(tensor)), "projections": equivalence.projections(tensor, 0)}
    start = {"outputs": [[0.5 + output, 0.5 - output]], "gradients": {"dense/kernel": record}}
    losses = [[2.0 * (1 + loss)] * steps] * 3
    shaken = [[2.0 * (1 + chaos)] * steps] * 3
    return trained("Model 0", backend, equivalence=[start] * 3, step_losses=losses, shaken_losses=shaken, parameters=210_998)


def test_equivalence_is_judged_by_outputs_gradients_and_losses():
    base = compared("tensorflow")
    assert passed(cnn.equivalent, compared("ocl", 1e-6, 1e-5, 1e-5), base) == [True] * 4
    assert passed(cnn.equivalent, compared("ocl", output=1e-4), base) == [False, True, True, True]
    assert passed(cnn.equivalent, compared("ocl", gradient=1e-3), base) == [True, False, True, True]
    assert passed(cnn.equivalent, compared("ocl", loss=1e-3), base) == [True, True, False, True]
    assert passed(cnn.equivalent, compared("ocl", loss=3e-3), base) == [True, True, False, False]


def test_projections_estimate_a_distance():
    generator = np.random.default_rng(5)
    a, b = generator.normal(size=5000), generator.normal(size=5000)
    records = [{"norm": float(np.linalg.norm(v)), "projections": equivalence.projections(v, 1)} for v in (a, b)]
    assert equivalence.distance(*records) == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b), rel=0.6)
    assert equivalence.distance(records[0], records[0]) == 0.0


def test_parameters_are_counted():
    assert passed(cnn.parameters_counted, compared("ocl"), compared("ocl") | {"parameters": 210_999}) == [True, False]


def test_data_parallel_losses_must_be_those_of_one_device():
    def result(error):
        whole = {"devices": ["cpu:0"], "variables": "mirrored", "losses": [2.0] * 8, "epoch_s": times(1.0)}
        way = {"devices": ["cpu:0/1of2", "cpu:0/2of2"], "variables": "central", "losses": [2.0 * (1 + error)] * 8, "epoch_s": times(0.5)}
        return dict(row="Model 0, data-parallel", backend="ocl", parallel=[whole, way])

    assert passed(cnn.parallel_equivalent, result(1e-6), result(1e-3)) == [True, False]
    [(_, head, [line])] = cnn.parallel_table([result(0.0)])
    assert line[head.index("speed-up")] == 2.0 and line[0] == "Model 0"


def test_losses_of_ranks_must_be_those_of_one():
    def result(error):
        one = {"ranks": 1, "losses": [2.0] * 60, "epoch_s": times(1.0)}
        two = {"ranks": 2, "losses": [2.0] * 4 + [2.0 * (1 + error)] * 56, "epoch_s": times(0.625)}
        return dict(row="Model 1, ranks", backend="ocl", ranks=[one, two])

    assert passed(cnn.ranks_equivalent, result(1e-6), result(1e-3)) == [True, False]
    [(_, head, [first, second])] = cnn.ranks_table([result(1e-3)])
    assert first[:2] == ["Model 1", 1] and first[head.index("speed-up") :] == [1.0, 1.0, 0.0, 0.0]
    assert second[head.index("speed-up") :] == pytest.approx([1.6, 0.8, 1e-3, 1e-3])


def test_products_must_beat_the_documents_kernels():
    def result(own, size="256x256x256"):
        variants = {"v1": {"refused": "too large"}, "v3": {"gflops": times(2.0)}, "v4": {"gflops": times(6.0)}}
        return dict(row="matrix products", backend="ocl", gemm={size: variants | {"matmul": {"gflops": times(own)}}})

    assert passed(cnn.products_tuned, result(20.0), result(5.0)) == [True, False]
    assert passed(cnn.products_tuned, result(5.0, "50x10x50")) == []  # a kernel's start is what is timed
    [(_, head, [line])] = cnn.product_table([result(20.0)])
    assert line[head.index("v1: one group")] == "refused" and line[-1]["median"] == 20.0


def test_speed_up_and_layers_become_tables():
    one, whole = trained("Model 0, one unit", "ocl", ms=2.0, device="cpu:0/units=1"), trained("Model 0", "ocl", ms=1.0, device="cpu:0")
    [(_, head, [line])] = cnn.speed_up([one, whole])
    assert line[head.index("speed-up")] == 2.0
    profiled = dict(row="Model 2, by layer", backend="ocl", batch_size=32, layer_ms={"Conv_fwd_0": times(1.0), "Pool_back_2": times(2.0)})
    [(_, head, lines)] = cnn.layer_table([profiled])
    assert [line[0] for line in lines] == [*cnn.LAYERS, "sum"] and lines[-1][1] == 3.0
    assert lines[-1][2:] == pytest.approx([0.2596, 0.3739])
