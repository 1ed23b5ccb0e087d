"""The tables of a study's report as cells, for whatever shows them: the terminal, Markdown, CSV and HTML.

A `View` is one table. `views` makes them from the study's tables and from what `study.extra` adds. The report is the dict that
comparisons.study_runner describes.
"""

import math
import re
from dataclasses import dataclass, field

from comparisons import measures

NOTHING = "–"
DOCUMENT = "the document's"  # the group of columns with the source document's own figures
TOLD = 6  # so many of a long list of names are told
TIME_UNITS = ("s", "ms", "µs")
SPREADS = "A median stands with its quartiles."
WITHIN, ONCE = "≈", "?"  # marks of ratios that are no difference, and of those that nothing is known of


@dataclass(frozen=True)
class Cell:
    """What a table has in one place.

    text: the value in words. quartiles: of a spread (see comparisons.measures), half: "±" half the range between them, or "".
    value: the number, text, spread or None itself. tone: "good" or "bad" where the reader should see it at once, else "".
    """

    text: str = NOTHING
    quartiles: str = ""
    half: str = ""
    value: object = None
    tone: str = ""

    @property
    def number(self):
        """The number to sort by, a spread's median; None for text."""
        value = self.value["median"] if measures.is_spread(self.value) else self.value
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Head:
    """The head of a column. unit: "" for none. group: what the column belongs to, DOCUMENT or ""."""

    name: str
    unit: str = ""
    group: str = ""

    @property
    def text(self):
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass
class Line:
    """A line of a table: its cells, the backend it is of ("" for none), its error or "", and the numbers of its footnotes, from 1."""

    cells: list
    backend: str = ""
    error: str = ""
    notes: list = field(default_factory=list)


@dataclass
class View:
    """A table. key: a name for files. note: what to read before it. legend: what its marks mean. footnotes: see Line.notes."""

    key: str
    title: str
    heads: list
    lines: list
    note: str = ""
    legend: str = ""
    footnotes: list = field(default_factory=list)

    @property
    def has_spreads(self):
        """Whether any cell is a median with quartiles."""
        return any(cell.quartiles for line in self.lines for cell in line.cells)

    def is_numeric(self, index):
        """Tell whether the column `index` holds numbers."""
        return any(line.cells[index].number is not None for line in self.lines)


def format_number(value, digits=None, percent=False):
    """Return a number as text: with so many digits behind the point, or for None four significant ones, but all before the point."""
    if percent:
        return f"{value:.{2 if digits is None else digits}%}"
    if digits is not None:
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"


def spread_cell(value, digits, percent):
    """Return the Cell of a spread, with fewer `digits` where it is long, for no time is known to five, and more where it is short."""
    if digits is not None and not percent and value["median"]:
        power = math.floor(math.log10(abs(value["median"])))
        digits = max(0, digits - max(0, power), 1 - power if power < 0 else 0)
    numbers = (value["low"], value["median"], value["high"], (value["high"] - value["low"]) / 2)
    low, median, high, half = (format_number(number, digits, percent) for number in numbers)
    return Cell(median, f"{low}–{high}", f"±{half}", value) if value["n"] > 1 else Cell(median, value=value)


def cell(value, digits=None, percent=False):
    """Return the Cell of a number, a text, a spread, a truth value or None."""
    if value is None:
        return Cell()
    if measures.is_spread(value):
        return spread_cell(value, digits, percent)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", value=value)
    if isinstance(value, int | float):
        return Cell(format_number(value, None if isinstance(value, int) and not percent else digits, percent), value=value)
    return Cell(str(value), value=str(value))


def document_cell(value):
    """Return the Cell of one of the document's figures, with all of its digits."""
    return Cell(f"{value:,}", value=value) if isinstance(value, int | float) else cell(value)


def document_figures(row):
    """Return the document's own figures of a Row, by name."""
    return ({} if row.parameters is None else {"parameters": row.parameters}) | row.document


def ratio_cell(ours, theirs):
    """Return the Cell of a spread of times as a multiple of the reference's, marked where the two do not differ."""
    if not measures.is_spread(ours) or not measures.is_spread(theirs) or not theirs["median"]:
        return Cell()
    value = ours["median"] / theirs["median"]
    if ours is theirs:
        return Cell("1", value=value)
    if min(ours["n"], theirs["n"]) < 2:
        return Cell(f"{value:.2f} {ONCE}", value=value)
    if not measures.differ(ours, theirs):
        return Cell(f"{value:.2f} {WITHIN}", value=value)
    return Cell(f"{value:.2f}", value=value, tone="good" if value < 1 else "bad")


def time_column(table, results):
    """Return the index of the table's first column with spreads of times, which has ratios beside it; None where there is none."""
    for index, column in enumerate(table.columns):
        if column.unit in TIME_UNITS and any(measures.is_spread(column.value(r)) for r in results if "error" not in r):
            return index
    return None


def results_of(study, report, table):
    """Return the results of the rows of the table called `table`, in the order of the study's rows and of the report's backends."""
    names = [row.name for row in study.rows if row.table == table]
    found = [result for result in report["results"] if result["row"] in names]
    return sorted(found, key=lambda result: (names.index(result["row"]), report["backends"].index(result["backend"])))


