"""A report as Markdown, for an issue's text."""

import json
from collections.abc import Iterable, Sequence

from keras_ocl.runtime.errors import readable
from keras_ocl.verify.request import RIGHT

_LIMITS = {
    "launch": "a launch among many",
    "round trip": "a launch and its end",
    "memory": "memory, read and written",
    "upload": "host to device",
    "download": "device to host",
}


def markdown(report: dict) -> str:
    """The text of a report (see make.py): tables of what counts, and the whole as JSON, folded."""
    device = report["device"]
    told = device["opencl"]
    parts = [
        f"### {told['model']}: {told['platform']['name']}, driver {told['driver']}",
        table(("", ""), _facts(report), ":--|:--"),
        "#### Kernels",
        kernels(report["verify"]),
        "#### Limits",
        _times(report["limits"], lambda row: _rate(row.get("bytes_per_s"), 1e9, "GB/s"), lambda name: _LIMITS.get(name, name)),
        "#### Products and convolutions",
        _times(report["operations"], lambda row: _rate(row.get("flops_per_s"), 1e9, "GFLOP/s")),
        "#### Training, a step",
        _times(report["networks"], lambda row: _rate(row.get("steps_per_s"), 1, "steps/s")),
        f"<details><summary>report.json</summary>\n\n```json\n{json.dumps(report, indent=1)}\n```\n\n</details>",
    ]
    return "\n\n".join(parts)


def kernels(verify: dict) -> str:
    """What was verified, in a sentence and a table of what is not right."""
    right = [row["family"] for row in verify["families"] if row["verdict"] == RIGHT]
    lines = [f"{'Few' if verify['short'] else 'All'} cases of each family; right: {', '.join(right) or 'none'}."]
    if verify["error"]:
        lines.append(f"Not finished: {cell(verify['error'])}.")
    rows = [
        (row["family"], row["verdict"], f"{row['wrong']} of {row['cases']}", row["why"], row["instead"])
        for row in verify["families"]
        if row["verdict"] != RIGHT
    ]
    if rows:
        lines += ["", table(("family", "verdict", "cases", "the first", "in its place"), rows, ":--|:--|--:|:--|:--")]
    return "\n".join(lines)


def _facts(report):
    device, system, traits = report["device"], report["system"], report["device"]["traits"]
    told = device["opencl"]
    yield "device", f"{device['name']}, {told.get('board_name_amd') or told['model']}, {told['vendor']}"
    yield "OpenCL", f"{told['platform']['version']}; {told['version']}; {told['opencl_c_version']}"
    has = [text for name, text in (("fp64", "float64"), ("fp16", "float16"), ("subgroups", "sub-groups")) if traits[name]]
    amounts = f"{readable(traits['global_memory'])} ({device['memory']}), {readable(traits['local_memory'])} local"
    yield "taken as", ", ".join([traits["schedule"], f"{traits['compute_units']} units", amounts, *has])
    yield "matrix units", ", ".join(traits["matrix_units"]) or "none"
    for unit, why in device["refused_units"].items():
        yield f"matrix unit {unit}", f"refused: {why}"
    measured = f"{report['byte']:g} measured, " if report["byte"] else ""
    yield "multiply-adds a byte", f"{measured}{traits['byte']:g} taken"
    yield "quirks", ", ".join(traits["quirks"]) or "none"
    yield "extensions", f"{len(told['extensions'])}"
    host = f"{system['cpu']}, {system['cores']} cores, load {system['load']}"
    yield "system", f"{system['os']}, {system['kernel']}, {system['machine']}; {host}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + f"; {report['date']}"
    if report["settings"]:
        yield "settings", ", ".join(f"{name}={value}" for name, value in report["settings"].items())
    if any(device["tuned"].values()):
        yield "tuned", f"{device['tuned']['numbers']} numbers, {device['tuned']['tiles']} tiles"


def _times(rows, rate, named=lambda name: name):
    cells = [
        (named(row["case"]), row["error"], "", "", "") if "error" in row
        else (named(row["case"]), _ms(row["best_ms"]), _ms(row["median_ms"]), str(row["n"]), rate(row))
        for row in rows
    ]  # fmt: skip
    return table(("case", "best", "median", "runs", "rate (median)"), cells, ":--|--:|--:|--:|--:")


def _ms(milliseconds):
    return f"{milliseconds * 1e3:.4g} us" if milliseconds < 0.1 else f"{milliseconds:.4g} ms"


def _rate(rates, unit, name):
    return f"{rates['median'] / unit:.4g} {name}" if rates else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], columns: str) -> str:
    """A table in Markdown, without an end of line; `columns`: how each is aligned, such as ":--|--:"."""
    lines = [" | ".join(head), columns.replace("|", " | "), *(" | ".join(map(cell, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def cell(text: object) -> str:
    """Text as a cell of a table in Markdown holds it."""
    return " ".join(str(text).split()).replace("|", "\\|")
