"""The solar and profiling studies: networks, irradiance, crops, rows, and criteria on made-up results."""

import keras
import numpy as np
import pytest

from comparisons import measures
from comparisons.data import cifar10_crops, solar
from comparisons.data.lazy import Lazy
from comparisons.models import profiling as profiling_models
from comparisons.models import solar as solar_models
from comparisons.studies import operations, profiling, timing
from comparisons.studies import solar as solar_study
from comparisons.subject import Subject

# ---- networks


@pytest.mark.parametrize("name, count", [("50", 2601), ("3200", 166_401), ("800-400-208", 444_817), ("3200-1600-832", 6_617_665)])
def test_mlps_have_the_documents_parameters(name, count):
    assert solar_models.build(name, (50,)).count_params() == count == solar_study.parameters(solar_study.NETS[name])


def test_the_cnn_has_the_documents_parameters_and_ends_in_a_relu_that_starts_alive():
    model = solar_models.build("cnn", solar_models.MAP)
    assert model.count_params() == 4_352_641
    assert model.layers[-1].activation is keras.activations.relu
    assert np.array(model.get_weights()[-1]) == solar_models.OUTPUT_BIAS > 0
    smaller = solar_models.build("distributed", solar_models.MAP)
    assert smaller.count_params() == 32 * 10 + (24 * 24 * 32 + 1) * 64 + 65


def test_a_name_that_is_no_network_is_refused():
    with pytest.raises(ValueError, match="no network '50-x'"):
        solar_models.build("50-x", (50,))


@pytest.mark.parametrize("name", profiling_models.VARIANTS)
def test_variants_have_the_documents_parameters(name):
    options, count, _ = profiling.VARIANTS[name]
    assert profiling_models.VARIANTS[name] == options
    model = profiling_models.network(**options)
    assert model.count_params() == count
    conv1, pool1, conv2, pool2 = profiling.sizes(**options)
    for layer, size in zip(("conv1", "pool1", "conv2", "pool2"), (conv1, pool1, conv2, pool2), strict=True):
        assert model.get_layer(layer).output.shape[1:3] == (size, size), layer


def test_multiplications_are_those_of_the_layers():
    assert profiling.multiplications({}) == 24 * 24 * 64 * 75 + 12 * 12 * 64 * 1600 + 2304 * 384 + 384 * 192 + 1920


def test_decay_is_half_the_sum_of_squares_and_the_rate_falls_in_steps():
    model = profiling_models.network((24, 24, 3), stride=5, filters=4, decay_steps=10)
    dense = model.get_layer("local3")
    assert float(dense.kernel_regularizer(keras.ops.ones((2, 3)))) == pytest.approx(0.004 * 6 / 2)
    schedule = model.optimizer._learning_rate
    assert [round(float(schedule(step)), 6) for step in (0, 9, 10, 19, 20)] == [0.1, 0.1, 0.01, 0.01, 0.001]


def test_the_moving_average_follows_faster_at_first():
    optimizer = profiling_models.AveragedSGD(0.0, use_ema=True, ema_momentum=0.2)
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    averages = []
    for value in (1.0, 2.0, 4.0, 8.0):  # a learning rate of 0 leaves the weight as it is set
        variable.assign([value])
        optimizer.apply([keras.ops.zeros((1,))], [variable])
        averages.append(float(keras.ops.convert_to_numpy(optimizer._model_variables_moving_average[0].value)[0]))
    expected, average = [], 0.0
    for step, value in enumerate((1.0, 2.0, 4.0, 8.0)):
        momentum = min(0.2, step / (step + 9))
        average = momentum * average + (1 - momentum) * value
        expected.append(average)
    assert averages == pytest.approx(expected) and expected[0] == 1.0


# ---- irradiance


