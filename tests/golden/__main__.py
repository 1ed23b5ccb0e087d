"""`python -m tests.golden` compares what the models become with the golden file, `--write` rewrites it.

`--diff REVISION` shows what changed since a commit as a diff of the kernels' OpenCL C.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "ocl"

from tests.golden.lowered import RECORDS, difference, read, summary, texts, write  # noqa: E402
from tests.golden.models import MODELS  # noqa: E402

ROOT = Path(__file__).parents[2]

parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--write", action="store_true", help="rewrite the golden file; say in the commit why it changes and what it costs")
parser.add_argument("--diff", metavar="REVISION", help="compare the kernels' texts with those of this commit's package instead")
parser.add_argument("--texts", metavar="FOLDER", type=Path, help="write the texts there instead, a file for each model, record and step")
parser.add_argument("--records", nargs="+", choices=RECORDS, default=RECORDS, help="these devices only, for --diff and --texts")
parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL", help="these models only")
options = parser.parse_args()


def compare_with_the_file():
    known, status = read(), 0
    for name in options.models:
        found = {record: summary(name, record) for record in RECORDS}
        for record in RECORDS:
            text = difference(name, record, known.get(name, {}).get(record), found[record])
            if text:
                print(text, flush=True)
                status = 0 if options.write else 1
        known[name] = {record: {step: part for step, (part, _) in found[record].items()} for record in RECORDS}
    if options.write:
        write({name: known[name] for name in MODELS if name in known})
    return status


def write_texts(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        for record in options.records:
            for step, text in texts(name, record).items():
                Path(folder, f"{name}-{record}-{step}.cl").write_text(text)
    return 0


def diff(revision):
    """Prints a diff of the texts; 1 where there is one. This module's models are lowered by both packages."""
    with tempfile.TemporaryDirectory() as scratch:
        package, old, new = (Path(scratch, name) for name in ("package", "old", "new"))
        archive = subprocess.run(["git", "archive", revision, "keras_ocl"], cwd=ROOT, check=True, capture_output=True).stdout
        package.mkdir()
        subprocess.run(["tar", "-x", "-C", package], input=archive, check=True)
        Path(package, "tests").symlink_to(ROOT / "tests")
        command = [sys.executable, "-m", "tests.golden", "--models", *options.models, "--records", *options.records, "--texts"]
        for root, folder in ((package, old), (ROOT, new)):
            environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
            subprocess.run([*command, folder], cwd=root, env=environment, check=True)
        return subprocess.run(["git", "--no-pager", "diff", "--no-index", "old", "new"], cwd=scratch).returncode


if options.texts:
    sys.exit(write_texts(options.texts))
sys.exit(diff(options.diff) if options.diff else compare_with_the_file())
