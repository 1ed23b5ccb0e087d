"""The charts of a study as PNG files: bars with error bars, one group per row, lines along an axis, and a row's curves."""

import math
import textwrap
from pathlib import Path

from comparisons import measures
from comparisons.study_tables import format_number, slug

# Colours that people with any colour vision tell apart: Okabe and Ito, "Color universal design" (2008).
COLOURS = {"ocl": "#0072b2", "tensorflow": "#e69f00", "jax": "#009e73", "torch": "#d55e00"}
OTHERS = ("#56b4e9", "#cc79a7", "#8a7a00", "#555555")  # of what has no colour of its own, such as the devices of ocl
NEUTRAL = "#444444"
STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X"
FEW_TICKS = 14  # so many places along a logarithmic axis are written below it
LEGEND = 80  # letters that fit across a figure, a sample of a line counting as six
NAME = 28  # letters of a row's name in a line
DPI = 150
EXTRA = "install it with: pip install 'keras-ocl[comparisons]'"
FONT = {"font.size": 9, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
GRID = {"color": "#d8d8d8", "linewidth": 0.6}


def load_pyplot():
    """Return matplotlib.pyplot, drawing to files; raises ModuleNotFoundError, naming the extra to install, where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ModuleNotFoundError(f"charts need matplotlib; {EXTRA}") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def colours(backends):
    """Return {backend: colour}: the same for a backend whatever it is shown with, as long as the list of those without is the same."""
    others = [backend for backend in backends if backend not in COLOURS]
    return {b: COLOURS[b] if b in COLOURS else OTHERS[others.index(b) % len(OTHERS)] for b in backends}


def height(value):
    """Return (height, below, above) of a number or a spread, whose error bars reach to its quartiles; curves as they are; else None."""
    if measures.is_spread(value):
        return value["median"], value["median"] - value["low"], value["high"] - value["median"]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value, 0, 0
    return value if isinstance(value, dict) and any(value.values()) else None


def points(study, report, chart):
    """Return (row, backend, (height, below, above) or None for a failed run) of all that the chart shows, in the study's order."""
    made = []
    for row in study.rows:
        for backend in report["backends"]:
            for result in report["results"]:
                if chart.table in (row.table, row.name) and (result["row"], result["backend"]) == (row.name, backend):
                    found = None if "error" in result else height(chart.value(result))
                    if found or "error" in result:
                        made.append((row, backend, found))
    return made


def write(study, report, folder):
    """Write the study's charts that have anything to show into `folder`; return {chart: path} of them."""
    pyplot, folder, paths = load_pyplot(), Path(folder), {}
    for chart in study.charts:
        shown = points(study, report, chart)
        if not any(found for _, _, found in shown):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        paths[chart] = folder / f"{slug(chart.name)}.png"
        with pyplot.rc_context(FONT):
            draw = {"bars": draw_bars, "lines": draw_lines, "curves": draw_curves}[chart.kind]
            figure = draw(pyplot, chart, shown, colours(report["backends"]))
            figure.savefig(paths[chart], dpi=DPI)
            pyplot.close(figure)
    return paths


def draw_bars(pyplot, chart, shown, colour):
    """Return a figure with a group of bars a row, a bar a backend; they lie, so that rows' names of any length can be read."""
    rows = list(dict.fromkeys(row.name for row, _, _ in shown))
    backends = [b for b in colour if any(b == backend for _, backend, _ in shown)]
    figure, axes = pyplot.subplots(figsize=(8, 1.3 + len(rows) * (0.13 + 0.15 * len(backends))), layout="constrained")
    thick = 0.8 / len(backends)
    for number, backend in enumerate(backends):
        here = [(rows.index(row.name) + (number - (len(backends) - 1) / 2) * thick, f) for row, b, f in shown if b == backend]
        good = [(place, found) for place, found in here if found]
        bars = axes.barh(
            [place for place, _ in good],
            [found[0] for _, found in good],
            thick * 0.92,
            xerr=[[found[1] for _, found in good], [found[2] for _, found in good]],
            error_kw={"elinewidth": 0.9, "capsize": 1.8, "ecolor": "#222222"},
            color=colour[backend],
            label=backend,
        )
        axes.bar_label(bars, [format_number(found[0]) for _, found in good], padding=3, fontsize=7)
        for place in (place for place, found in here if not found):
            axes.text(0.005, place, "failed", transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=colour[backend])
    axes.set_yticks(range(len(rows)), [textwrap.fill(name, NAME) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(title=chart.title, xlabel=chart.ylabel)
    if chart.logy:
        axes.set_xscale("log")
    axes.grid(axis="x", **GRID)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    legend(figure, axes.get_legend_handles_labels())
    return figure


def draw_lines(pyplot, chart, shown, colour):
    """Return a figure with a line a series and backend: the backend decides the colour, the series the dashes and the marker."""
    series_of = chart.series or (lambda row: "")
    names = list(dict.fromkeys(series_of(row) for row, _, _ in shown))
    backends = [b for b in colour if any(b == backend for _, backend, _ in shown)]
    figure, axes = pyplot.subplots(figsize=(8, 4.6), layout="constrained")
    failed = False
    for backend in backends:
        for number, name in enumerate(names):
            here = sorted(((chart.x(row), f) for row, b, f in shown if b == backend and series_of(row) == name), key=lambda point: point[0])
            good = [(x, found) for x, found in here if found]
            axes.errorbar(
                [x for x, _ in good],
                [found[0] for _, found in good],
                yerr=[[found[1] for _, found in good], [found[2] for _, found in good]],
                color=colour[backend],
                markersize=4.5,
                linewidth=1.5,
                capsize=2.5,
                elinewidth=0.9,
                **series_look(number),
            )
            bad = [x for x, found in here if not found]
            if bad:
                failed, place = True, 0.03 * (1 + backends.index(backend))
                axes.plot(bad, [place] * len(bad), "x", color=colour[backend], transform=axes.get_xaxis_transform())
    axes.set(title=chart.title, xlabel=chart.xlabel, ylabel=chart.ylabel)
    axes.grid(**GRID)
    if chart.logx:
        axes.set_xscale("log")
        places = sorted({chart.x(row) for row, _, _ in shown})
        if len(places) <= FEW_TICKS:
            axes.set_xticks(places, [format_number(place) for place in places], rotation=30 if len(places) > 8 else 0)
            axes.set_xticks([], minor=True)
    if chart.logy:
        axes.set_yscale("log")
    elif 0 < min(axes.dataLim.intervaly) < max(axes.dataLim.intervaly) / 2:
        axes.set_ylim(bottom=0)  # but not where that would squeeze what the lines show
    line = pyplot.Line2D
    handles = [line([], [], color=colour[b], linewidth=3, label=b) for b in backends]
    if len(names) > 1:
        handles += [line([], [], color=NEUTRAL, label=name, **series_look(number)) for number, name in enumerate(names)]
    if failed:
        handles.append(line([], [], color=NEUTRAL, linestyle="", marker="x", label="failed"))
    legend(figure, (handles, [handle.get_label() for handle in handles]))
    return figure


def draw_curves(pyplot, chart, shown, colour):
    """Return a figure with axes for each kind of curve of a row; the backend decides the colour, the curve's number the dashes."""
    given = {backend: found for _, backend, found in shown if found}
    kinds = list(dict.fromkeys(kind for found in given.values() for kind in found))
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(5.5 * len(kinds), 4), layout="constrained", squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        for backend, found in given.items():
            for number, curve in enumerate(found[kind]):
                axes.plot(range(1, len(curve) + 1), curve, color=colour[backend], linestyle=STYLES[number % len(STYLES)])
        axes.set(xlabel=kind, ylabel=chart.ylabel)
        axes.grid(**GRID)
    figure.suptitle(chart.title)
    legend(figure, ([pyplot.Line2D([], [], color=colour[backend]) for backend in given], list(given)))
    return figure


def series_look(number):
    """Return how the line of the `number`th series is drawn on every backend."""
    return {"linestyle": STYLES[number % len(STYLES)], "marker": MARKERS[number % len(MARKERS)]}


def legend(figure, handles_and_labels):
    """Put the legend below the axes, where it hides nothing."""
    handles, labels = handles_and_labels
    columns = max(1, LEGEND // (6 + max(map(len, labels))))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)
