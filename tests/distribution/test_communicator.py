"""Collectives of one process, and of two and three ranks against NumPy."""

import subprocess
import sys

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.distribution import launcher, mpi, wire
from keras_ocl.distribution.communicator import Communicator

HEAD = """
    import os
    import ml_dtypes, numpy as np, threading
    from keras_ocl.distribution import mpi
    mpi.initialize()
    world = mpi.world()
    rank, size = world.rank, world.size

    def inputs(seed, shape, dtype):
        "What each rank has: small numbers, so that sums and products in narrow dtypes show each rounding."
        rng = np.random.default_rng(seed)
        values = [rng.integers(-4, 5, shape) + rng.integers(0, 8, shape) / 8 for _ in range(size)]
        if np.dtype(dtype).kind == "c":
            values = [v + 1j * v[..., ::-1] for v in values]
        return [(np.abs(v) if np.dtype(dtype).kind == "u" else v).astype(dtype) for v in values]
"""

REDUCE = """
    floats = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32, np.float64]
    ints = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
    numpy_of = dict(sum=np.add, prod=np.multiply, max=np.maximum, min=np.minimum)
    bits = {"and": np.bitwise_and, "or": np.bitwise_or}
    for kind, dtypes in [("sum", [*floats, *ints, bool, np.complex64, np.complex128]), ("prod", [*floats, *ints, bool, np.complex64]),
                         ("max", [*floats, *ints, bool]), ("min", [*floats, *ints, bool]), ("and", [*ints, bool]), ("or", [*ints, bool])]:
        function = {**numpy_of, **bits}[kind]
        given, expected = [], []
        for seed, dtype in enumerate(dtypes):
            for shape in [(), (0,), (1,), (3, 5), (2, 0, 3), (7,), (1001,)]:
                all_of = inputs(seed, shape or (1,), dtype)
                all_of = [v.reshape(shape) for v in all_of]
                narrow = np.dtype(dtype).itemsize < 4 and dtype in floats
                wide = [v.astype(np.float32) if narrow else v for v in all_of]
                total = wide[0]
                for v in wide[1:]:
                    total = np.asarray(function(total, v))
                given.append(all_of[rank])
                expected.append(total.astype(dtype))
        results = world.all_reduce(given, kind)
        singly = [world.all_reduce([g], kind)[0] for g in given]
        for g, e, *found in zip(given, expected, results, singly, strict=True):
            for r in found:
                assert r.dtype == g.dtype and r.shape == g.shape and r.flags.c_contiguous, (kind, g.dtype, r.dtype, r.shape)
                wide = (np.complex128 if g.dtype.kind == "c" else np.float64) if g.dtype.kind not in "iub" else g.dtype
                np.testing.assert_allclose(r.astype(wide), e.astype(wide), rtol=1e-6, err_msg=f"{kind} {g.dtype}")
    # NaN, infinities, both zeros; all ranks have the same bits
    special = [[np.nan, 1, -np.inf, -0.0, 0.0, -3, np.inf], [2, 3, 4, 0.0, 0.0, -2, np.nan], [2, np.nan, 5, -0.0, -0.0, -5, -1]]
    special = np.array(special[:size])
    for dtype in floats[:2] + floats[3:]:
        for kind, function in (("max", np.maximum), ("min", np.minimum)):
            result, = world.all_reduce([special[rank].astype(dtype)], kind)
            np.testing.assert_array_equal(result.astype(float), function.reduce(special), err_msg=str(dtype))
            assert len({r.tobytes() for r in world.gather_objects(result)}) == 1
    # not contiguous, read-only, not changed
    x = np.arange(12.0).reshape(3, 4).T
    x.setflags(write=False)
    np.testing.assert_array_equal(world.all_reduce([x], "sum")[0], x * size)
    np.testing.assert_array_equal(world.all_reduce([x, x[::2]], "sum")[1], x[::2] * size)
    assert world.all_reduce([], "sum") == []
    # the same from run to run
    rng = np.random.default_rng(rank)
    x = rng.standard_normal(300_001).astype(np.float32)
    first, again = world.all_reduce([x], "sum")[0], world.all_reduce([x], "sum")[0]
    assert first.tobytes() == again.tobytes() and len(set(world.gather_objects(first.tobytes()))) == 1
    # large arrays beside small ones, into arrays that are given
    large = [np.full(n, rank + n, dtype) for n, dtype in ((100_001, np.float32), (70_001, np.int64), (3, np.float32), (9**5, np.complex64))]
    large.append(np.full(200_001, rank + 1, ml_dtypes.bfloat16))
    targets = [np.empty_like(x) for x in large]
    for given in ((), targets):
        for x, result, place in zip(large, world.all_reduce(large, "sum", given), range(5), strict=True):
            total = x.dtype.type(size * (float(x[0].real) - rank) + size * (size - 1) / 2)
            assert result.dtype == x.dtype and np.all(result == total), (x.dtype, result[:3], total)
            assert not given or place in (2, 4) or result is targets[place]
    refused = [("mean", float, ValueError), ("max", complex, TypeError), ("and", float, TypeError), ("sum", "U3", TypeError)]
    for kind, dtype, error in refused:
        try:
            world.all_reduce([np.zeros(3, dtype)], kind)
        except error as e:
            assert kind in str(e)
        else:
            raise AssertionError((kind, dtype))
"""