def test_synthetic_days_are_dark_at_night_and_bright_at_noon():
    readings = solar.synthetic(3, step=60)
    assert readings.values.shape == (1440, 17) and readings.values.dtype == np.float32
    hours = readings.times % solar.DAY / 3600
    assert not readings.values[(hours < 4) | (hours > 20)].any()
    clear = solar.clear_sky(readings.times)
    assert 850 < clear.max() < 1100 and abs(hours[clear.argmax()] - 12) < 0.1
    assert (readings.values >= 0).all() and (readings.values <= clear[:, None] * 1.001).all()
    assert readings.values[(hours > 10) & (hours < 14)].max() > 600


def test_synthetic_days_are_seeded_and_differ():
    again = solar.synthetic(3, seed=5, step=60).values
    assert np.array_equal(solar.synthetic(3, seed=5, step=60).values, again)
    assert not np.array_equal(solar.synthetic(3, seed=6, step=60).values, again)
    assert not np.array_equal(solar.synthetic(4, seed=5, step=60).values, again)
    assert np.array_equal(solar.synthetic(3, seed=5, step=120).values, again[::2])


def test_clouds_move_with_the_wind():
    """What one sensor sees, another one down the wind sees later: the west one, as the trade winds blow from the east."""
    places = np.array([[0.0, 0.0], [-400.0, 0.0]])
    noon = np.arange(10 * 3600, 14 * 3600)
    lags = []
    for day in range(12):
        readings = solar.synthetic(day, places=places)
        share = readings.values[noon] / solar.clear_sky(readings.times[noon])[:, None]
        east, west = (share - share.mean(0)).T
        if share.std(0).min() > 0.02:  # a day with clouds
            shifts = np.arange(-150, 151, 5)
            alike = [np.mean(east[200:-200] * np.roll(west, -shift)[200:-200]) for shift in shifts]
            lags.append(shifts[int(np.argmax(alike))])
    assert len(lags) >= 5 and np.median(lags) > 10
    assert np.mean(np.array(lags) > 0) > 0.7


def test_rows_are_windows_of_readings_and_of_what_comes():
    data = solar.rows(days=3, tested=0.3)
    x, y = data.x[:500], data.y[:500]
    assert x.shape == (500, 50) and y.shape == (500, 1) and x.dtype == y.dtype == np.float32
    assert not data.real and "synthetic" in data.notice
    readings = [solar.synthetic(day, 1, step=10) for day in range(3)]
    found = 0
    for example, label in zip(x[:20], y[:20], strict=True):
        for day in readings:
            values = day.values / 1000
            for end in np.flatnonzero(np.all(np.isclose(values, example[:17], atol=1e-6), 1)):
                if np.allclose(np.concatenate([values[end - 1], values[end - 2, :16]]), example[17:], atol=1e-6):
                    found += np.isclose(values[end + 1, 16], label[0], atol=1e-6)
    assert found >= 20


def test_the_first_examples_do_not_depend_on_how_many_are_made():
    data, again = solar.rows(days=12), solar.rows(days=12)
    beginning = data.x[:100]
    assert np.array_equal(again.x[:None][:100], beginning)
    assert len(data.y[:None]) == len(again.x[:None]) > len(data.y_test[:None]) > 0


def test_maps_show_the_readings_at_their_places():
    data = solar.maps(days=3)
    x = data.x[:10]
    assert x.shape == (10, 50, 50, 1) and x.dtype == np.float32
    places = np.array([[0.0, 0.0], [900.0, 0.0], [0.0, 900.0]])
    weights = solar.interpolation(places)
    assert weights.sum(1) == pytest.approx(1, abs=1e-5)
    north_bright = solar.as_maps(np.array([[[0.0, 0.0, 1.0]]], "float32"), weights)[0, :, :, 0]
    assert north_bright[:8, :12].mean() > 0.6 > 0.2 > north_bright[-8:].mean()


def write_days(folder, names, days=("2010-07-31", "2010-08-01"), seconds=60, missing=()):
    """Write one CSV file per day, from noon on, where sensor k reads 100 (k + 1) + the second."""
    for day in days:
        lines = [",".join(["time", *names])]
        for second in range(seconds):
            values = ["nan" if second in missing else str(100 * (k + 1) + second) for k in range(len(names))]
            lines.append(",".join([f"{day} 12:{second // 60:02}:{second % 60:02}", *values]))
        (folder / f"solar-{day}.csv").write_text("\n".join(lines) + "\n")


