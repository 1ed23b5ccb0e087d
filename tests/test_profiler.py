"""keras_ocl.profile by operation and by layer: whose time and memory it is, in fused kernels, loops, gradients and eager code."""

import csv
import gzip
import html
import json
import re

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import runtime
from keras_ocl.core.origin import NOWHERE, current_origin, kept_eagerly
from keras_ocl.kernels.conv import Geometry, Problem
from keras_ocl.kernels.conv import forward_cpu as conv_forward_cpu
from tests.kernels.matrix.emulated import traits_with

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

BATCH = 8
MOVES = {"HostToDevice", "DeviceToHost", "Copy"}


class LRN(layers.Layer):
    """Local response normalization over channels, radius 4, as a user writes it."""

    def call(self, x):
        n = x.shape[-1]
        padded = ops.pad(ops.square(x), [[0, 0], [0, 0], [0, 0], [4, 4]])
        return x / (1.0 + 0.001 / 9 * sum(padded[..., i : i + n] for i in range(9))) ** 0.75


def rows(profile, by):
    """title -> Row."""
    table = profile.table(by)
    found = {row.title: row for row in table}
    assert len(found) == len(table)
    return found


@pytest.fixture(scope="module")
def network():
    """The CIFAR-10 network of TensorFlow's tutorial, on crops, with a batch."""
    keras.utils.clear_session()  # the optimizer's name is looked for
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Input((24, 24, 3)),
            layers.Conv2D(64, 5, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(3, 2, "same", name="pool1"),
            LRN(name="norm1"),
            layers.Conv2D(64, 5, padding="same", activation="relu", name="conv2"),
            LRN(name="norm2"),
            layers.MaxPooling2D(3, 2, "same", name="pool2"),
            layers.Flatten(),
            layers.Dense(384, activation="relu", name="local3"),
            layers.Dense(192, activation="relu", name="local4"),
            layers.Dense(10, name="logits"),
        ],
        name="cifar",
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    rng = np.random.default_rng(0)
    x, y = rng.random((3 * BATCH, 24, 24, 3), "float32"), rng.integers(0, 10, 3 * BATCH)
    model.train_on_batch(x[:BATCH], y[:BATCH])
    model.predict_on_batch(x[:BATCH])
    return model, x, y


@pytest.fixture(scope="module")
def training(network):
    """A profile of three steps of training."""
    model, x, y = network
    with keras_ocl.profile(by="operation") as profile:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    return profile


@pytest.fixture(scope="module")
def inference(network):
    model, x, _ = network
    with keras_ocl.profile(by="operation") as profile:
        model.predict_on_batch(x[:BATCH])
    return profile


def test_operations_of_fused_kernels_have_rows(training):
    found = rows(training, "operation")
    for name in ("Conv2D", "BiasAdd", "Relu", "MaxPool", "LRN", "MatMul", "Loss"):
        assert found[name].device_ms > 0 and not found[name].gradient
        assert found[f"{name} gradient"].device_ms > 0 and found[f"{name} gradient"].gradient
    assert found["SGD"].device_ms > 0 and found["SGD"].in_place_bytes > 0 and "SGD gradient" not in found
    assert found["Metrics"].launches > 0
    assert not {"Square", "Pad", "Power", "Divide"} & set(found), "LRN's own operations are LRN"
    assert found["Conv2D"].device_ms > found["BiasAdd"].device_ms and found["Conv2D"].device_ms > found["Relu"].device_ms


def test_layers_have_rows_forward_and_backward(training):
    found = rows(training, "layer")
    for layer in ("conv1", "pool1", "norm1", "conv2", "norm2", "pool2", "local3", "local4", "logits"):
        assert found[f"cifar/{layer}"].device_ms > 0
        assert found[f"cifar/{layer} gradient"].device_ms > 0
    assert "sgd" in found


def test_rows_add_up_to_what_was_measured(training):
    assert training.steps == 3
    measured = training.milliseconds
    assert measured == pytest.approx(sum(time for _, time in training.launches)) and measured > 0
    totals = {}
    for by in ("kernel", "operation", "layer"):
        table = training.table(by)
        assert sum(row.device_ms for row in table if row.name != "Copy") * 3 == pytest.approx(measured, rel=1e-9)
        totals[by] = sum(row.host_ms for row in table)
        assert [row.total_ms for row in table] == sorted((row.total_ms for row in table), reverse=True)
    assert totals["operation"] == pytest.approx(totals["kernel"]) and totals["layer"] == pytest.approx(totals["kernel"])
    assert sum(row.bytes for row in training.table("layer")) == pytest.approx(sum(row.bytes for row in training.table("operation")))
    once = {row.title: row for row in training.table("operation", steps=1)}
    assert once["Conv2D"].device_ms == pytest.approx(3 * rows(training, "operation")["Conv2D"].device_ms)


