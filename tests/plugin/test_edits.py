"""The edits, on the sources of the installed Keras."""

import importlib.metadata
import importlib.util
from pathlib import Path
from types import CodeType

import pytest

from keras_ocl.plugin.edits import EDITS, SUPPORTED_KERAS, Alike, First, supports
from keras_ocl.plugin.rewrite import UnsupportedKeras, rewrite

ROOT = Path(importlib.util.find_spec("keras").submodule_search_locations[0])
CASES = [(name, edit) for name, edits in EDITS.items() for edit in edits]


def read(name):
    path = ROOT.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(), str(path)


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def test_pip_installs_the_supported_keras():
    (bounds,) = [r.removeprefix("keras") for r in importlib.metadata.requires("keras-ocl") if r.startswith(("keras<", "keras>"))]
    assert sorted(bounds.split(",")) == sorted(SUPPORTED_KERAS.split(","))
    versions = ("3.15", "3.15.0", "3.15.1rc0", "3.14.2", "3.16.0", "3.1.5", "2.15.0", "4.15.0", "")
    assert tuple(filter(supports, versions)) == versions[:3]


@pytest.mark.parametrize("name", EDITS)
def test_only_the_edited_scopes_change(name):
    source, path = read(name)
    original = list(code_objects(compile(source, path, "exec", dont_inherit=True)))
    edited = list(code_objects(rewrite(name, source, path, EDITS[name])))
    assert [(code.co_qualname, code.co_filename, code.co_firstlineno) for code in original] == [
        (code.co_qualname, code.co_filename, code.co_firstlineno) for code in edited
    ]
    changed = {before.co_qualname for before, after in zip(original, edited, strict=True) if before.co_code != after.co_code}
    in_functions = {before.co_qualname for before, after in zip(original, edited, strict=True) if names(before) != names(after)}
    expected = {edit.scope or "<module>" for edit in EDITS[name]}
    assert changed | in_functions == expected


def names(code):
    """The constants and names that a code object uses, without the code objects in it."""
    return [constant for constant in code.co_consts if not isinstance(constant, CodeType)], code.co_names


@pytest.mark.parametrize("name", EDITS)
def test_lines_stay_within_the_source(name):
    source, path = read(name)
    count = source.count("\n") + 1
    for code in code_objects(rewrite(name, source, path, EDITS[name])):
        assert all(line is None or 0 <= line <= count for _, _, line in code.co_lines())


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_missing_construct(name, edit):
    source, path = read(name)
    if isinstance(edit, First):
        known, renamed = f"def {edit.scope.rpartition('.')[2]}(", "def renamed("
    else:
        known, renamed = f'"{edit.like if isinstance(edit, Alike) else "tensorflow"}"', '"renamed"'
    with pytest.raises(UnsupportedKeras, match=r"does not support Keras \d.*lacks .*Supported is Keras >=3\.15") as error:
        rewrite(name, source.replace(known, renamed), path, [edit])
    assert name in str(error.value) and str(edit) in str(error.value)


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_missing_scope(name, edit):
    with pytest.raises(UnsupportedKeras, match="lacks"):
        rewrite(name, "x = 1\n", "empty.py", [edit])


def test_chain_must_bind_the_name():
    source = 'if backend() == "tensorflow":\n    from somewhere import Other\n'
    edit = next(edit for edit in EDITS["keras.src.models.model"])
    with pytest.raises(UnsupportedKeras, match="binds Trainer"):
        rewrite("keras.src.models.model", source, "model.py", [edit])


def test_future_imports_stay_the_modules_own():
    edit = EDITS["keras.src.layers.layer"][0]
    source = 'from __future__ import annotations\nif backend() == "tensorflow":\n    import tf as BackendLayer\ndef f(x: int): pass\n'
    scope = {"backend": lambda: "ocl"}
    exec(rewrite("m", source, "m.py", [edit._replace(code="import math as BackendLayer")]), scope)
    assert scope["f"].__annotations__ == {"x": "int"} and scope["BackendLayer"].__name__ == "math"


def test_original_branches_still_work():
    source = 'if backend() == "tensorflow":\n    import json as BackendLayer\nelif backend() == "jax":\n    import math as BackendLayer\n'
    edit = EDITS["keras.src.layers.layer"][0]._replace(code="import cmath as BackendLayer")
    for name, module in [("tensorflow", "json"), ("jax", "math"), ("ocl", "cmath")]:
        scope = {"backend": lambda name=name: name}
        exec(rewrite("m", source, "m.py", [edit]), scope)
        assert scope["BackendLayer"].__name__ == module


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        ('name == "jax"', {"jax", "ocl"}),
        ('name in ("jax", "torch")', {"jax", "torch", "ocl"}),
        ('not (name not in ("jax",))', {"jax", "ocl"}),
        ('not (name != "jax")', {"jax", "ocl"}),
    ],
)
def test_alike(test, holds):
    scope = {}
    exec(rewrite("m", f"def f(name):\n    return {test}\n", "m.py", [Alike("f", "jax")]), scope)
    assert {name for name in ["jax", "torch", "numpy", "ocl"] if scope["f"](name)} == holds


@pytest.mark.parametrize("body", ['x > "jax"', 'x == "jax" or y == "jax"', 'x in {"jax"}'])
def test_alike_refuses_what_it_does_not_know(body):
    with pytest.raises(UnsupportedKeras, match='lacks the comparison with "jax" in f'):
        rewrite("m", f"def f(x, y):\n    return {body}\n", "m.py", [Alike("f", "jax")])
