"""`python -m keras_ocl doctor --mpi`: without a launcher, in a job, and what it says where something fails."""

import os
import platform
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl.distribution import doctor, launcher, mpi
from keras_ocl.distribution.communicator import Communicator
from keras_ocl.runtime import pci_address
from tests.distribution.job import needs_mpi

RUN = "import sys; from keras_ocl.cli import main; sys.exit(main(['doctor', '--mpi']))"
PMI = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "SLURM_PROCID")


def said(before="", **environment):
    """(status, output) of the command in a process of its own that no launcher started."""
    env = {name: value for name, value in os.environ.items() if name not in PMI}
    result = subprocess.run([sys.executable, "-c", before + RUN], env={**env, **environment}, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr


def executable(folder, text):
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return str(path)


def only(path):
    """Code after which `launcher.mpiexec` finds this one, and no srun is on PATH."""
    return (
        f"import shutil; from keras_ocl.distribution import launcher; launcher.mpiexec = lambda: {path!r}; shutil.which = lambda _: None\n"
    )


def test_without_mpi4py():
    assert said("import sys; sys.modules['mpi4py'] = None\n") == (1, "mpi4py is not installed: pip install 'keras-ocl[distributed]'\n")


@needs_mpi
def test_without_a_launcher():
    status, output = said(KERAS_OCL_WIRE="bfloat16")
    assert status == 0
    assert re.search(r"^packages: keras-ocl \S+, keras \S+, mpi4py \S+\nenvironment: .*KERAS_OCL_WIRE=bfloat16", output, re.MULTILINE)
    assert re.search(r"^MPI library: \S+.* \d+\.\d+", output, re.MULTILINE)
    assert re.search(rf"^mpiexec: {re.escape(launcher.mpiexec())} \((MPICH|Open MPI|Intel MPI) \d+\.\d+", output, re.MULTILINE)
    assert "no launcher started this process: `mpiexec -n 2 python -m keras_ocl doctor --mpi` checks" in output


@needs_mpi
def test_no_library_no_mpiexec_and_that_of_another_mpi(tmp_path):
    failing = "import sys; sys.modules['mpi4py.MPI'] = None\n"
    status, output = said(failing)
    assert status == 1 and "MPI library: none" in output and "the MPI library cannot be loaded (" in output and "MPI4PY_LIBMPI=" in output
    status, output = said(only(None))
    assert status == 1 and "mpiexec: none\nthere is no mpiexec to start several processes with: pip install 'keras-ocl[distr" in output
    library = re.search("MPI library: (.*)", output)[1]
    other = "HYDRA build details: Version: 4.1.2" if library.startswith("Open MPI") else "mpiexec (OpenRTE) 4.1.4"
    status, output = said(only(executable(tmp_path, other)))
    whose = "MPICH" if "HYDRA" in other else "Open MPI"
    assert status == 1 and f"mpiexec is {whose}'s, but mpi4py uses another MPI's library" in output, output


@needs_mpi
def test_slurm_without_pmi():
    status, output = said(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2")
    assert status == 1 and output.count("\n") == 1 and "start them by `srun --mpi=pmi2`" in output


@pytest.mark.parametrize(
    "text, expected",
    [
        ("HYDRA build details:\n    Version:                                 4.1.2", ("MPICH", "4.1.2")),
        ("mpirun (Open MPI) 5.0.3", ("Open MPI", "5.0.3")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619", ("Intel MPI", "2021.10")),
        ("something else", ("?", "?")),
    ],
)
def test_versions_of_launchers(tmp_path, text, expected):
    assert doctor._launcher_version(executable(tmp_path, text)) == expected


def test_a_job(mpiexec):
    job = mpiexec(3, RUN, timeout=120)
    lines = job.output.splitlines()
    table = next(k for k, line in enumerate(lines) if line.split() == ["rank", "host", "process", "device"])
    assert job.status == 0 and lines[table - 1].endswith(": 3 ranks with the same versions of keras and keras-ocl"), job.output
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == ["0", "1", "2"]
    assert len({line.split()[2] for line in lines[table + 1 : table + 4]}) == 3
    assert re.fullmatch(r"all-reduce of 4 bytes: right, \d+ us", lines[-2]) and re.fullmatch(
        r"all-reduce of 16 MiB: right, \d+ us, \S+ GB/s", lines[-1]
    )
    assert "warning: ranks 0, 1 and 2 share" in job.output


def test_a_job_without_devices_or_library(mpiexec):
    job = mpiexec(2, RUN, timeout=120, KERAS_OCL_DEVICE="no such device")
    assert job.status == 1 and "rank 1 has no device: no usable OpenCL device is called 'no such device'; there are: " in job.output
    job = mpiexec(2, "import sys; sys.modules['mpi4py.MPI'] = None\n" + RUN)
    assert job.status == 1 and job.output.count("mpi4py cannot be used") == 1, job.output


class Two(Communicator):
    """Two ranks, of which the second is as told and has wrong sums."""

    size = 2

    def __init__(self, second):
        self.second = second

    def all_reduce(self, arrays, kind):
        return [2 * array + 1 for array in arrays]

    def gather_objects(self, thing):
        return [thing, False if thing is True else self.second(thing)]


def device(name="gpu:0", kind="gpu", units=8, bus=None):
    handle = SimpleNamespace(extensions="")
    if bus is not None:
        handle = SimpleNamespace(extensions="cl_nv_device_attribute_query", pci_domain_id_nv=1, pci_bus_id_nv=bus, pci_slot_id_nv=0)
    traits = SimpleNamespace(compute_units=units)
    return type("Named", (SimpleNamespace,), {"__str__": lambda self: self.name})(
        name=name, kind=kind, driver=SimpleNamespace(handle=handle), traits=traits
    )


def job(monkeypatch, capsys, found, second):
    """(status, output) of rank 0 of a job."""
    monkeypatch.setattr(mpi, "world", lambda: Two(second))
    monkeypatch.setattr(doctor, "_print_environment", lambda library: None)
    monkeypatch.setattr(doctor, "_library", lambda: "a library")
    for name in doctor._LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    return doctor._job("mpiexec", lambda: (found, "why")), capsys.readouterr().out


def test_wrong_sums(monkeypatch, capsys):
    status, output = job(monkeypatch, capsys, device(), lambda rank: rank._replace(host="another"))
    assert status == 1 and output.count("WRONG") == 2 and "warning" not in output
    assert "rank 1 got wrong sums, by a fault of the MPI library or the network: try another transport (UCX_TLS=tcp,self" in output


def test_two_ranks_on_one_device(monkeypatch, capsys):
    same = lambda rank: rank  # noqa: E731
    other = lambda rank: rank._replace(device=rank.device._replace(address="0001:42:00"))  # noqa: E731
    own = "sh -c 'KERAS_OCL_DEVICE={} exec python SCRIPT.py'"
    output = job(monkeypatch, capsys, device(), same)[1]
    assert f"warning: ranks 0 and 1 share gpu:0 of {platform.node()}; give each rank a GPU of its own" in output
    assert own.format("gpu:$MPI_LOCALRANKID") in output
    # each sees one GPU, called gpu:0, but not the same
    output = job(monkeypatch, capsys, device(bus=0x41), other)[1]
    assert "warning" not in output and "gpu:0 0001:41:00\n" in output and "gpu:0 0001:42:00\n" in output
    assert "warning: ranks 0 and 1 share gpu:0" in job(monkeypatch, capsys, device(bus=0x41), same)[1]
    assert own.format("cpu:0/$((MPI_LOCALRANKID + 1))of2") in job(monkeypatch, capsys, device("cpu:0", "cpu"), same)[1]
    assert "; start at most 1 there, one for each of its compute units\n" in job(monkeypatch, capsys, device("cpu:0", "cpu", 1), same)[1]
    bound = lambda rank: rank._replace(device=rank.device._replace(cores="cores 900"))  # noqa: E731
    output = job(monkeypatch, capsys, device("cpu:0", "cpu"), bound)[1]
    assert "warning" not in output and "cores 900" in output
    parts = lambda rank: rank._replace(device=rank.device._replace(name="cpu:0/2of2"))  # noqa: E731
    assert "warning" not in job(monkeypatch, capsys, device("cpu:0/1of2", "cpu"), parts)[1]


def test_pci_addresses():
    amd = SimpleNamespace(extensions="cl_khr_fp64 cl_amd_device_attribute_query", topology_amd=SimpleNamespace(bus=3, device=0, function=1))
    assert pci_address(amd) == "03:00.1" and pci_address(device(bus=0x41).driver.handle) == "0001:41:00"
    assert pci_address(SimpleNamespace(extensions="cl_khr_fp64")) == ""

    class Old:
        extensions = "cl_nv_device_attribute_query"

        @property
        def pci_domain_id_nv(self):
            raise cl.LogicError("clGetDeviceInfo failed: INVALID_VALUE")

    assert pci_address(Old()) == ""


def test_sums_that_travel_narrow_are_right(monkeypatch):
    monkeypatch.setenv("KERAS_OCL_WIRE", "bfloat16")
    world = Two(lambda right: right)
    world.all_reduce = lambda arrays, kind: [(2 * array + 1) * np.float32(1 + 2**-8) for array in arrays]
    assert doctor._timed(world, 5, 1)[2][0] is True
    monkeypatch.delenv("KERAS_OCL_WIRE")
    assert doctor._timed(world, 5, 1)[2][0] is False
