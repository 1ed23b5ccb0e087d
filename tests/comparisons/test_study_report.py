"""A study's tables in the terminal, as Markdown and as CSV, and its charts, on a made-up report."""

import csv
import dataclasses
import math
import sys

import pytest

from comparisons import study_charts, study_report, study_tables
from comparisons.measures import spread
from tests.comparisons import study_sample as sample

pytest.importorskip("matplotlib")
pytest.importorskip("rich")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder with the sample study's files, and the paths that `write` returned."""
    folder = tmp_path_factory.mktemp("study")
    return folder, study_report.write(sample.STUDY, sample.report(), folder)


def view(key, report=None, study=sample.STUDY):
    """Return the sample's View with this key."""
    return next(view for view in study_tables.views(study, report or sample.report()) if view.key == key)


def column(view, head):
    """Return {(row, backend): Cell} of a column of a View."""
    index = [found.text for found in view.heads].index(head)
    return {(line.cells[0].text, line.backend): line.cells[index] for line in view.lines}


def read_csv(path):
    """Return the lines of a CSV file as dicts."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((None,), "–"),
        ((12730,), "12,730"),
        ((12730, 3), "12,730"),
        ((0.93671, 2, True), "93.67%"),
        ((1, 1, True), "100.0%"),
        ((0.12345,), "0.1235"),
        ((84480.2,), "84,480"),
        ((math.inf,), "inf"),
        ((1.5, 3), "1.500"),
        ((True,), "yes"),
        (("text",), "text"),
    ],
)
def test_values_as_text(arguments, text):
    assert study_tables.cell(*arguments).text == text


@pytest.mark.parametrize(
    "values, median, quartiles, half",
    [
        ([1, 2, 3], "2.000", "1.500–2.500", "±0.500"),
        ([0.001, 0.002, 0.003], "0.0020", "0.0015–0.0025", "±0.0005"),
        ([100, 200, 300], "200.0", "150.0–250.0", "±50.0"),
        ([10000, 20000, 30000], "20,000", "15,000–25,000", "±5,000"),
        ([0, 0, 0], "0.000", "0.000–0.000", "±0.000"),
        ([5], "5.000", "", ""),
    ],
)
def test_spreads_as_text(values, median, quartiles, half):
    cell = study_tables.cell(spread(values), 3)
    assert (cell.text, cell.quartiles, cell.half) == (median, quartiles, half)
    assert cell.number == sorted(values)[len(values) // 2]


def test_table_has_a_line_a_row_and_backend_in_the_study_s_order():
    lines = view("nets").lines
    assert [(line.cells[0].text, line.backend) for line in lines[:4]] == [
        (("16", "128,128")[k // 3], sample.BACKENDS[k % 3]) for k in range(4)
    ]
    assert [line.backend for line in lines if line.cells[0].text == "only on OpenCL"] == ["ocl", "ocl@portable"]
    assert len(view("widths").lines) == 3 * len(sample.WIDTHS) * 3 - 1  # one was not reached


def test_ratios_tell_a_difference_only_where_the_spread_allows_it():
    shown = view("nets")
    ratios = column(shown, "× tensorflow")
    assert [head.text for head in shown.heads][4:6] == ["epoch, s", "× tensorflow"]
    assert (ratios["16", "ocl"].text, ratios["16", "ocl"].tone) == ("0.53", "good")
    assert (ratios["16", "tensorflow"].text, ratios["16", "tensorflow"].tone) == ("1", "")
    assert (ratios["128,128", "ocl"].text, ratios["128,128", "ocl"].tone) == ("1.01 ≈", "")
    assert (ratios["16", "ocl@portable"].text, ratios["16", "ocl@portable"].tone) == ("1.33 ?", "")  # measured once
    assert ratios["only on OpenCL", "ocl"].value is None
    assert "≈:" in shown.legend and "?:" in shown.legend


def test_slower_is_bad():
    report = sample.report()
    for result in report["results"]:
        if (result["row"], result["backend"]) == ("16", "ocl"):
            result["epoch_s"] = spread([5.0, 6.0, 7.0])
    cell = column(view("nets", report), "× tensorflow")["16", "ocl"]
    assert (cell.text, cell.tone) == ("4.00", "bad")


def test_failed_reference_gives_no_ratios():
    report = sample.report()
    report["results"] = [
        {"row": r["row"], "backend": r["backend"], "error": "exit status 1: boom"} if r["backend"] == "tensorflow" else r
        for r in report["results"]
    ]
    assert {cell.value for cell in column(view("nets", report), "× tensorflow").values()} == {None}


def test_failed_rows_show_their_error():
    lines = [line for line in view("widths").lines if line.error]
    assert [line.cells[0].text for line in lines] == ["1x25600", "1x25600", "2x25600", "2x25600", "3x25600", "3x25600"]
    assert all(line.error == sample.OUT_OF_MEMORY and line.cells[2].text == "failed" for line in lines)


def test_everything_failed():
    report = sample.report()
    report["results"] = [{"row": r["row"], "backend": r["backend"], "error": "boom"} for r in report["results"]]
    study = dataclasses.replace(sample.STUDY, extra=())
    shown = view("nets", report, study)
    assert all(len(line.cells) == len(shown.heads) for line in shown.lines)
    assert "| failed |" in study_report.markdown(study, report, [shown], {})


def test_document_figures_and_notes():
    shown = view("nets")
    figures = [head.text for head in shown.heads if head.group == study_tables.DOCUMENT]
    assert figures == ["parameters", "OpenCL CPU s", "Keras s", "accuracy"]
    assert column(shown, "OpenCL CPU s")["256x3 " + sample.HOSTILE, "ocl"].text == "1,694.55"
    assert shown.footnotes == ["The rate is inferred.", "stand-in data: accuracies are not shown"]
    notes = {line.cells[0].text[:7]: line.notes for line in shown.lines}
    assert notes == {"16": [], "128,128": [1], "256x3 <": [1, 2], "only on": []}


def test_a_note_of_all_rows_stands_above_the_table():
    rows = tuple(dataclasses.replace(row, note="Rates are ours.") for row in sample.STUDY.rows)
    shown = view("nets", study=dataclasses.replace(sample.STUDY, rows=rows))
    assert shown.note == "Sigmoid nets on digits. Rates are ours."
    assert shown.footnotes == ["stand-in data: accuracies are not shown"]
    assert [line.notes for line in shown.lines] == [[]] * 6 + [[1]] * 3 + [[]] * 2


def test_two_tables_of_one_name_are_refused():
    study = dataclasses.replace(sample.STUDY, extra=(sample.slowest, sample.slowest))
    with pytest.raises(ValueError, match="two tables of the study sample are called rows-over-nine-seconds"):
        study_tables.views(study, sample.report())


def test_what_was_not_run_is_said():
    assert study_tables.not_run(sample.STUDY, sample.report()) == ["3x400 on tensorflow"]
    facts = dict(study_tables.facts(sample.STUDY, sample.report() | {"results": []}))
    assert facts["not in this report"].endswith(f"and {22 * 3 - 1 - study_tables.TOLD} more")


def test_terminal_shows_everything(capsys):
    study_report.show(sample.STUDY, sample.report())
    output = capsys.readouterr().out
    assert "0.800 ±0.024" in output and "1.01 ≈" in output
    assert "Dense nets: the document's own figures" in output and "1,694.55" in output
    assert f"FAILED: 2x25600 on ocl: {sample.OUT_OF_MEMORY}" in output
    assert f"FAILED: 128,128 on ocl: time: 3 s {sample.HOSTILE}" in output
    assert f"run it again: {sample.report()['command']}" in output
    assert "1 of 2 criteria are met, 6 of 64 runs failed." in output
    assert all(len(line) <= study_report.WIDTH for line in output.splitlines() if line.startswith(("│", "┃")))


def test_markdown_tables_are_whole(written):
    text = (written[0] / "report.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    nets = lines[lines.index("## Dense nets") :][4:]
    widths = {line.replace("\\|", "").count("|") for line in nets[: 2 + len(view("nets").lines)]}
    assert widths == {len(view("nets").heads) + 2}  # with the notes
    assert "| 16 | ocl | 12,730 | 94.00% | 0.800 (0.776–0.824) | 0.53 |" in text
    assert "<script>" not in text.replace("\\<", "")
    for word in ("2026-01-31", "A processor, 2 cores", f"`{sample.report()['command']}`", "](charts/widths.png)", "Note 1: The rate"):
        assert word in text


def test_csv_has_the_numbers_themselves(written):
    lines = read_csv(written[0] / "tables" / "nets.csv")
    assert len(lines) == len(view("nets").lines)
    first = lines[0]
    assert (first["row"], first["backend"], first["accuracy"]) == ("16", "ocl", "0.94")
    assert [float(first["epoch, s" + part]) for part in ("", " low", " high", " n")] == pytest.approx([0.8, 0.776, 0.824, 5])
    assert float(first["× tensorflow"]) == pytest.approx(0.8 / 1.5)
    assert first["the document's: Keras s"] == "33.8"
    assert lines[6]["row"] == f"256x3 {sample.HOSTILE}" and lines[6]["accuracy"] == ""
    assert lines[6]["notes"] == "The rate is inferred. stand-in data: accuracies are not shown"
    failed = [line for line in read_csv(written[0] / "tables" / "widths.csv") if line["error"]]
    assert len(failed) == 6 and all(line["epoch, s"] == line["epoch, s low"] == "" for line in failed)


def test_files_are_those_returned(written):
    folder, paths = written
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {path.relative_to(folder).as_posix() for path in paths}
    tables = {f"tables/{key}.csv" for key in ("nets", "widths", "rows-over-nine-seconds")}
    assert found == tables | {"charts/nets.png", "charts/widths.png", "report.md", "index.html"}  # none for the chart of nothing


def test_backends_have_the_same_colours_everywhere():
    some = study_charts.colours(["tensorflow", "ocl"])
    more = study_charts.colours(["jax", "ocl@portable", "ocl", "ocl@intel", "tensorflow", "torch"])
    assert {backend: more[backend] for backend in some} == some
    assert len(set(more.values())) == len(more)


def figure(name, **changes):
    """Return the figure of the sample's chart called `name`, with some changes, and the module that draws it."""
    pyplot = study_charts.load_pyplot()
    chart = dataclasses.replace(next(chart for chart in sample.STUDY.charts if chart.name == name), **changes)
    shown = study_charts.points(sample.STUDY, sample.report(), chart)
    draw = {"bars": study_charts.draw_bars, "lines": study_charts.draw_lines, "curves": study_charts.draw_curves}[chart.kind]
    return draw(pyplot, chart, shown, study_charts.colours(sample.BACKENDS)), pyplot


