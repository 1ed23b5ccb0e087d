"""What a run of Keras's tests comes to: outcomes, exclusions and the table."""

import json
import re
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import date

from rich.console import Console
from rich.table import Table

from tests.record.outcomes import error_line

MOST_EXCLUSIONS = 25
SLOWEST = 15


@dataclass
class Verdict:
    """A run's outcomes by test id, and what is wrong with them."""

    summary: dict
    tests: dict
    allowed: dict
    wrong: list = field(default_factory=list)  # (id or "", what is wrong)

    @classmethod
    def of(cls, outcomes, backend, keras, exclusions):
        """Judge the outcomes file of a run; other backends than ours get no exclusions."""
        run = json.loads(outcomes.read_text())
        tests = run.pop("tests")
        allowed = tomllib.loads(exclusions.read_text()) if backend == "ocl" else {}
        excluded = {entry["id"]: entry for entry in allowed.get("exclusion", [])}
        verdict = cls({"date": date.today().isoformat(), "backend": backend, "keras": keras, **run}, tests, allowed)
        if len(excluded) > MOST_EXCLUSIONS:
            verdict.wrong.append(("", f"{len(excluded)} exclusions; at most {MOST_EXCLUSIONS} are allowed"))
        for name, test in tests.items():
            if name in excluded:
                if test["outcome"] == "passed":
                    verdict.wrong.append((name, "is excluded, but passes: remove its exclusion"))
                test["outcome"] = "excluded"
            elif test["outcome"] == "failed":
                verdict.wrong.append((name, f"failed: {error_line(test['text'])[:300]}"))
        return verdict

    def compare(self, ids, whole):
        """Each of `ids` must have passed, or be excused; with `whole`, must have run at all."""
        for name in ids:
            test = self.tests.get(name) or self.tests.get(name.removesuffix("]"))  # the list closes brackets that parameters hold
            if test is None:
                if whole and not self._excused("absent", "ids", name):
                    self.wrong.append((name, "did not run"))
            elif test["outcome"] == "skipped" and not self._excused("skips", "reasons", _reason(test)):
                self.wrong.append((name, f"was skipped: {_reason(test)}"))

    def _excused(self, kind, patterns, text):
        return any(re.fullmatch(pattern, text) for group in self.allowed.get(kind, []) for pattern in group[patterns])

    def holds(self):
        """Whether nothing is wrong."""
        return not self.wrong

    def show(self):
        """Print the tables: folders, slowest tests, what is wrong."""
        console = Console()
        folders = defaultdict(Counter)
        for name, test in self.tests.items():
            folder = folders[name.removeprefix("keras.src.").partition(".")[0]]
            folder[test["outcome"]] += 1
            folder["seconds"] += test["seconds"]
        table = Table(title=f"Keras {self.summary['keras']} on {self.summary['device']}", title_justify="left")
        kinds = ("passed", "failed", "skipped", "excluded")
        table.add_column("folder")
        for kind in (*kinds, "seconds"):
            table.add_column(kind, justify="right")
        total = sum(folders.values(), Counter())
        for name, counts in sorted(folders.items()):
            table.add_row(name, *(str(counts[kind]) for kind in kinds), f"{counts['seconds']:.0f}")
        table.add_section()
        table.add_row("all", *(str(total[kind]) for kind in kinds), f"{total['seconds']:.0f}")
        console.print(table)

        slowest = Table(title="Slowest", title_justify="left", show_header=False)
        for name, test in sorted(self.tests.items(), key=lambda item: -item[1]["seconds"])[:SLOWEST]:
            slowest.add_row(f"{test['seconds']:.1f} s", name)
        console.print(slowest)
        for name, what in self.wrong:
            console.print(f"{name}: {what}".removeprefix(": "), markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped, {total['excluded']} excluded in"
            f" {self.summary['seconds'] / 60:.1f} minutes; {self.summary['kernels']} kernels built; {len(self.wrong)} wrong",
            highlight=False,
        )

    def write(self, path):
        """Write summary and outcomes to `path` as JSON."""
        path.write_text(json.dumps({**self.summary, "wrong": self.wrong, "tests": self.tests}, indent=1))


def _reason(test):
    return test["text"].removeprefix("Skipped: ")
