"""A made-up study and its report, with whatever a report may have to show: spreads, failed rows, notes, odd names, a sweep."""

from comparisons.measures import spread
from comparisons.study import Chart, Column, Extent, Row, Study, Table

BACKENDS = ("ocl", "tensorflow", "ocl@portable")
WIDTHS = (50, 100, 200, 400, 800, 25600)
HOSTILE = "<script>document.title = 'broken'</script> & \"quoted\" | `code`"
OUT_OF_MEMORY = "needs 10,485,760,000 bytes, the device has 8,000,000,000"


def row(name, table, **keywords):
    """Return a Row that is never run."""
    none = dict(model="m:f", data="d:f", batch=100, quick=Extent(), full=Extent())
    return Row(name=name, table=table, **none | keywords)


def accuracy(result):
    """Return the mean test accuracy; None where the data are stand-ins."""
    return sum(start["test_accuracy"] for start in result["starts"]) / len(result["starts"]) if result["real"] else None


def slowest(results):
    """Return a table that no Table can express."""
    times = {(r["row"], r["backend"]): r["epoch_s"] for r in results if "error" not in r}
    lines = [[name, backend, value, value["median"] * 10] for (name, backend), value in times.items() if value["median"] > 9]
    return [("Rows over nine seconds", ["row", "backend", "s per epoch", "s, ten epochs"], lines)]


STUDY = Study(
    name="sample",
    title=f"A sample study {HOSTILE}",
    source="A thesis on dense nets, 2021",
    rows=(
        row("16", "nets", document={"OpenCL CPU s": 66.3, "Keras s": 33.8, "accuracy": 0.9367}, parameters=12730),
        row("128,128", "nets", document={"OpenCL CPU s": 246.5, "Keras s": 72.2, "accuracy": 0.9568}, note="The rate is inferred."),
        row(f"256x3 {HOSTILE}", "nets", document={"OpenCL CPU s": 1694.55, "Keras s": 155.9}, note="The rate is inferred."),
        row("only on OpenCL", "nets", only=("ocl",)),
        *(row(f"{layers}x{width}", "widths", settings={"width": width, "layers": layers}) for layers in (1, 2, 3) for width in WIDTHS),
    ),
    tables=(
        Table(
            "nets",
            "Dense nets",
            (
                Column("parameters", lambda r: r["parameters"]),
                Column("accuracy", accuracy, digits=2, percent=True),
                Column("epoch", lambda r: r["epoch_s"], unit="s"),
                Column("predict", lambda r: r["predict_ms"], digits=2, unit="ms"),
                Column("memory", lambda r: r["peak_mib"], unit="MiB"),
            ),
            note="Sigmoid nets on digits.",
        ),
        Table("widths", "Width sweep", (Column("epoch", lambda r: r["epoch_s"], unit="s"),)),
    ),
    charts=(
        Chart("nets", "Seconds per epoch", "nets", lambda r: r["epoch_s"], "s per epoch"),
        Chart(
            "widths",
            "Time by width",
            "widths",
            lambda r: r["epoch_s"],
            "s per epoch",
            kind="lines",
            x=lambda row: row.settings["width"],
            xlabel="units a layer",
            series=lambda row: f"{row.settings['layers']} hidden layers",
            logx=True,
            logy=True,
        ),
        Chart("nothing", "A chart of nothing", "nets", lambda r: None, "nothing"),
    ),
    notes=("The document's 256-unit row is off by a factor of ten.", HOSTILE),
    extra=(slowest,),
)


def result(row, backend, number):
    """Return the made-up result of a Row, the `number`th of the study: ocl is faster but in the row "128,128", where it is no different."""
    if row.settings.get("width") == WIDTHS[-1] and backend != "tensorflow":
        return {"row": row.name, "backend": backend, "error": OUT_OF_MEMORY}
    seconds = (1 + number) * {"ocl": 0.8, "tensorflow": 1.5, "ocl@portable": 2.0}[backend]
    if row.name == "128,128" and backend == "ocl":
        seconds = 1.52 * (1 + number)
    if row.settings:
        seconds *= row.settings["width"] / 100
    times = [seconds * factor for factor in (0.9, 0.97, 1.0, 1.03, 1.1)]
    once = backend == "ocl@portable"
    made = {
        "row": row.name,
        "backend": backend,
        "device": backend,
        "parameters": 12730,
        "starts": [{"test_accuracy": 0.93}, {"test_accuracy": 0.95}],
        "epoch_s": spread(times[2:3] if once else times),
        "predict_ms": spread(times),
        "peak_mib": 400 + number,
        "real": "256x3" not in row.name,
    }
    return made if made["real"] else made | {"notice": "stand-in data: accuracies are not shown"}


def report():
    """Return the report of a run of STUDY whose last row but two was not reached on one backend."""
    results = [
        result(row, backend, number)
        for number, row in enumerate(STUDY.rows)
        for backend in BACKENDS
        if (row.only is None or backend.partition("@")[0] in row.only) and (row.name, backend) != ("3x400", "tensorflow")
    ]
    return {
        "schema": 1,
        "study": "sample",
        "mode": "quick",
        "date": "2026-01-31",
        "machine": "A processor, 2 cores, Linux",
        "python": "3.12.1",
        "versions": {"keras": "3.15.1", "tensorflow": "2.20.0"},
        "reference": "tensorflow",
        "backends": list(BACKENDS),
        "devices": {"ocl": "A CPU, driver 2025.1", "tensorflow": "CPU:0", "ocl@portable": "PoCL, driver 6.0"},
        "command": "python -m comparisons study sample --quick --backends 'ocl,tensorflow,ocl@portable'",
        "results": results[::-1],
        "criteria": [
            {"row": "16", "backend": "ocl", "name": "accuracy", "passed": True, "text": "94.00% ± 1.41%, tensorflow 94.00% ± 1.41%"},
            {"row": "128,128", "backend": "ocl", "name": "time", "passed": False, "text": f"3 s {HOSTILE}"},
        ],
    }
