"""CNNs on heterogeneous systems: five networks, one compute unit against all, times of layers, and whether backends compute the same."""

import math
import statistics
from dataclasses import replace

from comparisons.criteria import compared, no_slower, relative_differences, verdict, worst_differences
from comparisons.measures import differ
from comparisons.studies.equivalence import SHAKE, gradient_distance, losses_distance, output_distance
from comparisons.study import Chart, Column, Extent, Row, Study, Table

BATCH = 32
MODELS = {  # label: (function of models.cnn, pixels on a side, training images, parameters inferred from the document)
    "smaller": ("smaller", 32, 1000, None),
    "Model 0": ("model_0", 32, 1000, 210_998),
    "Model 1": ("model_1", 40, 1000, 326_198),
    "Model 2": ("model_2", 40, 2000, 123_824),
    "larger": ("larger", 40, 2000, None),
}
SEQUENTIAL_S, OPENMP_S = 101.0, 12.76  # seconds per epoch of Model 0, the only ones that the document has

# The document's Table 5.1, milliseconds: cuDNN, CUDA. GPU, batch and the layers' sizes are not stated.
LAYERS = {
    "Conv_fwd_0": (0.005, 0.009),
    "Conv_back_0": (0.032, 0.044),
    "Pool_fwd_0": (0.003, 0.005),
    "Pool_back_0": (0.01, 0.023),
    "Conv_fwd_1": (0.02, 0.022),
    "Conv_back_1": (0.065, 0.16),
    "Pool_fwd_1": (0.0029, 0.0039),
    "Pool_back_1": (0.014, 0.025),
    "Conv_fwd_2": (0.023, 0.018),
    "Conv_back_2": (0.047, 0.018),
    "Pool_fwd_2": (0.032, 0.023),
    "Pool_back_2": (0.0057, 0.023),
}

# One compute unit: a part of the OpenCL device, one thread of the others.
ONE_UNIT = {
    "ocl": {"KERAS_OCL_DEVICE": "/units=1"},
    "tensorflow": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
    "torch": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "jax": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"},
}
SPLIT = ("Model 0", "Model 1", "Model 2")  # the models that the document runs sequentially and on eight threads
PROFILED = ("Model 2", "larger")  # those with three stages, as the document's Table 5.1 has
PRODUCTS = "matrix products"
LARGE_PRODUCT = 1e6  # multiply-adds; of smaller products the start of a kernel is most of what is timed
VARIANTS = {"v1": "one group", "v2": "one group, local memory", "v3": "tiles", "v4": "tiles, local memory"}

OUTPUTS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4  # allowed: of a probability; relative to a gradient's norm; relative to a loss
RANKS_STEPS = 5  # a ReLU or a maximum that rounding decides may part ranks from one at the eighth, as it parts one core from two
FIRST_STEPS, STEPS = 10, 60  # of which losses are compared; the second is about an epoch of two thousand images
RANKS = (1, 2, 3, 4)  # as far as there are cores
PARALLEL_STEPS = 5  # of data-parallel training whose losses are compared, from a single start
CHAOS = 2.0  # times the distance that rounding makes in STEPS steps, that ours may be from the reference's losses