def test_csv_files_are_read(tmp_path):
    write_days(tmp_path, ("dh1", "dh10", "ap1"))
    data = solar.rows(str(tmp_path), granularity=1, horizon=10)
    x, y = data.x[:None], data.y[:None]
    assert data.real and data.notice == ""
    # 17 instants of three sensors are the least that give 50 readings
    assert x.shape == (60 - 16 - 10, 50) and len(data.x_test[:None]) == len(x)
    assert y[:, 0] == pytest.approx(x[:, 1] + 0.01, abs=1e-6)  # dh10, ten seconds later, in kW/m²
    assert x[:, 3] == pytest.approx(x[:, 0] - 0.001, abs=1e-6)
    assert solar.maps(str(tmp_path), granularity=10, horizon=10).x[:2].shape == (2, 50, 50, 1)


def test_windows_do_not_reach_over_gaps_or_missing_readings(tmp_path):
    write_days(tmp_path, ("dh1", "dh10"), missing=(30,))
    data = solar.rows(str(tmp_path), granularity=1, horizon=1)
    # each of 25 instants and the label after them lack second 30, so that windows end before it (at most 28) or begin after it
    ends = [end for end in range(24, 59) if 30 not in range(end - 24, end + 2)]
    assert len(data.y[:None]) == len(ends)


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda f: (f / "solar-3.csv").write_text("time,dh1\n2010-08-02 12:00:00,5\n"), "all files must have the same"),
        (lambda f: (f / "solar-2010-07-31.csv").write_text("time,dh1,dh10\n2010-07-31 12:00:00,5\n"), "a row is no time and 2 numbers"),
        (lambda f: (f / "solar-2010-07-31.csv").write_text("time\n"), "must name the columns"),
        (lambda f: (f / "solar-2010-08-01.csv").unlink(), "at least two"),
    ],
)
def test_csv_files_that_do_not_fit_are_named(tmp_path, break_it, message):
    write_days(tmp_path, ("dh1", "dh10"))
    break_it(tmp_path)
    with pytest.raises(ValueError, match=message):
        solar.rows(str(tmp_path))


def test_sensors_need_a_target_and_for_maps_places(tmp_path):
    write_days(tmp_path, ("dh1", "roof"))
    with pytest.raises(ValueError, match="no sensor 'dh10'"):
        solar.rows(str(tmp_path))
    with pytest.raises(ValueError, match="places.csv"):
        solar.maps(str(tmp_path), target="roof")
    (tmp_path / "places.csv").write_text("name,east,north\nroof,0,0\ndh1,10,250\n")
    assert solar.maps(str(tmp_path), target="roof").x[:1].shape == (1, 50, 50, 1)
    with pytest.raises(ValueError, match="no multiple"):
        solar.rows(str(tmp_path), target="roof", horizon=15).x[:1]
    with pytest.raises(FileNotFoundError, match="no folder"):
        solar.rows(str(tmp_path / "nowhere"))


# ---- crops


def images(count=32):
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def test_distorted_crops_are_standardised_and_seeded():
    x = cifar10_crops.distort(images(), np.random.default_rng(1))
    assert x.shape == (32, 24, 24, 3) and x.dtype == np.float32
    assert np.allclose(x.mean((1, 2, 3)), 0, atol=1e-5) and np.allclose(x.std((1, 2, 3)), 1, atol=1e-3)
    assert np.array_equal(cifar10_crops.distort(images(), np.random.default_rng(1)), x)
    assert not np.array_equal(cifar10_crops.distort(images(), np.random.default_rng(2)), x)


