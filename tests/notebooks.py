"""`python -m tests.notebooks [NAME...]` runs the notebooks of docs/notebooks and stores them with what they gave; tests run them only."""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
CHOSEN_INSIDE = ("KERAS_BACKEND", "MPLBACKEND")  # the notebooks select the backend themselves, and ipykernel how figures are shown


# What packages say of themselves as they are imported: TensorFlow's log, and tqdm's wish for ipywidgets.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONWARNINGS": "ignore:IProgress not found"}


def environment():
    """What kernels get of this process's environment, and what keeps imports quiet."""
    return {name: value for name, value in os.environ.items() if name not in CHOSEN_INSIDE} | QUIET


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def client(notebook, folder):
    """Runs a notebook's cells in a kernel of its own, which works in `folder`."""
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources, record_timing=False, coalesce_streams=True)


def store(name):
    """Runs a notebook and writes it with its outputs, without what tells more of the machine than they do."""
    notebook = read(name)
    client(notebook, FOLDER).execute(env=environment())
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"{name}-{number}", {}
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        store(name)
