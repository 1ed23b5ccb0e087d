"""The networks of the frameworks study: parameter counts as the document has them, shapes, layers, schedules, the study's rows."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparisons import studies
from comparisons.models import command, frameworks_cnn, frameworks_fnn, frameworks_lstm, schedules
from comparisons.models.layers import LRN, hard_sigmoid, scaled_tanh
from comparisons.studies import frameworks

CNNS = frameworks_cnn.networks()
DOCUMENT = {  # trainable parameters, by the document's tables
    "DNN-W20": 34_040,
    "All-CNN-C": 1_369_738,
    "CNN+ReLU": 10_071_562,
    "WRN-16-8": 10_961_370,
    "AP-ReLU": 243_698,
    "MP-ReLU": 243_698,
    # Of these two it says only how they are counted: without padding, and trainable ones with padding.
    "CNN-Softmax": (25 + 1) * 32 + (25 * 32 + 1) * 64 + (4 * 4 * 64 + 1) * 500 + 501 * 10,
    "basic-SVHN": (75 + 3) * 16 + (49 * 16 + 3) * 512 + (8 * 8 * 512 + 3) * 1024 + (1024 + 3) * 1024 + 1025 * 10,
}
FNN_6 = {  # widths of the document's tables, by the number of inputs
    960: [487, 243, 122, 61, 31, 16],
    154: [78, 39, 19, 10, 5, 3],
    784: [398, 199, 99, 50, 25, 13],
}


def trainable(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_variables)


@pytest.mark.parametrize("name", CNNS)
def test_convolutional_network_has_the_documents_parameters(name):
    network = CNNS[name]
    model = network.build(network.shape)
    assert trainable(model) == DOCUMENT[name]
    assert model.output_shape == (None, network.classes)
    assert model.compiled and model.loss == "categorical_crossentropy"
    statistics = model.count_params() - trainable(model)
    assert (statistics > 0) == (name in ("WRN-16-8", "basic-SVHN"))


@pytest.mark.parametrize("inputs", FNN_6)
def test_fnn_6_has_the_documents_widths(inputs):
    widths = FNN_6[inputs]
    model = frameworks_fnn.fnn((inputs,), 6)
    assert [layer.units for layer in model.layers] == [*widths, 10]
    sizes = [inputs, *widths, 10]
    assert trainable(model) == sum((a + 1) * b for a, b in zip(sizes, sizes[1:], strict=False))


@given(st.integers(64, 2000), st.integers(1, 6))
def test_widths_halve_and_add_up(units, count):
    widths = frameworks_fnn.widths(units, count)
    assert sum(widths) == units and len(widths) == count
    assert all(abs(before - 2 * after) <= 2 for before, after in zip(widths, widths[1:], strict=False))


def test_width_scales_the_hidden_units():
    model = frameworks_fnn.fnn((100,), 1, width=2.0)
    assert [layer.units for layer in model.layers] == [200, 10]


@pytest.mark.parametrize(("name", "parameters"), [("IMDB-LSTM", 213_301), ("HMDIR-LSTM", 8_436)])
def test_recurrent_network_has_the_documents_parameters(name, parameters):
    network = frameworks_lstm.networks()[name]
    model = network.build()
    assert model.count_params() == parameters and model.output_shape == (None, 1)
    cell = next(layer for layer in model.layers if isinstance(layer, keras.layers.LSTM)).cell
    assert cell.recurrent_activation is hard_sigmoid
    kinds = ("GlorotUniform", "Orthogonal") if name == "IMDB-LSTM" else ("RandomUniform", "GlorotUniform")
    assert tuple(type(i).__name__ for i in (cell.kernel_initializer, cell.recurrent_initializer)) == kinds


def test_stacked_lstms_give_sequences_to_the_next():
    model = frameworks_lstm.hmdir_lstm(lstm_layers=3, cells=9)
    lstms = [layer for layer in model.layers if isinstance(layer, keras.layers.LSTM)]
    assert [layer.return_sequences for layer in lstms] == [True, True, False]
    assert model.count_params() == 4 * 9 * (24 + 9 + 1) + 2 * 4 * 9 * (9 + 9 + 1) + 10


def test_swept_options_change_what_they_name():
    base = frameworks_cnn.mp_relu()
    kernels = [tuple(layer.kernel.shape) for layer in base.layers if isinstance(layer, keras.layers.Conv2D)]
    assert kernels == [(5, 5, 2, 64), (5, 5, 64, 64), (5, 5, 64, 64)]
    swept = frameworks_cnn.mp_relu(replicas=2, filters=0.25, kernel=-1)
    kernels = [tuple(layer.kernel.shape) for layer in swept.layers if isinstance(layer, keras.layers.Conv2D)]
    assert kernels == [(4, 4, 2, 16), *[(4, 4, 16, 16)] * 5]


@pytest.mark.parametrize("kernel", [min(frameworks.KERNELS), max(frameworks.KERNELS)])
@pytest.mark.parametrize("name", frameworks.SWEPT)
def test_every_kernel_leaves_a_map(name, kernel):
    options, data = frameworks.sweep_options(name, "kernel", kernel)
    shape = CNNS[name].shape
    side = data.get("size", shape[0])
    model = CNNS[name].build((side, side, shape[2]), **options)
    assert all(min(layer.output.shape[1:]) > 0 for layer in model.layers)


def test_weight_decay_is_on_every_kernel():
    model = frameworks_cnn.cnn_softmax()
    decayed = [layer.kernel_regularizer.l2 for layer in model.layers if hasattr(layer, "kernel_regularizer")]
    assert [float(value) for value in decayed] == pytest.approx([5e-4] * 4)


# ---- layers ------------------------------------------------------------------------------------------------------------------------------


def lrn(x, radius, bias, alpha, beta):
    """tf.nn.lrn's definition, channel by channel."""
    result = np.empty_like(x)
    for c in range(x.shape[-1]):
        near = x[..., max(0, c - radius) : c + radius + 1]
        result[..., c] = x[..., c] / (bias + alpha * (near**2).sum(-1)) ** beta
    return result