def test_crops_are_of_the_image_or_its_mirror_image():
    """Contrast and brightness keep each channel's order of pixels, so that a crop is found by its ranks."""
    pictures = images(40)
    crops = cifar10_crops.distort(pictures, np.random.default_rng(3))
    kinds, corners = [], set()
    for picture, crop in zip(pictures, crops, strict=True):
        channel = crop[:, :, 0]
        for mirrored, seen in ((False, channel), (True, channel[:, ::-1])):
            for top in range(9):
                for left in range(9):
                    part = picture[top : top + 24, left : left + 24, 0].astype("float64")
                    if np.corrcoef(part.ravel(), seen.ravel())[0, 1] > 0.9999:
                        kinds.append(mirrored)
                        corners.add((top, left))
    assert len(kinds) == 40 and 8 < sum(kinds) < 32 and len(corners) > 20


def test_test_images_are_centre_crops_and_a_flat_image_does_not_divide_by_zero():
    pictures = images(4)
    part = pictures[:, 4:28, 4:28].astype("float32")
    wanted = (part - part.mean((1, 2, 3), keepdims=True)) / part.std((1, 2, 3), keepdims=True)
    assert np.allclose(cifar10_crops.centre(pictures), wanted, atol=1e-4)
    assert not cifar10_crops.centre(np.full((1, 32, 32, 3), 7, np.uint8)).any()


