"""Reproduce a source document's experiments on several backends: `python -m comparisons study NAME`, or `study all`.

Each row (a network on its data) runs on each backend in a fresh process, from the same NumPy weights and in the same order of examples.
The terminal shows a table; report.json, tables/*.csv, report.md, charts/*.png and index.html are written to OUT/NAME. The exit status is
1 when a row fails or a criterion is not met, 130 after an interrupt, which keeps what is finished for --resume.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from comparisons import studies, study_report, study_runner
from comparisons.study_progress import watcher

INTERRUPTED = 130


def positive(text):
    """Return an option's text as an int; raises ArgumentTypeError where it is below 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is needed")
    return int(text)


def add_options(p):
    """Add the options that `study` and the comparison of the scripts have in common to the parser `p`."""
    p.add_argument("--backends", default="ocl,tensorflow", help="Keras backends, ocl@NAME for a device (default: %(default)s)")
    p.add_argument("--reference", help="the backend that the others are compared with (default: tensorflow if given, else the last)")
    p.add_argument("--limit", type=positive, help="use at most so many training and test examples, for a quick look")
    p.add_argument("--seed", type=int, default=0, help="number of the first start (default: %(default)s)")
    p.add_argument("--timeout", type=float, help="seconds after which a run is given up")
    p.add_argument("--verbose", action="store_true", help="show everything that the runs print")


def parser():
    """Return the argument parser of `study`."""
    style = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m comparisons study", description=__doc__, formatter_class=style)
    p.add_argument("name", help=f"{', '.join(studies.NAMES)}, or all")
    extent = p.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="minutes: few epochs, examples, repeats and points of sweeps (default)")
    extent.add_argument("--full", action="store_true", help="the document's own extent: hours to days")
    add_options(p)
    p.add_argument("--device", help="the OpenCL device of backend ocl, as KERAS_OCL_DEVICE takes it")
    p.add_argument("--repeats", type=positive, help="trainings of each row (default: the row's own)")
    p.add_argument("--epochs", type=positive, help="train so many epochs (default: the row's own)")
    p.add_argument("--data", metavar="FOLDER", help="a folder with the data sets (default: download, else stand-ins)")
    p.add_argument("--out", metavar="FOLDER", default="study-results", help="where the results go (default: %(default)s)")
    p.add_argument("--rows", help="only these rows, separated by semicolons")
    p.add_argument("--resume", action="store_true", help="keep what an earlier run with these options has finished, and go on from there")
    p.add_argument("--report", metavar="FILE", help="run nothing: show an earlier run's report.json, and write its other files to OUT/NAME")
    return p


def settings_of(args, p, mode, **more):
    """Return the Settings that the arguments and `more` ask for; ends with a usage error where the reference is no backend among them."""
    backends = tuple(args.backends.split(","))
    reference = args.reference or ("tensorflow" if "tensorflow" in backends else backends[-1])
    if reference not in backends:
        p.error(f"the reference {reference} is not among the backends {args.backends}")
    asked = {name: getattr(args, name) for name in ("repeats", "epochs", "limit", "data", "seed")}
    return study_runner.Settings(mode=mode, backends=backends, reference=reference, **asked, **more)


def main(argv):
    """Run `study` with the arguments `argv`; return the exit status."""
    p = parser()
    args = p.parse_args(argv)
    if args.name != "all" and args.name not in studies.NAMES:
        p.error(f"unknown study {args.name}: choose from {', '.join(studies.NAMES)}, all")
    if args.report is not None:
        return show_again(args, p)
    if args.data is not None and not Path(args.data).is_dir():
        p.error(f"--data {args.data} is not a folder")
    settings = settings_of(args, p, "full" if args.full else "quick", device=args.device)
    try:
        study_report.check_extras()  # not after all the runs
        chosen = [studies.find(name) for name in (studies.NAMES if args.name == "all" else [args.name])]
        names = args.rows and [name.strip() for name in args.rows.split(";")]
        for study in chosen:
            study_runner.jobs(study, settings, args.out, names)
            if args.resume:
                study_runner.load(Path(args.out, study.name, "report.json"), settings)
    except (ModuleNotFoundError, ValueError) as error:
        p.error(str(error))

    status = 0
    for study in chosen:
        folder = Path(args.out, study.name)
        command = shlex.join(["python", "-m", "comparisons", "study", study.name, *argv[1:]])
        try:
            with watcher(study.name, lambda result: args.verbose) as watch:
                report = study_runner.run(study, settings, folder, command, watch, names, args.resume, args.timeout)
        except KeyboardInterrupt:
            print(f"interrupted: {folder} keeps what is finished; the same command with --resume goes on from there", file=sys.stderr)
            return INTERRUPTED
        status = max(status, conclude(study, report, folder))
    return status


def conclude(study, report, folder):
    """Show a report and write its files into `folder`; return the exit status that its results call for."""
    study_report.show(study, report)
    print("wrote", *study_report.write(study, report, folder))
    return status_of(report)


def status_of(report):
    """Return the exit status that a report's results call for."""
    return int(any("error" in result for result in report["results"]) or not all(v["passed"] for v in report["criteria"]))


def show_again(args, p):
    """Show the report of an earlier run, judged anew; return the exit status."""
    try:
        study_report.check_extras()
        report = json.loads(Path(args.report).read_text())
        if report.get("study") != args.name:
            raise ValueError(f"--report {args.report} is of the study {report.get('study')!r}, not {args.name!r}")
        study = studies.find(args.name)
    except (OSError, ModuleNotFoundError, ValueError) as error:
        p.error(str(error))
    study_runner.judge(study, report)
    return conclude(study, report, Path(args.out, study.name))
