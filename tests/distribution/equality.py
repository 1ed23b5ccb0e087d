"""How much losses of several ranks differ from one process's: `python -m tests.distribution.equality --steps 50`.

Each job trains all models alone and then together, and fails where a step's loss differs by 1e-5 or more relative.
"""

import argparse
import re

from keras_ocl import runtime
from tests.distribution.job import run_job
from tests.distribution.models import MODELS

_TRAINING = """
    from tests.distribution.models import make
    from keras.distribution import DataParallel, set_distribution
    from keras_ocl.distribution import mpi

    STEPS, world = {steps}, mpi.world()

    def train(name):
        model, x, y, weights = make(name)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
        rows = lambda n: ([a[:n] for a in x] if isinstance(x, list) else x[:n], y[:n], weights[:n])
        losses = [model.train_on_batch(*rows(37 if k % 3 else 30)) for k in range(STEPS)]
        history = model.fit(x, y, sample_weight=weights, batch_size=16, epochs=1, verbose=0).history
        measured = model.evaluate(x, y, batch_size=16, verbose=0)
        weights = [np.asarray(w) for w in model.get_weights()]
        seen = np.array([v[0] for v in history.values()])
        return np.array(losses), seen, np.array(measured), model.predict(x, batch_size=16, verbose=0), weights

    for name in {names!r}:
        set_distribution(None)
        alone = world.gather_objects(train(name) if rank == 0 else None)[0]
        keras.utils.clear_session()  # names count on, and are compared
        set_distribution(DataParallel(devices={devices}))
        together = train(name)
        worst = np.abs(together[0] / np.where(alone[0] == 0, 1, alone[0]) - 1)[alone[0] != 0].max()
        if rank == 0:
            print(name, "losses of steps differ by", worst)
        assert worst < 1e-5, (name, alone[0], together[0])
        for before, after in zip(alone[1:4], together[1:4]):
            np.testing.assert_allclose(after, before, rtol=5e-3, atol=2e-4, err_msg=name)
        for before, after in zip(alone[4], together[4]):
            np.testing.assert_allclose(after, before, rtol=2e-2, atol=2e-3, err_msg=name)
"""


def training(steps, names, devices=None):
    """Code for `run_job` that trains models alone and together, and prints how much the losses of so many steps differ.

    Args:
        devices: the names of those that DataParallel takes, if not one for each rank.
    """
    return _TRAINING.format(steps=steps, names=list(names), devices=devices)


def differences(steps, names, ranks, parts):
    """name -> the largest relative difference of a step's loss, of ranks with so many devices each."""
    if parts == 1:
        output = run_job(training(steps, names), ranks, optimised=True)
    else:
        whole = runtime.current_device().name.partition("/")[0]
        devices = [f"{whole}/{k + 1}of{parts}" for k in range(parts)] * ranks
        # Bound to cores of its own, a rank could have too few for its devices.
        output = run_job(training(steps, names, devices), ranks, optimised=True, KERAS_OCL_BIND="0", KERAS_OCL_DEVICE=whole)
    return {name: float(value) for name, value in re.findall(r"^(\w+) losses of steps differ by (\S+)$", output, re.MULTILINE)}


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.distribution.equality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="of each model (default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--jobs", nargs="+", default=["2", "3", "2x2"], help="ranks, or ranks x devices of each (default: 2 3 2x2)")
    arguments = parser.parse_args()
    for job in arguments.jobs:
        ranks, _, parts = job.partition("x")
        found = differences(arguments.steps, arguments.models, int(ranks), int(parts or 1))
        print(f"{job} ranks:", ", ".join(f"{name} {value:.1e}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