def table_view(study, report, table):
    """Return the View of a Table: row, backend, its columns, the time as a multiple of the reference's, and the document's figures."""
    results, reference = results_of(study, report, table.name), report["reference"]
    rows = [row for row in study.rows if row.table == table.name]
    compared = any(row.only is None or reference in row.only for row in rows)
    timed = time_column(table, results) if compared else None
    base = {r["row"]: r for r in results if r["backend"] == reference and "error" not in r}
    figures = list(dict.fromkeys(name for r in results for name in document_figures(study.row(r["row"]))))
    own = [Head(column.head, column.unit) for column in table.columns]
    if timed is not None:
        own.insert(timed + 1, Head(f"× {reference}"))
    view = View(slug(table.name), table.title, [Head(table.head), Head("backend"), *own, *(Head(f, group=DOCUMENT) for f in figures)], [])
    view.note, told = table.note, []
    for result in results:
        row, peer = study.row(result["row"]), base.get(result["row"])
        if "error" in result:
            cells = [Cell("failed", tone="bad")] + [Cell()] * (len(own) - 1)
        else:
            given = [column.value(result, peer) if column.compares else column.value(result) for column in table.columns]
            cells = [cell(value, column.digits, column.percent) for value, column in zip(given, table.columns, strict=True)]
            if timed is not None:
                value, ours = table.columns[timed].value, cells[timed].value
                cells.insert(timed + 1, ratio_cell(ours, ours if peer is result else peer and value(peer)))
        document = document_figures(row)
        stated = (document_cell(document.get(f)) for f in figures)
        line = Line([cell(row.name), cell(result["backend"]), *cells, *stated], result["backend"])
        line.error = result.get("error", "")
        told.append([note for note in (row.note, result.get("notice")) if note])
        view.lines.append(line)
    add_notes(view, told)
    view.legend = legend(view, f"× {reference}")
    return view


def add_notes(view, told):
    """Put the notes of each line, lists of text, into a view: those of all lines together above the table, the others as footnotes."""
    common = [note for note in told[0] if all(note in notes for notes in told)] if told else []
    view.note = " ".join(filter(None, (view.note, *common)))
    view.footnotes = list(dict.fromkeys(note for notes in told for note in notes if note not in common))
    for line, notes in zip(view.lines, told, strict=True):
        line.notes = [view.footnotes.index(note) + 1 for note in notes if note not in common]


def legend(view, head):
    """Return what the column of ratios called `head` and its marks mean; nothing where the view has none."""
    index = next((k for k, found in enumerate(view.heads) if found.name == head), None)
    if index is None:
        return ""
    texts = [line.cells[index].text for line in view.lines]
    sentences = [f"{head}: the time as a multiple of that backend's, below 1 is faster."]
    if any(text.endswith(WITHIN) for text in texts):
        sentences.append(f"{WITHIN}: no difference, the ranges between the quartiles overlap.")
    if any(text.endswith(ONCE) for text in texts):
        sentences.append(f"{ONCE}: measured once, so that nothing tells a difference from chance.")
    return " ".join(sentences)


def explained(view, spreads=SPREADS):
    """Return the legend of a view with the sentence `spreads` on how they are shown, where it has any."""
    return " ".join(filter(None, (spreads if view.has_spreads else "", view.legend)))


def extra_view(title, head, rows):
    """Return the View of a table of `study.extra`: its heads are texts, its cells numbers, texts, spreads or None."""
    backend = head.index("backend") if "backend" in head else None
    lines = [Line([cell(value) for value in row], "" if backend is None else str(row[backend])) for row in rows]
    return View(slug(title), title, [Head(text) for text in head], lines)


def views(study, report):
    """Return the Views of all tables that have results, then of the study's extra ones.

    Raises ValueError where two would be written to the same file.
    """
    made = [table_view(study, report, table) for table in study.tables]
    made += [extra_view(*table) for function in study.extra for table in function(report["results"])]
    made = [view for view in made if view.lines]
    keys = [view.key for view in made]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"two tables of the study {study.name} are called {', '.join(twice)}: each needs a name of its own")
    return made


def slug(text):
    """Return a text as a name for files and anchors: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def facts(study, report):
    """Return (name, text) of what ran where and how to run it again; the last is the command."""
    extent = {"quick": "quick: fewer epochs, examples and repeats than the document's", "full": "full: the document's own"}
    absent = not_run(study, report)
    more = f" and {len(absent) - TOLD} more" if len(absent) > TOLD else ""
    return [
        ("date", report["date"]),
        *([("extent", extent[report["mode"]])] if study.source else []),
        *([("not in this report", "; ".join(absent[:TOLD]) + more)] if absent else []),
        ("machine", report["machine"]),
        ("Python", report["python"]),
        ("libraries", ", ".join(f"{name} {version}" for name, version in report["versions"].items())),
        *((f"device of {backend}", text) for backend, text in report["devices"].items()),
        ("run it again", report["command"]),
    ]


def failures(report):
    """Return a sentence for each row that failed."""
    return [f"{r['row']} on {r['backend']}: {r['error']}" for r in report["results"] if "error" in r]


def not_run(study, report):
    """Return "row on backend" for all that the study has and the report has not, as after an interrupt or with --rows."""
    done = {(r["row"], r["backend"]) for r in report["results"]}
    planned = [(row, b) for row in study.rows for b in report["backends"] if row.only is None or b.partition("@")[0] in row.only]
    return [f"{row.name} on {backend}" for row, backend in planned if (row.name, backend) not in done]


def verdict_place(verdict):
    """Return what a verdict is on: "row on backend", as far as it names them."""
    return " on ".join(filter(None, (verdict["row"], verdict["backend"])))
