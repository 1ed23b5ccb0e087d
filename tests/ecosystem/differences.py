"""What one project's tests came to on two backends, and where its code asks for a backend by name."""

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.record.outcomes import error_line

BACKENDS = {"tensorflow", "jax", "torch", "numpy", "openvino"}


@dataclass
class Differences:
    """Outcomes by test id on our backend and on the reference."""

    ours: dict
    reference: dict

    def worse(self):
        """Tests that fail here, by their error, and do not fail on the reference."""
        return self._failed(self.ours, self.reference)

    def better(self):
        """The reverse."""
        return self._failed(self.reference, self.ours)

    def in_both(self):
        """How many tests fail on both."""
        return sum(_outcome(test) == "failed" == _outcome(self.reference.get(name)) for name, test in self.ours.items())

    def skipped_here(self):
        """Ids of tests that pass on the reference and are skipped, or not collected, here."""
        passed = (name for name, test in self.reference.items() if test["outcome"] == "passed")
        return sorted(name for name in passed if _outcome(self.ours.get(name)) in ("skipped", "absent"))

    @staticmethod
    def _failed(here, there):
        groups = defaultdict(list)
        for name, test in sorted(here.items()):
            if test["outcome"] == "failed" and _outcome(there.get(name)) != "failed":
                groups[error_line(test["text"])[:200]].append(name)
        return dict(groups)


def _outcome(test):
    return test["outcome"] if test else "absent"


def counts(tests):
    """Passed, failed and skipped tests, and seconds, of one run."""
    found = Counter(test["outcome"] for test in tests.values())
    return found["passed"], found["failed"], found["skipped"], sum(test["seconds"] for test in tests.values())


def names_asked_for(folder):
    """Places in the Python files below `folder` that compare with a backend's name: [(file, line, text)].

    There a backend that the project does not know gets the last branch, or an error: what the suite asks of an unknown name.
    """
    places = []
    for path in sorted(Path(folder).rglob("*.py")):
        try:
            tree = ast.parse(path.read_text())
        except (SyntaxError, UnicodeDecodeError):  # templates
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and "backend" in ast.unparse(node.left).lower() and _names(node.comparators):
                places.append((str(path.relative_to(folder)), node.lineno, ast.unparse(node)))
    return places


def _names(comparators):
    return any(isinstance(node, ast.Constant) and node.value in BACKENDS for part in comparators for node in ast.walk(part))
