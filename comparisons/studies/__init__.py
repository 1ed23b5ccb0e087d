"""The studies, one module each, which defines `STUDY` (see comparisons.study): the source documents' experiments, and two of our own."""

from importlib import import_module

NAMES = ("dense", "cnn", "solar", "frameworks", "profiling")  # those of the documents
OWN = ("scripts", "parity")  # those that `python -m comparisons` runs


def find(name):
    """Return the Study called `name`.

    Raises ValueError, listing those there are.
    """
    if name not in (*NAMES, *OWN):
        raise ValueError(f"there is no study {name!r}: choose from {', '.join(NAMES)}")
    return import_module(f"comparisons.studies.{name}").STUDY


def function(part, name):
    """Return the function called "module:function" in the part "models", "data" or "" (anywhere) of comparisons."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(".".join(filter(None, ("comparisons", part, module)))), attribute)
