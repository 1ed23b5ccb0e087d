"""What a study shows while it runs: row, backend, epoch and the time left."""

import contextlib
import importlib.util
import sys

from comparisons import workers


class _Lines:
    """A line a finished run on standard error; the bar of `_Bar` is drawn beside it."""

    def __init__(self, name, shown, print_line):
        self.name, self.shown, self.print_line = name, shown, print_line

    def begin(self, jobs):
        self.count, self.number = len(jobs), 0

    def start(self, job):
        self.number += 1

    def progress(self, job, said):
        pass

    def end(self, job, result, output, seconds):
        took = f"failed: {result['error']}" if "error" in result else f"{seconds:.1f} s"
        self.print_line(f"{self.name} {self.number}/{self.count}: {job.row} on {job.backend}: {took}")
        if self.shown(result):
            self.print_line(output)
        else:
            for line in output.splitlines():
                if line.startswith(workers.NOTICE):
                    self.print_line(line)


class _Bar(_Lines):
    def __init__(self, name, shown, bar):
        super().__init__(name, shown, lambda text: bar.console.print(text, markup=False, highlight=False))
        self.bar = bar

    def begin(self, jobs):
        super().begin(jobs)
        self.whole = self.bar.add_task(self.name, total=len(jobs))
        self.now = self.bar.add_task("", total=None)

    def start(self, job):
        super().start(job)
        self.bar.reset(self.now, total=None, description=f"{job.row} on {job.backend}")

    def progress(self, job, said):
        steps = f" {said['done']}/{said['total']}" if said["total"] else ""
        self.bar.update(
            self.now, total=said["total"], completed=said["done"] or 0, description=f"{job.row} on {job.backend}: {said['text']}{steps}"
        )

    def end(self, job, result, output, seconds):
        super().end(job, result, output, seconds)
        self.bar.advance(self.whole)


@contextlib.contextmanager
def watcher(name, shown):
    """Yield what comparisons.study_runner.run reports to: in a terminal bars with the time left, elsewhere a line for each run.

    shown: from a result to whether everything that its process printed is shown, and not its notices alone.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield _Lines(name, shown, lambda text: print(text, file=sys.stderr, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(name, shown, bar)