MOVE = """
    for dtype in (np.float32, ml_dtypes.bfloat16, bool, np.complex64, np.int8, np.float16):
        for extents in ([3, 1, 4][:size], [0, 5, 0][:size], [0] * size, [2] * size, [200_000, 0, 1][:size]):
            for shape, axis in [((0,), 0), ((0, 3), 0), ((2, 0, 3), 1), ((2, 3, 0), -1), ((1, 1, 0), 2), ((2, 0, 0), 1)]:
                full = list(shape)
                full[axis] = sum(extents)
                whole = inputs(sum(full), tuple(full), dtype)
                parts = np.split(whole[0], np.cumsum(extents)[:-1], axis)
                for target in (None, np.empty_like(whole[0])):
                    result = world.all_gather(parts[rank], axis, extents, target)
                    assert result.dtype == dtype and result.flags.c_contiguous and (target is None or result is target)
                    np.testing.assert_array_equal(result, whole[0])
                for kind, function in (("sum", np.add), ("max", np.maximum)):
                    if (dtype, kind) == (np.complex64, "max") or sum(extents) > 1000 and kind == "max":
                        continue
                    total = whole[0].astype(np.float32) if np.dtype(dtype).itemsize == 2 else whole[0]
                    for v in whole[1:]:
                        total = function(total, v.astype(total.dtype))
                    expected = np.split(total.astype(dtype), np.cumsum(extents)[:-1], axis)[rank]
                    for target in (None, np.empty_like(expected)):
                        result = world.reduce_scatter(whole[rank], axis, extents, kind, target)
                        assert result.dtype == dtype and result.shape == expected.shape
                        np.testing.assert_array_equal(result, expected)
        for root in range(size):
            values = inputs(root, (3, 4), dtype)
            np.testing.assert_array_equal(world.broadcast(values[rank], root), values[root])
        np.testing.assert_array_equal(world.broadcast(np.full((), rank, dtype), size - 1), np.full((), size - 1, dtype))
    for extents in ([1] * (size + 1), [5, 2, 2][:size], [-1, 3, 2][:size]):
        for call in (lambda: world.reduce_scatter(np.zeros(3), 0, extents), lambda: world.all_gather(np.zeros(3), 0, extents)):
            try:
                call()
            except ValueError as error:
                assert "extents" in str(error) or "ranks" in str(error)
            else:
                raise AssertionError(extents)
    assert world.gather_objects({"rank": rank, "text": "x" * 10**rank}) == [{"rank": r, "text": "x" * 10**r} for r in range(size)]
    world.barrier()
"""

