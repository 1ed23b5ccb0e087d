"""Show a study's report: tables in the terminal, and as files Markdown, CSV, charts and an HTML page."""

import csv
import importlib.util
from pathlib import Path

from comparisons import measures, study_charts, study_html
from comparisons import study_tables as tables
from comparisons.study_charts import EXTRA

HALF = "±: half the range between the quartiles."
WIDTH = 120  # of a table that goes to a file or a pipe
STYLES = {"good": "green", "bad": "red", "": ""}


def check_extras():
    """Raise ModuleNotFoundError, naming the extra to install, where a package that shows results is missing."""
    missing = [name for name in ("rich", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"a study's report needs {' and '.join(missing)}; {EXTRA}")


def write(study, report, folder):
    """Write tables/*.csv, charts/*.png, report.md and index.html into `folder`; return the paths."""
    folder = Path(folder)
    views = tables.views(study, report)
    paths = []
    for view in views:
        paths.append(folder / "tables" / f"{view.key}.csv")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        write_csv(view, paths[-1])
    charts = study_charts.write(study, report, folder / "charts")
    paths += charts.values()
    for name, made in (("report.md", markdown), ("index.html", study_html.page)):
        paths.append(folder / name)
        paths[-1].write_text(made(study, report, views, charts), encoding="utf-8")
    return paths


def write_csv(view, path):
    """Write a view to `path` with the numbers as they were measured; a spread has columns for its quartiles and its count besides."""
    columns = range(len(view.heads))
    spread = [any(measures.is_spread(line.cells[k].value) for line in view.lines) for k in columns]
    names = [f"{head.group}: {head.text}" if head.group else head.text for head in view.heads]
    heads = []
    for k in columns:
        heads += [names[k], *(f"{names[k]} {part}" for part in ("low", "high", "n"))] if spread[k] else [names[k]]
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*heads, "error", "notes"])
        for line in view.lines:
            values = []
            for k in columns:
                value = line.cells[k].value
                if measures.is_spread(value):
                    values += [value[part] for part in ("median", "low", "high", "n")]
                else:
                    values += [value] + [None] * (3 * spread[k])
            out.writerow([*values, line.error, " ".join(view.footnotes[n - 1] for n in line.notes)])


def summary(report):
    """Return the sentence that says how much of what ran is as it must be."""
    verdicts = report["criteria"]
    passed, failed = sum(verdict["passed"] for verdict in verdicts), len(tables.failures(report))
    return f"{passed} of {len(verdicts)} criteria are met, {failed} of {len(report['results'])} runs failed."


def verdict_text(verdict):
    """Return a verdict in a line."""
    return f"{'passed' if verdict['passed'] else 'FAILED'}: {tables.verdict_place(verdict)}: {verdict['name']}: {verdict['text']}"


def escape(text):
    """Return text that Markdown shows as it is, in a table too."""
    for mark in "\\`*<|[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def markdown_table(view):
    """Return a view as lines of Markdown."""
    heads = [f"{head.text} ({head.group})" if head.group else head.text for head in view.heads]
    told = any(line.error or line.notes for line in view.lines)
    lines = [[*heads, "notes"] if told else heads]
    for line in view.lines:
        texts = [f"{cell.text} ({cell.quartiles})" if cell.quartiles else cell.text for cell in line.cells]
        notes = [line.error] if line.error else []
        notes += [f"note {', '.join(map(str, line.notes))}"] if line.notes else []
        lines.append([*texts, "; ".join(notes)] if told else texts)
    made = ["| " + " | ".join(map(escape, line)) + " |" for line in lines]
    align = ["---:" if view.is_numeric(k) else "---" for k in range(len(heads))] + ["---"] * told
    return [made[0], "|" + "|".join(align) + "|", *made[1:]]


def markdown(study, report, views, charts):
    """Return the report as Markdown text. `charts`: what study_charts.write gives; their paths are linked relative to the report's."""
    lines = [f"# {escape(study.title)}", "", escape(study.source), ""]
    lines += [f"- {name}: " + (f"`{text}`" if text is report["command"] else escape(text)) for name, text in tables.facts(study, report)]
    lines += ["", summary(report)]
    for view in views:
        lines += ["", f"## {escape(view.title)}", ""]
        lines += [escape(view.note), ""] if view.note else []
        lines += markdown_table(view)
        lines += ["", escape(tables.explained(view))] if tables.explained(view) else []
        for number, note in enumerate(view.footnotes, 1):
            lines += ["", f"Note {number}: {escape(note)}"]
    if charts:
        lines += ["", "## Charts"]
    for chart, path in charts.items():
        lines += ["", f"![{escape(chart.title)}]({path.parent.name}/{path.name})"]
    if report["criteria"]:
        lines += ["", "## Criteria", "", *(f"- {escape(verdict_text(verdict))}" for verdict in report["criteria"])]
    if tables.failures(report):
        lines += ["", "## Failed runs", "", *(f"- {escape(failure)}" for failure in tables.failures(report))]
    if study.notes:
        lines += ["", "## Notes on the document", "", *(f"- {escape(note)}" for note in study.notes)]
    return "\n".join(lines) + "\n"


def rich_table(view, title, columns, lines):
    """Return some columns and lines of a view as rich's table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title))
    for k in columns:
        head = view.heads[k]
        text = Text(head.name + (f"\n{head.unit}" if head.unit else ""))
        table.add_column(text, justify="right" if view.is_numeric(k) else "left", no_wrap=head.name == "backend", overflow="fold")
    if any(line.notes for line in lines):
        table.add_column("note")
    for line in lines:
        cells = [line.cells[k] for k in columns]
        texts = [Text(cell.text, STYLES[cell.tone]).append(f" {cell.half}" if cell.half else "", "dim") for cell in cells]
        table.add_row(*texts, Text(", ".join(map(str, line.notes)))) if line.notes else table.add_row(*texts)
    return table


def rich_tables(view):
    """Return a view as rich's tables: what was measured, then the document's figures, where it has any, with a line a row."""
    figures = [k for k, head in enumerate(view.heads) if head.group == tables.DOCUMENT]
    made = [rich_table(view, view.title, [k for k in range(len(view.heads)) if k not in figures], view.lines)]
    if figures:
        lines = {line.cells[0].text: tables.Line(line.cells) for line in view.lines}
        made.append(rich_table(view, f"{view.title}: {tables.DOCUMENT} own figures", [0, *figures], list(lines.values())))
    return made


def remarks(study, report):
    """Return (text, whether it is of a failure) of the lines below the tables: what ran where, failed runs, verdicts and their sum."""
    made = [(f"{name}: {text}", False) for name, text in tables.facts(study, report)]
    made += [(f"FAILED: {failure}", True) for failure in tables.failures(report)]
    made += [(verdict_text(verdict), not verdict["passed"]) for verdict in report["criteria"]]
    return [*made, (summary(report), False)]


def show(study, report):
    """Print the report in the terminal."""
    from rich.console import Console

    out = Console()
    if not out.is_terminal:
        out = Console(width=WIDTH)

    def say(text, style=None):
        out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for view in tables.views(study, report):
        out.print(*rich_tables(view), sep="\n")
        if tables.explained(view, HALF):
            say(tables.explained(view, HALF), "dim")
        for number, note in enumerate(view.footnotes, 1):
            say(f"note {number}: {note}", "dim")
    for text, failed in remarks(study, report):
        say(text, "red" if failed else None)
