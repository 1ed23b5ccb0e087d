"""The import graph: layers import downwards, without circles."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "keras_ocl"

# part -> the parts that it may import besides itself; what is not named here (modules next to `ops` and `layers`) may import everything.
BELOW = {
    "core": set(),
    "kernels": {"core"},
    "primitives": {"core", "kernels"},
    "runtime": set(),
    "compiler": {"core", "kernels", "primitives", "runtime"},
    "plugin": set(),
    "monitor": {"compiler", "runtime"},
    "profiler": {"chrome_trace", "core", "runtime"},
    "chrome_trace": set(),
    "cli": {"lowering", "runtime"},
}
WITHOUT_KERAS = {*BELOW, "__init__", "__main__"} - {"plugin"}


def modules():
    """All modules of the package: dotted name -> file."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("keras_ocl", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def part_of(name):
    """The part that a module belongs to: the name right below keras_ocl."""
    return name.split(".")[1] if "." in name else "__init__"


def imported(name, at_top_only=False):
    """The absolute names that a module imports; of `from package import module` the module."""
    tree = ast.parse(MODULES[name].read_text())
    pending, found = [tree], set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in MODULES else base)
        elif at_top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        pending.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_layers_import_downwards(name):
    part = part_of(name)
    if part in BELOW:
        ours = {part_of(other) for other in imported(name) if other.partition(".")[0] == "keras_ocl"} - {part, "__init__"}
        assert ours <= BELOW[part], f"{name} imports {sorted(ours - BELOW[part])}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_who_imports_keras_and_pyopencl(name):
    packages = {other.partition(".")[0] for other in imported(name)}
    if part_of(name) in WITHOUT_KERAS:
        assert "keras" not in packages
    if part_of(name) != "runtime":
        assert "pyopencl" not in packages
    assert not packages & {"tensorflow", "jax", "torch"}


def test_no_circles():
    # A module may take its own package as a namespace that it reads later: gradient rules need each other.
    graph = {
        name: {other for other in imported(name, at_top_only=True) if other in MODULES and not f"{name}.".startswith(f"{other}.")}
        for name in MODULES
    }
    done, path = set(), []

    def visit(name):
        if name in path:
            pytest.fail("circle: " + " -> ".join([*path[path.index(name) :], name]))
        if name not in done:
            path.append(name)
            for other in sorted(graph[name]):
                visit(other)
            path.pop()
            done.add(name)

    for name in sorted(graph):
        visit(name)


def test_no_module_is_called_utils():
    assert not [name for name in MODULES if name.endswith("utils")]
