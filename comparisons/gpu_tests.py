"""A plugin of pytest for `python -m comparisons.gpu`: tells each failure as soon as it is there, and every few seconds how many passed."""

import json
import os
import time
from collections import Counter

from comparisons.gpu_worker import MARK

PERIOD = 5  # seconds
_stdout = os.dup(1)  # before pytest captures it
_counts, _told = Counter(), [0.0]
_gathers = []  # whether this process gathers all reports, as one that xdist has started does not


def pytest_configure(config):
    _gathers.append(not hasattr(config, "workerinput"))


def _tell(**row):
    if all(_gathers):
        os.write(_stdout, f"\n{MARK}{json.dumps({'row': row})}\n".encode())


def _tell_counts():
    _told[0] = time.monotonic()
    _tell(case="tests", precision="", **{name: _counts[name] for name in ("passed", "failures", "skips")})


def _tell_failure(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr).strip().rpartition("\n")[2]
    _tell(case=report.nodeid, precision="", failed=" ".join(message.split())[:300])


def pytest_collectreport(report):
    """A file that cannot be imported, such as for want of a package."""
    if report.failed:
        _tell_failure(report)


def pytest_runtest_logreport(report):
    if report.failed:
        _counts["failures"] += 1
        _tell_failure(report)
    elif report.when == "call" or report.skipped:
        _counts["skips" if report.skipped else "passed"] += 1
    if time.monotonic() - _told[0] > PERIOD:
        _tell_counts()


def pytest_sessionfinish():
    _tell_counts()
