"""Dense nets on OpenCL: exclusive or from a hundred starts, 25 sigmoid nets for MNIST, zero-copy memory, callbacks and HDF5 files."""

import math
import statistics

from comparisons.criteria import accuracies, compared, mean_and_deviation, no_slower, same_starts_solved, solved, verdict
from comparisons.measures import differ, spread
from comparisons.study import Chart, Column, Extent, Row, Study, Table

SYSTEMS = ("Rust", "OpenCL CPU", "OpenCL GPU", "Keras/TF")

# The document's table: hidden widths, then seconds and test accuracy of each of SYSTEMS, means of five runs.
DOCUMENT = (
    ((16,), 99.0, 0.9238, 66.3, 0.9199, 105.9, 0.9141, 33.8, 0.9367),
    ((32,), 178.9, 0.9374, 76.2, 0.9336, 115.5, 0.9346, 36.4, 0.946),
    ((64,), 326.8, 0.9408, 113.1, 0.948, 133.5, 0.9408, 45.0, 0.9544),
    ((128,), 701.2, 0.941, 204.2, 0.9477, 179.7, 0.9414, 59.6, 0.9555),
    ((256,), 1396.1, 0.9326, 367.6, 0.9485, 266.7, 0.941, 87.1, 0.9535),
    ((16, 16), 101.3, 0.9274, 76.0, 0.9229, 131.0, 0.9296, 35.1, 0.9375),
    ((16, 32), 104.8, 0.931, 77.9, 0.9284, 134.3, 0.9328, 35.6, 0.9383),
    ((16, 64), 110.8, 0.9296, 82.0, 0.9311, 136.8, 0.9279, 36.7, 0.9346),
    ((16, 128), 123.2, 0.9331, 91.1, 0.9372, 146.8, 0.9298, 39.2, 0.9366),
    ((16, 256), 147.8, 0.9291, 106.5, 0.9264, 165.4, 0.9307, 43.0, 0.9383),
    ((32, 32), 186.7, 0.939, 87.0, 0.9363, 144.3, 0.9394, 40.1, 0.9535),
    ((32, 64), 195.7, 0.941, 90.4, 0.9406, 148.4, 0.9418, 41.4, 0.9544),
    ((32, 128), 214.8, 0.9368, 99.9, 0.9346, 158.4, 0.9242, 44.3, 0.9496),
    ((32, 256), 252.5, 0.9387, 117.4, 0.9376, 177.6, 0.9376, 49.8, 0.9506),
    ((64, 64), 350.3, 0.947, 129.4, 0.9445, 165.5, 0.9399, 50.2, 0.9545),
    ((64, 128), 385.4, 0.9424, 142.8, 0.9465, 175.5, 0.9431, 54.1, 0.956),
    ((64, 256), 448.2, 0.9392, 164.6, 0.9414, 200.5, 0.9422, 61.4, 0.9573),
    ((128, 128), 811.7, 0.9439, 246.5, 0.9496, 223.1, 0.937, 72.2, 0.9568),
    ((128, 256), 921.5, 0.9452, 273.7, 0.9454, 254.6, 0.9353, 82.7, 0.9569),
    ((256, 256), 1885.2, 0.9483, 490.6, 0.9441, 379.6, 0.9323, 122.5, 0.9538),
    ((16, 16, 16), 103.4, 0.9279, 78.1, 0.9233, 156.1, 0.9258, 34.5, 0.9294),
    ((32, 32, 32), 195.4, 0.9373, 86.8, 0.938, 172.1, 0.9354, 40.5, 0.9465),
    ((64, 64, 64), 369.4, 0.9414, 135.8, 0.9435, 197.8, 0.9441, 52.3, 0.957),
    ((128, 128, 128), 918.8, 0.9474, 278.8, 0.9332, 269.6, 0.9312, 81.2, 0.9517),
    ((256, 256, 256), 2274.1, 0.9465, 694.5, 0.9363, 621.8, 0.9356, 155.9, 0.9514),
)
XOR_SECONDS = (0.063, 9.264, 28.3, 8.233)  # of one training, the mean of a hundred; each system solves all of them

