"""Keras as its coming loader of backends will be: a copy of its branch `pluggable_backend` that lists "ocl" too.

That branch imports `keras_openvino.src` where released Keras has the code itself. What it does for that name the copy does for ours as
well: `keras_ocl.src` is loaded by Keras's own text, and our import hook has nothing to do (`keras_ocl.plugin`).
"""

import re
import shutil
import sys

# A branch of a chain, with its body.
BRANCH = re.compile(r'^([ \t]*)(?:el)?if [^\n]*== "openvino":\n(?:\1[ \t]+[^\n]*\n)+', re.M)
OUR_NAMES = (("keras_openvino", "keras_ocl"), ('"openvino"', '"ocl"'), ("OpenVINO", "Ocl"), ("Openvino", "Ocl"))


def listed(folder, into):
    """Copies Keras of the checkout `folder` to the folder `into`, writes our name where OpenVINO's is, and returns the copy's keras/src."""
    if not (folder / "keras" / "src").is_dir():
        sys.exit(f"{folder} is no checkout of Keras: it has no keras/src.")
    keras = into / "keras"
    shutil.copytree(folder / "keras", keras)
    changed = 0
    for path in keras.rglob("*.py"):
        source = path.read_text()
        if "keras_openvino.src" in source and path.parts[-2:] != ("export", "openvino.py"):
            path.write_text(with_ours(source))
            changed += 1
    if not changed:
        sys.exit(f"The Keras in {folder} loads no package of a backend (keras_openvino.src): is it the branch pluggable_backend?")
    return keras / "src"


def with_ours(source):
    """`source` with a branch for us before each that loads a module of `keras_openvino`, and with our name in its lists of names."""
    source = BRANCH.sub(lambda branch: _ours(branch[0]) + branch[0] if "keras_openvino" in branch[0] else branch[0], source)
    return re.sub(r'"numpy",(\s+)"openvino"', r'"numpy",\1"ocl",\1"openvino"', source)


def _ours(text):
    for theirs, ours in OUR_NAMES:
        text = text.replace(theirs, ours)
    return text