@pytest.mark.parametrize(("radius", "channels"), [(0, 3), (2, 7), (4, 6), (5, 2)])
def test_lrn_is_its_definition(radius, channels):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, channels))
    ours = LRN(radius, bias=1.5, alpha=0.3, beta=0.75)(x.astype("float32"))
    assert np.allclose(ours, lrn(x, radius, 1.5, 0.3, 0.75), rtol=1e-5)


def test_lrn_can_be_saved_and_refuses_half_a_channel():
    inputs = keras.Input((4, 4, 8))
    model = keras.Model(inputs, LRN(4, 1.0, 0.001 / 9, 0.75)(inputs))
    again = keras.Model.from_config(model.get_config())
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 8)).astype("float32")
    assert model.output_shape == (None, 4, 4, 8)
    assert np.array_equal(model.predict(x, verbose=0), again.predict(x, verbose=0))
    with pytest.raises(ValueError, match="radius is 1.5"):
        LRN(1.5)


def test_activations_are_the_documents():
    x = np.array([-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0], "float32")
    assert np.allclose(hard_sigmoid(x), [0, 0, 0.3, 0.5, 0.7, 1, 1], atol=1e-6)
    assert np.allclose(scaled_tanh(x), 1.7159 * np.tanh(2 * x / 3), atol=1e-6)


# ---- schedules ---------------------------------------------------------------------------------------------------------------------------


def step(optimizer, variable, gradient):
    optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])


def test_scheduled_momentum_is_sgds_until_it_changes():
    ours, theirs = keras.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    scheduled, plain = schedules.ScheduledMomentumSGD(0.1, momentum=0.5), keras.optimizers.SGD(0.1, momentum=0.5)
    for gradient in ([1.0, -1.0], [0.5, 2.0]):
        gradient = np.array(gradient, "float32")
        step(scheduled, ours, gradient)
        step(plain, theirs, gradient)
    assert np.allclose(ours, theirs)
    before, velocity = np.array(ours), np.array(scheduled.momentums[0])
    scheduled.momentum_rate.assign(0.9)
    step(scheduled, ours, np.array([1.0, 1.0], "float32"))
    assert np.allclose(ours, before + 0.9 * velocity - 0.1)


