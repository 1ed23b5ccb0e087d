"""Means to change a function of the emulator: statements of ours go into its syntax tree."""

import ast
import inspect


def changed(module, name, change):
    """Replaces the function `name` of a module, and where it handles instructions, by one whose tree the function `change` has changed."""
    before = getattr(module, name)
    tree = ast.parse(inspect.getsource(before))
    change(tree)
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), module.__dict__)
    for kind, handler in module._INST_HANDLERS.items():
        if handler is before:
            module._INST_HANDLERS[kind] = getattr(module, name)


def inner(tree, name):
    """The definition of the function `name` inside a tree; AssertionError where there is none."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, f"this version of the emulator has {len(found)} functions {name} where one is expected"
    return found[0]


def statements(text):
    """The statements of a text."""
    return ast.parse(text).body


def ask_in_place_of(tree, field, function):
    """The only question for a `field` of the instruction, in a tree, becomes a call of `function` with the instruction."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_iattr"]
    calls = [call for call in calls if getattr(call.args[1], "value", "") == field]
    assert len(calls) == 1, f"this version of the emulator asks {len(calls)} times for {field} where once is expected"
    calls[0].func.id, calls[0].args[1:] = function, []
