"""Theano, TensorFlow and CNTK under Keras: dense, convolutional and recurrent networks, and sweeps of what makes them large.

A quick run only times the points of the sweeps, in steps of few examples, so that all of them together take minutes.
"""

import math

from comparisons.criteria import accuracies, compared, mean_and_deviation, no_slower, verdict
from comparisons.measures import spread
from comparisons.study import Chart, Column, Extent, Row, Study, Table

SYSTEMS = "Theano", "TensorFlow", "CNTK"
MEASURES = "measures:train", "measures:train_error", "measures:predict", "studies.frameworks:trainable_parameters"
SWEEP_MEASURES = "measures:train", "studies.frameworks:trainable_parameters"
FIGURES = "s", "MiB", "train error %", "test error %"


def trainable_parameters(context):
    """Count the weights that training changes: the document's counts are without the statistics of batch normalisation."""
    return {"trainable_parameters": sum(math.prod(weight.shape) for weight in context.subject.model.trainable_variables)}


def figures(*lines):
    """Return a row's `document`: a line of Theano's, TensorFlow's and CNTK's figures for each of FIGURES."""
    named = zip(FIGURES, lines, strict=True)
    return {f"{system} {name}": value for name, line in named for system, value in zip(SYSTEMS, line, strict=True)}


def point_of(sweep, series, x, cost):
    """Return the `settings` of the Row of a point of a sweep: its sweep, line and place along the axis, and what it costs without data."""
    return {"sweep": sweep, "series": series, "x": x, "cost": cost}


def timed(examples):
    """Return the quick Extent of a point of a sweep."""
    return Extent(epochs=1, repeats=1, examples=examples, test_examples=64, evaluated=False)


# ---- dense networks --------------------------------------------------------------------------------------------------------------------

INPUTS = {  # of the dense networks: loader, its options, quick and full training and test examples
    "CIFAR": ("cifar10:load", {"gist": True}, (256, 128)),
    "SVHN": ("svhn:load", {"hog_hue": True}, (512, 256)),
    "MNIST": ("mnist:load", {"flat": True}, (2048, 1000)),
}
FNN_PARAMETERS = {("CIFAR", 6): 626_466, ("SVHN", 6): 16_244, ("MNIST", 6): 418_384}  # from the widths of the document's tables
FNN_MEMORY = {"CIFAR": (229, 204, 186), "SVHN": (217, 176, 149), "MNIST": (225, 188, 177)}  # FNN-6 at batch 512
COSTS = {"MNIST": 0, "SVHN": 2, "CIFAR": 1}  # of a tiny run without data: 0 for the cheapest
COSTS |= {"mnist:load": 0, "cifar10:load": 1, "svhn:load": 2, "norb:load": 1, "rain:load": 0, "imdb:load": 1}
BATCHES = 8, 16, 32, 64, 128, 256, 512
FNN_BATCH = 32


def fnn(kind, depth):
    """Return the Row of FNN-`depth` on a kind of input."""
    data, options, (examples, test_examples) = INPUTS[kind]
    return Row(
        name=f"FNN-{depth} {kind}",
        table="fnn",
        model="frameworks_fnn:fnn",
        options={"hidden_layers": depth},
        data=data,
        data_options=options,
        batch=FNN_BATCH,
        quick=Extent(epochs=2, repeats=2, examples=examples, test_examples=test_examples),
        full=Extent(epochs=50, repeats=5),
        measures=MEASURES,
        parameters=FNN_PARAMETERS.get((kind, depth)),
        settings=point_of("depth", kind, depth, COSTS[kind]),
    )


def fnn_batch(kind, batch):
    """Return the Row of FNN-6 on a kind of input in batches of another size."""
    data, options, _ = INPUTS[kind]
    memory = dict(zip((f"{system} MiB" for system in SYSTEMS), FNN_MEMORY[kind], strict=True)) if batch == 512 else {}
    return Row(
        name=f"FNN-6 {kind}, batch {batch}",
        table="batch",
        model="frameworks_fnn:fnn",
        data=data,
        data_options=options,
        batch=batch,
        quick=timed(max(256, 2 * batch)),
        full=Extent(epochs=50, repeats=5),
        measures=SWEEP_MEASURES,
        document=memory,
        settings=point_of("batch", kind, batch, COSTS[kind]),
    )


# ---- convolutional networks ------------------------------------------------------------------------------------------------------------

CIFAR_RATES = ("schedules:MomentumSchedule", {})


