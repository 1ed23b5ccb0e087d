"""The compiler's passes ask primitives what they are, never their names."""

import ast
from pathlib import Path

import pytest

from keras_ocl import primitives  # noqa: F401 (fills the registry)
from keras_ocl.core.primitive import Primitive

ROOT = Path(__file__).parents[2] / "keras_ocl"
PASSES = sorted([*(ROOT / "compiler").rglob("*.py"), *(ROOT / "primitives").glob("loop*.py")])


def is_name(node):
    """Whether an expression is the name of a primitive or of what it is the primitive of."""
    return isinstance(node, ast.Attribute) and node.attr == "name"


def strings(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def asked(tree):
    """Lines that decide by a primitive's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_name, [node.left, *node.comparators])) and strings(node) & set(Primitive.registry):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "startswith" and is_name(node.value):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "registry":
            yield node.lineno
        if isinstance(node, ast.Subscript) and is_name(node.slice):
            yield node.lineno
        if isinstance(node, (ast.Set, ast.Dict)) and len(strings(node) & set(Primitive.registry)) > 1:
            yield node.lineno


ALLOWED = {"accumulators.py": "the operations in OpenCL C that combine a reduction's elements"}


@pytest.mark.parametrize("path", PASSES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_passes_ask_no_names(path):
    lines = [] if path.name in ALLOWED else list(asked(ast.parse(path.read_text())))
    assert not lines, f"{path.name} decides by primitives' names in lines {lines}"


def test_the_check_finds_names():
    source = "if n.name == 'transpose' or eq.primitive.name in ('pad',) or n.name.startswith('reduce_'): x = Primitive.registry['add']"
    assert len(list(asked(ast.parse(source)))) == 4
