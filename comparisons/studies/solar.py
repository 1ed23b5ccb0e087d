"""Solar irradiance: time of training and inference of 30 MLPs and a CNN, by width, batch and device."""

from comparisons.criteria import FIRST_TOLERANCE, first_steps, no_slower, verdict
from comparisons.measures import differ
from comparisons.studies import operations
from comparisons.study import Chart, Column, Extent, Row, Study, Table

BASES = (50,), (50, 25), (50, 25, 13)
NETS = {"-".join(map(str, net)): net for base in BASES for net in (tuple(width << k for width in base) for k in range(10))}
FEATURES = 50
BATCH, OTHER_BATCHES = 1000, (500, 100)
PARALLEL_BATCH = 128
CNN_BATCHES = 2, 8, 32, 64, 128, 256, 512, 1024
SAMPLES = 2, 64, 512, 1024
DEVICES = "GTX1080", "GTX980", "GTX950M", "Xeon", "i7"

MLP_SECONDS = {  # of two epochs, from the tables that the document's author published
    "50": {"GTX1080 s": 11.6, "GTX950M s": 49.7, "Xeon s": 9.9, "i7 s": 34.2},
    "6400-3200-1664": {"GTX980 s": 79.0, "GTX950M s": 514.4, "Xeon s": 662.6, "i7 s": 5277.2},
    "3200-1600-832": {"GTX1080 s": 27.184643},
}
CNN_SECONDS = {  # of one epoch by batch, on each of DEVICES, from the same tables
    2: (501.9, 700.2, 1260.9, 3532.9, 5551.0),
    8: (130.5, 192.3, 381.0, 1071.2, 2090.5),
    32: (46.0, 70.1, 162.4, 507.3, 1273.1),
    64: (43.1, 49.1, 160.2, 386.7, 1120.4),
    128: (24.4, 42.6, 111.5, 357.5, 1106.5),
    256: (31.3, 36.3, 103.0, 344.4, 1072.9),
    512: (20.7, 32.6, 107.7, 340.1, 1032.9),
    1024: (21.9, 38.4, None, 350.8, None),
}
PARALLEL_SECONDS = {  # of the document's smaller CNN at batches of about 1024
    "central, s": 14.67,
    "mirrored, GTX1080 and GTX980, s": 11.26,
    "mirrored, two GTX980, s": 12.04,
    "mirrored, three GPUs, s": 13.42,
}
EVALUATE_SECONDS = (4.2, 5.4, 11.6, 57.5, 99.0)  # of 45,322 maps at Keras's own batch, on each of DEVICES
MLP_EXAMPLES, CNN_EXAMPLES, CNN_TESTED = 1_366_000, 145_030, 45_322

SMALL, WIDE = 500_000, 10_000_000  # parameters; a step of a wide net takes seconds on a few processors
QUICK_CNN = {2: 64, 8: 256, 32: 1024, 1024: 1024}  # examples by batch, others 512

CNN_PARAMETERS = 4_352_641
PARITY = "50", "200-100", "400-200-104"  # nets whose losses are compared step by step
PARITY_BATCH = 32  # of the CNN that is compared so, profiled, and trained longest
COMPARED = "studies.operations:profile", "measures:steps"
PROFILED = "50", "800-400-208", "6400-3200-1664"  # nets whose operations are timed; the document has traces of the first and the last

ENOUGH_STEPS = 100  # of training, from which a network must predict better than a constant
SECOND = 1000.0  # ms
QUICKLY = 64  # samples that must be predicted in a second on any machine; more where the reference does so too
RATIO = 0.25  # by which a whole training may be off from its parts: two runs on a busy machine
NOTICED = (  # in the document: device, the wide net, a deeper one that is faster on it in spite of more parameters
    ("i7", "3200", "800-400-208"),
    ("Xeon", "1600", "400-200"),
    ("GTX950M", "3200", "800-400"),
    ("GTX980", "6400", None),
    ("GTX1080", "12800", "1600-800-416"),
)