def rates(network):
    """Return the entry of Row.callbacks for a network's learning rates."""
    return ("frameworks_cnn:learning_rates", {"network": network})


CNNS = {  # model, loader, its options, batch, quick extent, full epochs, parameters, callbacks, document's figures, note
    "DNN-W20": dict(
        model="dnn_w20",
        data="mnist:load",
        data_options={"width": 20},
        batch=128,
        quick=Extent(epochs=2, repeats=2, examples=5000, test_examples=1000),
        epochs=500,
        parameters=34_040,
        callbacks=(rates("DNN-W20"),),
        document=figures((2400.0, 1352.7, 965.9), (232, 378, 272), (1.39, 1.27, 1.40), (1.88, 1.88, 1.84)),
        note="The document's 34,040 parameters need inputs of 28x20, so the digits are 20 wide and keep their height.",
    ),
    "CNN-Softmax": dict(
        model="cnn_softmax",
        data="mnist:load",
        data_options={"contrast": True},
        batch=128,
        quick=Extent(epochs=2, repeats=2, examples=2560, test_examples=1000),
        epochs=110,
        parameters=None,
        callbacks=(),
        document=figures((830.2, 377.8, 358.9), (258, 374, 349), (0.54, 0.49, 0.55), (0.82, 0.81, 0.83)),
        note="Convolutions without padding, as the document's tables of filters and kernels have it.",
    ),
    "All-CNN-C": dict(
        model="all_cnn_c",
        data="cifar10:load",
        data_options={"whitened": True},
        batch=100,
        quick=Extent(epochs=1, repeats=2, examples=200, test_examples=100),
        epochs=350,
        parameters=1_369_738,
        callbacks=(rates("All-CNN-C"),),
        document=figures((20098.3, 10006.9, 10060.1), (706, 2070, 992), (9.08, 9.26, 9.14), (12.93, 13.12, 12.79)),
        note="Without the last dense layer that the document lists: its parameter count excludes it.",
    ),
    "CNN+ReLU": dict(
        model="cnn_relu",
        data="cifar10:load",
        data_options={"centered": True},
        batch=100,
        quick=Extent(epochs=1, repeats=2, examples=200, test_examples=100),
        epochs=150,
        parameters=10_071_562,
        callbacks=(rates("CNN+ReLU"), CIFAR_RATES),
        document=figures((3906.9, 2008.5, 2317.9), (537, 1014, 1203), (12.71, 15.58, 12.67), (16.07, 16.73, 16.03)),
        note="The document also prints 5,877,258 parameters, which pools in steps of 3 give (Keras's default); these are in steps of 2.",
    ),
    "WRN-16-8": dict(
        model="wrn_16_8",
        data="svhn:load",
        data_options={},
        batch=128,
        quick=Extent(epochs=1, repeats=1, examples=16, test_examples=16),
        epochs=160,
        parameters=10_961_370,
        callbacks=(rates("WRN-16-8"),),
        document=figures((134023.3, 34594.9, 64476.7), (2983, 3830, 5459), (0, 0, 0), (5.94, 5.97, 5.77)),
        note="A quick run takes steps of 16 examples.",
    ),
    "basic-SVHN": dict(
        model="basic_svhn",
        data="svhn:load",
        data_options={},
        batch=256,
        quick=Extent(epochs=1, repeats=1, examples=128, test_examples=64),
        epochs=160,
        parameters=35_023_594,
        callbacks=(rates("basic-SVHN"),),
        document=figures((25913.8, 6637.0, 12394.5), (1269, 2298, 3544), (0.54, 0.48, 0.54), (9.00, 8.59, 8.39)),
        note="A quick run takes steps of 128 examples.",
    ),
    "AP-ReLU": dict(
        model="ap_relu",
        data="norb:load",
        data_options={},
        batch=128,
        quick=Extent(epochs=1, repeats=2, examples=256, test_examples=128),
        epochs=250,
        parameters=243_698,
        callbacks=(rates("AP-ReLU"),),
        document=figures((8573.7, 3875.8, 4445.7), (475, 1283, 849), (3.20, 3.21, 3.00), (9.85, 9.98, 9.26)),
        note="The document gives no constants for local response normalisation: those of Krizhevsky et al. 2012.",
    ),
    "MP-ReLU": dict(
        model="mp_relu",
        data="norb:load",
        data_options={},
        batch=128,
        quick=Extent(epochs=1, repeats=2, examples=256, test_examples=128),
        epochs=250,
        parameters=243_698,
        callbacks=(rates("MP-ReLU"),),
        document=figures((8584.8, 3721.3, 4488.2), (475, 1283, 858), (0.08, 0.10, 0.08), (7.84, 7.19, 7.31)),
        note="",
    ),
}


