"""The table of reports in docs/devices.md is the one that the script makes, and what it makes of files."""

import json
import sys

import pytest

from comparisons import reports
from keras_ocl.report.process import cases
from tests.report.sample import sample


def test_the_page_has_the_table():
    page = reports.PAGE.read_text(encoding="utf-8")
    assert reports.written(page, reports.made()) == page, "python -m comparisons.reports --write"


def test_a_line_for_each_report(tmp_path):
    assert reports.made(tmp_path) == reports.NONE
    assert reports.made(tmp_path / "none") == reports.NONE
    whole = sample()
    whole["verify"] = {"short": False, "families": whole["verify"]["families"][:1], "kept_out": {}, "error": ""}
    whole["settings"] = {}
    for name, report in (("b", sample()), ("a", whole)):
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    head, _, first, second = reports.made(tmp_path).splitlines()
    assert head.count("|") == first.count("|") - first.count("\\|") == len(reports.HEAD) + 1
    assert first.startswith(
        "| [Device \\| 9000](reports/a.json) | A platform, 1.2 | An OS, A CPU | 1 of 1 | 10 | 1e+03 | – | 2.5 | – | – |"
    )
    assert second.startswith("| [Device \\| 9000](reports/b.json), KERAS_OCL_KEEP=all |")
    assert "| 1 of 2 (few cases); scans crashed |" in second and second.endswith("| 2026-11-29, 0.1.0 |")


def test_the_cases_of_the_table_are_measured():
    for kind in ("cpu", "gpu"):
        assert {"memory", reports.PRODUCT, reports.CONVOLUTION, *reports.NETWORKS} <= {name for _, name in cases(kind)}


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reports"])
    assert reports.main() == 0 and capsys.readouterr().out == reports.made()
    page = tmp_path / "devices.md"
    page.write_text(f"a\n{reports.BEGIN}old\n{reports.END}z\n")
    monkeypatch.setattr(reports, "PAGE", page)
    monkeypatch.setattr(reports, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["reports", "--write"])
    assert reports.main() == 0 and page.read_text() == f"a\n{reports.BEGIN}{reports.made()}{reports.END}z\n"
    page.write_text("nothing")
    assert reports.main() == 1 and "has no lines <!-- reports: begin -->" in capsys.readouterr().err


def test_a_file_that_is_no_report(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="a.json is no report of the format 1"):
        reports.made(tmp_path)