def parameters(net):
    """Return how many parameters an MLP of these hidden widths has: the sum of (c[i] + 1) c[i + 1]."""
    widths = (FEATURES, *net, 1)
    return sum((before + 1) * after for before, after in zip(widths, widths[1:], strict=False))


def mlp_extents(count):
    """Return the (quick, full) Extents of an MLP with so many parameters."""
    if count >= WIDE:
        quick = Extent(epochs=1, repeats=1, examples=BATCH, test_examples=100)
    else:
        quick = Extent(epochs=2, repeats=1, examples=10 * BATCH if count < SMALL else 2 * BATCH, test_examples=2 * BATCH)
    return quick, Extent(epochs=2, repeats=1, examples=MLP_EXAMPLES)


def mlp(name, net):
    """Return the Row of an MLP."""
    count = parameters(net)
    quick, full = mlp_extents(count)
    wide = "In a quick run a step is timed once, at one batch size." if count >= WIDE else ""
    return Row(
        name=name,
        table="mlp",
        model="solar:mlp",
        options={"hidden": net},
        data="solar:rows",
        batch=BATCH,
        quick=quick,
        full=full,
        measures=(
            "studies.timing:device_facts",
            "studies.timing:train_wide",
            "studies.timing:learnt",
            "studies.timing:inference",
            "studies.timing:batches",
            *(("studies.operations:profile",) if name in PROFILED else ()),
            *(("measures:steps",) if name in PARITY else ()),
        ),
        document=MLP_SECONDS.get(name, {}),
        parameters=count,
        settings={"layers": len(net), "parameters": count, "batches": OTHER_BATCHES, "samples": SAMPLES},
        note=wide,
    )


def cnn(batch):
    """Return the Row of the CNN at a batch size."""
    figures = zip(DEVICES, CNN_SECONDS[batch], strict=True)
    return Row(
        name=f"batch {batch}",
        table="cnn",
        model="solar:cnn",
        data="solar:maps",
        batch=batch,
        quick=Extent(epochs=4 if batch == PARITY_BATCH else 1, repeats=1, examples=QUICK_CNN.get(batch, 512), test_examples=512),
        full=Extent(epochs=1, repeats=1, examples=CNN_EXAMPLES, test_examples=CNN_TESTED),
        measures=("measures:train", "studies.timing:steps", "studies.timing:learnt", *(COMPARED if batch == PARITY_BATCH else ())),
        document={f"{device} s": seconds for device, seconds in figures if seconds},
        parameters=CNN_PARAMETERS,
        settings={"batch": batch},
    )


def whole(name, model, data, batch, quick, full, **options):
    """Return a Row that compares a whole training with its parts."""
    return Row(
        name=f"{name}, whole training",
        table="proportions",
        model=model,
        options=options,
        data=data,
        batch=batch,
        quick=Extent(epochs=1, repeats=1, examples=quick, test_examples=batch),
        full=Extent(epochs=1, repeats=1, examples=full, test_examples=batch),
        measures=("studies.timing:proportions",),
        document={"epochs ratio": 2.0014, "steps ratio": 1.0001},
        note="The document's ratio of epochs is that of its Xeon; the other devices' are 2.0026 and 2.0027.",
    )


