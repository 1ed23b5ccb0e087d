"""How Keras finds this backend; the only part that knows Keras's import machinery.

Released Keras chooses its backend in ``if``/``elif`` chains that know a fixed list of names. A finder on ``sys.meta_path`` adds our
branch to those chains in memory while Keras's modules load, and only if Keras's configured backend is "ocl" at that moment. Nothing is
written to disk. A Keras that lists "ocl" itself, as its coming loader of backends will (`keras_ocl.src`), is left as it is.

- ``edits.py`` says which constructs of which modules change,
- ``rewrite.py`` changes them in a syntax tree,
- ``finder.py`` hooks both into imports and carries process state over ``keras.config.set_backend``,
- ``keras_ocl.pth`` is installed next to the package; Python runs its one line at start. It imports nothing: it waits for ``import keras``
  and then, unless ``KERAS_BACKEND`` names another backend, imports this package, which installs the finder. Where the package cannot be
  imported, as when an editable installation's source has moved, Keras goes on without it, with a warning if it is set to "ocl".
"""

from keras_ocl.plugin.finder import BackendFinder, install

__all__ = ["BackendFinder", "install"]
