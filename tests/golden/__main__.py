"""`python -m tests.golden` compares what the models become with the golden file, `--write` rewrites it."""

import argparse
import os
import sys

os.environ["KERAS_BACKEND"] = "ocl"

from tests.golden.lowered import RECORDS, difference, read, summary, write  # noqa: E402
from tests.golden.models import MODELS  # noqa: E402

parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
parser.add_argument("--write", action="store_true", help="rewrite the golden file; say in the commit why it changes and what it costs")
parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="these models only")
options = parser.parse_args()

known, status = read(), 0
for name in options.models or MODELS:
    found = {record: summary(name, record) for record in RECORDS}
    for record in RECORDS:
        text = difference(name, record, known.get(name, {}).get(record), found[record])
        if text:
            print(text, flush=True)
            status = 0 if options.write else 1
    known[name] = {record: {step: part for step, (part, _) in found[record].items()} for record in RECORDS}
if options.write:
    write({name: known[name] for name in MODELS if name in known})
sys.exit(status)