def test_epochs_of_crops_repeat_the_images_distorted_anew(cifar, data):
    made = cifar10_crops.load(data, passes=2)
    total = 2 * len(np.load(cifar)["x_train"])
    x, y = made.x[: total // 2 + 10], made.y[: total // 2 + 10]
    assert len(made.y[:None]) == total and y.dtype == np.int32 and x.shape[1:] == (24, 24, 3)
    assert np.array_equal(y[-10:], y[:10]) and not np.allclose(x[-10:], x[:10])
    assert np.array_equal(cifar10_crops.load(data, passes=2).x[:50], x[:50])
    assert made.x_test.shape[1:] == (24, 24, 3) and made.real


def test_lazy_arrays_are_only_begun():
    lazy = Lazy(lambda n: np.arange(10)[:n])
    assert lazy[:3].tolist() == [0, 1, 2] and len(lazy[:None]) == 10
    for wrong in (2, slice(1, 3), slice(None, None, 2), slice(None, -1)):
        with pytest.raises(TypeError, match="first examples"):
            lazy[wrong]


# ---- rows


def test_solar_has_every_row():
    names = [row.name for row in solar_study.STUDY.rows]
    assert len(names) == len(set(names))
    mlps = [row for row in solar_study.STUDY.rows if row.table == "mlp"]
    assert len(mlps) == 30 and {len(row.options["hidden"]) for row in mlps} == {1, 2, 3}
    assert mlps[-1].options["hidden"] == (25600, 12800, 6656) and mlps[-1].parameters == 414_208_513
    assert {row.batch for row in solar_study.STUDY.rows if row.table == "cnn"} == {2, 8, 32, 64, 128, 256, 512, 1024}
    assert all(row.settings["batches"] == (500, 100) and row.batch == 1000 for row in mlps)
    assert solar_study.STUDY.row("CNN, inference").settings["samples"] == (2, 64, 512, 1024)


def test_profiling_has_every_row():
    rows = {row.name: row.options for row in profiling.STUDY.rows}
    for stride in (2, 3, 5):
        assert rows[f"stride {stride}"] == {"stride": stride}
        assert rows[f"stride {stride}, 32 filters"] == {"stride": stride, "filters": 32}
    assert {"baseline", "32 filters", "larger pool1"} < set(rows)


@pytest.mark.parametrize("study", [solar_study.STUDY, profiling.STUDY], ids=lambda study: study.name)
def test_rows_belong_to_tables_and_their_functions_exist(study):
    from comparisons import studies

    tables = {table.name for table in study.tables}
    for row in study.rows:
        assert row.table in tables
        for part, name in (("models", row.model), ("data", row.data), *(("", measure) for measure in row.measures)):
            assert callable(studies.function(part, name)), name


# ---- measures


def small_context(model, x, y, settings=None, steps=4):
    """Return the Context of a made-up row."""
    row = profiling.Row(name="A row", table="t", model="", data="", batch=8, quick=None, full=None, settings=settings or {})
    extent = profiling.Extent(epochs=1, repeats=1)
    subject = Subject(x[: 8 * steps], y[: 8 * steps], x[:8], y[:8], model, 8)
    subject.restart(0)
    return measures.Context(row, extent, subject, lambda *_: None, "")


def regression(count=64):
    x = np.random.default_rng(0).random((count, 50), "float32")
    return x, x[:, :1].copy()


def test_a_dead_output_is_told_from_a_living_one():
    x, y = regression()

    def dead(shape):
        return solar_models._compiled([keras.Input(shape), keras.layers.Dense(1, "relu", bias_initializer="zeros")], 0.001)

    context = small_context(dead, x, y)
    context.subject.model.set_weights([np.full((50, 1), -1.0), np.zeros(1)])
    context.subject.fit(0)
    found = timing.learnt(context)["learnt"]
    assert found["zeros"] == 1 and found["deviation"] == 0 and found["loss"] > found["constant_loss"]
    assert not solar_study.learns([result(learnt=found)], "tensorflow")[0]["passed"]

    living = timing.learnt(small_context(lambda shape: solar_models.mlp(shape, (8,)), x, y))["learnt"]
    assert living["deviation"] > 0 and living["zeros"] == 0


def test_other_batches_inference_and_proportions_are_measured():
    x, y = regression()
    context = small_context(lambda shape: solar_models.mlp(shape, (8,)), x, y, {"batches": (16, 4), "samples": (2, 32)})
    found = timing.batches(context) | timing.inference(context) | timing.proportions(context)
    assert list(found["by_batch"]) == ["16", "4"] and found["by_batch"]["4"]["step_ms"]["n"] == 8
    assert (context.subject.batch, context.subject.steps) == (8, 4)
    assert {samples: spread["n"] for samples, spread in found["inference_ms"].items()} == {"2": timing.TIMED, "32": timing.TIMED}
    assert found["epochs_ratio"] > 0 and found["steps_ratio"] > 0 and found["step_ms"]["n"] == 4


def test_a_wide_net_is_timed_in_a_single_step():
    x, y = regression()
    context = small_context(lambda shape: solar_models.mlp(shape, (8,)), x, y, {"batches": (4,), "samples": (2,)}, steps=1)
    found = timing.train_wide(context) | timing.batches(context) | timing.inference(context)
    assert found["fit_ms"]["n"] == found["predict_ms"]["n"] == 1 and found["first_step_s"] > 0
    assert found["by_batch"] == found["inference_ms"] == {} and found["starts"][0]["test_loss"] > 0


def test_more_samples_than_examples_are_refused():
    x, y = regression()
    with pytest.raises(ValueError, match="33 samples needs as many examples, but the extent has 32"):
        timing.inference(small_context(lambda shape: solar_models.mlp(shape, (8,)), x, y, {"samples": (33,)}))


# ---- criteria


def result(row="batch 32", backend="ocl", **keys):
    return {"row": row, "backend": backend, **keys}


def flat(value, n=5):
    return {"median": value, "low": value, "high": value, "n": n}


def passed(criterion, *results):
    return [verdict["passed"] for verdict in criterion(list(results), "tensorflow")]


@pytest.mark.parametrize(
    "zeros, deviation, loss, steps, good",
    [(0, 0.1, 0.05, 200, True), (1, 0.0, 0.3, 1, False), (0, 0.0, 0.05, 1, False), (0, 0.1, 0.3, 200, False), (0, 0.1, 0.3, 4, True)],
)
def test_predictions_must_vary_and_beat_a_constant(zeros, deviation, loss, steps, good):
    learnt = {"zeros": zeros, "deviation": deviation, "loss": loss, "constant_loss": 0.1, "steps": steps}
    assert passed(solar_study.learns, result(learnt=learnt)) == [good]


@pytest.mark.parametrize(
    "ours, theirs, good",
    [
        ({"2": 5, "1024": 900}, {"2": 5, "1024": 500}, True),
        ({"2": 1100, "1024": 900}, {"2": 1200, "1024": 900}, False),
        ({"2": 5, "1024": 1100}, {"2": 5, "1024": 1200}, True),
        ({"2": 5, "1024": 1100}, {"2": 5, "1024": 900}, False),
    ],
)
def test_inference_takes_less_than_a_second_or_no_longer_than_the_references(ours, theirs, good):
    pair = [
        result("CNN, inference", backend, inference_ms={samples: flat(ms) for samples, ms in times.items()})
        for backend, times in (("ocl", ours), ("tensorflow", theirs))
    ]
    assert passed(solar_study.under_a_second, *pair) == [good]


@pytest.mark.parametrize("epochs, steps, good", [(2.01, 1.0, True), (2.6, 1.0, False), (2.0, 0.7, False), (1.9, 1.2, True)])
def test_a_training_takes_as_long_as_its_steps(epochs, steps, good):
    assert passed(solar_study.proportional, result(epochs_ratio=epochs, steps_ratio=steps)) == [good]


@pytest.mark.parametrize("error, good", [(1e-6, True), (1e-3, False), (float("nan"), False)])
def test_first_losses_must_agree(error, good):
    theirs = result(backend="tensorflow", step_losses=[[1.0] * 9 + [0.5]])
    assert passed(solar_study.first_steps, result(step_losses=[[1.0] * 9 + [0.5 * (1 + error)]]), theirs) == [good]


@pytest.mark.parametrize("differences, good", [((0.0, 1e-6, 2e-6), True), ((0.0, 1e-6, 1e-3), False), ((0.0,), False)])
def test_several_devices_must_have_the_losses_of_one(differences, good):
    kinds = ("mirrored", "mirrored", "central")
    ways = [
        {"devices": devices, "variables": kind, "loss_difference": difference, "epoch_s": flat(1.0)}
        for devices, kind, difference in zip((["whole"], ["a", "b"], ["a", "b"]), kinds, differences, strict=False)
    ]
    made = result("smaller CNN on both halves of the device", parallel=ways)
    assert passed(solar_study.same_losses, made) == [good]
    columns = next(table for table in solar_study.STUDY.tables if table.name == "parallel").columns
    assert columns[-1].value(made) == (differences[2] if len(differences) > 2 else None)


def test_the_finding_about_several_devices_is_shown_beside_what_is_measured():
    names, kinds = ("whole", "a", "b", "a, b", "a, b"), (*["mirrored"] * 4, "central")
    made = [
        {"devices": devices.split(", "), "variables": kind, "losses": [0.5, 0.25], "loss_difference": 1e-7, "epoch_s": flat(seconds)}
        for devices, kind, seconds in zip(names, kinds, (1.0, 3.0, 2.5, 2.0, 2.8), strict=True)
    ]
    (_, head, ways), (_, _, held) = solar_study.strategies([result("smaller CNN on both halves of the device", parallel=made)])
    assert len(head) == len(ways[0]) and [line[1] for line in ways] == ["one device"] * 3 + ["mirrored", "central"]
    assert [line[3] for line in ways] == pytest.approx([1, 1 / 3, 0.4, 0.5, 1 / 2.8]) and ways[-1][4:] == [0.25, 1e-7]
    assert [(line[0], line[2]) for line in held] == [
        ("mirrored on a, b beats b alone", "yes"),
        ("mirrored on a, b beats central", "yes"),
        ("central on a, b beats b alone", "no"),
    ]
    assert held[0][3] == 1.25
    made[-1]["epoch_s"] = {"median": 2.1, "low": 1.9, "high": 2.4, "n": 5}  # as far as it varies
    assert solar_study.strategies([result(parallel=made)])[1][2][1][2] == "neither"


def test_a_net_that_does_not_fit_must_say_so():
    clear = result("25600-12800", error="OutOfMemory: 1.3 GB are needed for gradients, but 1 GB is available")
    assert passed(
        solar_study.fails_clearly, clear, result("50", error="exit status 1: KeyError"), result("50", backend="tensorflow", error="x")
    ) == [
        True,
        False,
    ]


def test_the_reading_of_widths_finds_the_narrowest_layer_that_a_larger_net_beats():
    times = {"1600": 10, "3200": 25, "6400": 50, "400-200": 12, "800-400-208": 20}
    timed = [result(name, learnt={}, step_ms=flat(ms)) for name, ms in times.items()]
    ((_, _, lines),) = solar_study.widths(timed)
    assert lines[0][:5] == ["ocl", "3200", 166_401, flat(25), "800-400-208"]
    assert [line[0] for line in lines[1:]] == [f"{device} (document)" for device, _, _ in solar_study.NOTICED]
    ((_, _, lines),) = solar_study.widths(timed[:1])
    assert lines[0][1] == "none"


def profile_result(row="baseline", ratio=1.05, **changed):
    """Return a result with the profile that the network should have; `changed` are bytes by operation."""
    sizes = profiling.output_bytes(profiling.VARIANTS[row][0]) | {"BiasAdd": 0, "Relu": 0, profiling.NORMALIZATION: 0}
    lines = [
        {"name": name, "bytes": changed.get(name, size), "total_ms": 2.0, "device_ms": 1.5, "host_ms": 0.5} for name, size in sizes.items()
    ]
    return result(
        row,
        parameters=profiling.VARIANTS[row][1],
        real=True,
        examples=[100, 2000],
        starts=[{"test_accuracy": 0.4}],
        operations={"inference": {"operation": lines, "layer": lines}},
        predicted_bytes={"inference": {"operation": {name: size for name, size in sizes.items() if size}}},
        batch_profiled=128,
        profiling_ratio=ratio,
    )


def test_the_documents_bytes_are_those_of_the_outputs():
    assert profiling.output_bytes({}) == {"Conv2D": 23_592_960, "MaxPool": 5_898_240, "MatMul": 300_032}
    for name in ("stride 2", "stride 3", "stride 5", "32 filters", "larger pool1"):
        options, _, figures = profiling.VARIANTS[name]
        assert profiling.output_bytes(options)["Conv2D"] == pytest.approx(figures[3], rel=0.015), name


@pytest.mark.parametrize("row", ["baseline", "stride 5", "larger pool1"])
def test_profiles_with_the_right_bytes_and_lines_pass(row):
    for criterion in (profiling.same_bytes, profiling.parts, operations.predicted, operations.cheap, profiling.right_parameters):
        assert passed(criterion, profile_result(row)) == [True]


def test_wrong_profiles_fail():
    assert passed(profiling.same_bytes, profile_result(Conv2D=1)) == [False]
    assert passed(operations.predicted, profile_result(MaxPool=1)) == [False]
    assert passed(operations.cheap, profile_result(ratio=1.3)) == [False]
    assert passed(profiling.right_parameters, profile_result() | {"parameters": 1}) == [False]
    lacking = profile_result()
    lacking["operations"]["inference"]["operation"].pop()
    assert passed(profiling.parts, lacking) == [False]


@pytest.mark.parametrize("accuracy, good", [(0.42, True), (0.3, False)])
def test_accuracies_must_be_near_the_references(accuracy, good):
    theirs = profile_result() | {"backend": "tensorflow"}
    assert passed(profiling.same_accuracy, profile_result() | {"starts": [{"test_accuracy": accuracy}]}, theirs) == [good]


def test_profiles_are_shown_in_the_documents_form():
    title, head, lines = operations.table(profile_result(), "inference", "operation")
    assert title == "baseline: inference of 128 examples by operation, ocl" and len(head) == len(lines[0])
    assert lines[0][:4] == ["Conv2D", 23_592_960, "100.00%", "79.19%"]
    assert lines[-1][5] == lines[-1][6] == "16.67%"
    assert operations.share(profile_result(), "Conv2D") == pytest.approx(1 / 6)
    assert operations.share(result(), "Conv2D") is None