@pytest.mark.parametrize("by", ["operation", "layer"])
def test_bytes_are_those_that_shapes_predict(training, inference, by):
    for profile in (training, inference):
        measured = {row.title: row.bytes for row in profile.table(by) if row.name not in MOVES and row.bytes}
        predicted = {title: n for title, n in profile.predicted_bytes(by).items() if n}
        assert measured == predicted and measured


def test_bytes_of_inference_are_the_results_of_the_operations(inference):
    found = rows(inference, "operation")
    traits = runtime.current_device().traits
    second = Geometry.of((BATCH, 12, 12, 64), (5, 5, 64, 64), padding=2)
    packed = traits.schedule == "cpu" and conv_forward_cpu.filter_blocks(Problem(traits, second, "float32", None)) is not None
    stored = {  # and the greatest number of bytes of which results that may be cut are multiples
        "Conv2D": (BATCH * (24 * 24 + 12 * 12) * 64 * 4 + packed * 5 * 5 * 64 * 64 * 4, BATCH * 12 * 12 * 64 * 4),
        "MatMul": (BATCH * (384 + 192 + 10) * 4, BATCH * 2 * 4),
    }
    for name, (n, result) in stored.items():
        if traits.schedule == "gpu":  # sums are cut in as many parts as fill the device, which are stored too
            assert found[name].bytes >= n and (found[name].bytes - n) % result == 0
        else:
            assert found[name].bytes == n
    assert found["MaxPool"].bytes == BATCH * (12 * 12 + 6 * 6) * 64 * 4
    assert found["Relu"].bytes == 0, "it works in the convolution's result"
    assert found["HostToDevice"].bytes == BATCH * 24 * 24 * 3 * 4
    assert found["DeviceToHost"].bytes == BATCH * 10 * 4
    assert inference.state_bytes == 1_068_298 * 4
    assert inference.peak_bytes >= inference.arena_bytes > 0


def test_files(training, tmp_path):
    training.to_csv(tmp_path / "profile.csv")
    with open(tmp_path / "profile.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    table = training.table()
    assert [line["name"] for line in lines] == [row.name for row in table]
    assert [float(line["device_ms"]) for line in lines] == [row.device_ms for row in table]

    training.to_json(tmp_path / "profile.json", by="layer")
    content = json.loads((tmp_path / "profile.json").read_text())
    assert content["by"] == "layer" and content["steps"] == 3 and content["wall_ms"] > 0
    assert {row["name"] for row in content["rows"]} == {row.name for row in training.table("layer")}

    for name, opened in (("trace.json", open), ("trace.json.gz", gzip.open)):
        training.chrome_trace(tmp_path / name)
        with opened(tmp_path / name, "rt", encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
        assert sum(e["pid"] == 1 for e in events) == len(training.launches)
        assert all(e["dur"] >= 0 for e in events)


def test_the_printed_report(training):
    lines = str(training).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")] == ["node name", "requested bytes", "total time", "device time", "host time"]
    first = lines[1].split("|")
    assert first[0].strip() == training.table()[0].title and "(100.00%, " in first[2]
    assert "averages of 3 steps" in str(training) and str(training.device) in str(training)


def test_notebooks_show_what_print_shows(training):
    shown = training._repr_html_()
    assert shown.startswith("<pre ") and html.unescape(re.sub(r"</?pre[^>]*>", "", shown)) == str(training)


def test_kernels_are_what_print_shows_by_default(network):
    model, x, _ = network
    with keras_ocl.profile() as profile:
        model.predict_on_batch(x[:BATCH])
    assert str(profile).splitlines()[-1].endswith("total")
    assert any("cifar/conv1" in row.name for row in profile.table())


def test_host_operations_and_copies():
    matrix = ops.convert_to_tensor(4 * np.eye(3, dtype="float32"))
    with keras_ocl.profile(by="operation") as profile:
        value = np.asarray(ops.linalg.cholesky(matrix))
    np.testing.assert_allclose(value, 2 * np.eye(3))
    found = rows(profile, "operation")
    assert found["Cholesky"].host_ms > 0 and found["Cholesky"].device_ms == 0
    if runtime.current_device().sharing == "shared":  # the operation reads and writes where the device does
        assert found["DeviceToHost"].bytes == 36 and not {"HostToDevice", "Copy"} & set(found)
    else:
        assert found["HostToDevice"].bytes == 36 and found["DeviceToHost"].bytes == 72
        assert found["Copy"].bytes == 36 and found["Copy"].launches == 1


def test_loops_know_their_layers():
    model = keras.Sequential([layers.Input((7, 5)), layers.LSTM(6, name="memory"), layers.Dense(2, name="out")], name="net")
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    x, y = np.random.default_rng(0).random((4, 7, 5), "float32"), np.ones((4, 2), "float32")
    model.train_on_batch(x, y)
    with keras_ocl.profile(by="operation") as profile:
        model.train_on_batch(x, y)
    found = rows(profile, "operation")
    assert found["LSTM"].launches >= 7 and found["LSTM gradient"].launches >= 7
    assert {"net/memory", "net/memory gradient", "net/out", "net/out gradient", "adam"} <= set(rows(profile, "layer"))
    measured = {row.title: row.bytes for row in profile.table() if row.name not in MOVES and row.bytes}
    assert measured == {title: n for title, n in profile.predicted_bytes().items() if n}


def test_eager_code_has_the_same_operations():
    def trained(eagerly):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                layers.Input((8, 8, 3)),
                layers.Conv2D(4, 3, activation="relu", name="conv"),
                LRN(name="norm"),
                layers.Flatten(name="flatten"),
                layers.Dense(2, name="out"),
            ],
            name="net",
        )
        model.compile(keras.optimizers.SGD(name="sgd"), "mse", run_eagerly=eagerly)
        x, y = np.random.default_rng(0).random((8, 8, 8, 3), "float32"), np.ones((8, 2), "float32")
        model.train_on_batch(x, y)
        with keras_ocl.profile(by="operation") as profile:
            model.fit(x, y, batch_size=4, verbose=0)
        return profile

    eager, compiled = trained(True), trained(False)
    assert eager.steps == compiled.steps == 2
    for by in ("operation", "layer"):
        names = {name for name in rows(compiled, by) if "eshape" not in name and "flatten" not in name}  # they run nothing in eager code
        assert names - MOVES <= set(rows(eager, by))
    for name in ("Conv2D", "LRN", "MatMul", "Relu", "SGD"):
        assert rows(eager, "operation")[name].device_ms > 0
    assert sum(row.device_ms for row in eager.table() if row.name != "Copy") * 2 == pytest.approx(eager.milliseconds)


