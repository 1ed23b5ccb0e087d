"""What a user reads: `help(keras_ocl)`, docstrings and annotations of everything that the package exports or hands out."""

import ast
import dataclasses
import inspect
import re
import textwrap

import pytest

import keras_ocl
from keras_ocl.custom import CustomOp
from keras_ocl.profiler import Profile, Row
from keras_ocl.runtime import DeviceInfo, Traits

EXPORTED = {name: getattr(keras_ocl, name) for name in keras_ocl.__all__ if name != "__version__"}
HANDED_OUT = (CustomOp, DeviceInfo, Profile, Row, Traits)
CLASSES = {cls.__qualname__: cls for cls in (*filter(inspect.isclass, EXPORTED.values()), *HANDED_OUT)}
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$", re.MULTILINE)


def public_functions():
    """Functions and public methods by name."""
    found = {name: value for name, value in EXPORTED.items() if not inspect.isclass(value)}
    for cls in CLASSES.values():
        for name, member in vars(cls).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                found[f"{cls.__qualname__}.{name}"] = member
    return found


FUNCTIONS = public_functions()


def sections(docstring):
    """The text of each section of a docstring by its title; that before the first one by ""."""
    text = inspect.cleandoc(docstring or "")
    titles = [("", 0, 0), *((m[1], m.start(), m.end()) for m in SECTION.finditer(text))]
    ends = [start for _, start, _ in titles[1:]] + [len(text)]
    return {title: text[begin:end] for (title, _, begin), end in zip(titles, ends, strict=True)}


def entries(section):
    """The names that the entries of a section begin with, one per entry."""
    return {name.lstrip("*") for name in re.findall(r"^    ([\w*][^:\n]*):", section, re.MULTILINE)}


def raises(function):
    """Whether the function's own body holds a `raise`, not counting functions inside."""
    pending = list(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0].body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return False


def parameters(function):
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstrings_have_their_sections(name):
    function = FUNCTIONS[name]
    found = sections(function.__doc__)
    assert re.match(r"[A-Z].*\.", found[""]), "the summary is a sentence"
    documented, taken = entries(found.get("Args", "")), {p.name for p in parameters(function)}
    assert documented == taken, f"Args documents {sorted(documented)}, the parameters are {sorted(taken)}"
    returns = inspect.signature(function).return_annotation not in (None, "None")
    assert returns == bool(found.keys() & {"Returns", "Yields"})
    assert "Raises" in found or not raises(function)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_everything_is_annotated(name):
    function = inspect.unwrap(FUNCTIONS[name])
    missing = [p.name for p in parameters(function) if p.annotation is inspect.Parameter.empty]
    assert not missing and inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_are_documented(name):
    cls = CLASSES[name]
    found = sections(cls.__doc__)
    assert re.match(r"[A-Z].*\.", found[""]) and not found[""].startswith(f"{name}("), "the summary is a sentence of its own"
    if dataclasses.is_dataclass(cls):
        assert entries(found["Attributes"]) == {field.name for field in dataclasses.fields(cls)}
    if cls is keras_ocl.GradientTape:  # the only one that users make themselves
        assert entries(found["Args"]) == {p.name for p in parameters(cls)}
    for member in vars(cls).values():
        assert not isinstance(member, property) or member.__doc__, f"{member.fget.__name__} has no docstring"


def test_help_names_everything_public():
    tour = keras_ocl.__doc__
    missing = [name for name in EXPORTED if not re.search(rf"``{name}\b", tour)]
    assert not missing
    assert set(keras_ocl.__all__) <= set(dir(keras_ocl))


def test_a_name_that_is_not_public_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'jitt'"):
        keras_ocl.jitt  # noqa: B018


def test_errors_are_those_that_are_raised():
    from keras_ocl.plugin.rewrite import UnsupportedKeras
    from keras_ocl.runtime import errors

    assert keras_ocl.OutOfMemory is errors.OutOfMemory and issubclass(keras_ocl.OutOfMemory, MemoryError)
    assert keras_ocl.KernelBuildError is errors.KernelBuildError and issubclass(keras_ocl.KernelBuildError, RuntimeError)
    assert keras_ocl.UnsupportedKeras is UnsupportedKeras and issubclass(UnsupportedKeras, ImportError)
