"""TensorFlow's seed, which `keras.utils.set_random_seed` sets wherever TensorFlow is installed, here without loading TensorFlow."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace


class _Seeding:
    """A finder on `sys.meta_path` that seeds TensorFlow as soon as it is imported."""

    def __init__(self):
        self.seed = None

    def find_spec(self, name, path=None, target=None):
        """TensorFlow's spec, once, with a loader that seeds it (see `importlib.abc.MetaPathFinder`); None for other modules."""
        if name != "tensorflow" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_seed(module):
            spec.loader.exec_module = load
            try:
                load(module)
            except BaseException:
                sys.meta_path.insert(0, self)  # for another attempt
                raise
            module.random.set_seed(self.seed)

        spec.loader.exec_module = load_and_seed
        return spec


_seeding = _Seeding()


def _set_seed(seed):
    loaded = sys.modules.get("tensorflow")
    if loaded is not None:
        loaded.random.set_seed(seed)
        return
    _seeding.seed = seed
    if _seeding not in sys.meta_path:
        sys.meta_path.insert(0, _seeding)


tensorflow = SimpleNamespace(available=find_spec("tensorflow") is not None, random=SimpleNamespace(set_seed=_set_seed))