SPLIT = """
    halves = world.split(rank % 2)
    own = [r for r in range(size) if r % 2 == rank % 2]
    assert (halves.rank, halves.size) == (own.index(rank), len(own))
    assert halves.gather_objects(rank) == own
    assert halves.all_reduce([np.array([rank])], "sum")[0] == [sum(own)]
    alone = world.split(rank)
    assert (alone.rank, alone.size) == (0, 1) and alone.gather_objects(rank) == [rank]
    everyone = world.split(0)
    backwards = everyone.split(7)
    assert backwards.gather_objects(rank) == list(range(size)) == everyone.gather_objects(rank)
    # threads take turns
    results = []
    threads = [threading.Thread(target=lambda: results.append(world.all_reduce([np.ones(5)], "sum")[0][0])) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert results == [size] * 4
    mpi.initialize()
    mpi.initialize(num_processes=size, process_id=rank, job_addresses="a:1")
    for given in ({"num_processes": size + 1}, {"process_id": rank + 1}, {"job_addresses": ",".join("a" * (size + 1))}):
        try:
            mpi.initialize(**given)
        except ValueError as error:
            assert f"process {rank} of {size}" in str(error)
        else:
            raise AssertionError(given)
    assert mpi.world() is world
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_values(mpiexec, ranks):
    """Every collective, dtype, odd size and way to divide; the end is silent."""
    job = mpiexec(ranks, HEAD + REDUCE + MOVE + SPLIT)
    assert job.status == 0 and "\n".join(job.output.splitlines()[1:]) == "", job.output


@pytest.mark.parametrize("extent", [3, 3_000_000])
def test_a_rank_that_waits_leaves_its_core(mpiexec, extent):
    """To the rank that computes, on a machine of few cores."""
    script = f"""
        import time
        x = np.ones({extent}, np.float32)
        world.all_reduce([x], "sum")
        begun = time.process_time(), time.monotonic()
        if rank: time.sleep(2)
        world.all_reduce([x], "sum")
        used, waited = time.process_time() - begun[0], time.monotonic() - begun[1]
        print("cpu", used, "of", waited, flush=True)
        assert waited >= 1.9 and used < 0.3, (used, waited)
    """
    job = mpiexec(2, HEAD + script.replace("\n    ", "\n"))
    assert job.status == 0, job.output


def test_any_number_of_splits(mpiexec):
    """MPI has some 2000 communicators: splits into the same parts share one."""
    script = """
        for _ in range(1100):
            pair, alone = world.split(3), world.split(rank)
        assert pair.gather_objects(rank) == [0, 1] and alone.size == 1
    """
    job = mpiexec(2, HEAD + script.replace("\n    ", "\n"))
    assert job.status == 0, job.output


def test_ranks_of_a_host_take_devices_in_turn(mpiexec):
    """PoCL can show one processor as several devices."""
    script = """
        from keras_ocl import runtime
        name = runtime.current_device().name
        names = world.gather_objects(name)
        assert names[0] != names[1] and names[0] == names[2], names
    """
    if not any("Portable" in device.platform for device in runtime.devices()):
        pytest.skip("no PoCL")
    job = mpiexec(3, HEAD + script.replace("\n    ", "\n"), KERAS_OCL_DEVICE="portable", POCL_DEVICES="pthread pthread")
    assert job.status == 0, job.output


def test_wire_of_bfloat16(mpiexec):
    """Each rank's values are rounded, added in float32, and the sum is rounded; what is not a sum of float32 is as without."""
    script = """
        half = lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32)
        for n in (1, 2, 7, 100_003):
            values = [np.random.default_rng(r).standard_normal(n).astype(np.float32) for r in range(size)]
            expected = half(sum(map(half, values[1:]), half(values[0])))
            result, other = world.all_reduce([values[rank], np.ones((3, 1), np.float32)], "sum")
            np.testing.assert_array_equal(result, expected)
            np.testing.assert_array_equal(other, np.full((3, 1), size))
            np.testing.assert_array_equal(world.all_reduce([values[rank]], "sum")[0], expected)
            assert np.any(expected != sum(values[1:], values[0]))
            exact = np.maximum.reduce(values)
            np.testing.assert_array_equal(world.all_reduce([values[rank]], "max")[0], exact)
            extents = [n] + [0] * (size - 1)
            unrounded = sum(map(half, values[1:]), half(values[0]))
            np.testing.assert_array_equal(world.reduce_scatter(values[rank], 0, extents), unrounded[: extents[rank]])
            doubles = world.all_reduce([values[rank].astype(np.float64)], "sum")[0]
            np.testing.assert_allclose(doubles, sum(v.astype(np.float64) for v in values), rtol=1e-12)
    """
    job = mpiexec(3, HEAD + script.replace("\n    ", "\n"), KERAS_OCL_WIRE="bfloat16")
    assert job.status == 0 and "\n".join(job.output.splitlines()[1:]) == "", job.output


