"""Temporal profiling: the CIFAR-10 network with local response normalisation and its variants, by operation and by layer."""

from comparisons.criteria import mean_and_deviation, no_slower, verdict
from comparisons.measures import spread
from comparisons.studies import operations
from comparisons.study import Chart, Column, Extent, Row, Study, Table

BATCH, SIZE, CHANNELS, CLASSES = 128, 24, 3, 10
PASSES = 8  # distorted copies of each image in an epoch
QUICK = Extent(epochs=5, repeats=1, examples=24 * BATCH, test_examples=1000)
FULL = Extent(epochs=32, repeats=1)  # 100,000 steps of 128 with CIFAR-10's 50,000 images
NARROW = {"filters": 32}
LARGER = {"window": 4, "padding": "valid"}

# By row: the options of its network, its parameters, and of the document its accuracy, the ms per batch and the share of Conv2D, the bytes
# of Conv2D, and the time of all, which is Conv2D's over its share.
VARIANTS = {
    "baseline": ({}, 1_068_298, (0.86, 40.34, 0.7202, 25.55e6, 56.0)),
    "stride 2": ({"stride": 2}, 281_866, (0.796, 6.54, 0.6467, 5.01e6, 10.1)),
    "stride 3": ({"stride": 3}, 208_138, (0.747, 2.61, 0.5673, 2.26e6, 4.6)),
    "stride 5": ({"stride": 5}, 208_138, (0.70, 1.24, 0.4369, 862.61e3, 2.8)),
    "32 filters": (NARROW, 546_666, (0.837, 20.97, 0.7514, 11.80e6, 27.9)),
    "larger pool1": (LARGER, 1_068_298, (0.863, 32.51, 0.7482, 22.84e6, 43.5)),
    "larger pool1, window 3": (LARGER | {"window": 3}, 1_068_298, ()),
    "stride 2, 32 filters": ({"stride": 2} | NARROW, 153_450, ()),
    "stride 3, 32 filters": ({"stride": 3} | NARROW, 116_586, ()),
    "stride 5, 32 filters": ({"stride": 5} | NARROW, 116_586, ()),
}
FIGURES = "accuracy", "Conv2D ms", "Conv2D share", "Conv2D bytes", "total ms"
NOTES = {
    "larger pool1": "The document does not say how large: the bytes fit a window of 4 or 3, stride 2, without padding.",
    "larger pool1, window 3": "The other window that the document's bytes fit.",
}
NORMALIZATION = "LocalResponseNormalization"  # the profile's name of the layer, LRN in the document
COSTED = "baseline", "stride 5"
FOLLOWED = "The document leaves the combination of stride and filters to future work."
POINTS, DEVIATIONS = 5.0, 2.0  # of accuracy that two backends may be apart, and standard deviations of the tested images' chance


def variant(name):
    """Return the Row of a variant."""
    options, count, figures = VARIANTS[name]
    return Row(
        name=name,
        table="variants",
        model="profiling:network",
        options=options,
        data="cifar10_crops:load",
        data_options={"passes": PASSES},
        batch=BATCH,
        quick=QUICK,
        full=FULL,
        measures=(
            "measures:train",
            "measures:predict",
            "studies.operations:profile",
            *(("studies.operations:cost",) if name in COSTED else ()),
        ),
        document=dict(zip(FIGURES, figures, strict=False)),
        parameters=count,
        settings={"options": options},
        note=NOTES.get(name, "" if figures else FOLLOWED),
    )


ROWS = tuple(variant(name) for name in VARIANTS)


