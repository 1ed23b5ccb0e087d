"""The finder on ``sys.meta_path``: edits Keras's modules as they load, and keeps our process state when the backend changes."""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path

from keras_ocl.plugin.edits import BACKEND, EDITS, EDITS_OF_PACKAGE, SUPPORTED_KERAS

# `keras.config.set_backend` drops every module whose name begins with "keras", ours too. These modules hold contexts, memory, compiled
# programs, the connection to other ranks and the finder itself, and do not depend on Keras: once loaded they are reused, so that a process
# has one of each.
KEPT = ("compiler", "core", "distribution", "kernels", "plugin", "primitives", "runtime")

# These need Keras, which in turn imports them: whichever is imported first, Keras must load first.
AFTER_KERAS = ("backend", "custom", "export", "gradient", "hooks", "layers", "ops", "src")


class BackendFinder:
    """Finds the modules that need one of our loaders, and leaves all others alone."""

    def __init__(self):
        self._kept = {}

    def find_spec(self, name, path=None, target=None):
        """Returns a spec for `name` if it is ours to load (see `importlib.abc.MetaPathFinder`), else None."""
        # `importlib.reload` passes a target; it wants the module's own code to run again.
        if target is not None or not name.startswith("keras"):
            return None
        if name in EDITS:
            return self._wrap(name, path, EditingLoader)
        package, _, rest = name.partition(".")
        if package in EDITS_OF_PACKAGE:
            return self._wrap(name, path, PackageLoader)
        part = rest.partition(".")[0]
        if package != "keras_ocl":
            return None
        if part in KEPT:
            if name in self._kept:
                # The package's attributes still refer to its modules, so no import would look for them.
                sys.modules.update({other: module for other, module in self._kept.items() if other.startswith(f"{name}.")})
                return _spec_of_loaded(name, self._kept[name])
            return self._wrap(name, path, lambda loader: KeepingLoader(loader, self._kept))
        if part in AFTER_KERAS and "keras" not in sys.modules:
            import_module("keras")
            if name in sys.modules:
                return _spec_of_loaded(name, sys.modules[name])
        return None

    def keep_loaded(self):
        """Keeps the modules that were loaded before the finder was installed."""
        for name, module in list(sys.modules.items()):
            if name.startswith("keras_ocl.") and name.split(".")[1] in KEPT:
                self._kept.setdefault(name, module)

    def _wrap(self, name, path, wrapper):
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path)
                if spec is not None:
                    if spec.loader is not None:  # a folder without an __init__.py has none
                        spec.loader = wrapper(spec.loader)
                    return spec
        return None


class _Loader:
    """Wraps another loader during loading; the loaded module refers to the wrapped loader, as if that had loaded it."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._run(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def _source(self, module):
        """The module's source text; None if that is not installed."""
        get_source = getattr(self._loader, "get_source", None)
        return get_source(module.__name__) if get_source else None


class EditingLoader(_Loader):
    """Runs a module of Keras with our edits if Keras is set to our backend, else unchanged."""

    def _run(self, module):
        if _chosen_backend() != BACKEND or keras_lists_us():
            self._loader.exec_module(module)
            return
        from keras_ocl.plugin.rewrite import UnsupportedKeras, check_keras, rewrite

        check_keras()
        name, source = module.__name__, self._source(module)
        if source is None:
            raise UnsupportedKeras(
                f"keras_ocl edits Keras's modules as they load, but the source text of {name} is not installed: "
                f"install Keras with its sources (pip install 'keras{SUPPORTED_KERAS}')."
            )
        exec(rewrite(name, source, module.__spec__.origin, EDITS[name]), module.__dict__)


class PackageLoader(_Loader):
    """Runs a module of a package built on Keras, with our edits of the functions that it contains if Keras is set to our backend."""

    def _run(self, module):
        source = self._source(module) or ""
        edits = [edit for edit in EDITS_OF_PACKAGE[module.__name__.partition(".")[0]] if f"def {edit.scope}(" in source]
        if not edits or _chosen_backend() != BACKEND:
            self._loader.exec_module(module)
            return
        from keras_ocl.plugin.rewrite import rewrite_package

        exec(rewrite_package(source, module.__spec__.origin, edits), module.__dict__)


class KeepingLoader(_Loader):
    """Remembers a module once it has loaded."""

    def __init__(self, loader, kept):
        super().__init__(loader)
        self._kept = kept

    def _run(self, module):
        self._loader.exec_module(module)
        self._kept[module.__name__] = module


class LoadedLoader:
    """Returns a module that is already loaded."""

    def __init__(self, module):
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        module.__spec__ = self._spec  # the import system has replaced it by the spec that led here


def _chosen_backend():
    # Keras's configuration (environment, then keras.json) is the first thing that any of the edited modules imports.
    try:
        return import_module("keras.src.backend.config").backend()
    except (ModuleNotFoundError, AttributeError):
        return os.environ.get("KERAS_BACKEND")  # another Keras, such as Keras 2, is unsupported only where we were asked for


def keras_lists_us():
    """Whether this Keras itself loads `keras_ocl.src` (see there): by a list of names, or in its chain of backends."""
    try:
        config = import_module("keras.src.backend.config")
        names = getattr(config, "_PLUGGABLE_BACKENDS", ())
        return BACKEND in names or f"keras_{BACKEND}.src" in Path(config.__file__).with_name("__init__.py").read_text()
    except (ModuleNotFoundError, AttributeError, OSError):  # another Keras, or no sources
        return False


def _spec_of_loaded(name, module):
    return ModuleSpec(name, LoadedLoader(module), origin=module.__spec__.origin, is_package=hasattr(module, "__path__"))


def install():
    """Puts the finder on ``sys.meta_path``. Installing it again changes nothing.

    Returns:
        The installed finder.
    """
    for finder in sys.meta_path:
        if type(finder).__module__ == __name__:
            finder.keep_loaded()
            return finder
    finder = BackendFinder()
    finder.keep_loaded()
    sys.meta_path.insert(0, finder)
    return finder