def cnn(name):
    """Return the Row of one of the eight convolutional networks."""
    given = CNNS[name]
    return Row(
        name=name,
        table="cnn",
        model=f"frameworks_cnn:{given['model']}",
        data=given["data"],
        data_options=given["data_options"],
        batch=given["batch"],
        quick=given["quick"],
        full=Extent(epochs=given["epochs"], repeats=5),
        measures=MEASURES,
        document=given["document"],
        note=given["note"],
        parameters=given["parameters"],
        callbacks=given["callbacks"],
        settings={"cost": COSTS[given["data"]]},
    )


SWEPT = {"CNN-Softmax": 60_000, "CNN+ReLU": 50_000, "basic-SVHN": 73_257, "MP-ReLU": 58_320}  # and their training examples
FRACTIONS = 0.33, 0.40, 0.57, 0.64, 0.83, 1.0
REPLICAS = 1, 2, 3, 4, 5
FILTERS = 0.25, 0.5, 1, 2, 4
KERNELS = -3, -2, -1, 0, 1, 2
QUICK_EXAMPLES = {"CNN-Softmax": 64, "CNN+ReLU": 8, "basic-SVHN": 4, "MP-ReLU": 16}  # of a step
KERNEL_DATA = {"CNN+ReLU": {"size": 64}, "MP-ReLU": {"size": 108}}
KERNEL_NOTES = {
    "CNN+ReLU": "Without padding on doubled images, 64x64, as the document says; its parameter counts do not follow from that.",
    "MP-ReLU": "Without padding on the original images, 108x108: the document says doubled ones, of which 7x7 kernels would leave nothing.",
    "basic-SVHN": "Without padding, as the document, whose CNTK was slow where it is asymmetric.",
}


def sweep_options(name, sweep, point):
    """Return (options of the model, additional options of the data) of a point of a sweep."""
    if sweep == "data":
        return {}, {}
    if sweep == "replicas":
        return {"replicas": point, "padding": "same"}, {}
    if sweep == "filters":
        return {"filters": point}, {}
    return {"kernel": point, "padding": "valid"}, KERNEL_DATA.get(name, {})


def sweep(name, kind, point):
    """Return the Row of a swept network at a point of a sweep."""
    given = CNNS[name]
    options, data_options = sweep_options(name, kind, point)
    examples = round(SWEPT[name] * point) if kind == "data" else None
    few = round(QUICK_EXAMPLES[name] * (2 * point if kind == "data" else 1))
    side = 5 + point if kind == "kernel" else None
    label = {"data": f"{point:.0%} of the data", "replicas": f"convolutions x{point}", "filters": f"filters x{point:g}"}
    text = label.get(kind) or f"kernels {side}x{side}" + (f" and {side + 2}x{side + 2}" if name == "basic-SVHN" else "")
    return Row(
        name=f"{name}, {text}",
        table=kind,
        model=f"frameworks_cnn:{given['model']}",
        options=options,
        data=given["data"],
        data_options=given["data_options"] | data_options,
        batch=given["batch"],
        quick=timed(few),
        full=Extent(epochs=given["epochs"], repeats=3, examples=examples),
        measures=SWEEP_MEASURES,
        note=KERNEL_NOTES.get(name, "") if kind == "kernel" else "",
        callbacks=given["callbacks"],
        settings=point_of(kind, name, side or point, COSTS[given["data"]]),
    )


# ---- recurrent networks ----------------------------------------------------------------------------------------------------------------

LSTMS = {
    "IMDB-LSTM": dict(
        model="frameworks_lstm:imdb_lstm",
        data="imdb:load",
        batch=64,
        quick=Extent(epochs=1, repeats=1, examples=256, test_examples=128),
        epochs=3,
        cells=(25, 50, 100, 200, 400, 800),
        quick_points=16,
        parameters=213_301,
        note="",
    ),
    "HMDIR-LSTM": dict(
        model="frameworks_lstm:hmdir_lstm",
        data="rain:load",
        batch=256,
        quick=Extent(epochs=2, repeats=2, examples=10_240, test_examples=1024),
        epochs=100,
        cells=(9, 18, 35, 70, 140, 280),
        quick_points=512,
        parameters=8_436,
        note="The document states no loss: the mean absolute error, by which the contest ranked.",
    ),
}


