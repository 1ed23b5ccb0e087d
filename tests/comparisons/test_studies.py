"""Every study runs on the OpenCL backend: a row of each of its tables, at a tiny size, through the command."""

import ast
import json

import pytest

from comparisons import studies, study_command
from comparisons.study_runner import Settings, jobs

PLAIN = {"argparse", "importlib", "math", "sys", "keras", "numpy"}


def one_of_each_table(study):
    """Return the names of the rows that are cheapest to run: of each table the one with the fewest examples, of these the first.

    Of tables that measure the same of the same model, data and place (they vary its sizes) one is enough.
    """
    tables, found = {}, {}
    for row in study.rows:
        if row.only is None or "ocl" in row.only:
            tables.setdefault(row.table, []).append(row)
    for rows in tables.values():
        row = min(rows, key=lambda row: row.settings.get("cost", 0))
        found.setdefault(str((row.model, row.data, row.measures, row.callbacks, row.environment)), row.name)
    return list(found.values())


@pytest.mark.parametrize("name", studies.NAMES)
def test_a_row_of_each_table_runs(name, tmp_path, capsys):
    study = studies.find(name)
    rows = one_of_each_table(study)
    arguments = ["--backends", "ocl", "--rows", ";".join(rows), "--limit", "40", "--epochs", "1", "--repeats", "1"]
    study_command.main([name, *arguments, "--out", str(tmp_path)])
    report = json.loads((tmp_path / name / "report.json").read_text())
    assert {result["row"]: result["error"] for result in report["results"] if "error" in result} == {}
    assert [result["row"] for result in report["results"]] == [row.name for row in study.rows if row.name in rows]
    assert all(result["device"] and result["peak_mib"] > 0 for result in report["results"])
    assert (tmp_path / name / "index.html").exists() and (tmp_path / name / "report.md").exists()
    assert rows[0] in capsys.readouterr().out


@pytest.mark.parametrize("name", (*studies.NAMES, *studies.OWN))
def test_rows_are_complete_and_named_once(name):
    study = studies.find(name)
    names = [row.name for row in study.rows]
    assert len(set(names)) == len(names) and not any(";" in name for name in names)
    assert {row.table for row in study.rows} == {table.name for table in study.tables}
    assert {chart.table for chart in study.charts} <= {table.name for table in study.tables} | set(names)
    for row in study.rows:
        for part, function in (("models", row.model), ("data", row.data), *(("models", name) for name, _ in row.callbacks)):
            assert callable(studies.function(part, function))
        assert all(callable(studies.function("", measure)) for measure in row.measures)
    assert [job.row for job in jobs(study, Settings("full", ("ocl",), "ocl"), ".")] == names
    assert [job.row for job in jobs(study, Settings("quick", ("ocl",), "ocl"), ".")] == names


def test_networks_import_nothing_of_this_backend(root):
    for path in sorted((root / "comparisons" / "models").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                modules = [node.module]
            else:
                continue
            for module in modules:
                plain = module.split(".")[0] in PLAIN or module.startswith(("comparisons.models", "comparisons.data"))
                assert plain, f"{path.name} imports {module}"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["nonsense"], "unknown study nonsense"),
        (["dense", "--reference", "jax"], "not among the backends"),
        (["dense", "--data", "missing"], "not a folder"),
        (["dense", "--repeats", "0"], "at least 1"),
        (["dense", "--rows", "nonsense"], "no row 'nonsense'"),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, complaint):
    with pytest.raises(SystemExit):
        study_command.main(arguments)
    assert complaint in capsys.readouterr().err