XOR, WRITTEN, READ = "2-2-1", "HDF5 written", "HDF5 read"
BATCH, LARGE_BATCH = 32, 1000
QUICK = Extent(epochs=2, repeats=2, examples=20_000)
FULL = Extent(epochs=10, repeats=5)
QUICK_TRANSFERS = Extent(epochs=1, repeats=1, examples=20_000)
FILES = Extent(epochs=3, repeats=1, examples=2000)

DEVIATIONS = 2.0  # of TensorFlow's mean accuracy, that ours may be off by
POINTS = 0.1  # points of accuracy that are no difference, ten of 10,000 test images
LOADED = 1e-5  # largest difference of a probability between backends: a few hundred float32 roundings
COPIED = {"KERAS_OCL_TRANSFER": "copied"}
CHOSEN = "Learning rate, batch size and epochs are ours: the document does not state them."


def net_name(hidden):
    """Return the row's name of the net with these hidden widths."""
    return "-".join(map(str, (784, *hidden, 10)))


def net(hidden, *figures):
    """Return the Row of an MNIST net; figures: seconds and accuracy of each of SYSTEMS."""
    pairs = zip(SYSTEMS, figures[::2], figures[1::2], strict=True)
    return Row(
        name=net_name(hidden),
        table="mnist",
        model="dense:mlp",
        options={"hidden": hidden},
        data="mnist:load",
        data_options={"flat": True},
        batch=BATCH,
        quick=QUICK,
        full=FULL,
        document={key: value for system, s, share in pairs for key, value in ((f"{system} s", s), (f"{system} accuracy", share))},
        settings={"hidden": hidden},
        note=CHOSEN,
    )


def transfer(batch, copied):
    """Return the Row that times transfers at a batch size, with host memory as the device shares it or with copies forced."""
    return Row(
        name=f"784-16-10, batch {batch}, " + ("copies forced" if copied else "memory as the device shares it"),
        table="transfers",
        model="dense:mlp",
        options={"hidden": (16,)},
        data="mnist:load",
        data_options={"flat": True},
        batch=batch,
        quick=QUICK_TRANSFERS,
        full=Extent(epochs=1, repeats=1),
        measures=("studies.transfers:measure",),
        only=("ocl",),
        environment={"ocl": COPIED} if copied else {},
        settings={"batch": batch, "copied": copied},
    )


def files(name, measure):
    """Return a Row of the table of callbacks and files."""
    return Row(
        name=name,
        table="files",
        model="dense:mlp",
        options={"hidden": (32,)},
        data="mnist:load",
        data_options={"flat": True},
        batch=BATCH,
        quick=FILES,
        full=FILES,
        measures=(f"studies.saving:{measure}",),
        settings={"written_by": WRITTEN},
    )


ROWS = (
    Row(
        name=XOR,
        table="xor",
        model="dense:xor",
        data="xor:load",
        batch=4,
        quick=Extent(epochs=5, repeats=20),
        full=Extent(epochs=5, repeats=100),
        document={f"{system} s": seconds for system, seconds in zip(SYSTEMS, XOR_SECONDS, strict=True)} | {"share solved": 1.0},
        note=f"A training is 1,000 steps of the four rows. {CHOSEN}",
    ),
    *(net(*line) for line in DOCUMENT),
    *(transfer(batch, copied) for batch in (BATCH, LARGE_BATCH) for copied in (False, True)),
    files(WRITTEN, "write"),
    files(READ, "read"),
)


MNIST = {row.name for row in ROWS if row.table == "mnist"}


def accuracy(result):
    """Return the spread of the test accuracies over the starts; None for stand-in data."""
    return spread(accuracies(result)) if result["real"] else None


def share_solved(result):
    """Return the share of the starts that solve exclusive or."""
    return len(solved(result)) / len(result["starts"])


def told_alike(result):
    """Tell whether a callback was told what `fit` returned, every epoch; None for a row without callbacks."""
    return result["told"] == result["history"] if "told" in result else None


