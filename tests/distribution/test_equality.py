"""Ranks that share batches train to what one process trains to: losses, metrics, weights, predictions."""

import pytest

from tests.distribution.equality import training
from tests.distribution.job import needs_mpi, run_job
from tests.distribution.models import MODELS
from tests.distribution.modes import everything_overlaps

pytestmark = needs_mpi


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_are_those_of_one_process(ranks):
    assert run_job(training(9, MODELS), ranks).count("losses of steps differ by") == len(MODELS)


def test_unequal_shares():
    assert run_job(training(5, ["mlp", "recurrent"]), 2, KERAS_OCL_SHARES="3,1").count("differ") == 2


def test_batches_with_fewer_rows_than_ranks():
    output = run_job(
        """
        def losses():
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            x = np.arange(40, dtype="float32").reshape(10, 4) / 40
            return [float(model.train_on_batch(x[:n], x[:n, :1])) for n in (10, 2, 1, 10, 5)]

        alone = losses()
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        np.testing.assert_allclose(losses(), alone, rtol=1e-5)
        print("equal")
        """,
        3,
    )
    assert output.count("equal") == 3


@pytest.mark.skipif(everything_overlaps(), reason="each sum is a collective")
def test_one_collective_a_step():
    """All gradients, the loss and the metrics of a model without batch norm cross the wire together."""
    output = run_job(
        """
        from keras_ocl.hooks.distribution import placement
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
        x = np.ones((10, 6), "float32")
        model.train_on_batch(x, x[:, :2])
        group = placement().batch_axis.group
        calls, reduce = [], group.all_reduce
        group.all_reduce = lambda arrays, kind, *rest: calls.append([a.shape for a in arrays]) or reduce(arrays, kind, *rest)
        model.train_on_batch(x, x[:, :2])
        if rank == 0:
            print(len(calls), sorted(calls[0]))
        """,
        2,
    )
    assert output.strip().endswith("1 [(), (), (2,), (6, 8), (8,), (8, 2)]")


def test_a_recurrent_layer_runs_once_forwards():
    """The scan of the gradient is the forward one with more results, on a part as on the whole."""
    output = run_job(
        """
        import gc
        from keras_ocl.compiler.launch.loops.lower import Loop
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        model = keras.Sequential([keras.Input((9, 6)), keras.layers.LSTM(8), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.train_on_batch(np.ones((10, 9, 6), "float32"), np.ones((10, 2), "float32"))
        if rank == 0:
            print(sorted(loop.reverse for loop in gc.get_objects() if type(loop) is Loop))
        """,
        2,
    )
    assert output.strip().endswith("[False, True]")


def test_ranks_stay_together_when_keras_is_loaded_again():
    """`keras.config.set_backend` drops Keras's and our modules, but not the job."""
    output = run_job(
        """
        import warnings
        warnings.simplefilter("ignore")
        keras.config.set_backend("ocl")
        from keras_ocl.hooks.distribution import num_processes, process_id
        print(f"{process_id()} of {num_processes()}")
        """,
        2,
    )
    assert "0 of 2" in output and "1 of 2" in output


def test_one_rank_may_ask_for_devices():
    output = run_job(
        """
        if rank == 1:
            print(len(keras.distribution.list_devices()), "devices")
        """,
        2,
    )
    assert "2 devices" in output


def test_the_first_rank_writes(tmp_path):
    """Whichever way callbacks are given."""
    output = run_job(
        f"""
        import os
        from keras.callbacks import BackupAndRestore, CallbackList, CSVLogger, ModelCheckpoint, ProgbarLogger
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((4, 2), "float32")
        os.chdir({str(tmp_path)!r})
        for way in "list", "made":
            paths = [f"{{way}}-{{rank}}.{{end}}" for end in ("csv", "keras", "backup")]
            backup = BackupAndRestore(paths[2], delete_checkpoint=False)
            callbacks = [CSVLogger(paths[0]), ModelCheckpoint(paths[1]), backup, ProgbarLogger()]
            if way == "made":
                callbacks = CallbackList(callbacks, model=model, epochs=1, verbose=2, steps=1)
            model.fit(x, x[:, :1], verbose=0, callbacks=callbacks)
        """,
        2,
    )
    files = [f"{way}-0.{end}" for way in ("list", "made") for end in ("backup", "csv", "keras")]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert output.count("loss:") == 1  # of ProgbarLogger, which is verbose where the list was made


def test_ranks_that_drift():
    code = """
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="second")])
    model.compile("sgd", "mse")
    x = np.ones((6, 4), "float32")
    for _ in range(4):  # of which two are followed by a comparison
        model.train_on_batch(x, x[:, :2])
    if rank == 1:
        model.layers[1].bias.assign([1, 2])
    model.train_on_batch(x, x[:, :2])
    try:
        model.train_on_batch(x, x[:, :2])
    except RuntimeError as error:
        print(error)
    """
    output = run_job(code, 2, KERAS_OCL_COMPARE="2")
    expected = "after 6 steps 1 of 7 variables differ, sequential/second/bias of shape (2,) first"  # gradients are the same
    assert output.count(expected) == 2, output