def test_momentum_rises_by_the_epoch():
    schedule = schedules.MomentumSchedule()
    assert schedule.rate(0) == pytest.approx(0.5)
    assert schedule.rate(10) == pytest.approx(0.9 - 0.4 * math.exp(-0.6))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(schedules.ScheduledMomentumSGD(0.01, momentum=0.5), "mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :1], epochs=11, initial_epoch=9, callbacks=[schedule], verbose=0)
    assert float(model.optimizer.momentum_rate) == pytest.approx(schedule.rate(10))


@pytest.mark.parametrize(
    ("name", "epoch", "rate"),
    [
        ("DNN-W20", 0, 1e-3),
        ("DNN-W20", 2, 1e-3 * 0.993**2),
        ("DNN-W20", 600, 3e-5),
        ("All-CNN-C", 199, 0.05),
        ("All-CNN-C", 300, 5e-5),
        ("CNN+ReLU", 98, 0.01),
        ("CNN+ReLU", 99, 1e-3),
        ("CNN+ReLU", 141, 1e-5),
        ("WRN-16-8", 120, 1e-4),
        ("basic-SVHN", 80, 1e-3),
        ("MP-ReLU", 100, 1e-4),
    ],
)
def test_learning_rate_of_an_epoch(name, epoch, rate):
    assert frameworks_cnn.LEARNING_RATES[name](epoch) == pytest.approx(rate)


def test_a_network_trains_from_the_command_line(monkeypatch, capsys, tmp_path):
    data = {}
    for part, count in (("train", 40), ("test", 8)):
        data[f"x_{part}"], data[f"y_{part}"] = command.random_data(frameworks_fnn.networks()["FNN-2-SVHN"], count, 0)
    np.savez(tmp_path / "data.npz", **data)
    monkeypatch.setattr("sys.argv", ["frameworks_fnn", "FNN-2-SVHN", "--data", str(tmp_path / "data.npz"), "--epochs", "1"])
    command.main(frameworks_fnn.networks(), "")
    parameters = (154 + 1) * 102 + (102 + 1) * 52 + (52 + 1) * 10
    text = capsys.readouterr().out
    assert f"FNN-2-SVHN: backend ocl, {parameters} parameters" in text and "test accuracy" in text


# ---- the study ---------------------------------------------------------------------------------------------------------------------------


def test_rows_name_what_exists():
    tables = {table.name for table in frameworks.STUDY.tables}
    assert len({row.name for row in frameworks.ROWS}) == len(frameworks.ROWS)
    for row in frameworks.ROWS:
        assert row.table in tables
        assert callable(studies.function("models", row.model)) and callable(studies.function("data", row.data))
        for measure in row.measures:
            assert callable(studies.function("", measure))
        for name, options in row.callbacks:
            assert isinstance(studies.function("models", name)(**options), keras.callbacks.Callback)


def test_a_quick_run_times_the_points_of_sweeps_and_evaluates_the_networks():
    for row in frameworks.ROWS:
        swept = row.table not in ("fnn", "cnn", "lstm")
        assert row.quick.evaluated != swept and row.full.evaluated
        if swept:
            assert row.quick.epochs == row.quick.repeats == 1 and row.quick.examples <= 1024


def result(backend, accuracies, row="DNN-W20", parameters=34_040, milliseconds=(2.0, 2.1)):
    spread = {"median": sum(milliseconds) / 2, "low": milliseconds[0], "high": milliseconds[1], "n": 3}
    starts = [{"train_loss": [1.0], "test_loss": 2.0, "test_accuracy": accuracy} for accuracy in accuracies]
    return {
        "row": row,
        "backend": backend,
        "real": True,
        "trainable_parameters": parameters,
        "starts": starts,
        "fit_ms": spread,
        "examples": [100, 1000],
        "epoch_seconds": [1.0, 1.5],
    }


def test_criteria_pass_and_fail():
    base = result("tensorflow", (0.90, 0.92))
    for ours, passed in ((result("ocl", (0.91, 0.92)), True), (result("ocl", (0.70, 0.72), parameters=1, milliseconds=(9, 10)), False)):
        verdicts = [v for criterion in frameworks.STUDY.criteria for v in criterion([ours, base], "tensorflow")]
        assert {v["name"] for v in verdicts} == {"parameters", "test error", "no slower"}
        assert all(v["passed"] == passed for v in verdicts if v["backend"] == "ocl")
    failed = {"row": "DNN-W20", "backend": "ocl", "error": "killed"}
    assert [v["backend"] for criterion in frameworks.STUDY.criteria for v in criterion([failed, base], "tensorflow")] == ["tensorflow"]


def test_tables_beside_the_document():
    row = "FNN-6 MNIST, batch 8"
    results = [result("ocl", (0.5, 0.7), row), result("tensorflow", (0.5, 0.7), row, milliseconds=(4.0, 4.2))]
    ((_, _, lines),) = frameworks.beside_document(results)
    assert lines == [["FNN batch size", "ocl", 1, "0.50 to 0.50", "0.20 to 0.45", "0.56 to 0.71"]]
    ((_, head, lines),) = frameworks.deviations(results)
    assert dict(zip(head, lines[0], strict=True)) == {
        "row": row,
        "backend": "ocl",
        "trainings": 2,
        "an epoch, s": "1.25 ± 0.35",
        "test error": "40.00% ± 14.14%",
        "test loss": "2 ± 0",
    }
