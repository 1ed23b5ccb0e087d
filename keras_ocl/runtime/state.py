"""Whether OpenCL was started in this process, or in its parent before a fork."""

import os


class Process:
    """State of the process, as class attributes, so there is only one."""

    started = False  # OpenCL's libraries were loaded: their threads exist in this process only
    forked = False  # we are a forked child of a process that had started OpenCL


def started():
    """Whether this process has loaded OpenCL's libraries, which count the cores they compute on only once."""
    return Process.started


def check_not_forked():
    """Raise RuntimeError in a forked child, where OpenCL's threads do not exist and any call could hang."""
    if Process.forked:
        raise RuntimeError(
            "OpenCL cannot be used in a forked child of a process that has already used it; "
            'use multiprocessing start method "spawn" (multiprocessing.get_context("spawn")), load the model after the fork in gunicorn '
            '(without preload, or in post_fork), and in joblib take the backend "loky" or "threading"'
        )


def _after_fork():
    Process.forked = Process.forked or Process.started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