def test_layers_of_ones_own_that_hold_layers_of_keras():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.conv = layers.Conv1D(4, 3, name="conv")

        def call(self, x):
            return ops.tanh(self.conv(x)) * 2.0

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.block = Block()

        def call(self, x):
            return ops.sigmoid(self.block(x))

    model, x = Net(), np.ones((2, 9, 3), "float32")
    model.predict_on_batch(x)
    with keras_ocl.profile(by="operation") as profile:
        model.predict_on_batch(x)
    assert {row.name for row in profile.table() if row.total_ms} - MOVES == {"Conv1D", "BiasAdd", "Block", "Sigmoid"}
    assert set(rows(profile, "layer")) - MOVES == {"net", "net/block", "net/block/conv"}


def test_gradients_of_ones_own_and_recomputed_values_count_as_gradients():
    @ops.custom_gradient
    def doubled(x):
        return ops.sin(x), lambda upstream: upstream * ops.cos(x)

    class Own(layers.Layer):
        def call(self, x):
            return doubled(x) + keras.remat(lambda v: ops.exp(v))(x)

    own = Own(name="own")

    @keras_ocl.jit
    def slope(x):
        return keras_ocl.grad(lambda v: ops.sum(own(v)))(x)

    x = np.linspace(0, 1, 5, dtype="float32")
    expected = np.cos(x) + np.exp(x)
    np.testing.assert_allclose(slope(x), expected, rtol=1e-5)
    with keras_ocl.profile(by="layer") as profile:
        slope(x)
    assert set(rows(profile, "layer")) - MOVES == {"own gradient"}
    assert set(rows(profile, "operation")) - MOVES == {"Own gradient"}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: layers.Conv1D(2, 3), "Conv1D"),
        (lambda: layers.Conv1DTranspose(2, 3), "Conv1DTranspose"),
        (lambda: layers.DepthwiseConv1D(3), "DepthwiseConv1D"),
        (lambda: layers.SeparableConv1D(2, 3), "SeparableConv1D"),
        (lambda: layers.AveragePooling1D(2), "AveragePool"),
        (lambda: layers.Softmax(), "Softmax"),
        (lambda: layers.UpSampling1D(2), "Repeat"),
    ],
)
def test_names_of_operations(make, name):
    layer, x = make(), ops.ones((2, 8, 4))
    layer(x)
    with keras_ocl.profile(by="operation") as profile:
        layer(x)
    assert name in rows(profile, "operation"), list(rows(profile, "operation"))


def test_a_launch_is_divided_by_work():
    m, n, k = 256, 200, 40  # results enough to fill a GPU of a few units, so that their sums are not cut in parts
    x, w = np.ones((m, k), "float32"), np.ones((k, n), "float32")

    @keras_ocl.jit
    def function(x, w):
        return ops.tanh(ops.matmul(x, w))

    function(x, w)
    with keras_ocl.profile() as profile:
        function(x, w)
    assert len(profile.launches) == 1, "the tangents are in the product's kernel"
    found = rows(profile, "operation")
    product, tangents = found["MatMul"], found["Tanh"]
    assert product.launches == tangents.launches == 1 and tangents.bytes == 0
    # 2 m n k operations, (m + n) k loads and m n stores of 8 each; and 20 for each hyperbolic tangent.
    work = 2 * m * n * k + 8 * ((m + n) * k + m * n)
    assert tangents.device_ms / product.device_ms == pytest.approx(20 * m * n / work)


