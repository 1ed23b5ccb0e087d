"""Applies the edits to a module's syntax tree."""

import ast
import copy
from importlib import import_module, metadata

from keras_ocl.plugin.edits import BACKEND, SUPPORTED_KERAS, Alike, Branch, First, Then, supports


class UnsupportedKeras(ImportError):
    """The installed Keras lacks a construct that the edits change; the message names the versions that are supported."""


def check_keras():
    """Raises UnsupportedKeras if the Keras being imported is not the version for which the edits are made."""
    version = _keras_version()
    if not supports(version):
        raise UnsupportedKeras(f"keras_ocl does not support Keras {version}. {_REMEDY}")


_REMEDY = f"Supported is Keras {SUPPORTED_KERAS}: pip install 'keras{SUPPORTED_KERAS}', or look for a newer keras-ocl."


def rewrite(name, source, filename, edits):
    """Compiles `source` with `edits` applied.

    Line numbers stay those of the source file, so tracebacks, debuggers and `inspect.getsource` show Keras's own text; added statements
    carry the line of the chain they join.

    Args:
        name: the module's dotted name, for errors.
        source: its source text.
        filename: the file name for code objects.
        edits: the `Branch`, `First` and `Alike` edits to apply.

    Returns:
        The module's code object.

    Raises:
        UnsupportedKeras: an edit's construct is missing.
    """
    tree = ast.parse(source, filename)
    for edit in edits:
        if not _APPLY[type(edit)](tree, edit):
            raise UnsupportedKeras(f"keras_ocl does not support Keras {_keras_version()}: {name} lacks {edit}. {_REMEDY}")
    # A caller's `from __future__` imports must not leak into Keras's module.
    return compile(tree, filename, "exec", dont_inherit=True)


def rewrite_package(source, filename, edits):
    """The code object of a module of a package other than Keras, with `edits` (`Then`, `First`) applied wherever they fit."""
    tree = ast.parse(source, filename)
    for edit in edits:
        _APPLY[type(edit)](tree, edit)
    return compile(tree, filename, "exec", dont_inherit=True)


def _add_branch(tree, edit: Branch):
    scope = _find_scope(tree, edit.scope)
    if scope is None:
        return False
    for position, statement in enumerate(scope.body):
        chooses = isinstance(statement, ast.If) and _mentions(statement.test, "tensorflow")
        if chooses and (edit.binds is None or _binds(statement, edit.binds)):
            test = copy.deepcopy(statement.test)
            for node in ast.walk(test):
                if isinstance(node, ast.Constant) and node.value == "tensorflow":
                    node.value = BACKEND
            branch = ast.If(test=test, body=_parsed(edit.code, statement), orelse=[statement])
            scope.body[position] = _place(branch, statement)
            return True
    return False


def _put_first(tree, edit: First):
    scope = _find_scope(tree, edit.scope)
    if scope is None:
        return False
    _put_in_front(scope, edit.code)
    return True


def _put_in_front(function, code):
    start = 1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0
    function.body[start:start] = _parsed(code, function.body[start])


def _accept_alike(tree, edit: Alike):
    scope = _find_scope(tree, edit.scope)
    comparisons = [node for node in ast.walk(scope) if isinstance(node, ast.Compare) and _mentions(node, edit.like)] if scope else []
    if len(comparisons) != 1:
        return False
    (comparison,) = comparisons
    (accepted,) = comparison.comparators
    ours = _place(ast.Constant(BACKEND), accepted)
    match comparison.ops[0], accepted:
        case ((ast.In() | ast.NotIn()), ast.Tuple()):
            accepted.elts.append(ours)
        case ((ast.Eq() | ast.NotEq()), ast.Constant()):
            comparison.ops = [ast.In() if isinstance(comparison.ops[0], ast.Eq) else ast.NotIn()]
            comparison.comparators = [_place(ast.Tuple(elts=[accepted, ours], ctx=ast.Load()), accepted)]
        case _:
            return False
    return True


def _put_behind(tree, edit: Then):
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == edit.scope]
    for function in functions:
        places = [k for k, statement in enumerate(function.body) if ast.unparse(statement) == edit.statement]
        for k in reversed(places):
            function.body[k + 1 : k + 1] = _parsed(edit.code, function.body[k])
        if not places:
            _put_in_front(function, edit.otherwise)
    return bool(functions)


_APPLY = {Branch: _add_branch, First: _put_first, Alike: _accept_alike, Then: _put_behind}


def _parsed(code, like):
    """The statements of `code`, which may hold a `return`, at the position of `like`."""
    body = ast.parse("def function():\n" + "\n".join("    " + line for line in code.splitlines())).body[0].body
    for statement in body:
        for node in ast.walk(statement):
            _place(node, like)
    return body


def _find_scope(tree, path):
    scope = tree
    for part in filter(None, path.split(".")):
        inner = [node for node in scope.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        if len(inner) != 1:
            return None
        (scope,) = inner
    return scope


def _mentions(expression, value):
    return any(isinstance(node, ast.Constant) and node.value == value for node in ast.walk(expression))


def _binds(statement, name):
    for node in statement.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return True
    return False


def _place(node, like):
    """Gives `node` the first line of `like` as its position."""
    node.lineno = node.end_lineno = like.lineno
    node.col_offset = node.end_col_offset = like.col_offset
    return node


def _keras_version():
    try:
        return import_module("keras.src.version").__version__
    except (ModuleNotFoundError, AttributeError):  # another Keras, such as Keras 2
        pass
    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return "(unknown version)"
