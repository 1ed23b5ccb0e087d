"""Show a report: one table in the terminal or as Markdown, and plots as PNG files."""

import statistics
from pathlib import Path

from comparisons import criteria

HEADS = [
    "script",
    "backend",
    "train\nloss",
    "test accuracy",
    "loss difference\n(steps)",
    "first step\ns",
    "fit\nms/step",
    "predict\nms/step",
    "peak\nMiB",
]
WIDTH = 120  # of a table that goes to a file or a pipe
EXTRA = "install it with: pip install 'keras-ocl[comparisons]'"


def accuracy_text(result):
    """Return a result's test accuracy: solved starts for XOR, else the mean over the starts with its deviation."""
    values = criteria.accuracies(result)
    if result["script"] == "xor":
        return f"{sum(value == 1.0 for value in values)}/{len(values)} solved"
    mean, deviation = criteria.mean_and_deviation(values)
    return f"{mean:.2%}" + (f" ± {deviation:.2%}" if len(values) > 1 else "")


def difference_text(result, base):
    """Return the largest relative difference of the per-step losses to the reference: median over the starts, ten steps and all."""
    steps = criteria.recorded_steps(result, base) if base else 0
    if not steps:
        return "-"
    if result is base:
        return "reference"
    first = min(steps, criteria.FIRST_STEPS)
    return "\n".join(f"{statistics.median(criteria.worst_differences(result, base, n)):.1e} ({n})" for n in (first, steps))


def rows(report):
    """Return the table as lists of text, one per result, in the order of HEADS."""
    good = {(r["script"], r["backend"]): r for r in report["results"] if "error" not in r and r["floatx"] == "float32"}
    table = []
    for result in report["results"]:
        name = result["backend"] + (" float64" if result["floatx"] == "float64" else "")
        if "error" in result:
            table.append([result["script"], name, "failed"] + ["-"] * (len(HEADS) - 3))
            continue
        row = [result["script"], name]
        if "starts" in result:
            losses = [start["train_loss"][-1] for start in result["starts"]]
            row += [f"{sum(losses) / len(losses):.4f}", accuracy_text(result)]
        else:
            row += ["-", "-"]
        row.append(difference_text(result, good.get((result["script"], report["reference"]))))
        for key, digits in (("first_step_s", 2), ("fit_ms", 3), ("predict_ms", 3), ("peak_mib", 0)):
            value = result.get(key)
            row.append("-" if value is None else f"{value:.{digits}f}")
        table.append(row)
    return table


def notes(report):
    """Return the lines that go below the table: where and when, the devices, and the verdicts."""
    devices = {r["backend"]: r["device"] for r in report["results"] if "error" not in r}
    keras = sorted({r["keras"] for r in report["results"] if "error" not in r})
    lines = [f"{report['date']}, {report['machine']}, Python {report['python']}, Keras {', '.join(keras) or 'did not run'}"]
    lines += [f"{backend}: {device}" for backend, device in devices.items()]
    lines += [f"FAILED: {r['script']} on {r['backend']}: {r['error']}" for r in report["results"] if "error" in r]
    lines += [f"{'passed' if v['passed'] else 'FAILED'}: {v['script']} on {v['backend']}: {v['text']}" for v in report["criteria"]]
    return lines


def markdown(report):
    """Return the report as Markdown text."""
    lines = ["| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in row) + " |" for row in [HEADS, *rows(report)]]
    lines.insert(1, "|" + "---|" * len(HEADS))
    return "\n".join([*lines, "", *(f"- {line}" for line in notes(report))])


def console():
    """Return rich's console on standard output, wide enough for a table where that is no terminal; raises ImportError without rich."""
    from rich.console import Console

    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def show(report):
    """Print the report as a table in the terminal; as Markdown where rich is not installed."""
    try:
        from rich.table import Table

        out = console()
    except ImportError:
        print(f"(plain text, as rich is missing; {EXTRA})")
        print(markdown(report))
        return
    table = Table(*HEADS, title="The same script on each backend")
    for row in rows(report):
        table.add_row(*row)
    out.print(table)
    for line in notes(report):
        out.print(line, style="red" if line.startswith("FAILED") else None, markup=False, highlight=False, soft_wrap=True)


def load_pyplot():
    """Return matplotlib.pyplot, drawing to files; raises ModuleNotFoundError, naming the extra to install, where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ModuleNotFoundError(f"charts need matplotlib; {EXTRA}") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(report, folder):
    """Write one PNG a script with its loss curves, and one with bars of the times, into `folder`; return the paths."""
    pyplot = load_pyplot()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = [r for r in report["results"] if "error" not in r]
    names = list(dict.fromkeys(r["script"] for r in results))
    paths = []
    for name in names:
        figure, (steps, epochs) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
        for result in (r for r in results if r["script"] == name):
            label = result["backend"] + (" float64" if result["floatx"] == "float64" else "")
            for losses in result.get("step_losses", [])[:1]:
                steps.plot(range(1, len(losses) + 1), losses, label=label)
            for number, start in enumerate(result.get("starts", [])[:3]):
                style = ("-", "--", ":")[number]
                epochs.plot(range(1, len(start["train_loss"]) + 1), start["train_loss"], style, label=f"{label}, start {number}")
        steps.set(title=f"{name}: first steps, no dropout", xlabel="step", ylabel="loss")
        epochs.set(title=f"{name}: training", xlabel="epoch", ylabel="loss")
        for axes in (steps, epochs):
            if axes.lines:
                axes.legend()
        paths.append(folder / f"{name}_loss.png")
        figure.savefig(paths[-1], dpi=120)
        pyplot.close(figure)

    timed = [r for r in results if "fit_ms" in r]
    if timed:
        paths.append(folder / "times.png")
        plot_times(timed, report["reference"], paths[-1])
    return paths


def plot_times(results, reference, path):
    """Write bars of the times relative to the backend `reference`, labelled with the times themselves, to `path`."""
    pyplot = load_pyplot()
    figure, bars = pyplot.subplots(1, 3, figsize=(12, 4), layout="constrained")
    titles = {"fit_ms": "fit, ms per step", "predict_ms": "predict, ms per step", "first_step_s": "first step, s"}
    backends = list(dict.fromkeys(r["backend"] for r in results))
    scripts = list(dict.fromkeys(r["script"] for r in results))
    width = 0.8 / len(backends)
    for axes, (key, title) in zip(bars, titles.items(), strict=True):
        base = {r["script"]: r[key] for r in results if r["backend"] == reference}
        for number, backend in enumerate(backends):
            shown = [r for r in results if r["backend"] == backend and r["script"] in base]
            places = [scripts.index(r["script"]) + number * width for r in shown]
            container = axes.bar(places, [r[key] / base[r["script"]] for r in shown], width, label=backend)
            axes.bar_label(container, [f"{r[key]:.3g}" for r in shown], fontsize=8)
        axes.set(title=title, ylabel=f"relative to {reference}")
        axes.margins(y=0.15)
        axes.set_xticks([i + width * (len(backends) - 1) / 2 for i in range(len(scripts))], scripts)
    bars[0].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
