"""The report of `python -m comparisons.gpu` as Markdown: tables, ratios to the other frameworks, and whether the marks are met."""

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from comparisons import gpu_cases

OTHERS = ("torch", "jax")
NAMES = {"ocl": "keras_ocl", "torch": "PyTorch", "jax": "JAX"}


class Mark(NamedTuple):
    """What should be reached, in words, and {case: ratio} of what it is judged by: the geometric mean of the ratios against `wanted`."""

    text: str
    wanted: float
    ratios: dict

    @property
    def mean(self):
        return geometric_mean(self.ratios.values())

    @property
    def verdict(self):
        if not self.ratios:
            return "not measured"
        return "met" if self.mean >= self.wanted else "MISSED"


def geometric_mean(values):
    """The geometric mean; NaN of nothing."""
    values = list(values)
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def read(path):
    """The rows of a file, without a last line that was cut off."""
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def latest(rows):
    """{(stage, case, backend, precision): row}: the last of each, but none without a figure in the place of one with it."""
    found = {}
    for row in rows:
        key = row["stage"], row["case"], row["backend"], row["precision"]
        if key not in found or "ms" in row or "ms" not in found[key]:
            found[key] = row
    return found


def line(row):
    """A row in a line of text."""
    if "ms" in row:
        more = [f"{row['tflops']:.3g} TFLOP/s, error {row['error']:.1e}"] if "tflops" in row else [f"loss {row['loss']:.4f}"]
        text = ", ".join([f"{row['ms']:.4g} ms", *more])
    elif "left_out" in row:
        cases = Counter(name for name, _ in row["left_out"])
        text = f"no time for {len(row['left_out'])} cases: " + "; ".join(f"{name} ({count})" for name, count in cases.items())
    else:
        reasons = [f"{key}: {row[key]}" for key in ("failed", "skipped", "verdict") if key in row]
        others = {key: value for key, value in row.items() if key not in ("stage", "backend", "case", "precision", "traits", "extensions")}
        text = reasons[0] if reasons else ", ".join(f"{key} {value}" for key, value in others.items())
    return f"{', '.join(filter(None, (row['case'], row['precision'])))}: {text}"


class Figures:
    """The rows of a run, asked by case."""

    def __init__(self, rows):
        self.rows = latest(rows)

    def of(self, stage):
        """The rows of a stage."""
        return [row for (of, *_), row in self.rows.items() if of == stage]

    def get(self, stage, case, backend, precision):
        """The row with a figure of a case, None where there is none."""
        row = self.rows.get((stage, case, backend, precision), {})
        return row if "ms" in row else None

    def right(self, row):
        """Whether a figure is of right results: the error of an operation, or of a training its loss beside that in float32."""
        if row is None or row["stage"] != "fit":
            return row is not None and row["error"] <= gpu_cases.ERRORS[row["precision"]]
        if not math.isfinite(row["loss"]):
            return False
        reference = self.get("fit", row["case"], "ocl", "float32") or row
        return abs(row["loss"] - reference["loss"]) <= gpu_cases.LOSS * abs(reference["loss"])

    def ms(self, stage, case, backend, precision):
        """Milliseconds of a case with right results, None where there are none."""
        row = self.get(stage, case, backend, precision)
        return row["ms"] if self.right(row) else None

    def best(self, stage, case, precision):
        """Milliseconds of the best other framework in the same precision; None where none has the case.

        What a framework does by default counts beside TF32, which that is in JAX, and in PyTorch's convolutions.
        """
        same = ("tf32", "default") if precision == "tf32" else (precision,)
        found = [self.ms(stage, case, backend, name) for backend in OTHERS for name in same]
        return min(filter(None, found), default=None)

    def ratios(self, stage, precision, part=""):
        """{case: how many times as fast as the best other} of the cases whose names begin with `part`."""
        found = {}
        for row in self.of(stage):
            if row["backend"] == "ocl" and row["precision"] == precision and row["case"].startswith(part):
                best, ours = self.best(stage, row["case"], precision), self.ms(stage, row["case"], "ocl", precision)
                if best and "ms" in row:
                    found[row["case"]] = best / ours if ours else math.ulp(0.0)  # wrong results reach no mark
        return found


def marks(figures):
    """What should be reached on a GPU, as a list of Marks."""
    from comparisons.gpu_networks import NETWORKS, SHORT

    found = []
    for precision in ("bfloat16", "float16", "tf32"):
        found.append(Mark(f"products in {precision}: 55 % of the best other", 0.55, figures.ratios("products", precision)))
    for precision in ("bfloat16", "float16"):
        found.append(Mark(f"attention in {precision}: half of the best other", 0.5, figures.ratios("operations", precision, "attention")))
    policy, to_jax, to_float32 = "mixed_bfloat16", {}, {}
    for name in (name for name, network in (NETWORKS | SHORT).items() if network.large):
        row = figures.get("fit", name, "ocl", policy)
        if row is None:
            continue
        ours = row["ms"] if figures.right(row) else math.inf
        for ratios, backend, precision in ((to_jax, "jax", policy), (to_float32, "ocl", "float32")):
            if theirs := figures.ms("fit", name, backend, precision):
                ratios[name] = theirs / ours or math.ulp(0.0)
    found.append(Mark(f"fit of large networks in {policy}: as fast as Keras on JAX", 1, to_jax))
    found.append(Mark(f"fit of large networks in {policy}: 1.5 times as fast as in float32", 1.5, to_float32))
    return found


