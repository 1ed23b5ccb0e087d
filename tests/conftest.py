"""All tests run on this backend; those that need another start a process of their own."""

import dataclasses
import gc
import os
import random
import sys
import zlib

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "ocl"
os.environ.setdefault("KERAS_OCL_COMPILERS", "0")  # all cores run tests already
os.environ.setdefault("KERAS_OCL_QUARANTINE", "manual")  # tests of a device try its kernels themselves
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of the processes that tests start compiles the package anew


BEGINNINGS = {}  # from each generator of the modules of tests to the state in which its module left it


# What Intel's optimiser makes of kernels, Keras's own tests look at, those of models, and those that compare the bits of fused kernels with
# those of single ones; it takes a quarter to a half of these tests' time. Tests that compute more than they compile need it.
UNOPTIMISED_FOLDERS = (
    *(f"tests/{part}/" for part in ("ops", "primitives", "layers", "hooks", "kernels/pointwise", "verify")),
    *(f"tests/compiler/{part}/" for part in ("codegen", "fuse", "launch/loops")),
)
_unoptimised = False  # whether the present test builds its kernels without optimisation


def pytest_addoption(parser):
    parser.addoption("--every", type=int, default=1, metavar="N", help="of parametrised tests about one case in N, always the same")
    parser.addoption(
        "--lanes", type=int, metavar="N", help="32-bit lanes of the vectors that CPUs are taken to have, in place of their own"
    )


JOBS = ("tests/comparisons/", "tests/distribution/", "tests/vendors/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Processes begin with equal parts of the tests in their order, so that hardly any two compute what a module needs once."""
    if config.getoption("dist") == "load":  # pytest-xdist's default
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # marks come before the choice by marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid.startswith(JOBS):
            item.add_marker("jobs")
    among = config.getoption("--every")
    left_out = {item for item in items if "[" in item.name and zlib.crc32(item.nodeid.encode()) % among}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


_stored_program = []  # the function of that name, as users have it


def _read_with(lanes):
    """Let the traits of CPUs have vectors of so many lanes."""
    from keras_ocl.runtime import opencl, selection, traits

    def read(handle):
        found = traits.read_traits(handle)
        return dataclasses.replace(found, vector_width=lanes) if found.kind == "cpu" else found

    opencl.read_traits = selection.read_traits = read


def pytest_sessionstart(session):
    if lanes := session.config.getoption("--lanes"):
        _read_with(lanes)
    from keras_ocl.compiler.run import stored
    from keras_ocl.runtime.programs import UNOPTIMISED, Programs

    # Tests change what lowers and count what it makes, so Programs are neither read from disk nor stored: see the fixture `steps`.
    _stored_program.append(stored.program)
    stored.program = lambda sources, disk: _stored_program[0](sources, None)

    optimised = Programs.build

    def build(self, specs, options="", unoptimised=None):
        if _unoptimised and self.unoptimised_is_exact and UNOPTIMISED not in options:
            options = f"{options} {UNOPTIMISED}"
        return optimised(self, specs, options, unoptimised)

    Programs.build = build


def pytest_collection_finish():
    # Collections, which some tests ask for, pass by the tests and what they import, which take most of the time.
    gc.collect()
    gc.freeze()
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            BEGINNINGS.update({v: v.bit_generator.state for v in vars(module).values() if isinstance(v, np.random.Generator)})


def pytest_runtest_setup(item):
    """What a test draws, and fixtures for it, does not depend on the tests that ran before it in its process."""
    global _unoptimised
    _unoptimised = item.nodeid.startswith(UNOPTIMISED_FOLDERS)
    random.seed(0)  # Keras's seeds where a layer is given none
    np.random.seed(0)
    for generator, state in BEGINNINGS.items():
        generator.bit_generator.state = state


if os.environ.get("KERAS_OCL_TEST_ACCESSES", "0") not in ("", "0"):

    @pytest.fixture(autouse=True)
    def checked_accesses():
        """Every kernel compares each access with its buffer."""
        from tests.accesses.checking import installed

        with installed():
            yield


@pytest.fixture(scope="session")
def run_folder(request, tmp_path_factory):
    """A folder that all processes of this run of the tests share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The DiskCache in a folder of the test's own, where the current device's compiled steps are stored, as users' are."""
    from keras_ocl import runtime
    from keras_ocl.compiler.run import stored
    from keras_ocl.runtime.disk_cache import DiskCache

    disk = DiskCache(tmp_path / "steps")
    monkeypatch.setattr(stored, "program", _stored_program[0])
    monkeypatch.setattr(runtime.current_device().programs, "steps", disk)
    return disk


@pytest.fixture
def apart(monkeypatch):
    """Small kernels stay launches of their own, for tests that count what fusion makes."""
    from keras_ocl.compiler.run import sources

    monkeypatch.setattr(sources, "chained", lambda launches, traits: launches)
    monkeypatch.setattr(sources, "side_by_side", lambda launches, traits, resolve: launches)
