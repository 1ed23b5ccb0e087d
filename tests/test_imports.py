"""The import graph: every folder's modules and folders import one another one way; imports inside functions count."""

import ast
import functools
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "keras_ocl"

# part -> the parts beside it (in the same folder) that it may import. Every folder is here, and every module at the top; modules further
# down are held by `test_no_circles` alone.
BELOW = {
    "core": set(),
    "runtime": set(),
    "plugin": set(),
    "__pyinstaller": {"plugin"},
    "kernels": {"core"},
    "kernels.prelude": set(),
    "kernels.matrix": {"prelude"},
    "kernels.gemm": {"prelude", "matrix"},
    "kernels.conv": {"prelude", "matrix", "gemm"},
    "kernels.attention": {"prelude", "matrix", "gemm"},
    "kernels.pointwise": set(),
    "kernels.schedules": {"gemm", "conv", "attention", "pointwise"},
    "primitives": {"core", "kernels"},
    "compiler": {"core", "kernels", "primitives", "runtime"},
    "compiler.trace": set(),
    "compiler.codegen": set(),
    "compiler.fuse": {"trace", "codegen"},
    "compiler.launch": {"trace", "codegen", "fuse"},
    "compiler.launch.loops": set(),
    "compiler.run": {"fuse", "launch"},
    "chrome_trace": set(),
    "step_memory": {"compiler", "core", "runtime"},
    "profiler": {"chrome_trace", "core", "runtime", "step_memory"},
    "monitor": {"compiler", "runtime"},
    "lowering": {"core", "kernels", "compiler", "runtime", "step_memory"},
    "vendors": set(),
    "verify": {"core", "kernels", "primitives", "compiler", "runtime"},
    "verify.cases": set(),
    "report": {"compiler", "runtime", "gradient", "verify"},
    "tune": {"core", "kernels", "compiler", "runtime", "lowering"},
    "cli": {"plugin", "lowering", "compiler", "kernels", "runtime", "vendors", "distribution", "verify", "report", "tune"},
    "__main__": {"cli"},
    "ops": {"core", "kernels", "primitives", "compiler", "runtime"},
    "ops.numpy": set(),
    "ops.nn": {"numpy"},
    "ops.image": {"numpy", "nn"},
    "layers": {"core", "primitives", "ops"},
    "callback": {"core", "ops"},
    "gradient": {"core", "ops"},
    "custom": {"core", "kernels", "ops"},
    "export": {"core", "primitives", "compiler"},
    "export.onnx": set(),
    "export.onnx.rules": set(),
    "distribution": {"core", "primitives", "compiler", "runtime"},
    "central": {"distribution", "runtime"},
    "collectives": {"core", "primitives", "ops", "distribution"},
    "hooks": {"core", "compiler", "runtime", "verify", "chrome_trace", "ops", "layers", "custom", "distribution"},
    "backend": {"ops", "hooks"},
    "src": {"ops", "hooks", "export"},
}
WITH_KERAS = {"backend", "callback", "central", "collectives", "custom", "export", "gradient", "hooks", "layers", "lowering", "ops"}
WITH_KERAS |= {"plugin", "report", "src", "tune", "verify"}
# Packages that their own modules take as a namespace, which they read when they run: gradient rules need each other.
NAMESPACES = {"keras_ocl", "keras_ocl.primitives"}


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


def is_folder(name):
    return MODULES[name].name == "__init__.py"


@functools.cache
def imported(name):
    """The absolute names that a module imports; of `from package import module` the module."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_folder(name) else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in MODULES else base)
    return found


def edges():
    """(module, module that it imports): all that are ours."""
    return [(name, other) for name in sorted(MODULES) for other in sorted(imported(name)) if other in MODULES]


def side_by_side(name, other):
    """(folder, part, part): the folder that holds both modules, and the parts of it that they belong to; None if one holds the other."""
    folder = os.path.commonprefix([name.split("."), other.split(".")])
    depth = len(folder)
    if depth in (name.count(".") + 1, other.count(".") + 1):
        return None
    return ".".join(folder), name.split(".")[depth], other.split(".")[depth]


def test_every_part_is_ranked():
    folders = {name.partition(".")[2] for name in MODULES if is_folder(name)} - {""}
    at_the_top = {part_of(name) for name in MODULES} - {"__init__"}
    assert set(BELOW) == folders | at_the_top


def test_layers_import_downwards():
    upwards = []
    for name, other in edges():
        found = side_by_side(name, other)
        if found is None:
            continue
        folder, ours, theirs = found
        prefix = f"{folder}.".partition(".")[2]
        if ours != theirs and prefix + ours in BELOW and prefix + theirs in BELOW and theirs not in BELOW[prefix + ours]:
            upwards.append(f"{name} imports {other}")
    assert not upwards


def test_a_package_is_read_from_outside():
    assert not [(name, other) for name, other in edges() if name.startswith(f"{other}.") and other not in NAMESPACES]


def test_who_imports_keras_and_pyopencl():
    strangers = []
    for name in sorted(MODULES):
        refused = {"tensorflow", "jax", "torch"}
        refused |= set() if part_of(name) in WITH_KERAS else {"keras"}
        refused |= set() if part_of(name) == "runtime" else {"pyopencl"}
        strangers += [(name, other) for other in imported(name) if other.partition(".")[0] in refused]
    assert not strangers


def test_no_circles():
    for folder in sorted(filter(is_folder, MODULES)):
        no_circle_in(folder)


def no_circle_in(folder):
    graph = {}  # part of the folder -> parts that it imports, itself or deep inside
    for name in MODULES:
        for other in imported(name) & set(MODULES):
            found = side_by_side(name, other)
            if found is not None and found[0] == folder:
                graph.setdefault(found[1], set()).add(found[2])
    done, path = set(), []

    def visit(part):
        if part in path:
            pytest.fail(f"circle in {folder}: " + " -> ".join([*path[path.index(part) :], part]))
        if part not in done:
            path.append(part)
            for other in sorted(graph.get(part, ())):
                visit(other)
            path.pop()
            done.add(part)

    for part in sorted(graph):
        visit(part)


def test_no_module_is_called_utils():
    assert not [name for name in MODULES if name.endswith("utils")]