def test_ranks_must_agree_on_the_wire(mpiexec):
    """What decides the arithmetic is compared when ranks meet."""
    setting = """
    import os
    os.environ["KERAS_OCL_WIRE"] = "bfloat16" if os.environ["PMI_RANK"] == "1" else ""
    """
    job = mpiexec(2, setting + HEAD)
    assert job.status and "KERAS_OCL_WIRE bfloat16, not float32" in job.output


def test_unknown_wire(monkeypatch):
    monkeypatch.setenv("KERAS_OCL_WIRE", "int8")
    with pytest.raises(ValueError, match="KERAS_OCL_WIRE=int8"):
        wire.wire_dtype()


def test_one_process():
    """Every collective returns what it got."""
    alone, x = Communicator(), np.arange(6.0).reshape(2, 3)
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.all_reduce([x], "sum")[0] is x and alone.broadcast(x) is x
    assert alone.all_gather(x, 1, [3]) is x and alone.reduce_scatter(x, 0, [2]) is x
    assert alone.gather_objects("a") == ["a"] and alone.split(3).size == 1
    alone.barrier()
    with pytest.raises(ValueError, match="do not divide"):
        alone.all_gather(x, 0, [3])


@pytest.fixture
def no_launcher(monkeypatch):
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mpi, "_joined", None)


@pytest.mark.parametrize("given", [{"num_processes": 2}, {"process_id": 1}, {"job_addresses": "a:1,b:2"}])
def test_several_processes_without_a_launcher(no_launcher, given):
    with pytest.raises(RuntimeError, match=r"2 processes .* pip install 'keras-ocl\[distributed\]', then `mpiexec -n 2"):
        mpi.initialize(**given)


def test_one_process_without_a_launcher(no_launcher):
    """Stays as it is, and mpi4py is not imported."""
    script = """if True:
        import sys
        from keras_ocl.distribution import mpi
        mpi.initialize()
        mpi.initialize("localhost:1234", 1, 0)
        assert mpi.world().size == 1
        assert not [name for name in sys.modules if "mpi4py" in name]
        try:
            mpi.initialize(num_processes=2)
        except ValueError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "process 0 of 1" in done.stdout


def test_one_process_of_a_launcher(no_launcher, monkeypatch):
    """As of srun, around a notebook: it needs no mpi4py."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mpi.initialize()
    assert mpi.world().size == 1
    with pytest.raises(ValueError, match="process 0 of 1"):
        mpi.initialize(num_processes=2)


def test_launcher_without_mpi4py(no_launcher, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match=r"mpi4py cannot be used .*: pip install 'keras-ocl\[distributed\]', then `mpiexec -n 4"):
        mpi.initialize()


def test_launcher_of_another_mpi(mpiexec):
    """Each process would be a world of its own, and train alone."""
    script = """
        import os
        del os.environ["PMI_FD"], os.environ["PMI_RANK"], os.environ["PMI_SIZE"]
        os.environ |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
        from keras_ocl.distribution import mpi
        mpi.initialize()
    """
    job = mpiexec(2, script)
    assert job.status and "has started 2 processes, but each sees 1, since mpi4py uses the library of another MPI" in job.output


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the batch script itself
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, ("mpiexec", 4)),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}, ("PMIx", 3)),
        ({"PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("Open MPI's mpirun", 2)),
        ({"MPI_LOCALRANKID": "0"}, ("an MPI launcher", None)),
    ],
)
def test_launchers(environment, expected):
    assert launcher.started_by(environment) == expected


def test_slurm_without_pmi():
    with pytest.raises(RuntimeError, match="srun --mpi=pmi2"):
        launcher.started_by({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})
