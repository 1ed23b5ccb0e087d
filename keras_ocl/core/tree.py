"""Flattening nests of lists, tuples, named tuples and dicts, for packages that do not import Keras and its tree module."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

# A leaf, or (type of the container, the keys of a dict, the structures of the parts), or None for None.
Structure: TypeAlias = "Literal['*'] | tuple[type[Any], Any, tuple[Structure, ...]] | None"


def flatten(nest: Any) -> tuple[list[Any], Structure]:
    """(leaves, structure): leaves in order; structure is hashable and rebuilds the nest."""
    leaves: list[Any] = []
    return leaves, _walk(nest, leaves)


_LEAF: Literal["*"] = "*"


def _walk(nest: Any, leaves: list[Any]) -> Structure:
    if nest is None:
        return None
    kind = type(nest)
    if kind is dict or isinstance(nest, dict):
        keys = tuple(nest)
        return (dict, keys, tuple(_walk(nest[k], leaves) for k in keys))
    if isinstance(nest, tuple):
        return (kind, None, tuple(_walk(n, leaves) for n in nest))
    if isinstance(nest, list):
        return (list, None, tuple(_walk(n, leaves) for n in nest))
    leaves.append(nest)
    return _LEAF


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The nest of `structure` with `leaves` (an iterable) in its places."""
    return _build(structure, iter(leaves))


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return None
    if structure is _LEAF or structure == _LEAF:
        return next(leaves)
    kind, keys, parts = structure
    values = [_build(p, leaves) for p in parts]
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    if kind is list:
        return values
    return kind(*values) if hasattr(kind, "_fields") else kind(values)
