"""Measures of time and of what was learnt that several studies share: other batches, inference, proportions, devices, dead outputs.

A row whose extent is a single step, because that takes seconds, is measured by `train_wide` and left out by those that need many steps.
"""

import os
import statistics
import time

from comparisons import measures

TIMED = 5  # repeats of an inference, after one that compiles
TOTALS = 3  # repeats of a whole training
TRAINED = 2  # epochs of that training


def single(context):
    """Tell whether all that the row's extent has is one step."""
    return context.subject.steps * context.extent.epochs == 1


def train_wide(context):
    """Train, step and predict; where the extent is a single step only one warm step and predict, which then are all of the times."""
    if not single(context):
        return measures.train(context) | steps(context) | measures.predict(context)
    subject, first = context.subject, context.subject.first_step()
    subject.restart(0)
    context.progress("training", 0, 2)
    logs, _ = subject.fit(0, [first])
    test = subject.evaluate()
    context.progress("training", 1, 2)
    seconds = subject.fit(1)[1]
    context.progress("predicting")
    subject.predict_seconds()  # compiles, for the batch that is timed: kernels may suit the first that they see
    predict = subject.predict_seconds()
    start = {"train_loss": [logs["loss"]], "train": logs, "test": test, "test_loss": test["loss"], "test_accuracy": None}
    return {
        "starts": [start],
        "first_step_s": first.seconds,
        "epoch_seconds": [seconds],
        "epoch_s": measures.spread([seconds]),
        "fit_ms": measures.spread([seconds * 1e3]),
        "total_s": measures.spread([seconds]),
        "predict_ms": measures.spread([predict * 1e3]),
        "step_ms": measures.spread([seconds * 1e3]),
    }


def step_seconds(subject):
    """Return the seconds of each step of an epoch, each ended by reading its loss."""
    import keras

    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.began = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])
            times.append(time.perf_counter() - self.began)

    subject.fit(0, [Clock()])
    return times


def steps(context):
    """Time the steps of one more epoch, one by one: step_ms. What `fit` costs for each epoch is not in it."""
    return {"step_ms": measures.spread([seconds * 1e3 for seconds in step_seconds(context.subject)])}


def batches(context):
    """Train from the first start at other batch sizes: by_batch, {batch: {"step_ms": spread, "test_loss"}} for settings["batches"]."""
    if single(context):
        return {"by_batch": {}}
    subject, found = context.subject, {}
    kept = subject.batch, subject.steps
    for batch in context.row.settings["batches"]:
        subject.batch, subject.steps = batch, -(-len(subject.x) // batch)
        subject.restart(0)
        for epoch in range(context.extent.epochs):
            context.progress(f"training at batch {batch}", epoch, context.extent.epochs)
            subject.fit(epoch)
        found[str(batch)] = {"test_loss": subject.evaluate()["loss"]} | steps(context)
    subject.batch, subject.steps = kept
    return {"by_batch": found}


def inference(context):
    """Time the prediction of so many samples in one call: inference_ms, {samples: spread} for settings["samples"].

    `predict_on_batch`, as the loop of `predict` costs some backends more than a small network does.
    """
    if single(context):
        return {"inference_ms": {}}
    subject, found = context.subject, {}
    for samples in context.row.settings["samples"]:
        context.progress(f"predicting {samples} samples")
        x = subject.x[:samples]
        if len(x) < samples:
            raise ValueError(f"{context.row.name}: inference of {samples} samples needs as many examples, but the extent has {len(x)}")
        times = []
        for _ in range(TIMED + 1):
            began = time.perf_counter()
            subject.model.predict_on_batch(x)  # NumPy: the result was read
            times.append((time.perf_counter() - began) * 1e3)
        found[str(samples)] = measures.spread(times[1:])
    return {"inference_ms": found}


def whole_seconds(subject, epochs):
    """Return the seconds of one `fit` of so many epochs."""
    from comparisons.subject import drain

    drain(subject.model)
    began = time.perf_counter()
    subject.model.fit(subject.x, subject.y, batch_size=subject.batch, epochs=epochs, shuffle=False, verbose=0)
    drain(subject.model)
    return time.perf_counter() - began


def proportions(context):
    """Compare a whole training with its parts.

    epochs_ratio: seconds of TRAINED epochs in one `fit` over those of one epoch. steps_ratio: the same seconds over epochs * steps * the
    mean step, timed in a run of its own. step_ms: spread of those steps.
    """
    subject = context.subject
    subject.restart(0)
    subject.fit(0)
    totals, epochs = [], []
    for repeat in range(TOTALS):
        context.progress("timing whole trainings", repeat, TOTALS)
        epochs.append(whole_seconds(subject, 1))
        totals.append(whole_seconds(subject, TRAINED))
    times = step_seconds(subject)
    total, step = statistics.median(totals), statistics.fmean(times)
    return {
        "epochs_ratio": total / statistics.median(epochs),
        "steps_ratio": total / (TRAINED * subject.steps * step),
        "step_ms": measures.spread([seconds * 1e3 for seconds in times]),
    }


def learnt(context):
    """Compare the predictions of the test data with the best that needs no network, the mean training label.

    learnt: {"zeros": share of predictions that are exactly 0, "deviation": standard deviation of the predictions, "loss": their mean
    squared error, "constant_loss": that of the mean training label, "steps": training steps of the row's extent, at least so many}.
    """
    import numpy as np

    subject = context.subject
    predicted = subject.model.predict(subject.x_test, batch_size=subject.batch, verbose=0)
    return {
        "learnt": {
            "zeros": float(np.mean(predicted == 0)),
            "deviation": float(predicted.std()),
            "loss": float(np.mean((predicted - subject.y_test) ** 2)),
            "constant_loss": float(np.mean((subject.y.mean() - subject.y_test) ** 2)),
            "steps": subject.steps * context.extent.epochs,
        }
    }


def device_facts(context):
    """Describe what computes: device_facts, {"name", "units" (compute units or processors), "clock_mhz", "memory_mib"}; None is unknown."""
    import keras

    if keras.config.backend() != "ocl":
        name = ", ".join(keras.distribution.list_devices())
        return {"device_facts": {"name": name, "units": os.cpu_count(), "clock_mhz": None, "memory_mib": None}}
    from keras_ocl import runtime

    device = runtime.current_device()
    return {
        "device_facts": {
            "name": device.model,
            "units": device.traits.compute_units,
            "clock_mhz": device.traits.clock or None,  # some runtimes do not know it
            "memory_mib": device.traits.global_memory // 2**20,
        }
    }
