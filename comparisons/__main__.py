"""Run the scripts on several backends and compare: `python -m comparisons [names]`.

Each script runs on each backend in a fresh process, from the same NumPy weights and in the same order of examples. One table shows the
training loss, the test accuracy, how far the per-step losses (without dropout) are from the reference's, and the times and the memory.
Without options this is the main job: XOR from 20 starts, the MNIST MLP for 8 epochs, the CIFAR CNN for 15 epochs from three starts.
`--parity` trains only 100 steps without dropout, and also in float64 on the reference backend. The exit status is 1 when a run fails or
a criterion that applies is not met.

`python -m comparisons study NAME` reproduces one of the source documents' studies; `study --help` says which there are.
"""

import argparse
import importlib.util
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from comparisons import studies, study_charts, study_command, study_report, study_runner, study_tables, workers
from comparisons.data import scripts
from comparisons.study_progress import watcher


def parser():
    """Return the command's argument parser."""
    p = argparse.ArgumentParser(prog="python -m comparisons", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="which scripts: xor, mnist_mlp, cifar_cnn (default: all)")
    study_command.add_options(p)
    p.add_argument("--data", metavar="PATH", help="a folder with mnist*.npz and cifar10*.npz, or one .npz file (default: download)")
    p.add_argument("--epochs", type=study_command.positive, help="train so many epochs (default: the main job's)")
    starts = {"type": study_command.positive, "dest": "repeats", "metavar": "STARTS"}
    p.add_argument("--starts", **starts, help="train from so many starts (default: the main job's)")
    p.add_argument("--steps", type=int, default=100, help="how many per-step losses to compare (default: %(default)s)")
    p.add_argument("--parity", action="store_true", help="compare per-step losses only, also with the reference's float64 run")
    p.add_argument("--json", metavar="FILE", help="write the report here")
    p.add_argument("--markdown", metavar="FILE", help="write the table as Markdown here, - to print it instead of the terminal's table")
    p.add_argument("--plot", metavar="FOLDER", help="write loss curves and bars here as PNG")
    return p


def as_json(report):
    """Return a report as JSON text; results and verdicts say "script" besides "row", and results their backend and its dtype apart."""

    def named(result):
        dtype = "float64" if workers.parts(result["backend"]).exact else "float32"
        return {"script": result["row"], **result, "backend": result["backend"].removesuffix(workers.EXACT), "floatx": dtype}

    verdicts = [{"script": verdict["row"], **verdict} for verdict in report["criteria"]]
    return json.dumps(report | {"results": [named(result) for result in report["results"]], "criteria": verdicts}, indent=1) + "\n"


def markdown(study, report):
    """Return a report as Markdown text: its table, and what is to be said below."""
    (view,) = study_tables.views(study, report)
    remarks = [f"- {study_report.escape(text)}" for text, _ in study_report.remarks(study, report)]
    return "\n".join([*study_report.markdown_table(view), "", *remarks])


def main(argv=None):
    """Run the command with the arguments `argv`; return its exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["study"]:
        return study_command.main(argv[1:])
    p = parser()
    args = p.parse_args(argv)
    study = studies.find("parity" if args.parity else "scripts")
    known = [row.name for row in study.rows]
    names = args.names or known
    unknown = sorted(set(names) - set(known))
    if unknown:
        p.error(f"unknown script {', '.join(unknown)}: choose from {', '.join(known)}")
    settings = study_command.settings_of(args, p, "full", steps=args.steps)
    if args.parity:
        settings = replace(settings, backends=(*settings.backends, settings.reference + workers.EXACT))
    try:
        for name in names:
            scripts.find(name, args.data)
        if args.plot:
            study_charts.load_pyplot()  # not after all the runs
    except (FileNotFoundError, ModuleNotFoundError) as error:
        p.error(str(error))

    command = shlex.join(["python", "-m", "comparisons", *argv])
    with TemporaryDirectory() as folder, watcher(study.name, lambda result: args.verbose or "error" in result) as watch:
        report = study_runner.run(study, settings, folder, command, watch, names, timeout=args.timeout)
    if args.json:
        Path(args.json).write_text(as_json(report))
    without_rich = importlib.util.find_spec("rich") is None
    if args.markdown == "-" or without_rich:
        print(*([f"(plain text, as rich is missing; {study_charts.EXTRA})"] if without_rich else []), markdown(study, report), sep="\n")
    else:
        study_report.show(study, report)
    if args.markdown not in (None, "-"):
        Path(args.markdown).write_text(markdown(study, report) + "\n")
    if args.plot:
        print("wrote", *study_charts.write(study, report, args.plot).values())
    return study_command.status_of(report)


if __name__ == "__main__":
    sys.exit(main())