def lstm(name, **options):
    """Return the Row of a recurrent network, or of a point of a sweep: lstm_layers or cells in `options`."""
    given = LSTMS[name]
    kind, point = next(iter(options.items()), ("", None))
    quick, text, settings = given["quick"], "", {"cost": COSTS[given["data"]]}
    if kind:
        text = f", {point} layers" if kind == "lstm_layers" else f", {point} cells"
        quick = timed(given["quick_points"])
        settings = point_of(kind, name, point, COSTS[given["data"]])
    return Row(
        name=name + text,
        table=kind or "lstm",
        model=given["model"],
        options=options,
        data=given["data"],
        batch=given["batch"],
        quick=quick,
        full=Extent(epochs=given["epochs"], repeats=3 if kind else 5),
        measures=SWEEP_MEASURES if kind else MEASURES,
        note=given["note"],
        parameters=None if kind else given["parameters"],
        settings=settings,
    )


ROWS = (
    *(fnn(kind, depth) for kind in INPUTS for depth in range(1, 7)),
    *(fnn_batch(kind, batch) for kind in INPUTS for batch in BATCHES),
    *(cnn(name) for name in CNNS),
    *(sweep(name, "data", point) for name in SWEPT for point in FRACTIONS),
    *(sweep(name, "replicas", point) for name in SWEPT for point in REPLICAS),
    *(sweep(name, "filters", point) for name in SWEPT for point in FILTERS),
    *(sweep(name, "kernel", point) for name in SWEPT for point in KERNELS),
    *(lstm(name) for name in LSTMS),
    *(lstm(name, lstm_layers=count) for name in LSTMS for count in range(1, 6)),
    *(lstm(name, cells=count) for name in LSTMS for count in LSTMS[name]["cells"]),
)


# ---- what is shown and judged ----------------------------------------------------------------------------------------------------------

SYSTEM_RATIOS = {  # the document's conclusions: sweep, least and largest ratio of Theano's and of CNTK's time to TensorFlow's
    "depth": ("FNN depth", (1 / 5, 1 / 3.4), (1 / 1.8, 1 / 1.4)),
    "batch": ("FNN batch size", (1 / 5.1, 1 / 2.2), (1 / 1.8, 1 / 1.4)),
    "data": ("CNN data", (1.9, 4), (1.1, 1.9)),
    "replicas": ("CNN convolutions", (1.6, 5.5), (1.1, 3.3)),
    "filters": ("CNN filters", (1.4, 6.8), (1.1, 2.1)),
    "kernel": ("CNN kernel size", (1.7, 5.2), (1.2, 1.7)),
    "lstm_layers": ("LSTM layers", (1 / 3.4, 1 / 2.1), (1 / 2.8, 1 / 2.1)),
    "cells": ("LSTM cells", (1 / 3.6, 1 / 0.6), (1 / 3.1, 1 / 1.4)),
}
DEVIATIONS = 2.0  # so many standard errors of a difference are noise
SETTINGS = {row.name: row.settings for row in ROWS}
PARAMETERS = {row.name: row.parameters for row in ROWS}


def test_error(result):
    """Return the spread of the share of the test examples that is wrong; None for stand-ins and for numbers that are predicted."""
    if not result["real"] or result["starts"][0]["test_accuracy"] is None:
        return None
    return spread([1 - accuracy for accuracy in accuracies(result)])


def train_error(result):
    """Return the share of the training examples that is wrong after the last training; None as `test_error`."""
    accuracy = result.get("train_evaluated", {}).get("accuracy")
    return None if accuracy is None or not result["real"] else 1 - accuracy


def test_loss(result):
    """Return the spread of the loss on the test examples, which has the weights' decay in it."""
    return spread([start["test_loss"] for start in result["starts"]])


def parameter_counts(results, reference):
    """The trainable parameters are as many as in the document."""
    return [
        verdict(r, "parameters", r["trainable_parameters"] == wanted, f"{r['trainable_parameters']:,}, the document has {wanted:,}")
        for r in results
        if "error" not in r and (wanted := PARAMETERS.get(r["row"])) is not None
    ]


