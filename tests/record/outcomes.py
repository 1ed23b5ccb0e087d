"""A pytest plugin (``-p tests.record.outcomes``) that writes each test's outcome as JSON to the file `KERAS_OCL_TEST_OUTCOMES`."""

import json
import os
import time
from pathlib import Path

import pytest


def pytest_configure(config):
    config.pluginmanager.register(Outcomes())


class Outcomes:
    """Collects each test's outcome, in the process that directs the workers, and writes them at the end."""

    def __init__(self):
        self.tests = {}
        self.kernels = 0
        self.device = None
        self.start = time.time()

    def pytest_runtest_logreport(self, report):
        test = self.tests.setdefault(identifier(report.nodeid), {"outcome": "passed", "seconds": 0.0, "text": ""})
        test["seconds"] += report.duration
        if report.failed or report.skipped:
            test["outcome"] = report.outcome
            test["text"] = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else report.longreprtext

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests[identifier(report.nodeid)] = {"outcome": "failed", "seconds": 0.0, "text": report.longreprtext}
        elif report.skipped:
            self.tests[identifier(report.nodeid)] = {"outcome": "skipped", "seconds": 0.0, "text": str(report.longrepr[2])}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        output = getattr(node, "workeroutput", {})
        self.kernels += output.get("kernels", 0)
        self.device = output.get("device") or self.device

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        kernels, device = _device_statistics()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput.update(kernels=kernels, device=device)
            return
        self.kernels += kernels
        summary = {"seconds": time.time() - self.start, "kernels": self.kernels, "device": self.device or device}
        Path(os.environ["KERAS_OCL_TEST_OUTCOMES"]).write_text(json.dumps({**summary, "tests": self.tests}))


def _device_statistics():
    """Kernels that this process compiled, and the name of the device."""
    from keras.src.backend import backend  # not at the top: PyTorch must load before TensorFlow, which the tests' own plugins see to

    if backend() != "ocl":
        return 0, backend()
    from keras_ocl import runtime

    device = runtime.current_device()
    return device.statistics.kernels, str(device)


def identifier(nodeid):
    """keras/src/a/b_test.py::Class::test as keras.src.a.b_test.Class::test, as JUnit reports join them."""
    path, *names = nodeid.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    return "::".join([".".join([module, *names[:-1]]), *names[-1:]])


def error_line(text):
    """Of a failure's report the line that names the error: the first of the last run of lines that pytest marks with E."""
    lines = text.splitlines() or [""]
    marked = [k for k, line in enumerate(lines) if line.startswith("E ")]
    if not marked:
        return lines[-1].strip()
    first = next(k for k in reversed(marked) if k - 1 not in marked)
    return lines[first].removeprefix("E").strip()
