"""Large sums that travel while the rest of a step is computed: KERAS_OCL_OVERLAP=1, with limits that small models reach.

`KERAS_OCL_TEST_OVERLAP=1` runs any other of distribution's tests so (modes.py)."""

import keras
import numpy as np
import pytest
from keras.distribution import DataParallel, set_distribution

from keras_ocl.compiler.launch import overlap
from keras_ocl.distribution import partition
from keras_ocl.distribution.overlap import overlaps
from keras_ocl.runtime.worker import Worker
from tests.distribution.equality import training
from tests.distribution.job import needs_mpi, run_job

pytestmark = needs_mpi

ORDER = """
    import time
    from keras.distribution import DataParallel, set_distribution
    from keras_ocl import runtime
    from keras_ocl.distribution import mpi
    from keras_ocl.distribution.mpi import MpiCommunicator

    set_distribution(DataParallel())
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(300, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((300,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((600, 300), "float32")
    model.train_on_batch(x, x[:, :1])
    reduce = MpiCommunicator.all_reduce
    MpiCommunicator.all_reduce = lambda *args: time.sleep(0.05) or reduce(*args)
    overlaps = []
    for _ in range(3):  # on a busy machine the thread may come late
        with runtime.profiled(runtime.current_device(), runtime.Timeline()) as timeline:
            model.train_on_batch(x, x[:, :1])
        sums, kernels = [span for span, _ in timeline.overlaps()], timeline.device_spans()
        assert len(sums) >= 4 and all(a.end <= b.start for a, b in zip(sums, sums[1:])), sums
        assert kernels[-1].start > sums[-1].end  # the update
        overlaps.append(sum(sums[0].start < span.start < sums[0].end for span in kernels))
    assert max(overlaps) > 0, overlaps  # gradients of the first layers, while those of the last travel
    print("in order", overlaps)
"""


def test_losses_are_those_of_one_process():
    output = run_job(training(3, ["cnn", "recurrent"]) + ORDER, 2, KERAS_OCL_TEST_OVERLAP="1")
    assert output.count("losses of steps differ by") == 2 and output.count("in order") == 2


def test_devices_of_a_process(halves, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_OVERLAP", "1")
    for module, name in (partition, "_BUCKET"), (overlap, "WORTH"):
        monkeypatch.setattr(module, name, 0)
    given, give = [], Worker.give
    monkeypatch.setattr(Worker, "give", lambda *args: given.append(args) or give(*args))

    def losses():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), *[keras.layers.Dense(8, activation="tanh") for _ in range(3)]])
        model.compile("adam", "mse")
        x = np.random.default_rng(0).normal(size=(10, 6)).astype("float32")
        return [float(model.train_on_batch(x, x[:, :1])) for _ in range(4)]

    alone = losses()
    try:
        set_distribution(DataParallel(devices=halves, auto_shard_dataset=True))
        np.testing.assert_allclose(losses(), alone, rtol=1e-5)
    finally:
        set_distribution(None)
    assert len(given) >= 4 * 2 * 2  # steps, devices, sums


def test_a_rank_that_fails_between(mpiexec):
    """Its sums are done before its memory goes, the others learn why the job ends."""
    job = mpiexec(2, """
        import keras
        import numpy as np
        keras.distribution.initialize()
        from keras_ocl import runtime
        from keras_ocl.compiler.launch import overlap
        from keras_ocl.distribution import mpi, partition
        partition._BUCKET = overlap.WORTH = 0
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        model = keras.Sequential([keras.Input((6,)), *[keras.layers.Dense(8, activation="tanh") for _ in range(3)]])
        model.compile("adam", "mse")
        x = np.ones((10, 6), "float32")
        model.train_on_batch(x, np.ones((10, 8)))
        device = runtime.current_device()
        replay, finish = device.replay, device.worker.finish
        if mpi.world().rank == 1:
            calls = []
            def fail(*args):
                calls.append(args)
                if len(calls) == 3:
                    raise ValueError("between")
                return replay(*args)
            device.replay, device.worker.finish = fail, lambda: (finish(), print("finished"))
        model.train_on_batch(x, np.ones((10, 8)))
        model.train_on_batch(x, np.ones((10, 8)))
    """, KERAS_BACKEND="ocl", KERAS_OCL_OVERLAP="1")  # fmt: skip
    assert job.status and "rank 1 " in job.output and "ended by ValueError: between" in job.output and "finished" in job.output


def test_where_it_pays(monkeypatch):
    assert overlaps(["cpu", "cpu"], several_hosts=True) and overlaps(["gpu", "gpu"]) and not overlaps(["gpu", "cpu"])
    monkeypatch.setenv("KERAS_OCL_OVERLAP", "1")
    assert overlaps(["cpu"])
    monkeypatch.setenv("KERAS_OCL_OVERLAP", "yes")
    with pytest.raises(ValueError, match="KERAS_OCL_OVERLAP=yes: 1 exchanges"):
        overlaps(["cpu"])