def test_origins_take_no_part_in_what_is_compiled():
    def function(x, scopes):
        results = []
        for name in scopes:
            with keras.name_scope(name):
                results.append(ops.sum(ops.tanh(x) * 3.0, axis=1))
        return tuple(results)

    statistics = runtime.current_device().statistics
    first = keras_ocl.jit(lambda x: function(x, ("left", "right")))
    x = np.ones((37, 53), "float32")
    first(x)
    kernels, launches = statistics.kernels, statistics.launches
    first(x)
    assert statistics.launches == launches + 1, "equal nodes of two layers are one"
    keras_ocl.jit(lambda x: function(x, ("elsewhere", "again")))(x)
    assert statistics.kernels == kernels


def test_nothing_stays_behind(network, monkeypatch):
    model, x, y = network
    device = runtime.current_device()
    queue, peak = device.queue, device.memory.peak
    with pytest.raises(KeyError), keras_ocl.profile(by="layer"):
        assert kept_eagerly()
        raise KeyError
    assert device.profiler is None and device.queue is queue and not kept_eagerly() and device.memory.peak >= peak

    def timed(*_):
        raise AssertionError("a step without a profile is replayed")

    monkeypatch.setattr(type(device), "_timed", timed)
    monkeypatch.setattr(runtime.Record, "ran", timed)
    model.train_on_batch(x[:BATCH], y[:BATCH])
    with keras.name_scope("anywhere"):
        assert current_origin.get() is NOWHERE, "eager code keeps no origins"


def test_profiles_nest_and_count_builds():
    with keras_ocl.profile() as outer:
        with keras_ocl.profile() as inner:
            ops.sum(ops.ones((3, 5)) * 1.7, axis=0)
        assert kept_eagerly()
    assert inner.launches
    assert [label for label, _ in outer.launches] == [label for label, _ in inner.launches], "the outer one has what runs in the inner one"
    assert {row.name for row in outer.table("operation")} == {row.name for row in inner.table("operation")}
    function = keras_ocl.jit(lambda x: ops.sum(x * 0.123456 + 7, axis=0))
    keras_ocl.clear_cache()
    with keras_ocl.profile(by="operation") as profile:
        function(np.ones((3, 5), "float32"))
    assert profile.builds == 1 and profile.build_ms > 0 and "1 builds" in str(profile)


def test_the_share_of_matrix_units(monkeypatch, tmp_path):
    """Of time, by kernels: here of a product in 16 bits on the emulated unit, and one in float32."""
    halves = ops.convert_to_tensor(np.ones((128, 128)), "bfloat16")
    floats = ops.convert_to_tensor(np.ones((128, 128)), "float32")

    def profiled(*operands):
        function = keras_ocl.jit(lambda *operands: [ops.matmul(x, x) for x in operands])
        function(*operands)
        with keras_ocl.profile(by="operation") as profile:
            function(*operands)
        return profile

    without = profiled(halves, floats)
    assert without.matrix_unit_ms == 0 and "matrix units" not in str(without)
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", traits_with(device, "emulated"))
    for operands, share in (((halves,), 1), ((floats,), 0)):
        profile = profiled(*operands)
        assert profile.matrix_unit_ms == pytest.approx(share * profile.milliseconds) and profile.milliseconds > 0
        assert f"kernels that multiply on matrix units: {share:.2%} of the time" in str(profile)
    both = profiled(halves, floats)
    assert 0 < both.matrix_unit_ms < both.milliseconds
    share = both.matrix_unit_ms / both.milliseconds
    for by in ("kernel", "layer"):
        both.by = by
        assert f"kernels that multiply on matrix units: {share:.2%} of the time of all launches" in str(both).splitlines()
    both.to_json(tmp_path / "profile.json")
    assert json.loads((tmp_path / "profile.json").read_text())["matrix_unit_ms"] == both.matrix_unit_ms


def test_bad_views():
    with pytest.raises(ValueError, match="by='node' is no view"), keras_ocl.profile(by="node"):
        pass
    with keras_ocl.profile() as profile:
        pass
    with pytest.raises(ValueError, match="'nodes' is no view"):
        profile.table("nodes")
    with pytest.raises(ValueError, match="predicted_bytes"):
        profile.predicted_bytes("kernel")
    profile.by = "operation"
    assert profile.table() == [] and "averages of 1 step" in str(profile)
