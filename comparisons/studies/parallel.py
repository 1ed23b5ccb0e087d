"""Data parallelism over several OpenCL devices of a process: mini-batches are divided, gradients are summed.

A device is anything with a name: parts of one ("cpu:0/1of2", "cpu:0/2of2") or several runtimes' ("intel", "portable"). "mirrored"
(keras.distribution.DataParallel): every device has the variables and updates them by the sum of all gradients. "central"
(keras_ocl.CentralStorage): the first device has them, the others get a copy in each step.
"""

import random
import time

import numpy as np

from comparisons.measures import spread

KINDS = "mirrored", "central"


def distribution(devices, variables):
    """Return Keras's distribution over these devices, None for one; raises ValueError where `variables` is none of KINDS."""
    import keras

    import keras_ocl

    if variables not in KINDS:
        raise ValueError(f"variables are {' or '.join(KINDS)}, not {variables!r}")
    if len(devices) == 1:
        return None
    return (keras.distribution.DataParallel if variables == "mirrored" else keras_ocl.CentralStorage)(devices=list(devices))


def train(build, weights, batches, batch, devices, variables="mirrored"):
    """Train a network on several devices.

    Args:
        build: the function () -> compiled keras.Model, built.
        weights: NumPy arrays to start from.
        batches: (x, y) of each epoch, in the order of training.
        batch: examples in a mini-batch, over all devices.
        devices: their names; the first one has the variables of "central".
        variables: one of KINDS.

    Returns:
        {"losses": of every step of the first epoch, then the mean of each other epoch, "epoch_seconds": of every epoch, the first of which
        compiles and reads each loss, "weights": NumPy arrays}.
    """
    import keras

    from comparisons.subject import drain

    losses, seconds = [], []
    with keras.device(devices[0]):
        keras.distribution.set_distribution(distribution(devices, variables))
        try:
            random.seed(0)  # layers draw their seeds from here
            model = build()
            model.set_weights(weights)
            for epoch, (x, y) in enumerate(batches):
                drain(model)
                began = time.perf_counter()
                if epoch:
                    losses += model.fit(x, y, batch_size=batch, shuffle=False, verbose=0).history["loss"]
                else:
                    steps = [slice(first, first + batch) for first in range(0, len(x), batch)]
                    losses += [float(np.ravel(model.train_on_batch(x[step], y[step]))[0]) for step in steps]
                drain(model)
                seconds.append(time.perf_counter() - began)
            return {"losses": losses, "epoch_seconds": seconds, "weights": model.get_weights()}
        finally:
            keras.distribution.set_distribution(None)


def difference(a, b):
    """Return the largest difference of two lists of numbers or arrays of the same shapes, relative to the largest number in `b`.

    Gradients are summed in another order, so it is a few float32 roundings, until one of them turns a ReLU on or another input of a
    max-pool into the largest: from there on expect up to 1e-3.
    """
    a, b = (np.concatenate([np.ravel(x) for x in arrays]) for arrays in (a, b))
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def unlike(name):
    """Return [the device called `name`, the best usable one of another model or platform], halves where both are CPUs; [] without one."""
    from keras_ocl import runtime

    usable = {info.name: info for info in runtime.devices() if info.usable}
    own = usable[name.partition("/")[0]]
    others = [info for info in usable.values() if (info.platform, info.model) != (own.platform, own.model)]
    if not others:
        return []
    if own.kind == others[0].kind == "cpu":  # most likely the same processor
        return [f"{own.name}/1of2", f"{others[0].name}/2of2"]
    return [own.name, others[0].name]


def ways(settings, device):
    """Return [(device names, kind)] of what a row's settings ask for, the first of which is the whole device alone; see `measure`."""
    sets = [[f"{device}/{k + 1}of{parts}" for k in range(parts)] for parts in settings.get("parts", ())] + settings.get("devices", [])
    if settings.get("unlike") and unlike(device):
        sets = [*sets, unlike(device)]
    alone = dict.fromkeys(name for names in sets for name in names[:: len(names) - 1]) if settings.get("alone") else ()
    several = [(names, kind) for names in sets for kind in settings.get("variables", KINDS)]
    return [([device], "mirrored"), *(([name], "mirrored") for name in alone), *several]


def measure(context):
    """Train the row's network, from its first start, data-parallel in several ways and on the whole device, in alike order of examples.

    settings: "parts": numbers of parts that the device is split into; "devices": lists of names; "unlike": whether a set of two unlike
    devices is tried, where there are such; "alone": whether the first and the last device of each set are tried alone, too;
    "variables": some of KINDS (all).

    Adds parallel, a list, the whole device first, of {"devices", "variables", "losses": see `train`, "epoch_s": spread of the epochs
    after the first, "loss_difference", "weight_difference": see `difference`, from the whole device's}.
    """
    from comparisons.subject import epoch_order
    from keras_ocl import runtime

    subject, found, first = context.subject, [], None
    subject.restart(0)
    weights = subject.model.get_weights()
    orders = [epoch_order(len(subject.x), subject.start, epoch) for epoch in range(1 + context.extent.epochs)]
    asked = ways(context.row.settings, runtime.current_device().name)
    for done, (devices, variables) in enumerate(asked):
        context.progress(f"{variables} on {', '.join(devices)}", done, len(asked))
        batches = ((subject.x[order], subject.y[order]) for order in orders)
        result = train(lambda: subject.build(subject.x.shape[1:]), weights, batches, subject.batch, devices, variables)
        first = first or result
        found.append(
            {
                "devices": list(devices),
                "variables": variables,
                "losses": result["losses"],
                "epoch_s": spread(result["epoch_seconds"][1:]),
                "loss_difference": difference(result["losses"], first["losses"]),
                "weight_difference": difference(result["weights"], first["weights"]),
            }
        )
    return {"parallel": found}