def errors_alike(results, reference):
    """On real data the mean test error is within the noise of the reference's: of the trainings and of so few test examples."""
    verdicts = []
    for result, base in compared(results, reference):
        if test_error(result) is None:
            continue
        (ours, our_deviation), (theirs, their_deviation) = (mean_and_deviation(accuracies(r)) for r in (result, base))
        examples, starts = result["examples"][1], len(result["starts"])
        variance = (our_deviation**2 + their_deviation**2) / starts + 2 * theirs * (1 - theirs) / examples
        allowed = DEVIATIONS * math.sqrt(variance)
        text = f"test error {1 - ours:.2%}, {reference} {1 - theirs:.2%}, {abs(ours - theirs):.2%} apart, {allowed:.2%} allowed"
        verdicts.append(verdict(result, "test error", abs(ours - theirs) <= allowed, text))
    return verdicts


def plus_minus(values, percent=False):
    """Return "mean ± standard deviation" of repeated measurements."""
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2%} ± {deviation:.2%}" if percent else f"{mean:.4g} ± {deviation:.2g}"


def deviations(results):
    """The document's way to state what it repeated: the mean and the standard deviation."""
    lines = []
    for r in results:
        if "error" in r or r["row"] not in PARAMETERS or len(r["starts"]) < 2:
            continue
        error = plus_minus([1 - accuracy for accuracy in accuracies(r)], percent=True) if test_error(r) else None
        loss = plus_minus([start["test_loss"] for start in r["starts"]])
        lines.append([r["row"], r["backend"], len(r["starts"]), plus_minus(r["epoch_seconds"]), error, loss])
    head = ["row", "backend", "trainings", "an epoch, s", "test error", "test loss"]
    return [("Mean ± standard deviation", head, lines)] if lines else []


def between(low, high):
    """Return a range of ratios as text."""
    return f"{low:.2f} to {high:.2f}"


def beside_document(results):
    """Each sweep's ratio to TensorFlow's time, next to those of the document's conclusions."""
    lines = []
    ratios = {}
    for result, base in compared(results, "tensorflow"):
        kind = SETTINGS.get(result["row"], {}).get("sweep")
        if kind:
            ratios.setdefault((kind, result["backend"]), []).append(result["fit_ms"]["median"] / base["fit_ms"]["median"])
    for (kind, backend), found in ratios.items():
        title, theano, cntk = SYSTEM_RATIOS[kind]
        lines.append([title, backend, len(found), between(min(found), max(found)), between(*theano), between(*cntk)])
    head = ["sweep", "backend", "points", "time / TensorFlow's", "document: Theano / TensorFlow", "document: CNTK / TensorFlow"]
    return [("Beside the document's conclusions", head, lines)] if lines else []


TIMES = (
    Column("parameters", lambda r: r["trainable_parameters"], 0),
    Column("a step", lambda r: r["fit_ms"], 3, "ms"),
    Column("per epoch", lambda r: r["epoch_s"], 3, "s"),
    Column("first step", lambda r: r["first_step_s"], 2, "s"),
)
MEMORY = (Column("memory", lambda r: r["peak_mib"], 0, "MiB"), Column("of tensors", lambda r: r["device_peak_mib"], 0, "MiB"))
MAIN = (
    *TIMES,
    Column("predict a batch", lambda r: r.get("predict_ms"), 3, "ms"),
    *MEMORY,
    Column("train error", train_error, 2, percent=True),
    Column("test error", test_error, 2, percent=True),
    Column("test loss", test_loss, 4),
)


def sweep_chart(kind, title, xlabel, logx=True):
    """Return the Chart of a sweep: the time of a step along what is swept, a line a network."""
    table = "fnn" if kind == "depth" else kind
    return Chart(
        kind,
        title,
        table,
        lambda r: r["fit_ms"],
        "ms per step",
        kind="lines",
        x=lambda row: row.settings["x"],
        xlabel=xlabel,
        series=lambda row: row.settings["series"],
        logx=logx,
        logy=True,
    )


MEMORY_NOTE = "Memory is the process's peak, Python and the libraries included; of tensors is what the device held at most."
STAND_INS = "Where data are stand-ins, times are valid and errors are not shown."