def test_bars_are_labelled_with_their_heights():
    made, pyplot = figure("nets", value=lambda r: r["peak_mib"] * 1000.0)
    labels = [text.get_text() for text in made.axes[0].texts]
    assert labels[:2] == ["400,000", "401,000"]
    pyplot.close(made)


def test_failed_bars_say_so():
    made, pyplot = figure("widths", kind="bars")
    assert [text.get_text() for text in made.axes[0].texts].count("failed") == 6
    pyplot.close(made)


def test_bars_have_heights_errors_and_names():
    made, pyplot = figure("nets")
    axes = made.axes[0]
    groups = [container for container in axes.containers if hasattr(container, "patches")]
    assert [container.get_label() for container in groups] == list(sample.BACKENDS)
    assert [bar.get_width() for bar in groups[0]] == pytest.approx([0.8, 3.04, 2.4, 3.2])
    assert len(groups[1]) == 3  # TensorFlow does not run the last
    ends = groups[0].errorbar[2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx([0.776, 0.824])
    assert [text.get_text() for text in axes.get_yticklabels()][:2] == ["16", "128,128"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row on top
    pyplot.close(made)


def test_lines_are_a_series_and_backend_each_on_logarithmic_axes():
    made, pyplot = figure("widths")
    axes = made.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.containers) == 3 * 3
    x, y = axes.containers[0][0].get_data()
    assert list(x) == list(sample.WIDTHS[:-1])  # the widest failed
    assert y[0] == pytest.approx(2.0)
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(crosses) == 6 and all(list(line.get_xdata()) == [25600] for line in crosses)
    labels = [text.get_text() for text in made.legends[0].get_texts()]
    assert labels == [*sample.BACKENDS, "1 hidden layers", "2 hidden layers", "3 hidden layers", "failed"]
    pyplot.close(made)


def test_curves_of_one_row_have_axes_for_each_kind():
    curves = {"step": [[3.0, 2.0]], "epoch": [[1.0], [0.5]]}
    made, pyplot = figure("nets", kind="curves", table="16", value=lambda r: curves if r["backend"] == "ocl" else {"step": [], "epoch": []})
    assert [axes.get_xlabel() for axes in made.axes] == ["step", "epoch"]
    assert [[list(line.get_ydata()) for line in axes.lines] for axes in made.axes] == list(curves.values())
    assert len({line.get_linestyle() for line in made.axes[1].lines}) == 2
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["ocl"]
    pyplot.close(made)


@pytest.mark.parametrize("value, from_zero", [(lambda r: r["epoch_s"], True), (lambda r: 0.9 + r["epoch_s"]["median"] * 1e-6, False)])
def test_axis_begins_at_zero_where_that_hides_nothing(value, from_zero):
    made, pyplot = figure("widths", value=value, logy=False)
    assert bool(made.axes[0].get_ylim()[0] == 0) is from_zero
    pyplot.close(made)


@pytest.mark.parametrize("missing", ["rich", "matplotlib"])
def test_missing_package_is_named(monkeypatch, missing):
    study_report.check_extras()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {missing}; install it with: pip install 'keras-ocl\[comparisons\]'"):
        study_report.check_extras()
