"""A study's report as one HTML page that needs nothing else: style, script and charts lie in it, and it may load nothing."""

import base64
from html import escape
from pathlib import Path
from string import Template

from comparisons import study_tables as tables
from comparisons.study_charts import colours

TEMPLATE = Path(__file__).with_name("study_page.html")
LONG = 40  # letters from which on a text gets a wider column


def page(study, report, views, charts):
    """Return the page as text.

    views: of study_tables.views. charts: {chart: path of its PNG}, as study_charts.write gives them.
    """
    parts = [(view.key, view.title, section(report, view, charts)) for view in views]
    shown = {key for key, _, _ in parts}
    parts += [
        ("charts", "More charts", "".join(figure(c, path) for c, path in charts.items() if tables.slug(c.table) not in shown)),
        ("criteria", "Criteria", criteria_table(report) if report["criteria"] else ""),
        ("failures", "Failed runs", items(tables.failures(report))),
        ("notes", "Notes on the document", items(study.notes)),
    ]
    parts = [part for part in parts if part[2]]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(study.title),
        source=escape(study.source),
        counts=counts(report),
        facts="".join(fact(name, text, text is report["command"]) for name, text in tables.facts(study, report)),
        contents="".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title, _ in parts),
        filter="".join(box(backend, colour) for backend, colour in colours(report["backends"]).items()),
        sections="\n".join(f'<section id="{key}"><h2>{escape(title)}</h2>{content}</section>' for key, title, content in parts),
    )


def counts(report):
    """Return the list items with how many criteria and runs are as they must be."""
    verdicts, failed = report["criteria"], tables.failures(report)
    passed = sum(verdict["passed"] for verdict in verdicts)
    made = []
    if verdicts:
        made.append(("good" if passed == len(verdicts) else "bad", f"{passed} of {len(verdicts)} criteria met"))
    made.append(("bad" if failed else "good", f"{len(failed)} of {len(report['results'])} runs failed"))
    return "".join(f'<li class="{tone}">{text}</li>' for tone, text in made)


def fact(name, text, is_code):
    """Return a term and its description."""
    return f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if is_code else escape(text)}</dd>"


def items(texts):
    """Return a list of texts; nothing for none."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def box(backend, colour):
    """Return the checkbox that shows or hides a backend's lines."""
    return f'<label><input type="checkbox" value="{escape(backend)}" checked>{swatch(colour)}{escape(backend)}</label>'


def swatch(colour):
    """Return a spot of a colour."""
    return f'<span class="swatch" style="background:{colour}"></span>'


def figure(chart, path):
    """Return a chart with its picture inside."""
    data = base64.b64encode(Path(path).read_bytes()).decode("ascii")
    text = escape(f"{chart.title}: {chart.ylabel} of each row and backend")
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"></figure>'


def section(report, view, charts):
    """Return a view's note, table, legend, footnotes, and the charts of the same rows."""
    parts = [f"<p>{escape(view.note)}</p>"] if view.note else []
    parts.append(view_table(view, colours(report["backends"])))
    parts += [f'<p class="legend">{escape(tables.explained(view))}</p>'] if tables.explained(view) else []
    if view.footnotes:
        notes = "".join(f'<li id="{view.key}-note-{n}">{escape(note)}</li>' for n, note in enumerate(view.footnotes, 1))
        parts.append(f'<ol class="footnotes">{notes}</ol>')
    parts += [figure(chart, path) for chart, path in charts.items() if tables.slug(chart.table) == view.key]
    return "".join(parts)


def scrolled(title, head, body):
    """Return a table in a box that scrolls sideways, by keyboard too. head, body: lists of lines."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}"><table>'
        f"<thead>{''.join(head)}</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def sort_head(text, index, kind=""):
    """Return the head of the column `index`, a button that sorts by it."""
    return f'<th scope="col" class="sort {kind}" data-column="{index}"><button type="button">{escape(text)}</button></th>'


def view_table(view, colour):
    """Return a view as a table. colour: {backend: colour}."""
    kinds = [kind(view, k) for k in range(len(view.heads))]
    told = any(line.error or line.notes for line in view.lines)
    heads = [sort_head(head.text, k, kinds[k]) for k, head in enumerate(view.heads)]
    heads += [sort_head("notes", len(heads))] if told else []
    grouped = [k for k, head in enumerate(view.heads) if head.group == tables.DOCUMENT]
    lines = [f"<tr>{''.join(heads)}</tr>"]
    if grouped:  # they are the last columns but the notes
        groups = f'<th colspan="{grouped[0]}" class="group"></th><th colspan="{len(grouped)}" scope="colgroup" class="group document">'
        lines.insert(0, f"<tr>{groups}{tables.DOCUMENT} own figures</th>{'<th class=group></th>' if told else ''}</tr>")
    return scrolled(view.title, lines, [view_line(view, line, kinds, told, colour) for line in view.lines])


def kind(view, index):
    """Return the classes of a column's cells."""
    if view.is_numeric(index):
        return "number document" if view.heads[index].group == tables.DOCUMENT else "number"
    longest = max(len(line.cells[index].text) for line in view.lines)
    return "wide" if longest > LONG else "text" if longest > LONG / 2 else "place"


def view_line(view, line, kinds, told, colour):
    """Return a line of a view; `told`: whether there is a column of notes."""
    cells = []
    for k, cell in enumerate(line.cells):
        mark = swatch(colour[line.backend]) if view.heads[k].name == "backend" and line.backend in colour else ""
        small = f"<small>{escape(cell.quartiles)}</small>" if cell.quartiles else ""
        cells.append(f'<td class="{kinds[k]} {cell.tone}"{sort_key(cell)}>{mark}{escape(cell.text)}{small}</td>')
    if told:
        notes = [f'<span class="error">{escape(line.error)}</span>'] if line.error else []
        notes += [f'<a href="#{view.key}-note-{n}">note {n}</a>' for n in line.notes]
        cells.append(f'<td class="{"wide" if line.error else "place"}"{"" if notes else " data-empty"}>{" ".join(notes)}</td>')
    return f"<tr{backend_of(line.backend)}>{''.join(cells)}</tr>"


def backend_of(name):
    """Return the attribute that the filter knows a line by; nothing for a line of no backend."""
    return f' data-backend="{escape(name)}"' if name else ""


def sort_key(cell):
    """Return the attribute that a cell is sorted by: nothing for text, and what has no value comes last."""
    if cell.value is None or cell.number != cell.number:  # NaN
        return " data-empty"
    return "" if cell.number is None else f' data-value="{float(cell.number)!r}"'


def criteria_table(report):
    """Return the verdicts as a table, those that are not met first."""
    heads = ["verdict", "row", "backend", "criterion", "found"]
    lines = []
    for verdict in sorted(report["criteria"], key=lambda verdict: verdict["passed"]):
        tone, word = ("good", "passed") if verdict["passed"] else ("bad", "failed")
        texts = [verdict["row"], verdict["backend"], verdict["name"], verdict["text"]]
        cells = "".join(f"<td>{escape(text or tables.NOTHING)}</td>" for text in texts)
        lines.append(f'<tr{backend_of(verdict["backend"])}><td class="{tone}">{word}</td>{cells}</tr>')
    return scrolled("Criteria", [f"<tr>{''.join(sort_head(text, k) for k, text in enumerate(heads))}</tr>"], lines)
