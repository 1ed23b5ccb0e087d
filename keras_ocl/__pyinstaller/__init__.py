"""How PyInstaller bundles programs that use this backend; it finds this folder by the entry point `pyinstaller40`.

Keras names the backend only when it runs, so nothing that PyInstaller reads leads here: with Keras come this package, the source text of
what is edited in Keras, and a hook that does what the installed `keras_ocl.pth` does as Python starts.
"""

from pathlib import Path


def get_hook_dirs():
    """The folders of hooks."""
    return [str(Path(__file__).parent)]