STUDY = Study(
    name="frameworks",
    title="Frameworks compared: what the backend under Keras changes",
    source="Evaluation of Theano, TensorFlow and CNTK under Keras 2.0.8 on a GeForce GTX TITAN X (in Spanish)",
    rows=ROWS,
    tables=(
        Table("fnn", "Dense networks: FNN-1 to FNN-6 on three inputs", MAIN, f"{MEMORY_NOTE} {STAND_INS}"),
        Table("batch", "FNN-6: batch size", (*TIMES, *MEMORY)),
        Table("cnn", "Convolutional networks", MAIN, f"The document's seconds are of whole trainings, compilation included. {STAND_INS}"),
        Table("data", "Convolutional networks: share of the data", (*TIMES, *MEMORY)),
        Table("replicas", "Convolutional networks: each convolution repeated", (*TIMES, *MEMORY)),
        Table("filters", "Convolutional networks: number of filters", (*TIMES, *MEMORY)),
        Table("kernel", "Convolutional networks: size of the kernels", (*TIMES, *MEMORY)),
        Table("lstm", "Recurrent networks", MAIN, STAND_INS),
        Table("lstm_layers", "Recurrent networks: layers", (*TIMES, *MEMORY)),
        Table("cells", "Recurrent networks: cells", (*TIMES, *MEMORY)),
    ),
    charts=(
        Chart("networks-time", "Convolutional networks: a step of training", "cnn", lambda r: r["fit_ms"], "ms", logy=True),
        Chart("networks-memory", "Convolutional networks: memory of the process", "cnn", lambda r: r["peak_mib"], "MiB"),
        Chart("networks-error", "Convolutional networks: test error", "cnn", test_error, "share wrong"),
        Chart("recurrent-time", "Recurrent networks: a step of training", "lstm", lambda r: r["fit_ms"], "ms"),
        sweep_chart("depth", "Dense networks: hidden layers", "hidden layers", logx=False),
        sweep_chart("batch", "FNN-6: batch size", "examples in a batch"),
        sweep_chart("replicas", "Convolutions repeated", "times", logx=False),
        sweep_chart("filters", "Number of filters", "times the filters"),
        sweep_chart("kernel", "Size of the kernels", "pixels on a side", logx=False),
        sweep_chart("lstm_layers", "Recurrent layers", "layers", logx=False),
        sweep_chart("cells", "Cells of the recurrent layer", "cells"),
        Chart(
            "data",
            "Share of the data",
            "data",
            lambda r: r["epoch_s"],
            "s per epoch",
            kind="lines",
            x=lambda row: row.settings["x"],
            xlabel="share",
            series=lambda row: row.settings["series"],
        ),
    ),
    notes=(
        "The document has no code. Inferred are: the loss (categorical crossentropy), weight decay as Keras's l2 of the stated constant on "
        "all kernels, the scaling of inputs (pixels to 0-1; GIST and HOG features standardised), the HOG descriptor (9 orientations in "
        "each of 4x4 cells, and 10 hues, which makes its 154), the constants of local response normalisation, and how the widths of FNN-2 "
        "to FNN-5 are rounded (FNN-6's are the document's).",
        "IMDB and CIFAR-10 in the project's data folder are parts: 6,000 reviews with the 500 commonest words, and 10,000 images.",
        "The document ran each experiment once. The one training that it repeated, five times, contradicts that: DNN-W20 on Theano took "
        "2041.4 ± 6.3 s, and 2400.0 s in the single run. FNN-6: 99.96 ± 0.38 s, 389.06 ± 2.78 s and 232.62 ± 0.98 s.",
        "AP-ReLU's time on CNTK is printed as 44457 s, surely 4445.7.",
        "Memory ratios of All-CNN-C are swapped in its text, of CNN+ReLU (Theano against CNTK) printed 1.2 instead of 1.7, and the labels "
        "of NORB's swapped. Higher memory is praised as better utilisation, though a pooling allocator explains it.",
        "Its examples a second are the data set's size over the time of all epochs: multiply by 160 for SVHN.",
        "Tables 4.18 and 4.30 (parameters of CIFAR's and NORB's kernel sweeps) do not follow from the networks and images that it states, "
        "table 4.15's last row should be 50,000 images, and the count at four times the filters of basic-SVHN has the statistics in it.",
        "CNTK ran out of 12 GB in basic-SVHN with five-fold convolutions and with four times the filters, and in IMDB-LSTM with 800 cells.",
        "Its aggregate ratios are of a GPU with Keras 2: no more than the order of our ratios can be compared.",
        "The experiments of other papers that the document cites (AlexNet, OverFeat, VGG, GoogLeNet, ...) are not repeated here.",
    ),
    criteria=(parameter_counts, errors_alike, no_slower),
    extra=(beside_document, deviations),
)
