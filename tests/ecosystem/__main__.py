"""`python -m tests.ecosystem`: the own tests of projects that build on Keras, on this backend and on a reference, and how they differ.

Few projects' sdists carry their tests; of the others give a checkout: `python -m tests.ecosystem tuner=FOLDER`. Exit status 0 means: no
test fails here that does not fail on the reference.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.ecosystem.differences import Differences, counts, names_asked_for

HERE = Path(__file__).parent
SUITES = tomllib.loads((HERE / "suites.toml").read_text())


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.ecosystem", description=__doc__.partition("\n\n")[2])
    parser.add_argument("suites", nargs="+", metavar="NAME[=FOLDER]", help=f"what to run, of {', '.join(SUITES)}; FOLDER: its checkout")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as pytest's -k")
    parser.add_argument("--path", action="append", help="of the project's folder, only this file or folder (may be given again)")
    parser.add_argument("--reference", default="tensorflow", help="the backend to compare with (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, which need pytest-xdist (default: %(default)s)")
    parser.add_argument("--names", action="store_true", help="list each place that asks for a backend by name")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write both runs' outcomes as JSON")
    options = parser.parse_args()

    worse, report, console = False, {}, Console()
    with tempfile.TemporaryDirectory() as scratch:
        for given in options.suites:
            name, _, folder = given.partition("=")
            if name not in SUITES:
                parser.error(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
            folder = Path(folder).resolve() if folder else _sdist(SUITES[name], Path(scratch, name))
            if not (folder / SUITES[name]["tests"]).is_dir():
                parser.error(f"{folder} has no folder {SUITES[name]['tests']!r}, where the tests of {SUITES[name]['package']} are")
            runs = {backend: _outcomes(SUITES[name], folder, backend, options, Path(scratch)) for backend in ("ocl", options.reference)}
            found = Differences(runs["ocl"], runs[options.reference])
            _show(console, SUITES[name], runs, found)
            _show_names(console, folder, options.names)
            worse, report[name] = worse or bool(found.worse()), runs
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    sys.exit(1 if worse else 0)


def _sdist(suite, folder):
    """The unpacked sdist of `suite`'s newest release."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), suite["package"]]
    subprocess.run(command, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    if not any((unpacked / suite["tests"]).rglob(suite["files"])):
        name = next(name for name, other in SUITES.items() if other is suite)
        sys.exit(f"{archive.name} carries no tests: give a checkout of {suite['package']}, python -m tests.ecosystem {name}=FOLDER")
    return unpacked


def _outcomes(suite, folder, backend, options, scratch):
    """The outcomes of the suite's tests by id, run in a process of their own."""
    file = scratch / "outcomes.json"
    file.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        # The plugin's own folder, not this project's, whose `tests` would hide, or be hidden by, that of the other.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), str(HERE.parent / "record"), os.environ.get("PYTHONPATH")])),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
        "KERAS_OCL_TEST_OUTCOMES": str(file),
    }
    # A project's settings for pytest ask for plugins, coverage and warnings as errors, which are not about the backend.
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-o", f"python_files={suite['files']}", "-q"]
    command += ["-p", "outcomes", "-p", "no:cacheprovider", "--tb=short", "--disable-warnings", "--continue-on-collection-errors"]
    command += [f"--ignore={folder / path}" for path in suite.get("ignore", [])]
    if options.k:
        command += ["-k", options.k]
    if options.jobs > 1:
        command += ["-n", str(options.jobs)]
    print(f"{suite['package']} on {backend}", flush=True)
    subprocess.run([*command, *(options.path or [suite["tests"]])], cwd=folder, env=environment)
    if not file.exists():
        needed = f"it needs: {suite['needs']}; pytest's output above says why"
        sys.exit(f"The tests of {suite['package']} did not run to their end on {backend} ({needed}).")
    return json.loads(file.read_text())["tests"]


def _show(console, suite, runs, found):
    table = Table(title=suite["package"], title_justify="left")
    table.add_column("backend")
    for kind in ("passed", "failed", "skipped", "seconds"):
        table.add_column(kind, justify="right")
    for backend, tests in runs.items():
        *numbers, seconds = counts(tests)
        table.add_row(backend, *map(str, numbers), f"{seconds:.0f}")
    console.print(table)
    for title, groups in (("Fail here only", found.worse()), ("Fail on the reference only", found.better())):
        for error, names in groups.items():
            console.print(f"{title}: {len(names)}: {error}", markup=False, highlight=False, soft_wrap=True)
            for name in names:
                console.print(f"    {name}", markup=False, highlight=False, soft_wrap=True)
    for name in found.skipped_here():
        console.print(f"Skipped here only: {name}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{found.in_both()} fail on both")


def _show_names(console, folder, each):
    places = names_asked_for(folder)
    files = len({file for file, _, _ in places})
    console.print(f"Places that ask for a backend by name: {len(places)} in {files} files")
    for file, line, text in places if each else ():
        console.print(f"    {file}:{line}: {text}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
