"""Run the scripts on several backends and compare: `python -m comparisons [names]`.

Each script runs on each backend in a fresh process, from the same NumPy weights and in the same order of examples. One table shows the
training loss, the test accuracy, how far the per-step losses (without dropout) are from the reference's, and the times and the memory.
Without options this is the main job: XOR from 20 starts, the MNIST MLP for 8 epochs, the CIFAR CNN for 15 epochs from three starts.
`--parity` trains only 100 steps without dropout, and also in float64 on the reference backend. The exit status is 1 when a run fails or
a criterion that applies is not met.

`python -m comparisons study NAME` reproduces one of the source documents' studies; `study --help` says which there are.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from comparisons import criteria, report, runner, study_command, workers


def parser():
    """Return the command's argument parser."""
    p = argparse.ArgumentParser(prog="python -m comparisons", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"which scripts: {', '.join(runner.SCRIPTS)} (default: all)")
    p.add_argument("--backends", default="ocl,tensorflow", help="Keras backends, separated by commas (default: %(default)s)")
    p.add_argument("--reference", help="the backend that the others are compared with (default: tensorflow if given, else the last)")
    p.add_argument("--data", metavar="PATH", help="a folder with mnist*.npz and cifar10*.npz, or one .npz file (default: download)")
    p.add_argument("--epochs", type=int, help="train so many epochs (default: the main job's)")
    p.add_argument("--starts", type=int, help="train from so many starts (default: the main job's)")
    p.add_argument("--steps", type=int, default=criteria.LONG_STEPS, help="how many per-step losses to compare (default: %(default)s)")
    p.add_argument("--limit", type=int, help="use only so many training and test examples, for a quick look")
    p.add_argument("--seed", type=int, default=0, help="number of the first start (default: %(default)s)")
    p.add_argument("--parity", action="store_true", help="compare per-step losses only, also with the reference's float64 run")
    p.add_argument("--json", metavar="FILE", help="write the report here")
    p.add_argument("--markdown", metavar="FILE", help="write the table as Markdown here, - to print it instead of the terminal's table")
    p.add_argument("--plot", metavar="FOLDER", help="write loss curves and bars here as PNG")
    p.add_argument("--timeout", type=float, help="seconds after which a run is given up")
    p.add_argument("--verbose", action="store_true", help="show everything that the runs print")
    return p


def jobs(args, backends, reference):
    """Return the jobs that the arguments ask for, each script's together."""
    planned = []
    for name in args.names or runner.SCRIPTS:
        script = runner.SCRIPTS[name]
        common = dict(
            script=name,
            epochs=args.epochs or script.epochs,
            starts=args.starts or script.starts,
            step_starts=script.step_starts,
            steps=args.steps,
            data=runner.find_data(name, args.data),
            limit=args.limit,
            seed=args.seed,
            train=not args.parity,
        )
        planned += [runner.Job(backend=backend, **common) for backend in backends]
        if args.parity:
            planned.append(runner.Job(backend=reference, floatx="float64", **common))
    return planned


def main(argv=None):
    """Run the command with the arguments `argv`; return its exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["study"]:
        return study_command.main(argv[1:])
    p = parser()
    args = p.parse_args(argv)
    unknown = sorted(set(args.names) - set(runner.SCRIPTS))
    if unknown:
        p.error(f"unknown script {', '.join(unknown)}: choose from {', '.join(runner.SCRIPTS)}")
    backends = args.backends.split(",")
    reference = args.reference or ("tensorflow" if "tensorflow" in backends else backends[-1])
    if reference not in backends:
        p.error(f"the reference {reference} is not among the backends {args.backends}")
    try:
        planned = jobs(args, backends, reference)
        if args.plot:
            report.load_pyplot()  # not after all the runs
    except (FileNotFoundError, ModuleNotFoundError) as error:
        p.error(str(error))

    made = runner.new_report(reference)
    with workers.Workers() as pool:
        for job in planned:
            began = time.perf_counter()
            print(f"{job.script} on {job.backend} {job.floatx}", end=": ", file=sys.stderr, flush=True)
            result, output = pool.run(job, args.timeout)
            print("failed" if "error" in result else f"{time.perf_counter() - began:.1f} s", file=sys.stderr)
            if args.verbose or "error" in result:
                print(output, file=sys.stderr)
            else:
                print(*(line for line in output.splitlines() if line.startswith(workers.NOTICE)), sep="\n", end="", file=sys.stderr)
            made["results"].append(result)
    made["criteria"] = criteria.judge(made["results"], reference)

    if args.json:
        Path(args.json).write_text(json.dumps(made, indent=1) + "\n")
    if args.markdown == "-":
        print(report.markdown(made))
    else:
        report.show(made)
        if args.markdown:
            Path(args.markdown).write_text(report.markdown(made) + "\n")
    if args.plot:
        print("wrote", *report.plot(made, args.plot))
    failed = any("error" in result for result in made["results"]) or not all(v["passed"] for v in made["criteria"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