def strided(size, step, window=1, padded=True):
    """Return how many places a window has along `size` pixels."""
    return -(-size // step) if padded else (size - window) // step + 1


def sizes(stride=1, filters=64, window=3, padding="same"):
    """Return (height or width of conv1's, pool1's, conv2's and pool2's outputs) of a variant."""
    conv1 = strided(SIZE, stride)
    pool1 = strided(conv1, 2, window, padding == "same")
    conv2 = strided(pool1, stride)
    return conv1, pool1, conv2, strided(conv2, 2)


def output_bytes(options, batch=BATCH):
    """Return {operation: float32 bytes of its outputs} of a variant's inference: what the document's profiler counts."""
    filters = options.get("filters", 64)
    conv1, pool1, conv2, pool2 = (side * side * filters for side in sizes(**options))
    return {
        "Conv2D": 4 * batch * (conv1 + conv2),
        "MaxPool": 4 * batch * (pool1 + pool2),
        "MatMul": 4 * batch * (384 + 192 + CLASSES),
    }


def multiplications(options):
    """Return the multiply-adds of an image."""
    filters = options.get("filters", 64)
    conv1, _, conv2, pool2 = sizes(**options)
    dense = pool2 * pool2 * filters * 384 + 384 * 192 + 192 * CLASSES
    return 25 * filters * (conv1 * conv1 * CHANNELS + conv2 * conv2 * filters) + dense


def accuracy(result):
    """Return the spread of the test accuracies over the starts; None for stand-in data."""
    return spread([start["test_accuracy"] for start in result["starts"]]) if result["real"] else None


def of(name, key, kind="inference", scale=1):
    """Return the function from a result to what its profile has of an operation."""

    def value(result):
        found = operations.value(result, name, key, kind)
        return None if found is None else found * scale

    return value


def convolution_training(result):
    """Return the share of Conv2D and its gradient in the time of a training step."""
    shares = [operations.share(result, name, "training") for name in ("Conv2D", "Conv2D gradient")]
    return sum(shares) if None not in shares else None


def total(result):
    """Return the milliseconds of all operations in inference of a batch; None where there is no profile."""
    lines = result.get("operations", {}).get("inference", {}).get("operation")
    return sum(line["total_ms"] for line in lines) if lines else None


TABLES = (
    Table(
        "variants",
        "The network and its variants, batch 128",
        (
            Column("parameters", lambda r: r["parameters"]),
            Column("accuracy", accuracy, percent=True, digits=1),
            Column("step", lambda r: r["fit_ms"], digits=2, unit="ms"),
            Column("predict", lambda r: r["predict_ms"], digits=2, unit="ms"),
            Column("all operations", total, digits=2, unit="ms"),
            Column("Conv2D", of("Conv2D", "total_ms"), digits=2, unit="ms"),
            Column("Conv2D's share", lambda r: operations.share(r, "Conv2D"), percent=True, digits=1),
            Column("Conv2D's bytes", of("Conv2D", "bytes"), digits=0),
            Column("Conv2D in training", convolution_training, percent=True, digits=1),
            Column("step with profile", lambda r: r.get("profiled_ms"), digits=2, unit="ms"),
            Column("without", lambda r: r.get("plain_ms"), digits=2, unit="ms"),
            Column("first step", lambda r: r["first_step_s"], digits=2, unit="s"),
            Column("memory", lambda r: r["peak_mib"], unit="MiB"),
            Column("device memory", lambda r: r["device_peak_mib"], unit="MiB"),
        ),
        note=(
            "Conv2D's columns are of inference unless they say otherwise. Of the document's tables only the rows of Conv2D are comparable: "
            "those below them stand under names that are not theirs. A quick run's accuracy is that of a few hundred steps."
        ),
    ),
)

CHARTS = (
    Chart("step", "A training step of 128 images", "variants", lambda r: r["fit_ms"], "ms per step"),
    Chart("accuracy", "Test accuracy", "variants", accuracy, "accuracy"),
    Chart("convolutions", "Conv2D's share of inference", "variants", lambda r: operations.share(r, "Conv2D"), "share of the time"),
)


def good(results):
    """Return the results without an error."""
    return [result for result in results if "error" not in result]


def same_bytes(results, reference):
    """Convolutions, poolings and products ask in inference for the bytes of their outputs: the document's figures, or near them.

    A convolution may ask for a second copy of its filters besides; the document's figures are also a little above the outputs.
    """
    verdicts = []
    for result in good(results):
        if "operations" not in result:
            continue
        options = VARIANTS[result["row"]][0]
        expected = output_bytes(options, result["batch_profiled"])
        asked = {name: operations.value(result, name, "bytes") for name in expected}
        besides = {name: (asked[name] or 0) - size for name, size in expected.items()}
        filters = options.get("filters", 64)
        first, second = 4 * 25 * filters * CHANNELS, 4 * 25 * filters * filters
        copied = besides.pop("Conv2D") in (0, first, second, first + second)
        text = ", ".join(f"{name} {asked[name]:,.0f}, outputs {size:,}" for name, size in expected.items() if asked[name] is not None)
        verdicts.append(verdict(result, "bytes of outputs", copied and not any(besides.values()), f"bytes asked for: {text}"))
    return verdicts


def parts(results, reference):
    """The profile has the operations that the document reports."""
    wanted = "Conv2D", "BiasAdd", "Relu", "MaxPool", "MatMul", NORMALIZATION
    verdicts = []
    for result in good(results):
        if "operations" not in result:
            continue
        lacking = [name for name in wanted if operations.value(result, name, "total_ms") is None]
        text = f"lines of {', '.join(wanted)}" + (f"; none of {', '.join(lacking)}" if lacking else "")
        verdicts.append(verdict(result, "the document's lines", not lacking, text))
    return verdicts


def right_parameters(results, reference):
    """The networks have the document's numbers of parameters."""
    return [
        verdict(result, "parameters", result["parameters"] == VARIANTS[result["row"]][1], f"{result['parameters']:,} parameters")
        for result in good(results)
        if result["backend"] != reference
    ]


def same_accuracy(results, reference):
    """Accuracies are the reference's but for chance: the tested images' and the starts', and POINTS for what rounding makes of training."""
    theirs = {result["row"]: result for result in good(results) if result["backend"] == reference}
    verdicts = []
    for result in good(results):
        other = theirs.get(result["row"])
        if other is None or result is other or not result["real"]:
            continue
        (ours, _), (base, _) = (mean_and_deviation([start["test_accuracy"] for start in each["starts"]]) for each in (result, other))
        chance = (2 * base * (1 - base) / result["examples"][1]) ** 0.5
        allowed = POINTS / 100 + DEVIATIONS * chance
        text = f"test accuracy {ours:.1%}, {reference} {base:.1%}, at most {allowed * 100:.1f} points apart wanted"
        verdicts.append(verdict(result, "test accuracy", abs(ours - base) <= allowed, text))
    return verdicts


def reports(results):
    """Return the tables of the baseline's profile, by operation and by layer, in the document's form."""
    return [
        operations.table(result, kind, view)
        for result in good(results)
        if result["row"] == "baseline" and "operations" in result
        for kind in result["operations"]
        for view in operations.VIEWS
    ]


def arithmetic(results):
    """Return the table of what each variant's inference does for its time: multiply-adds per second, beside the document's."""
    lines = []
    for result in good(results):
        options, _, figures = VARIANTS[result["row"]]
        count = multiplications(options)
        document = count * BATCH / figures[-1] / 1e6 if figures else None
        speed = count * BATCH / result["predict_ms"]["median"] / 1e6
        lines.append([result["row"], result["backend"], count / 1e6, speed, document])
    head = ["row", "backend", "million multiply-adds an image", "thousand million a second", "document's"]
    return [("What inference computes for its time", head, lines)] if lines else []


STUDY = Study(
    name="profiling",
    title="Temporal profiling of a convolutional network",
    source="S. Hernández, Perfilado temporal en redes neuronales convolucionales, Universidad de Los Andes, 2018",
    rows=ROWS,
    tables=TABLES,
    charts=CHARTS,
    criteria=(right_parameters, same_accuracy, no_slower, parts, same_bytes, operations.predicted, operations.cheap),
    extra=(reports, arithmetic),
    notes=(
        "The document gives neither processor, batch nor training: batch 128 and inputs of 24x24 follow from its bytes and parameters, the "
        "training is that of the tutorial that it changes. Lines lost in it are the tutorial's.",
        "The document says that its times are per image; its bytes prove that they are per batch of 128.",
        "The document's tables 4.4 to 4.8 put operations' names in a fixed order beside lines sorted by time: only Conv2D's are right.",
        "The document finds no notable improvement with the larger pooling, but its own times fall by 22 %. It finds that half the filters "
        "do not improve convolutions much, but its own time halves.",
        "The document's baseline has 8 % more bytes of Conv2D than its outputs; those of the variants fit theirs.",
        "The moving average of the weights has the ramp that the tutorial gives it; with a constant 0.9999, a quick run would be judged by "
        "its first weights. After 100,000 steps the learning rate has not fallen yet: its first fall comes after 136,718.",
        f"An epoch has {PASSES} distorted copies of each image, which the next epochs repeat; the tutorial distorts anew each time.",
        "The document reports a cost of profiling of five times; here it is measured in turns with and without.",
    ),
)
