"""State that belongs to a module, and what an import changes elsewhere, is listed with its reason in docs/extending/state.md."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "extending" / "state.md"
MADE_BY = {"ContextVar", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "OrderedDict", "defaultdict", "Counter", "Cache"}
MADE_BY |= {"count", "local", "deque", "dict", "list", "set"}
AT_IMPORT = {"atexit.register", "os.register_at_fork"}


def called(node):
    """The last part of the name of what a Call calls; "" of another node."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def mutable(value):
    """Whether a module's value is made to be changed: empty, or made by one of MADE_BY without contents."""
    if isinstance(value, (ast.Dict, ast.List)):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    contents = isinstance(value, ast.Call) and value.args and not isinstance(value.args[0], ast.Constant)
    return called(value) in MADE_BY and not contents


def states(source):
    """Names of the module's state, and what it changes elsewhere as it is imported, as it is written there."""
    tree = ast.parse(source)
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    found.add(ast.unparse(target))
                elif isinstance(target, ast.Name) and mutable(node.value) and target.id != "__all__":
                    found.add(target.id)
        registered = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
        found |= {ast.unparse(getattr(call, "func", call)) for call in registered} & AT_IMPORT
    return found


def test_every_state_of_a_module_is_listed():
    package = ROOT / "keras_ocl"
    present = {f"{path.relative_to(package)}: {name}" for path in package.rglob("*.py") for name in states(path.read_text())}
    listed = set(re.findall(r"^\| `([^`]+: [^`]+)` \|", LIST.read_text(), re.MULTILINE))
    assert present - listed == set(), "of these docs/extending/state.md does not say why they are there"
    assert listed - present == set(), "these are gone"


@pytest.mark.parametrize(
    "source, expected",
    [
        ("_a = {}\nB = []\n_c = [1]\n_d = None\nE = dict(a=1)", {"_a", "B", "E"}),
        ("import threading\n_a = threading.local()\n_b = ContextVar('b', default=None)\nif x:\n    _c = set()", {"_a", "_b", "_c"}),
        ("_n = 0\ndef f():\n    global _n\n    x = {}\n    _n += 1", {"_n"}),
        ("import sys\nsys.hook = f\natexit.register(f)\n@atexit.register\ndef g(): pass", {"sys.hook", "atexit.register"}),
        ("TABLE = {'a': 1}\nclass A:\n    registry = {}", set()),
        ("a = set(b)\nc = list((1, 2))", set()),
    ],
)
def test_what_counts(source, expected):
    assert states(source) == expected
