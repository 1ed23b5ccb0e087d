"""`python -m tests.conformance`: the installed Keras's own unit tests on this backend, in parallel processes, judged and summed up.

`--loader FOLDER` runs those of a checkout of Keras's coming loader of backends instead, without our import hook.

Needs the extra "conformance". Exit status 0 means: no failure, every test of `--against` passed or is excused, every exclusion still holds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path

from tests.conformance.loader import listed
from tests.conformance.verdict import Verdict

HERE = Path(__file__).parent
KERAS = Path(util.find_spec("keras").origin).parent / "src"
# Of these the first downloads weights and the second tests scikit-learn's checks; tests/keras has parity tests of all architectures.
LEFT_OUT = ("applications", "wrappers")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Run Keras's own tests on the OpenCL backend.")
    parser.add_argument("paths", nargs="*", help="what to run, relative to keras/src: ops, ops/core_test.py::CoreOpsTest::test_scan")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as pytest's -k")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worker processes (default: one per core)")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="every N-th test, beginning with the I-th, of those collected")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write each test's outcome and the summary as JSON")
    parser.add_argument("--against", metavar="FILE", type=Path, help="ids of tests that must pass or be excused, one per line")
    parser.add_argument("--backend", default="ocl", help="another backend, to compare with (no exclusions apply)")
    parser.add_argument("--loader", metavar="FOLDER", type=Path, help="a checkout of Keras's branch pluggable_backend, to test instead")
    options = parser.parse_args()

    part, parts = map(int, options.part.split("/"))
    with tempfile.TemporaryDirectory() as scratch:
        outcomes, keras, version = Path(scratch, "outcomes.json"), KERAS, metadata.version("keras")
        paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]
        if options.loader:
            keras = listed(options.loader, Path(scratch))
            version = f"of {options.loader.resolve().name}"
            paths.insert(0, scratch)
        environment = {
            **os.environ,
            "KERAS_BACKEND": options.backend,
            "KERAS_OCL_COMPILERS": "0",  # all cores run tests already
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
            "KERAS_CONFORMANCE_PART": f"{part}/{parts}",
            "KERAS_OCL_TEST_OUTCOMES": str(outcomes),
        }
        subprocess.run([*_pytest(options, keras), *_targets(options.paths, keras)], cwd=scratch, env=environment)
        if not outcomes.exists():
            sys.exit("The tests did not run to their end; pytest's output above says why.")
        verdict = Verdict.of(outcomes, options.backend, version, HERE / "exclusions.toml")
    if options.against is not None:
        verdict.compare(options.against.read_text().splitlines(), whole=not (options.paths or options.k or parts > 1))
    verdict.show()
    if options.report:
        verdict.write(options.report)
    sys.exit(0 if verdict.holds() else 1)


def _pytest(options, keras):
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "keras.ini"), "--rootdir", str(keras.parents[1])]
    if options.jobs > 1:
        command += ["-n", str(options.jobs), "--dist", "worksteal"]
    if options.k:
        command += ["-k", options.k]
    return command


def _targets(paths, keras):
    """Arguments for pytest: the paths given, or all folders of Keras but those left out."""
    if not paths:
        return sorted(str(d) for d in keras.iterdir() if d.is_dir() and d.name not in LEFT_OUT and any(d.rglob("*_test.py")))
    targets = [keras / path.removeprefix("keras/src/") for path in paths]
    missing = [str(t) for t in targets if not Path(str(t).partition("::")[0]).exists()]
    if missing:
        sys.exit(f"Not in this Keras: {', '.join(missing)}. Paths are relative to {keras}.")
    return [str(t) for t in targets]


if __name__ == "__main__":
    main()