def farthest(result):
    """Return the largest difference between loaded and written predictions; None for a row that loads nothing."""
    found = [each[kind] for each in result.get("loaded", {}).values() for kind in ("weights", "model")]
    return max(found, default=None)


def xor_starts(results, reference):
    """XOR: the starts that the reference solves are solved, and no others."""
    return same_starts_solved(results, reference, XOR)


def accuracy_within_noise(results, reference):
    """MNIST: the mean accuracy is within two standard errors of the reference's mean, or a tenth of a point."""
    verdicts = []
    for result, base in compared(results, reference, MNIST):
        if not result["real"]:
            continue
        (ours, _), (theirs, deviation) = (mean_and_deviation(accuracies(r)) for r in (result, base))
        allowed = max(DEVIATIONS * deviation / math.sqrt(len(base["starts"])), POINTS / 100)
        text = f"test accuracy {ours:.2%}, {reference} {theirs:.2%}, {abs(ours - theirs):.2%} apart, {allowed:.2%} allowed"
        verdicts.append(verdict(result, "accuracy within the noise", abs(ours - theirs) <= allowed, text))
    return verdicts


def callbacks_told(results, reference):
    """The callback got every epoch's logs as `fit` returned them."""
    return [
        verdict(r, "callback every epoch", r["told"] == r["history"] and len(r["told"]) == r["epochs"], f"{len(r['told'])} epochs told")
        for r in results
        if "told" in r
    ]


def files_load_anywhere(results, reference):
    """HDF5 files give the predictions of the backend that wrote them, whichever reads them."""
    verdicts = []
    for result in results:
        for writer, distances in result.get("loaded", {}).items():
            worst = max(distances["weights"], distances["model"])
            text = f"what {writer} wrote predicts the same within {worst:.1e}, {LOADED:.0e} allowed (unloaded: {distances['moved']:.1e})"
            verdicts.append(verdict(result, f"HDF5 of {writer}", worst <= LOADED < distances["moved"], text))
    return verdicts


def transfer_pairs(results):
    """Return (batch, result as the device shares memory, result with copies forced) for each batch and backend where both ran."""
    good = {(r["row"], r["backend"]): r for r in results if "error" not in r}
    backends = dict.fromkeys(r["backend"] for r in results)
    named = [(batch, transfer(batch, False).name, transfer(batch, True).name) for batch in (BATCH, LARGE_BATCH)]
    return [(n, good[a, b], good[c, b]) for n, a, c in named for b in backends if (a, b) in good and (c, b) in good]


def shared_no_worse(results, reference):
    """Where the device shares the host's memory, using that writes fewer bytes and takes no longer than copies do."""
    verdicts = []
    for _, shared, copied in transfer_pairs(results):
        if shared["sharing"] == "copied":
            continue
        slower = shared["epoch_s"]["median"] > copied["epoch_s"]["median"] and differ(shared["epoch_s"], copied["epoch_s"])
        text = (
            f"{shared['written_mib']:.1f} MiB written and {shared['epoch_s']['median']:.3f} s per epoch, "
            f"with copies forced {copied['written_mib']:.1f} MiB and {copied['epoch_s']['median']:.3f} s"
        )
        verdicts.append(verdict(shared, "shared memory", shared["written_mib"] < copied["written_mib"] and not slower, text))
    return verdicts


def beside_document(results):
    """The ratios and differences that the document's conclusions rest on, next to ours: OpenCL against TensorFlow."""
    figures = {row.name: row.document for row in ROWS}
    lines = []
    for result, base in compared(results, "tensorflow", MNIST):
        document = figures[result["row"]]
        points = None
        if result["real"]:
            points = 100 * (statistics.fmean(accuracies(result)) - statistics.fmean(accuracies(base)))
        lines.append(
            [
                result["row"],
                result["backend"],
                result["fit_ms"]["median"] / base["fit_ms"]["median"],
                document["OpenCL CPU s"] / document["Keras/TF s"],
                points,
                100 * (document["OpenCL CPU accuracy"] - document["Keras/TF accuracy"]),
            ]
        )
    head = ["row", "backend", "time / TensorFlow's", "document: OpenCL CPU / Keras", "points above TensorFlow", "document: above Keras"]
    return [("Beside the document's conclusions", head, lines)] if lines else []