def row(label, table="models", suffix="", **keywords):
    """Return the Row of a model; `suffix` goes behind its name, `keywords` are the Row's."""
    function, size, images, _ = MODELS[label]
    settings = {"model": label, "steps": STEPS} | keywords.pop("settings", {})
    return Row(
        name=label + suffix,
        table=table,
        model=f"cnn:{function}",
        data="cifar10:load",
        data_options={"size": size},
        batch=BATCH,
        quick=Extent(epochs=3, repeats=3, examples=images, test_examples=images // 2),
        full=Extent(epochs=20, repeats=5, examples=images, test_examples=images // 2),
        settings=settings,
        **keywords,
    )


def trained(label):
    """Return the Row that trains a model on all compute units, and compares backends."""
    ours = "The document measures a smaller and a larger model without giving their layers: these are ours."
    return row(
        label,
        measures=("measures:train", "measures:predict", "studies.equivalence:measure"),
        parameters=MODELS[label][3],
        document={"sequential s per epoch": SEQUENTIAL_S, "OpenMP, 8 threads, s per epoch": OPENMP_S} if label == "Model 0" else {},
        note=ours if label in ("smaller", "larger") else "",
    )


def one_unit(label):
    """Return the Row that trains a model on one compute unit."""
    return row(label, "units", ", one unit", measures=("measures:train",), environment=ONE_UNIT)


def by_layer(label):
    """Return the Row that profiles a model; whole batches only, so that all steps are alike."""
    made = row(label, "layers", ", by layer", measures=("studies.layer_times:measure",), only=("ocl",))
    extent = replace(made.full, epochs=1, examples=MODELS[label][2] // BATCH * BATCH)
    return replace(made, quick=extent, full=extent)


def in_parallel(label):
    """Return the Row that trains a model data-parallel on the halves of its device.

    The gradients of shares are weighted and summed up to the batch's mean, so the learning rate is BATCH times as large for the same steps.
    """
    rate = BATCH * (0.00001 if label == "Model 2" else 0.001)
    made = row(
        label,
        "parallel",
        ", data-parallel",
        options={"reduction": "sum_over_batch_size", "learning_rate": rate},
        measures=("studies.parallel:measure",),
        only=("ocl",),
        settings={"parts": [2]},
    )
    return replace(made, quick=Extent(epochs=3, repeats=1), full=Extent(epochs=10, repeats=1))


def on_ranks(label):
    """Return the Row that trains a model on ranks with a core each, which divide each mini-batch: the document's Algorithm 2."""
    made = row(label, "ranks", ", ranks", measures=("studies.ranks:measure",), only=("ocl",), settings={"ranks": list(RANKS)})
    return replace(made, quick=Extent(epochs=5, repeats=1, examples=MODELS[label][2]), full=Extent(epochs=20, repeats=1))


def products():
    """Return the Row of the matrix products; it needs no network, so it has the smallest."""
    return Row(
        name=PRODUCTS,
        table="products",
        model="dense:xor",
        data="xor:load",
        batch=4,
        quick=Extent(repeats=3),
        full=Extent(repeats=7),
        measures=("studies.gemm_variants:measure",),
    )


def distances(result, base):
    """Return the distances of a result from the reference's: {"outputs", "gradients", "first losses": [one per start]}."""
    starts = list(zip(result["equivalence"], base["equivalence"], strict=True))
    return {
        "outputs": [output_distance(*start) for start in starts],
        "gradients": [gradient_distance(*start) for start in starts],
        "first losses": worst_differences(result, base, FIRST_STEPS),
    }


def equivalent(results, reference):
    """Outputs, gradients and the first losses are the reference's from the median start, all losses as far as rounding lets them.

    Not from the worst: where a rounding error decides a ReLU or a maximum, two exact formulas part by more than rounding.
    """
    verdicts = []
    for result, base in compared(results, reference, MODELS):
        for (what, values), allowed in zip(distances(result, base).items(), (OUTPUTS, GRADIENTS, LOSSES), strict=True):
            middle = statistics.median(values)
            text = f"{what} differ by {middle:.1e} from {reference}'s, {allowed:.0e} allowed (worst start: {max(values):.1e})"
            verdicts.append(verdict(result, f"same {what}", middle <= allowed, text))
        apart = losses_distance(result["step_losses"], base["step_losses"])
        chaos = losses_distance(base["shaken_losses"], base["step_losses"])
        allowed = max(LOSSES, CHAOS * chaos)
        text = (
            f"losses of {len(base['step_losses'][0])} steps are {apart:.1e} from {reference}'s (root mean square), {allowed:.1e} allowed; "
            f"weights changed by {SHAKE:.0e} take {reference} {chaos:.1e} from itself"
        )
        verdicts.append(verdict(result, "same losses", apart <= allowed, text))
    return verdicts


def parameters_counted(results, reference):
    """The models have as many parameters as the document's layers give."""
    expected = {row.name: row.parameters for row in ROWS if row.table == "models" and row.parameters}
    return [
        verdict(r, "parameters", r["parameters"] == expected[r["row"]], f"{r['parameters']:,}, {expected[r['row']]:,} expected")
        for r in results
        if "error" not in r and r["row"] in expected
    ]


def equivalence_table(results):
    """How far each backend's outputs, gradients and losses are from TensorFlow's."""
    lines = []
    for result, base in compared(results, "tensorflow", MODELS):
        worst = [max(values) for values in distances(result, base).values()]
        apart = losses_distance(result["step_losses"], base["step_losses"])
        lines.append([result["row"], result["backend"], *worst, apart, losses_distance(base["shaken_losses"], base["step_losses"])])
    head = ["row", "backend", "outputs", "gradients", f"losses, {FIRST_STEPS} steps", f"{STEPS} steps", f"weights {SHAKE:.0e} off"]
    return [("Largest differences from TensorFlow", head, lines)] if lines else []


def speed_up(results):
    """The time of an epoch on one compute unit over that on all, where both ran on the same processor."""
    good = {(r["row"], r["backend"]): r for r in results if "error" not in r}
    lines = []
    for label in SPLIT:
        for backend in dict.fromkeys(r["backend"] for r in results):
            one, everything = good.get((one_unit(label).name, backend)), good.get((label, backend))
            if one is not None and everything is not None:
                gain = one["epoch_s"]["median"] / everything["epoch_s"]["median"]
                lines.append([label, backend, one["epoch_s"], everything["epoch_s"], gain, one["device"], everything["device"]])
    head = ["model", "backend", "one unit, s per epoch", "all units, s per epoch", "speed-up", "one unit of", "all units of"]
    return [("One compute unit against all", head, lines)] if lines else []


def first_losses_distance(way, whole):
    """Return the largest relative difference of the losses of the first steps of two ways to train (see studies.parallel)."""
    return max(relative_differences(way["losses"][:PARALLEL_STEPS], whole["losses"][:PARALLEL_STEPS]))


def parallel_table(results):
    """Data-parallel training next to the whole device."""
    lines = []
    for result in results:
        whole, *ways = result.get("parallel", [None])
        for way in ways:
            gain = whole["epoch_s"]["median"] / way["epoch_s"]["median"]
            where = ", ".join(way["devices"])
            apart = first_losses_distance(way, whole)
            lines.append([MODEL_OF[result["row"]], where, way["variables"], way["epoch_s"], whole["epoch_s"], gain, apart])
    head = ["model", "devices", "variables", "s per epoch", "whole device, s", "speed-up", f"losses, {PARALLEL_STEPS} steps"]
    return [("Data parallelism over parts of a device", head, lines)] if lines else []


def parallel_equivalent(results, reference):
    """Data-parallel training has the losses of the whole device, for as many steps as rounding cannot part them."""
    verdicts = []
    for result in results:
        whole, *ways = result.get("parallel", [None])
        for way in ways:
            apart, name = first_losses_distance(way, whole), f"{way['variables']}, {', '.join(way['devices'])}"
            text = f"losses of {PARALLEL_STEPS} steps differ by {apart:.1e} from one device's, {LOSSES:.0e} allowed"
            verdicts.append(verdict(result, name, apart <= LOSSES, text))
    return verdicts


def ranks_table(results):
    """Training on several ranks next to one, of which each has a core."""
    lines = []
    for result in results:
        for found in result.get("ranks", ()):
            one, ranks = result["ranks"][0], found["ranks"]
            gain = one["epoch_s"]["median"] / found["epoch_s"]["median"]
            apart = (max(relative_differences(found["losses"][:n], one["losses"][:n])) for n in (RANKS_STEPS, STEPS))
            lines.append([MODEL_OF[result["row"]], ranks, found["epoch_s"], gain, gain / ranks, *apart])
    head = ["model", "ranks", "s per epoch", "speed-up", "efficiency", f"losses apart, {RANKS_STEPS} steps", f"{STEPS} steps"]
    return [("Mini-batches divided among ranks with a core each", head, lines)] if lines else []


def ranks_equivalent(results, reference):
    """Ranks that divide mini-batches have the losses of one, for as many steps as rounding cannot part them."""
    verdicts = []
    for result in results:
        for found in result.get("ranks", [None])[1:]:
            apart = max(relative_differences(found["losses"][:RANKS_STEPS], result["ranks"][0]["losses"][:RANKS_STEPS]))
            text = f"losses of {RANKS_STEPS} steps differ by {apart:.1e} from one rank's, {LOSSES:.0e} allowed"
            verdicts.append(verdict(result, f"{found['ranks']} ranks", apart <= LOSSES, text))
    return verdicts


def layer_table(results):
    """Table 5.1 of the document: milliseconds per step in each convolution and pool."""
    good = {(r["row"], r["backend"]): r for r in results if "layer_ms" in r}
    if not good:
        return []
    lines = [[name, *(r["layer_ms"].get(name) for r in good.values()), *figures] for name, figures in LAYERS.items()]
    measured = [r["layer_ms"] for r in good.values()]
    sums = [sum(layers[name]["median"] for name in LAYERS if name in layers) for layers in measured]
    lines.append(["sum", *sums, *(sum(column) for column in zip(*LAYERS.values(), strict=True))])
    ours = [f"{MODEL_OF[name]}, {backend}, batch {r['batch_size']}" for (name, backend), r in good.items()]
    return [("Convolutions and pools, milliseconds per step", ["operation", *ours, *DOCUMENT_LAYERS], lines)]


def product_table(results):
    """Matrix products: the document's four kernels, then each backend's own; GFLOP/s."""
    found = {r["backend"]: r["gemm"] for r in results if "gemm" in r}
    if not found:
        return []
    columns = [(b, v) for v in (*VARIANTS, "matmul") for b, sizes in found.items() if any(v in each for each in sizes.values())]
    sizes = list(dict.fromkeys(size for each in found.values() for size in each))
    lines = []
    for size in sizes:
        cells = (found[backend].get(size, {}).get(variant, {}) for backend, variant in columns)
        lines.append([size, *(cell.get("gflops", "refused" if "refused" in cell else None) for cell in cells)])
    head = [f"{backend}'s own" if variant == "matmul" else f"{variant}: {VARIANTS[variant]}" for backend, variant in columns]
    return [("Matrix products, GFLOP/s", ["m x k x n", *head], lines)]


def products_tuned(results, reference):
    """The backend's own large products are no slower than any of the document's kernels, as far as the spreads tell."""
    verdicts = []
    for result in results:
        for size, variants in result.get("gemm", {}).items():
            own = variants["matmul"]["gflops"]
            tuned = {name: variant["gflops"] for name, variant in variants.items() if name != "matmul" and "gflops" in variant}
            if tuned and math.prod(map(int, size.split("x"))) >= LARGE_PRODUCT:
                best = max(tuned, key=lambda name: tuned[name]["median"])
                slower = own["median"] < tuned[best]["median"] and differ(own, tuned[best])
                text = f"{size}: {own['median']:.1f} GFLOP/s, the best of the document's kernels ({best}) {tuned[best]['median']:.1f}"
                verdicts.append(verdict(result, f"product {size}", not slower, text))
    return verdicts


ROWS = (*map(trained, MODELS), *map(one_unit, SPLIT), *map(in_parallel, SPLIT), *map(on_ranks, SPLIT), *map(by_layer, PROFILED), products())
MODEL_OF = {row.name: row.settings["model"] for row in ROWS if "model" in row.settings}
DOCUMENT_LAYERS = ("document: cuDNN, not comparable", "document: CUDA, not comparable")

STUDY = Study(
    name="cnn",
    title="CNNs on heterogeneous systems",
    source="Optimised implementation on heterogeneous systems of deep learning algorithms, bachelor's thesis, University of Granada 2024",
    rows=ROWS,
    tables=(
        Table(
            "models",
            "Models 0 to 2, a smaller and a larger one",
            (
                Column("per epoch", lambda r: r["epoch_s"], 3, "s"),
                Column("a step", lambda r: r["fit_ms"], 2, "ms"),
                Column("first step", lambda r: r["first_step_s"], 2, "s"),
                Column("predict a batch", lambda r: r["predict_ms"], 2, "ms"),
                Column("parameters", lambda r: r["parameters"], 0),
                Column("peak memory", lambda r: r["peak_mib"], 0, "MiB"),
            ),
            "Batch 32. The document does not name its processors, so absolute times are not comparable.",
        ),
        Table(
            "units",
            "One compute unit",
            (
                Column("per epoch", lambda r: r["epoch_s"], 3, "s"),
                Column("a step", lambda r: r["fit_ms"], 2, "ms"),
                Column("device", lambda r: r["device"]),
            ),
            "OpenCL's unit is a part of the CPU (clCreateSubDevices); TensorFlow gets one thread of each of its pools.",
        ),
        Table(
            "parallel",
            "Data parallelism",
            (
                Column("whole device, an epoch", lambda r: r["parallel"][0]["epoch_s"], 3, "s"),
                Column("ways tried", lambda r: len(r["parallel"]) - 1, 0),
                Column("device", lambda r: r["device"]),
            ),
            "Batches are split over parts of the device, their gradients summed for one update. The ways are in another table.",
        ),
        Table(
            "ranks",
            "Data parallelism over ranks",
            (
                Column("one core, an epoch", lambda r: r["ranks"][0]["epoch_s"], 3, "s"),
                Column("most ranks", lambda r: r["ranks"][-1]["ranks"], 0),
                Column("not run", lambda r: "; ".join(f"{n}: {reason}" for n, reason in r["ranks_left_out"].items())),
            ),
            "The document's Algorithm 2: a mini-batch is divided among T workers, here processes with a core each, whose gradients are "
            "added up for one update. The times stand in a table of their own. Over many steps rounding takes losses apart.",
        ),
        Table(
            "layers",
            "Profiles by layer",
            (
                Column("all layers", lambda r: r["device_ms"], 2, "ms"),
                Column("batch", lambda r: r["batch_size"], 0),
                Column("steps", lambda r: r["profiled_steps"], 0),
                Column("device", lambda r: r["device"]),
            ),
            "The device's time per step, summed up over all layers.",
        ),
        Table(
            "products",
            "Matrix products",
            (Column("tile", lambda r: r["gemm_tile"], 0), Column("device", lambda r: r["device"])),
            "The times stand in a table of their own.",
        ),
    ),
    charts=(Chart("models-time", "Seconds per epoch", "models", lambda r: r["epoch_s"], "s"),),
    notes=(
        "The document does not name its images; CIFAR-10 stands in, resized to 40x40 for Models 1 and 2 and the larger model.",
        "The document does not say whether a batch's gradients are averaged or added up, on which its learning rates depend; here they are "
        "added up, as its word is accumulated. Which activation the last hidden layer has it leaves open as well: here ReLU.",
        "The document's Table 5.1 names neither its GPU nor the batch nor the layers' sizes, and most of its figures are near what "
        "starting a kernel takes; it is shown for its form. Ours divides a fused kernel's time among the layers that it computes.",
        "One figure of Table 5.1, Pool_back_2, contradicts the document's reading that layers cost less with depth.",
        "The parameter counts are inferred from the document's layers; it does not give them.",
    ),
    criteria=(parameters_counted, no_slower, equivalent, parallel_equivalent, ranks_equivalent, products_tuned),
    extra=(speed_up, parallel_table, ranks_table, layer_table, product_table, equivalence_table),
)