def _table(head, rows):
    aligned = ["---"] + ["---:"] * (len(head) - 1)
    return ["| " + " | ".join(map(str, cells)).replace("\n", " ") + " |" for cells in (head, aligned, *rows)] + [""]


def _head(figures):
    """The lines about what was measured."""
    rows = figures.of("driver") + figures.of("run")
    told = {key: value for row in rows for key, value in row.items()}
    lines = ["# A GPU in a few minutes", ""]
    lines.append(f"- {told.get('date', 'no date')}, {told.get('minutes', '?')} minutes" + (", the short form" if told.get("short") else ""))
    lines.append(f"- {told.get('model', 'the device is not known')} ({told.get('platform', '?')}, driver {told.get('driver', '?')})")
    lines.append("- " + ", ".join(f"{name} {version}" for name, version in told.get("versions", {}).items()))
    lines += [f"- {line(row)}" for row in figures.of("driver") if "verdict" in row]
    if "traits" in told:
        lines.append("- traits: " + ", ".join(f"{name} {value}" for name, value in told["traits"].items()))
    if "extensions" in told:
        lines.append("- extensions: " + " ".join(told["extensions"]))
    return [*lines, ""]


def _marks(figures):
    rows = []
    for mark in marks(figures):
        worst = min(mark.ratios, key=mark.ratios.get, default="")
        shown = (f"{mark.mean:.2f}", f"{mark.ratios[worst]:.2f}, {worst}") if worst else ("", "")
        rows.append((mark.text, mark.verdict, *shown, len(mark.ratios)))
    return ["## Marks", "", *_table(("mark", "verdict", "geometric mean", "worst", "cases"), rows)]


def _stage(figures, stage, title, head, cell, more):
    """The table of a stage: a line for each case and precision with a figure on some backend, and the geometric means of the ratios.

    cell(row) is the text of a figure, more({backend: row or None}) the last cells of a line; `head` is of the first and of those.
    """
    cases = list(dict.fromkeys((row["case"], row["precision"]) for row in figures.of(stage) if "ms" in row))
    names = list(dict.fromkeys(case for case, _ in cases))
    rows, ratios = [], {}
    for case, precision in sorted(cases, key=lambda found: names.index(found[0])):
        found = {backend: figures.get(stage, case, backend, precision) for backend in gpu_cases.BACKENDS}
        ratio = figures.ratios(stage, precision).get(case)
        if ratio is not None:
            ratios.setdefault(precision, []).append(ratio)
        cells = ["" if row is None else cell(row) + ("" if figures.right(row) else " WRONG") for row in found.values()]
        rows.append((f"{case}, {precision}", *cells, "" if ratio is None else f"{ratio:.2f}", *more(found)))
    first, *last = head
    table = _table((first, *NAMES.values(), "speed, of the best other", *last), rows) if rows else ["nothing measured", ""]
    return [f"## {title}", "", *table, *_means(ratios)]


def _operations(figures, stage, title):
    def more(found):
        ours = found["ocl"]
        return (f"{ours['error']:.1e}", f"{ours.get('units', 0):.0%}") if ours else ("", "")

    head = "TFLOP/s", "our error", "on matrix units"
    return _stage(figures, stage, title, head, lambda row: f"{row['tflops']:.4g}", more)


def _fit(figures):
    def more(found):
        return [" / ".join("-" if row is None else f"{row[key]:.4g}" for row in found.values()) for key in ("first_step_s", "loss")]

    head = "ms per step", "first step, s", "loss"
    return _stage(figures, "fit", "Training", head, lambda row: f"{row['ms']:.4g}", more)


def _means(ratios):
    lines = [f"- {precision}: {geometric_mean(some):.2f}, the geometric mean of {len(some)}" for precision, some in ratios.items()]
    return [*lines, ""] if lines else []


def _remarks(figures):
    """What failed, was skipped or left out, and the tests."""
    told = [(stage, row) for (stage, *_), row in figures.rows.items() if {"failed", "skipped", "left_out"} & row.keys()]
    lines = [f"- {stage}, {NAMES.get(row['backend'], row['backend'])}: {line(row)}" for stage, row in told]
    lines += [f"- tests: {line(row)}" for row in figures.of("tests") if "passed" in row]
    return ["## What failed or was left out, and tests", "", *(lines or ["nothing"]), ""]


def report(rows):
    """The report of rows of figures.jsonl, as Markdown."""
    figures = Figures(rows)
    return "\n".join(
        [
            *_head(figures),
            *_marks(figures),
            *_operations(figures, "products", "Products"),
            *_operations(figures, "operations", "Attention and convolutions"),
            *_fit(figures),
            *_remarks(figures),
        ]
    )


def write(folder):
    """Write FOLDER/report.md from FOLDER/figures.jsonl; return its text."""
    text = report(read(Path(folder) / "figures.jsonl"))
    (Path(folder) / "report.md").write_text(text)
    return text