ROWS = (
    *(mlp(name, net) for name, net in NETS.items()),
    *(cnn(batch) for batch in CNN_BATCHES),
    Row(
        name="CNN, inference",
        table="inference",
        model="solar:cnn",
        data="solar:maps",
        batch=512,
        quick=Extent(epochs=1, repeats=1, examples=max(SAMPLES), test_examples=512),
        full=Extent(epochs=1, repeats=1, examples=max(SAMPLES), test_examples=512),
        measures=("studies.timing:inference",),
        document={f"{device} s for 45,322": seconds for device, seconds in zip(DEVICES, EVALUATE_SECONDS, strict=True)},
        parameters=CNN_PARAMETERS,
        settings={"samples": SAMPLES},
        note="The document's figures are seconds of one evaluation of 45,322 maps, from which it derives its times of inference.",
    ),
    whole("800-400-208", "solar:mlp", "solar:rows", BATCH, 20 * BATCH, 100 * BATCH, hidden=NETS["800-400-208"]),
    whole("CNN at batch 64", "solar:cnn", "solar:maps", 64, 512, 4096),
    Row(
        name="smaller CNN on both halves of the device",
        table="parallel",
        model="solar:distributed",
        data="solar:maps",
        batch=PARALLEL_BATCH,
        quick=Extent(epochs=3, repeats=1, examples=4 * PARALLEL_BATCH, test_examples=64),
        full=Extent(epochs=3, repeats=1, examples=CNN_EXAMPLES // 10, test_examples=64),
        measures=("studies.parallel:measure",),
        document=PARALLEL_SECONDS,
        only=("ocl",),
        settings={"parts": (2,), "unlike": True, "alone": True},
        note="The document compares its runs on several devices with another, larger network on one: here it is the same network.",
    ),
)


def nanoseconds(result):
    """Return the spread of a step's nanoseconds a parameter."""
    spread, count = result["step_ms"], result["parameters"]
    return {key: value if key == "n" else value * 1e6 / count for key, value in spread.items()}


def images(result):
    """Return how many images per second the median step trains with."""
    return result["batch_size"] / result["step_ms"]["median"] * 1e3


def times_constant(result):
    """Return the loss on the test data as a multiple of the best constant prediction's."""
    return result["learnt"]["loss"] / result["learnt"]["constant_loss"]


def at(key, name):
    """Return the function from a result to what it has by `name` under `key`, None where it has not."""
    return lambda result: result[key].get(str(name))


def batch_time(batch):
    """Return the function from a result to the spread of a step's milliseconds at another batch size."""
    return lambda result: (result["by_batch"].get(str(batch)) or {}).get("step_ms")


def halves(variables, key):
    """Return the function from a result to what training on both halves has by `key`, with mirrored or central variables."""
    return lambda result: next((way[key] for way in several(result) if way["variables"] == variables), None)


def several(result):
    """Return the ways of a result's data-parallel training that use several devices."""
    return [way for way in result["parallel"] if len(way["devices"]) > 1]


def batch_loss(batch):
    """Return the function from a result to the test loss after training at another batch size."""
    return lambda result: (result["by_batch"].get(str(batch)) or {}).get("test_loss")


TABLES = (
    Table(
        "mlp",
        "30 pyramidal MLPs, batch 1000",
        (
            Column("step", lambda r: r["step_ms"], digits=2, unit="ms"),
            Column("a parameter", nanoseconds, digits=2, unit="ns"),
            *(Column(f"step of {batch}", batch_time(batch), digits=2, unit="ms") for batch in OTHER_BATCHES),
            Column("predict 1000", lambda r: r["predict_ms"], digits=2, unit="ms"),
            *(Column(f"predict {samples}", at("inference_ms", samples), digits=2, unit="ms") for samples in SAMPLES),
            Column("test loss", lambda r: r["starts"][0]["test_loss"], digits=4),
            *(Column(f"loss at {batch}", batch_loss(batch), digits=4) for batch in OTHER_BATCHES),
            Column("of a constant's", times_constant, digits=2),
            Column("first step", lambda r: r["first_step_s"], digits=2, unit="s"),
            Column("memory", lambda r: r["peak_mib"], unit="MiB"),
            Column("device memory", lambda r: r["device_peak_mib"], unit="MiB"),
        ),
        note=(
            "A step ends when its loss is read. Loss: mean squared error in (kW/m²)². The document's seconds are of two epochs of 1,366 "
            "steps."
        ),
    ),
    Table(
        "cnn",
        "The CNN by batch",
        (
            Column("step", lambda r: r["step_ms"], digits=2, unit="ms"),
            Column("images", images, digits=0, unit="1/s"),
            Column("training", lambda r: r["total_s"], digits=2, unit="s"),
            Column("test loss", lambda r: r["starts"][0]["test_loss"], digits=4),
            Column("of a constant's", times_constant, digits=2),
            Column("outputs at 0", lambda r: r["learnt"]["zeros"], percent=True, digits=1),
            Column("first step", lambda r: r["first_step_s"], digits=2, unit="s"),
            Column("memory", lambda r: r["peak_mib"], unit="MiB"),
            Column("device memory", lambda r: r["device_peak_mib"], unit="MiB"),
        ),
        note=f"The document's seconds are of one epoch of {CNN_EXAMPLES:,} maps.",
    ),
    Table(
        "inference",
        "Inference of so many samples in one call",
        tuple(Column(f"{samples}", at("inference_ms", samples), digits=2, unit="ms") for samples in SAMPLES),
    ),
    Table(
        "proportions",
        "A whole training and its parts",
        (
            Column("step", lambda r: r["step_ms"], digits=2, unit="ms"),
            Column("two epochs over one", lambda r: r["epochs_ratio"], digits=4),
            Column("total over epochs x steps x step", lambda r: r["steps_ratio"], digits=4),
        ),
    ),
    Table(
        "parallel",
        "Data parallelism",
        (
            Column("epoch on the whole device", lambda r: r["parallel"][0]["epoch_s"], digits=2, unit="s"),
            Column("mirrored", halves("mirrored", "epoch_s"), digits=2, unit="s"),
            Column("central", halves("central", "epoch_s"), digits=2, unit="s"),
            Column("losses differ, mirrored", halves("mirrored", "loss_difference"), digits=None),
            Column("central", halves("central", "loss_difference"), digits=None),
        ),
        note="The halves are those of one processor; what must hold is that the losses are one device's. Unlike devices are further down.",
    ),
)

CHARTS = (
    Chart(
        "a parameter",
        "Time of a training step for each parameter",
        "mlp",
        nanoseconds,
        "ns a parameter",
        kind="lines",
        x=lambda row: row.settings["parameters"],
        xlabel="parameters",
        series=lambda row: ("one", "two", "three")[row.settings["layers"] - 1] + " hidden",
        logx=True,
        logy=True,
    ),
    Chart(
        "cnn",
        "Images per second in training, by batch",
        "cnn",
        images,
        "images per second",
        kind="lines",
        x=lambda row: row.settings["batch"],
        xlabel="batch",
        series=lambda row: "",
        logx=True,
        logy=True,
    ),
)


def good(results, key):
    """Return the results without an error that have `key`."""
    return [result for result in results if "error" not in result and key in result]


def learns(results, reference):
    """Predictions are neither all equal nor all zero, and after enough steps they are better than a constant."""
    verdicts = []
    for result in good(results, "learnt"):
        found = result["learnt"]
        alive = found["zeros"] < 1 and found["deviation"] > 0
        text = f"{found['zeros']:.1%} of the predictions are 0, their deviation is {found['deviation']:.2g} kW/m²"
        if found["steps"] >= ENOUGH_STEPS:
            text += f"; after {found['steps']} steps the loss is {found['loss']:.4g}, a constant's {found['constant_loss']:.4g}"
            alive = alive and found["loss"] < found["constant_loss"]
        verdicts.append(verdict(result, "learns", alive, text))
    return verdicts


def under_a_second(results, reference):
    """Inference takes less than a second: always of few samples, and of more unless the reference needs as long on the same machine."""
    theirs = {result["row"]: result["inference_ms"] for result in good(results, "inference_ms") if result["backend"] == reference}
    verdicts = []
    for result in good(results, "inference_ms"):
        if result["backend"] == reference or not result["inference_ms"]:
            continue
        late, words = [], []
        for samples, spread in result["inference_ms"].items():
            words.append(f"{samples} in {spread['median']:.4g} ms")
            other = theirs.get(result["row"], {}).get(samples)
            excused = int(samples) > QUICKLY and other and (spread["median"] <= other["median"] or not differ(spread, other))
            if spread["median"] >= SECOND and not excused:
                late.append(samples)
        text = f"samples: {', '.join(words)}" + (f"; a second or more for {', '.join(late)}" if late else "")
        verdicts.append(verdict(result, "inference in time", not late, text))
    return verdicts


def proportional(results, reference):
    """Two epochs take twice as long as one, and a training as long as its steps."""
    verdicts = []
    for result in good(results, "steps_ratio"):
        if result["backend"] == reference:
            continue
        epochs, steps = result["epochs_ratio"], result["steps_ratio"]
        passed = abs(epochs / 2 - 1) <= RATIO and abs(steps - 1) <= RATIO
        text = f"two epochs take {epochs:.3f} times as long as one, all {steps:.3f} times as long as their steps; {RATIO:.0%} off allowed"
        verdicts.append(verdict(result, "total is steps times step", passed, text))
    return verdicts


def same_losses(results, reference):
    """Training on several devices has the losses of one."""
    verdicts = []
    for result in good(results, "parallel"):
        differences = {f"{way['variables']} on {', '.join(way['devices'])}": way["loss_difference"] for way in several(result)}
        passed = bool(differences) and all(difference <= FIRST_TOLERANCE for difference in differences.values())
        text = "; ".join(f"{way}: losses differ by at most {difference:.1e}" for way, difference in differences.items())
        verdicts.append(verdict(result, "data parallelism", passed, f"{text or 'one device only'}; {FIRST_TOLERANCE:.0e} allowed"))
    return verdicts


def fails_clearly(results, reference):
    """A net that does not run says that memory is short, with the bytes that it needs and those that there are."""
    verdicts = []
    for result in results:
        if "error" in result and result["row"] in NETS and result["backend"] != reference:
            clear = "OutOfMemory" in result["error"] and "available" in result["error"]
            verdicts.append(verdict(result, "runs, or says what memory it lacks", clear, result["error"]))
    return verdicts


def widths(results):
    """Return the table of where a wide layer costs more than its parameters: a deeper net with more of them is faster."""
    timed = {(result["backend"], result["row"]): result["step_ms"] for result in good(results, "learnt") if result["row"] in NETS}
    lines = []
    for backend in dict.fromkeys(backend for backend, _ in timed):
        lines.append(_narrowest(backend, {name: spread for (other, name), spread in timed.items() if other == backend}))
    for device, wide, deep in NOTICED:
        lines.append([f"{device} (document)", wide, parameters(NETS[wide]), None, deep, deep and parameters(NETS[deep]), None])
    head = ["backend", "narrowest layer", "its parameters", "ms per step", "faster net", "its parameters", "ms per step"]
    return [("How wide until a layer costs more than its parameters", head, lines)] if timed else []


def _narrowest(backend, times):
    for wide in (name for name in times if len(NETS[name]) == 1):
        larger = [name for name in times if len(NETS[name]) > 1 and parameters(NETS[name]) > parameters(NETS[wide])]
        faster = [name for name in larger if times[name]["median"] < times[wide]["median"] and differ(times[name], times[wide])]
        if faster:
            deep = max(faster, key=lambda name: parameters(NETS[name]))
            return [backend, wide, parameters(NETS[wide]), times[wide], deep, parameters(NETS[deep]), times[deep]]
    return [backend, "none", None, None, None, None, None]


def devices(results):
    """Return the table of what the backends computed on."""
    found = {result["backend"]: result["device_facts"] for result in good(results, "device_facts")}
    lines = [[backend, facts["name"], facts["units"], facts["clock_mhz"], facts["memory_mib"]] for backend, facts in found.items()]
    return [("Devices", ["backend", "name", "compute units", "MHz", "MiB"], lines)] if lines else []


def strategies(results):
    """Return the tables of data-parallel training: what each way takes, and what of the document's finding holds here."""
    tables = []
    for result in good(results, "parallel"):
        alone = {way["devices"][0]: way for way in result["parallel"] if len(way["devices"]) == 1}
        whole, lines, held = result["parallel"][0], [], []
        for way in result["parallel"]:
            names, kind = ", ".join(way["devices"]), way["variables"] if way in several(result) else "one device"
            lines.append([names, kind, way["epoch_s"], ratio(whole, way), way["losses"][-1], way["loss_difference"]])
        for way in several(result):
            fastest = min((alone[name] for name in way["devices"] if name in alone), key=seconds, default=whole)
            text = f"{way['variables']} on {', '.join(way['devices'])}"
            held.append([f"{text} beats {fastest['devices'][0]} alone", "yes", yes(way, fastest), ratio(fastest, way)])
            other = next((w for w in several(result) if w["devices"] == way["devices"] and w["variables"] == "central"), None)
            if way["variables"] == "mirrored" and other is not None:
                held.append([f"{text} beats central", "yes", yes(way, other), ratio(other, way)])
        head = ["devices", "variables", "s per epoch", "times as fast as the whole device", "last loss", "losses differ"]
        tables.append((f"{result['row']}, {result['backend']}", head, lines))
        tables.append(("The document's finding about several devices", ["finding", "document", "here", "times as fast"], held))
    return tables


def seconds(way):
    return way["epoch_s"]["median"]


def ratio(slow, fast):
    return seconds(slow) / seconds(fast)


def yes(fast, slow):
    """Return whether one way is faster than another, in a word; "neither" where they differ by no more than they vary."""
    if not differ(fast["epoch_s"], slow["epoch_s"]):
        return "neither"
    return "yes" if seconds(fast) < seconds(slow) else "no"


def profiles(results):
    """Return the tables of time and memory by operation, of the nets that were profiled."""
    return [operations.table(result, kind, "operation") for result in good(results, "operations") for kind in result["operations"]]


STUDY = Study(
    name="solar",
    title="Solar irradiance: training and inference by width, batch and device",
    source=(
        "Martín López, Time evaluation of neural networks training and inference on heterogeneous hardware platforms, master's thesis, "
        "Universidad Complutense de Madrid, 2019"
    ),
    rows=ROWS,
    tables=TABLES,
    charts=CHARTS,
    criteria=(learns, no_slower, under_a_second, proportional, first_steps, same_losses, fails_clearly, operations.predicted),
    extra=(widths, devices, strategies, profiles),
    notes=(
        "Most of the document's CNN runs on the laboratory's GPUs have one and the same loss at every batch size, as a dead output ReLU "
        "gives it; here that output's bias starts at 0.5 kW/m², the learning rate of Adam is a tenth of its usual "
        "one, and a run whose predictions are all equal or zero fails.",
        "The document derives the time of inference of N samples from one evaluation of 45,322; here each call is measured.",
        "The document's seconds are those of the tables that its author published. At batch 512 the GTX1080 is 5.2 times as fast as the "
        "GTX950M in them, almost three times in the text.",
        "How the document makes 50 features of its sensors is not stated: here, the newest readings of 17 sensors, ten seconds apart.",
        "The document finds that several devices with any strategy beat one, and mirrored variables central ones. Its one device trains "
        "the larger CNN on more maps; its central variables lie on the processor, here on the first device of the set.",
        "The document's distributed CNN ends in a softmax of width 1, which is always 1; here it ends in the ReLU of the CNN.",
        "The document has no figures for 25600-12800 and 25600-12800-6656, nor for three layers on the GTX1080 but the one in its text.",
    ),
)
