"""The table of devices' reports in docs/devices.md: `python -m comparisons.reports [--write]`.

A report is what `python -m keras_ocl report` printed, a file of docs/reports. Without --write the table is printed.
"""

import argparse
import re
import sys
from pathlib import Path

from keras_ocl.report.command import read
from keras_ocl.report.text import table
from keras_ocl.verify.request import RIGHT

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PAGE = ROOT / "docs" / "reports", ROOT / "docs" / "devices.md"
BEGIN, END = "<!-- reports: begin -->\n", "<!-- reports: end -->\n"
NONE = "There are no reports yet.\n"
HEAD = (
    "device", "OpenCL", "system", "right", "memory, GB/s", "product, GFLOP/s", "convolution, GFLOP/s",
    "MLP, ms", "CNN, ms", "transformer, ms", "when",
)  # fmt: skip
COLUMNS = ":--|:--|:--|:--|--:|--:|--:|--:|--:|--:|:--"
PRODUCT, CONVOLUTION = "product 2048 x 2048 x 2048", "convolution 3x3, 64 of 28 x 28 x 128 to 128"
NETWORKS = ("MNIST MLP", "CIFAR CNN", "transformer")


def made(folder: Path = FOLDER) -> str:
    """The table of the reports in a folder as Markdown, a line for each by their files' names; a sentence where there is none.

    Raises:
        ValueError: a file is no report.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        return NONE
    return table(HEAD, [_line(read(file), file.name) for file in files], COLUMNS) + "\n"


def written(page: str, found: str) -> str:
    """The text of the page with a table between its marks. ValueError where these are missing."""
    parts = re.fullmatch(f"(.*{BEGIN}).*({END}.*)", page, re.DOTALL)
    if parts is None:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN.strip()} and {END.strip()}")
    return parts[1] + found + parts[2]


def _line(report, file):
    device, told = report["device"], report["device"]["opencl"]
    rows = {row["case"]: row for section in ("limits", "operations", "networks") for row in report[section]}
    system, versions = report["system"], report["versions"]
    settings = [f"{name}={value}" for name, value in report["settings"].items()]
    return (
        ", ".join([f"[{told.get('board_name_amd') or told['model']}](reports/{file})", *settings]),
        f"{told['platform']['name']}, {told['driver']}",
        f"{system['os']}, {system['cpu']}" if device["traits"]["kind"] == "gpu" else f"{system['os']}, {system['cores']} cores",
        _right(report["verify"]),
        _rate(rows.get("memory"), "bytes_per_s"),
        _rate(rows.get(PRODUCT), "flops_per_s"),
        _rate(rows.get(CONVOLUTION), "flops_per_s"),
        *(_ms(rows.get(name)) for name in NETWORKS),
        f"{report['date']}, {versions['keras-ocl']}",
    )


def _right(verify):
    wrong = [f"{row['family']} {row['verdict']}" for row in verify["families"] if row["verdict"] != RIGHT]
    count = len(verify["families"])
    few = " (few cases)" if verify["short"] else ""
    return f"{count - len(wrong)} of {count}{few}" + "".join(f"; {one}" for one in wrong)


def _rate(row, name):
    return "–" if row is None or "error" in row else f"{row[name]['median'] / 1e9:.3g}"


def _ms(row):
    return "–" if row is None or "error" in row else f"{row['median_ms']:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    try:
        found = made()
        if options.write:
            PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
        else:
            print(found, end="")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
