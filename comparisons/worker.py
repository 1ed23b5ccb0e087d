"""Measure one script on one backend: `KERAS_BACKEND=<name> python -m comparisons.worker JOB RESULT`, in a process of its own.

JOB is a JSON text (see comparisons.runner.Job), RESULT the file that the result is written to. Every backend starts from the same
NumPy weights and sees the same examples in the same order; a clock stops only after weights were read back.
"""

import importlib
import json
import random
import sys
import time
from pathlib import Path

import_began = time.perf_counter()
import keras  # noqa: E402  (its import is what the clock above measures)
import numpy as np  # noqa: E402

import_seconds = time.perf_counter() - import_began

WARM_FITS = 2  # the fewest warm epochs that the fit time is the best of
PREDICTS = 4  # the first one compiles and is not counted


def starting_weights(initial, seed):
    """Return the weights `initial` with Glorot-uniform kernels drawn by NumPy from `seed`; vectors (biases, scales) stay as they are."""
    generator = np.random.default_rng(seed)
    weights = []
    for weight in initial:
        if weight.ndim > 1:
            receptive = int(np.prod(weight.shape[:-2]))
            limit = np.sqrt(6 / (receptive * (weight.shape[-2] + weight.shape[-1])))
            # Drawn and rounded as float32 whatever the weight's dtype, so that a float64 run starts at the same point.
            weight = generator.uniform(-limit, limit, weight.shape).astype("float32").astype(weight.dtype)
        weights.append(weight)
    return weights


def epoch_order(size, start, epoch):
    """Return the order of the `size` training examples in an epoch, the same on every backend."""
    return np.random.default_rng([start, epoch]).permutation(size)


def drain(model):
    """Wait for all queued work by reading the first and the last weight."""
    for weight in (model.weights[0], model.weights[-1]):
        keras.ops.convert_to_numpy(weight.value)


def peak_mib():
    """Return the peak resident memory of this process in MiB, or None where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) // 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1024 * 1024 if sys.platform == "darwin" else 1024)


def device():
    """Return the device that the backend computes on, in words, and its peak memory in MiB (None on other backends, which do not say)."""
    if keras.config.backend() != "ocl":
        return {"device": ", ".join(keras.distribution.list_devices()), "device_peak_mib": None}
    import keras_ocl
    from keras_ocl import runtime

    used = runtime.current_device()
    return {"device": f"{used}, driver {used.driver}", "device_peak_mib": keras_ocl.memory_info()["peak"] // 2**20}


class FirstStep(keras.callbacks.Callback):
    """Measures the seconds from the start of the first `fit` to the first batch whose loss could be read."""

    seconds = None

    def on_train_begin(self, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.seconds is None:
            float(logs["loss"])
            drain(self.model)
            self.seconds = time.perf_counter() - self.began


class Subject:
    """A script's model and data, put at any of its starting points.

    `script` is the script's module and `job` the dict of comparisons.runner.Job.
    """

    def __init__(self, script, job, dropout=True):
        # Keras draws the layers' seeds from here. Its own set_random_seed would also load TensorFlow, whatever the backend.
        random.seed(job["seed"])
        (self.x, self.y), (self.x_test, self.y_test) = script.load_data(job["data"])
        limit = job["limit"]
        self.x, self.y, self.x_test, self.y_test = self.x[:limit], self.y[:limit], self.x_test[:limit], self.y_test[:limit]
        self.batch = script.BATCH_SIZE
        self.steps = -(-len(self.x) // self.batch)
        self.seed = job["seed"]
        self.model = script.build_model(self.x.shape[1:])
        if not dropout:
            for layer in self.model.layers:
                if isinstance(layer, keras.layers.Dropout):
                    layer.rate = 0.0
        self.model.optimizer.build(self.model.trainable_variables)
        # Copies: what a backend returns may be a view of the variable.
        self._weights = [np.array(weight) for weight in self.model.get_weights()]
        self._slots = [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in self.model.optimizer.variables]

    def restart(self, start):
        """Put the model at start number `start`, with its optimizer as new."""
        self.start = self.seed + start
        self.model.set_weights(starting_weights(self._weights, self.start))
        for variable, value in zip(self.model.optimizer.variables, self._slots, strict=True):
            variable.assign(value)

    def fit(self, epoch, callbacks=()):
        """Train one epoch; return (mean training loss, seconds)."""
        order = epoch_order(len(self.x), self.start, epoch)
        x, y = self.x[order], self.y[order]
        drain(self.model)
        began = time.perf_counter()
        history = self.model.fit(x, y, batch_size=self.batch, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
        drain(self.model)
        return float(history.history["loss"][-1]), time.perf_counter() - began

    def evaluate(self):
        """Return (loss, accuracy) on the test data."""
        return [float(value) for value in self.model.evaluate(self.x_test, self.y_test, batch_size=self.batch, verbose=0)]

    def predict_seconds(self):
        """Return the seconds of one `predict` over the training inputs; its NumPy result is the read that stops the clock."""
        began = time.perf_counter()
        self.model.predict(self.x, batch_size=self.batch, verbose=0)
        return time.perf_counter() - began

    def step_losses(self, start, steps):
        """Return the loss of each of the first `steps` training batches from start number `start`."""
        self.restart(start)
        losses = []
        for step in range(steps):
            epoch, position = divmod(step, self.steps)
            rows = epoch_order(len(self.x), self.start, epoch)[position * self.batch : (position + 1) * self.batch]
            self.model.reset_metrics()
            losses.append(float(self.model.train_on_batch(self.x[rows], self.y[rows], return_dict=True)["loss"]))
        return losses


def train(subject, job):
    """Train from every start, then time; return the result's keys for training."""
    first, starts, warm = FirstStep(), [], []
    for start in range(job["starts"]):
        subject.restart(start)
        losses = []
        for epoch in range(job["epochs"]):
            cold = first.seconds is None
            loss, seconds = subject.fit(epoch, [first] if cold else ())
            losses.append(loss)
            if not cold:
                warm.append(seconds)
        test_loss, test_accuracy = subject.evaluate()
        starts.append({"train_loss": losses, "test_loss": test_loss, "test_accuracy": test_accuracy})
    while len(warm) < WARM_FITS:
        warm.append(subject.fit(job["epochs"])[1])
    predicts = [subject.predict_seconds() for _ in range(PREDICTS)][1:]
    return {
        "starts": starts,
        "first_step_s": first.seconds,
        "fit_ms": min(warm) / subject.steps * 1e3,
        "predict_ms": min(predicts) / subject.steps * 1e3,
    }


def measure(job):
    """Return the result of a job as the dict that comparisons.runner documents."""
    keras.config.set_floatx(job["floatx"])
    script = importlib.import_module(f"comparisons.{job['script']}")
    result = {"script": job["script"], "backend": keras.config.backend(), "floatx": job["floatx"], "keras": keras.__version__}
    subject = None
    if job["train"]:
        subject = Subject(script, job)
        result |= train(subject, job)
    if job["steps"]:
        subject = Subject(script, job, dropout=False)
        result["step_losses"] = [subject.step_losses(start, job["steps"]) for start in range(job["step_starts"])]
    return (
        result
        | device()
        | {
            "examples": [len(subject.x), len(subject.x_test)],
            "parameters": subject.model.count_params(),
            "batch_size": subject.batch,
            "steps_per_epoch": subject.steps,
            "epochs": job["epochs"],
            "import_s": import_seconds,
            "peak_mib": peak_mib(),
        }
    )


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
