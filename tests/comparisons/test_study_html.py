"""A study's page, in a real browser: it loads nothing, sorts, filters, and shows its charts."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from comparisons import study_report
from tests.comparisons import study_sample as sample

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

# Runs in the head of a copy of the page, before anything else, and hears of all that goes wrong.
LISTEN = """
<script>
const faults = [];
addEventListener("error", (event) => faults.push(event.message || "cannot load " + event.target.src), true);
addEventListener("unhandledrejection", (event) => faults.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => faults.push("refused " + event.blockedURI));
const answers = {};
const column = (table, index) => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[index].innerText.trim());
const head = (table, name) => [...table.querySelectorAll("th button")].find((button) => button.textContent.startsWith(name));
</script>
"""
# Runs at its end; the answers are left in the title, which --dump-dom prints.
REPORT = """
<script>
addEventListener("load", () => {
  try {
%s
  } catch (error) { faults.push(String(error)); }
  answers.requests = performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => !name.startsWith("data:"));
  setTimeout(() => {
    answers.faults = faults;
    document.body.replaceChildren(Object.assign(document.createElement("pre"), { textContent: JSON.stringify(answers) }));
  }, 50);
});
</script>
"""


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """The sample study's page."""
    paths = study_report.write(sample.STUDY, sample.report(), tmp_path_factory.mktemp("study"))
    return next(path for path in paths if path.name == "index.html").read_text(encoding="utf-8")


@pytest.fixture
def browse(page, tmp_path):
    """A function that runs JavaScript in the page in a browser, after it is loaded, and returns `answers`."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium to look at the page with (apt install chromium)")

    def run(script, html=page, width=1280):
        path = tmp_path / "page.html"
        assert html.count("<head>") == html.count("</body>") == 1
        path.write_text(html.replace("<head>", "<head>" + LISTEN).replace("</body>", REPORT % script + "</body>"), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
        options += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}"]
        options += ["--enable-logging=stderr", f"--window-size={width},1000", "--virtual-time-budget=10000", "--dump-dom", path.as_uri()]
        done = subprocess.run([chromium, *options], capture_output=True, text=True, timeout=120)
        found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
        assert found, f"the browser gave no answer:\n{done.stderr[-2000:]}"
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return json.loads(unescape(found[1])) | {"console": said}

    return run


def test_page_loads_nothing_and_has_no_errors(browse):
    answers = browse("answers.title = document.title; answers.scripts = document.scripts.length")
    assert answers["faults"] == answers["console"] == answers["requests"] == []
    assert answers["title"] == sample.STUDY.title  # hostile text is text
    assert answers["scripts"] == 3  # the page's own, and the two of this test


def test_the_browser_would_tell_of_a_request_or_an_error(browse, page):
    broken = page.replace("</main>", '<img src="http://localhost:1/a.png"><script>undefinedName</script></main>')
    answers = browse("", broken)
    assert any("localhost:1" in fault for fault in answers["faults"])  # the page's own policy refuses it
    assert any("undefinedName" in fault for fault in answers["faults"])
    assert any("undefinedName" in line for line in answers["console"])


def test_charts_are_shown(browse):
    answers = browse("answers.widths = [...document.images].map((image) => image.naturalWidth)")
    assert len(answers["widths"]) == 2 and all(width > 500 for width in answers["widths"])


def test_heads_sort_by_number_and_say_so(browse):
    answers = browse("""
    const table = document.querySelector("#widths table"), button = head(table, "epoch"), place = 2;
    const state = () => [button.parentElement.getAttribute("aria-sort"), column(table, place).map((text) => text.split("\\n")[0])];
    button.click(); answers.up = state();
    button.click(); answers.down = state();
    head(table, "row").click(); answers.other = [button.parentElement.getAttribute("aria-sort"), column(table, 0)];
    """)
    for key, word, reverse in (("up", "ascending", False), ("down", "descending", True)):
        sort, texts = answers[key]
        assert sort == word
        assert texts[-6:] == ["failed"] * 6  # without a value: last either way
        numbers = [float(text.replace(",", "")) for text in texts[:-6]]
        assert len(numbers) == 47 and numbers == sorted(numbers, reverse=reverse)
        assert [str(number) for number in numbers] != sorted(map(str, numbers), reverse=reverse)  # not the order of text
    sort, names = answers["other"]
    assert sort is None
    assert names == sorted(names, key=lambda name: [int(part) for part in name.split("x")])


def test_heads_work_from_the_keyboard(browse):
    answers = browse("""
    const buttons = [...document.querySelectorAll("thead .sort button")];
    answers.all = buttons.length > 0 && buttons.every((button) => button.tabIndex === 0 && button.type === "button");
    answers.heads = document.querySelectorAll("thead th.sort").length === buttons.length;
    buttons[0].focus();
    answers.focused = document.activeElement === buttons[0];
    """)
    assert answers["all"] and answers["heads"] and answers["focused"]


def test_backends_can_be_hidden(browse):
    answers = browse("""
    const box = document.querySelector("input[value='tensorflow']"), table = document.querySelector("#nets table");
    answers.before = column(table, 1);
    box.click(); answers.without = column(table, 1); answers.hidden = document.querySelectorAll("tr[hidden]").length;
    box.click(); answers.after = column(table, 1);
    """)
    assert "tensorflow" in answers["before"] and answers["before"] == answers["after"]
    assert answers["without"] == [name for name in answers["before"] if name != "tensorflow"]
    tensorflow = [r for r in sample.report()["results"] if r["backend"] == "tensorflow"]
    assert answers["hidden"] == len(tensorflow) + sum(r["epoch_s"]["median"] > 9 for r in tensorflow)  # `slowest` shows some again


@pytest.mark.parametrize("width", [500, 1280])  # chromium's windows are not narrower than 500
def test_page_is_no_wider_than_the_window(browse, width):
    answers = browse("answers.widths = [document.documentElement.scrollWidth, innerWidth]", width=width)
    assert answers["widths"][0] <= answers["widths"][1] == width


def test_page_says_what_ran_where_and_how_to_run_it_again(browse):
    answers = browse("""
    answers.facts = Object.fromEntries([...document.querySelectorAll("dt")].map((dt) => [dt.innerText, dt.nextSibling.innerText]));
    answers.verdicts = column(document.querySelector("#criteria table"), 0);
    answers.counts = document.querySelector(".counts").innerText;
    answers.error = [...document.querySelectorAll(".error")].map((span) => span.innerText);
    answers.notes = document.querySelector("#notes").innerText;
    answers.failures = document.querySelectorAll("#failures li").length;
    answers.group = document.querySelector("#nets .group.document").innerText;
    """)
    report = sample.report()
    assert answers["facts"]["run it again"] == report["command"]
    assert answers["facts"]["machine"] == report["machine"] and answers["facts"]["date"] == report["date"]
    assert answers["facts"]["device of ocl@portable"] == "PoCL, driver 6.0"
    assert "keras 3.15.1" in answers["facts"]["libraries"]
    assert answers["facts"]["not in this report"] == "3x400 on tensorflow"
    assert answers["verdicts"] == ["failed", "passed"]
    assert "1 of 2 criteria met" in answers["counts"] and "6 of 64 runs failed" in answers["counts"]
    assert answers["error"] == [sample.OUT_OF_MEMORY] * 6
    assert answers["failures"] == 6
    assert sample.HOSTILE in answers["notes"]
    assert answers["group"] == "the document's own figures"
