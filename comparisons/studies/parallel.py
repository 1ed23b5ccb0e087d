"""Data parallelism over several OpenCL devices: each mini-batch is split into shares, gradients are summed, and there is one update.

A device is anything with a name: parts of one ("cpu:0/1of2", "cpu:0/2of2") or several runtimes' ("intel", "portable"). Each has a worker, a
thread that runs forward and backward passes compiled for it. "mirrored": every device has the variables and the optimizer's slots, and
updates them by the sum of all gradients, in the same order everywhere, so that they stay equal. "central": the first device has them,
the others get a copy in each step and give their gradients back.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from comparisons.measures import spread

KINDS = "mirrored", "central"


def shares(count, workers):
    """Return slices that cut so many examples into one contiguous share a worker, as equal as can be; later ones may be empty."""
    sizes = [count // workers + (k < count % workers) for k in range(workers)]
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]


class DataParallel:
    """A network that is trained on several devices at once. Close it, or use it in a `with` block: it has threads.

    Args:
        build: the function () -> compiled keras.Model, built, whose weights are all trained.
        devices: their names; the first one has the variables of "central".
        variables: one of KINDS.
        weights: NumPy arrays to start from; None for those that `build` draws.

    Raises:
        ValueError: `variables` is something else, no device is named, or a layer has state that is not trained, such as
            BatchNormalization's averages and Dropout's seeds: every device would have its own.
    """

    def __init__(self, build, devices, variables="mirrored", weights=None):
        import keras_ocl

        if variables not in KINDS or not devices:
            raise ValueError(f"DataParallel: variables are {' or '.join(KINDS)}, on one device or more, not {variables!r} on {devices!r}")
        self.devices = tuple(devices)
        owners = self.devices if variables == "mirrored" else self.devices[:1]
        self.models = [self._replica(build, device, weights) for device in owners]
        self.model = self.models[0]
        for model in self.models[1:] if weights is None else ():
            model.set_weights(self.model.get_weights())
        self._gradients = keras_ocl.jit(self._forward_and_backward, name="share")
        self._updates = [keras_ocl.jit(self._update(model), name="update") for model in self.models]
        self._threads = [ThreadPoolExecutor(1, f"worker of {device}") for device in self.devices]

    def _replica(self, build, device, weights):
        import keras

        with keras.device(device):
            model = build()
            if model.non_trainable_variables:
                state = ", ".join(variable.path for variable in model.non_trainable_variables)
                raise ValueError(f"DataParallel: {model.name} has state that is not trained, and each device its own: {state}")
            if weights is not None:
                model.set_weights(weights)
            model.optimizer.build(model.trainable_variables)
        return model

    def _forward_and_backward(self, values, x, y, part):
        """(loss, gradients for `values`, the trainable variables' own) of a share that is `part` (a scalar) of its mini-batch."""
        import keras

        import keras_ocl

        with keras_ocl.GradientTape() as tape:
            tape.watch(values)
            with keras.StatelessScope(zip(self.model.trainable_variables, values, strict=True)):
                loss = self.model.compute_loss(x=x, y=y, y_pred=self.model(x, training=True), training=True) * part
        return loss, tape.gradient(loss, values)

    @staticmethod
    def _update(model):
        def update(gradients):
            model.optimizer.apply([sum(each[1:], each[0]) for each in zip(*gradients, strict=True)], model.trainable_variables)

        return update

    def _on(self, worker, function, *arguments):
        """Run a function in a worker's thread, with its device as the current one; returns the future."""
        import keras

        def work():
            with keras.device(self.devices[worker]):
                return function(*arguments)

        return self._threads[worker].submit(work)

    def _share(self, worker, x, y, part):
        model = self.models[worker if len(self.models) > 1 else 0]
        return self._gradients([variable.value for variable in model.trainable_variables], x, y, np.asarray(part, "float32"))

    def step(self, x, y):
        """Train on one mini-batch of NumPy arrays; return the workers' parts of its mean loss, scalar Tensors, without waiting for them."""
        futures = [
            self._on(worker, self._share, worker, x[share], y[share], (share.stop - share.start) / len(x))
            for worker, share in enumerate(shares(len(x), len(self.devices)))
            if share.stop > share.start
        ]
        parts, gradients = zip(*(future.result() for future in futures), strict=True)
        updates = [self._on(worker, update, list(gradients)) for worker, update in enumerate(self._updates)]
        for update in updates:
            update.result()
        return parts

    def epoch(self, x, y, batch):
        """Train on all examples in their order; return (the loss of each step, seconds)."""
        began = time.perf_counter()
        parts = [self.step(x[first : first + batch], y[first : first + batch]) for first in range(0, len(x), batch)]
        for model in self.models:
            model.trainable_variables[-1].numpy()
        seconds = time.perf_counter() - began
        return [sum(float(part) for part in step) for step in parts], seconds

    def close(self):
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def train(build, weights, batches, batch, devices, variables="mirrored"):
    """Train a network on several devices.

    Args:
        build, devices, variables, weights: see DataParallel.
        batches: (x, y) of each epoch, in the order of training.
        batch: examples in a mini-batch, over all devices.

    Returns:
        {"losses": of every step, "epoch_seconds": of every epoch, the first of which compiles, "weights": NumPy arrays}.
    """
    losses, seconds = [], []
    with DataParallel(build, devices, variables, weights) as parallel:
        for x, y in batches:
            epoch_losses, epoch_seconds = parallel.epoch(x, y, batch)
            losses += epoch_losses
            seconds.append(epoch_seconds)
        return {"losses": losses, "epoch_seconds": seconds, "weights": parallel.model.get_weights()}


def difference(a, b):
    """Return the largest difference of two lists of numbers or arrays of the same shapes, relative to the largest number in `b`.

    Gradients are summed in another order, so it is a few float32 roundings, until one of them turns a ReLU on or another input of a
    max-pool into the largest: from there on expect up to 1e-3.
    """
    a, b = (np.concatenate([np.ravel(x) for x in arrays]) for arrays in (a, b))
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def ways(settings, device):
    """Return [(device names, kind)] of what a row's settings ask for, the first of which is the whole device alone."""
    sets = [[f"{device}/{k + 1}of{parts}" for k in range(parts)] for parts in settings.get("parts", ())] + settings.get("devices", [])
    return [([device], "mirrored"), *((names, kind) for names in sets for kind in settings.get("variables", KINDS))]


def measure(context):
    """Train the row's network, from its first start, data-parallel in several ways and on the whole device, in alike order of examples.

    settings: "parts": numbers of parts that the device is split into; "devices": lists of names; "variables": some of KINDS (all).

    Adds parallel, a list, the whole device first, of {"devices", "variables", "losses": of each step, "epoch_s": spread of the epochs
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
