"""Where a step's time and memory go, by operation and by layer, as keras_ocl.profile tells it; and what profiling itself costs."""

import re
from pathlib import Path

from comparisons import measures
from comparisons.criteria import verdict

STEPS = 4  # averaged over at most so many
TURNS = 5  # epochs with and without the profile, in turns
ALLOWED = 1.2  # times as long as without

VIEWS = "operation", "layer"
HEAD = ("node name", "requested bytes", "bytes left", "own bytes", "ms", "ms left", "own ms", "device ms", "host ms")


def profile(context):
    """Profile inference and training on ocl; nothing on other backends.

    operations: {"inference" and "training": {"operation" and "layer": [{"name", "bytes", "total_ms", "device_ms", "host_ms"}, ...]}},
    averages of a step. predicted_bytes: {"inference" and "training": {view: {name: bytes}}}. batch_profiled: examples in the step.
    The reports as text, JSON, CSV and a Chrome trace are written to files of the row's name.
    """
    import keras

    if keras.config.backend() != "ocl":
        return {}
    import keras_ocl

    subject = context.subject
    steps = min(STEPS, max(1, len(subject.x) // subject.batch))
    x, y = subject.x[: steps * subject.batch], subject.y[: steps * subject.batch]
    runs = {
        "inference": lambda: subject.model.predict(x, batch_size=subject.batch, verbose=0),
        "training": lambda: subject.model.fit(x, y, batch_size=subject.batch, shuffle=False, verbose=0),
    }
    found, predicted = {}, {}
    for kind, run in runs.items():
        context.progress(f"profiling {kind}")
        run()  # traces and compiles
        with keras_ocl.profile(by="operation") as made:
            run()
        found[kind] = {view: [line(row) for row in made.table(view)] for view in VIEWS}
        predicted[kind] = {view: made.predicted_bytes(view) for view in VIEWS}
        write(made, Path(context.out, f"{re.sub('[^a-z0-9]+', '-', context.row.name.lower())}-{kind}"))
    return {"operations": found, "predicted_bytes": predicted, "batch_profiled": min(len(x), subject.batch)}


def line(row):
    """Return a keras_ocl profile's Row as a dict of JSON values."""
    return {"name": row.title} | {name: getattr(row, name) for name in ("bytes", "total_ms", "device_ms", "host_ms")}


def write(made, path):
    """Write the files of a profile, named `path` with what they are behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        made.to_json(f"{path}-{view}.json", by=view)
        made.to_csv(f"{path}-{view}.csv", by=view)
    Path(f"{path}.txt").write_text(f"{made}\n", encoding="utf-8")
    made.chrome_trace(f"{path}-trace.json.gz")


def cost(context):
    """Time epochs with and without a profile, in turns: profiled_ms and plain_ms, spreads of a step; profiling_ratio, of their minima."""
    import keras

    if keras.config.backend() != "ocl":
        return {}
    import keras_ocl

    subject, plain, profiled = context.subject, [], []
    subject.restart(0)
    subject.fit(0)
    for turn in range(TURNS):
        context.progress("timing the profile", turn, TURNS)
        plain.append(subject.fit(0)[1] / subject.steps * 1e3)
        with keras_ocl.profile(by="operation"):
            profiled.append(subject.fit(0)[1] / subject.steps * 1e3)
    return {
        "plain_ms": measures.spread(plain),
        "profiled_ms": measures.spread(profiled),
        "profiling_ratio": min(profiled) / min(plain),
    }


def share(result, name, kind="inference"):
    """Return the share of an operation in the time of all, None where the result has no profile of it."""
    lines = result.get("operations", {}).get(kind, {}).get("operation", [])
    total = sum(each["total_ms"] for each in lines)
    return sum(each["total_ms"] for each in lines if each["name"] == name) / total if total else None


def value(result, name, key, kind="inference"):
    """Return what a result's profile has by `key` ("bytes", "total_ms", ...) of an operation; None where it has no profile of it."""
    lines = result.get("operations", {}).get(kind, {}).get("operation", [])
    return next((each[key] for each in lines if each["name"] == name), None)


def table(result, kind, view):
    """Return (title, head, lines) of a result's profile in the form of TensorFlow 1's profiler.

    Each value stands with its share of this line and those below, and its own share.
    """
    lines, body = result["operations"][kind][view], []
    totals = {key: sum(each[key] for each in lines) or 1.0 for key in ("bytes", "total_ms")}
    left = dict(totals)
    for each in lines:
        asked, took = ((f"{left[key] / totals[key]:.2%}", f"{each[key] / totals[key]:.2%}") for key in totals)
        times = each["total_ms"], *took, each["device_ms"], each["host_ms"]
        body.append([each["name"], round(each["bytes"]), *asked, *times])
        left = {key: max(0.0, left[key] - each[key]) for key in totals}
    return f"{result['row']}: {kind} of {result['batch_profiled']} examples by {view}, {result['backend']}", list(HEAD), body


def predicted(results, reference):
    """The bytes that operations and layers asked for are those that their shapes foretell."""
    verdicts = []
    for result in results:
        wrong, count = [], 0
        for kind, views in result.get("predicted_bytes", {}).items():
            for view, foretold in views.items():
                asked = {each["name"]: each["bytes"] for each in result["operations"][kind][view]}
                for name, size in foretold.items():
                    count += 1
                    if asked.get(name) != size:
                        wrong.append(f"{name} ({kind}): {asked.get(name)} bytes, {size} predicted")
        if count:
            text = f"{count} operations and layers ask for the bytes predicted" if not wrong else "; ".join(wrong)
            verdicts.append(verdict(result, "predicted bytes", not wrong, text))
    return verdicts


def cheap(results, reference):
    """A step is not much slower with the profile on."""
    verdicts = []
    for result in results:
        if "profiling_ratio" in result:
            ratio = result["profiling_ratio"]
            text = f"a step takes {ratio:.3f} times as long when profiled, {ALLOWED} allowed"
            verdicts.append(verdict(result, "cost of profiling", ratio <= ALLOWED, text))
    return verdicts