def zero_copy_gain(results):
    """How much time sharing memory saves."""
    lines = [
        [
            batch,
            shared["backend"],
            shared["sharing"],
            copied["written_mib"] / shared["written_mib"],
            copied["epoch_s"]["median"] / shared["epoch_s"]["median"],
        ]
        for batch, shared, copied in transfer_pairs(results)
    ]
    head = ["batch", "backend", "memory", "bytes with copies / bytes without", "time with copies / time without"]
    return [("What zero-copy memory gives", head, lines)] if lines else []


def weights_of(row):
    """Return the number of weights and biases of a net."""
    widths = (784, *row.settings["hidden"], 10)
    return sum((before + 1) * after for before, after in zip(widths, widths[1:], strict=False))


TIMES = (
    Column("a step", lambda r: r["fit_ms"], 3, "ms"),
    Column("a training", lambda r: r["total_s"], 2, "s"),
    Column("first step", lambda r: r["first_step_s"], 2, "s"),
    Column("predict a batch", lambda r: r["predict_ms"], 3, "ms"),
)

STUDY = Study(
    name="dense",
    title="Dense nets on OpenCL",
    source="Library for evaluating and training artificial neural networks implemented in Rust and OpenCL, master's thesis, ITESO 2021",
    rows=ROWS,
    tables=(
        Table(
            "xor",
            "Exclusive or: 2-2-1 tanh, mean squared error",
            (*TIMES, Column("solved", share_solved, 1, percent=True)),
            "Solved: all four outputs within 0.4 of the target. Two hidden units have local minima, so that some starts end in one.",
        ),
        Table(
            "mnist",
            "MNIST: sigmoid nets, mean squared error, gradient descent",
            (Column("parameters", lambda r: r["parameters"], 0), *TIMES, Column("test accuracy", accuracy, 2, percent=True)),
            "The document's seconds are of its own machine and of epochs that it does not state: compare their ratios only.",
        ),
        Table(
            "transfers",
            "Zero-copy memory",
            (
                Column("per epoch", lambda r: r["epoch_s"], 3, "s"),
                Column("a step", lambda r: r["fit_ms"], 3, "ms"),
                Column("memory", lambda r: r["sharing"]),
                Column("to the device", lambda r: r["upload_mib"], 2, "MiB an epoch"),
                Column("from the device", lambda r: r["download_mib"], 2, "MiB an epoch"),
                Column("written in all", lambda r: r["written_mib"], 2, "MiB an epoch"),
            ),
        ),
        Table(
            "files",
            "Callbacks and HDF5 files",
            (
                Column("epochs told", lambda r: len(r["told"]) if "told" in r else None),
                Column("as fit returned", told_alike),
                Column("files of", lambda r: ", ".join(r["loaded"]) if "loaded" in r else None),
                Column("largest difference", farthest, None),
            ),
        ),
    ),
    charts=(
        Chart("mnist-time", "MNIST: a step of training", "mnist", lambda r: r["fit_ms"], "ms"),
        Chart(
            "mnist-accuracy",
            "MNIST: test accuracy",
            "mnist",
            accuracy,
            "share right",
            kind="lines",
            x=weights_of,
            xlabel="parameters",
            series=lambda row: f"{len(row.settings['hidden'])} hidden",
            logx=True,
        ),
    ),
    notes=(
        "The document states neither learning rates nor epochs nor batch sizes; ours are 5.0, 10 (2 in a quick run) and 32 for MNIST, and "
        "0.3, 1,000 steps and 4 for exclusive or.",
        "Each backend starts from the same weights and sees the examples in the same order.",
        "In the document OpenCL took 2.0 to 4.5 times Keras's time on MNIST, and its accuracy was mostly 0.5 to 1.8 points lower.",
    ),
    criteria=(xor_starts, accuracy_within_noise, no_slower, callbacks_told, files_load_anywhere, shared_no_worse),
    extra=(beside_document, zero_copy_gain),
)
