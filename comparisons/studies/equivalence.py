"""Whether backends compute the same: outputs and gradients of one batch, losses of many. A measure of the CNN study, and its distances.

Training is chaotic: where a rounding error decides a ReLU or a maximum, runs part by more than rounding. How far that goes in so many steps
is measured as well, with a second run from weights that were changed by about what rounding changes a gradient by.

A gradient of a million numbers goes into a result as its norm and its projections onto a few random vectors: the mean square of the
differences of two tensors' projections is, in expectation, the square of the distance of the tensors (Johnson & Lindenstrauss 1984).
"""

import math
import statistics

import numpy as np

PROJECTIONS = 16  # the distance is estimated within about a fifth
SHAKE = 1e-6  # relative change of each weight in the second run: the gradients of two backends are so far apart


def projections(array, number):
    """Return the projections of a tensor onto PROJECTIONS standard normal vectors, the same ones for the same shape and `number`."""
    generator = np.random.default_rng([number, array.size])
    flat = array.astype(np.float64).ravel()
    return [float(generator.standard_normal(flat.size) @ flat) for _ in range(PROJECTIONS)]


def distance(ours, theirs):
    """Return the estimated distance of two tensors, relative to the norm of the second, from what `measure` records of them."""
    squares = [(a - b) ** 2 for a, b in zip(ours["projections"], theirs["projections"], strict=True)]
    return math.sqrt(statistics.fmean(squares)) / theirs["norm"]


def gradients(model, x, y):
    """Return the gradients of the model's loss on one batch as NumPy arrays, in the order of its trainable variables.

    They are read with an optimizer that puts each gradient in the place of its variable, so the model's weights are lost.
    """
    import keras

    class Gradients(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign(variable, gradient)

    model.compile(Gradients(learning_rate=1.0), model.loss)
    model.train_on_batch(x, y)
    return [keras.ops.convert_to_numpy(variable.value) for variable in model.trainable_variables]


def losses(subject, steps):
    """Return the loss of each of the first `steps` training batches, from the subject's weights."""
    from comparisons.subject import epoch_order

    found = []
    for step in range(steps):
        epoch, position = divmod(step, subject.steps)
        rows = epoch_order(len(subject.x), subject.start, epoch)[position * subject.batch : (position + 1) * subject.batch]
        subject.model.reset_metrics()
        found.append(float(subject.model.train_on_batch(subject.x[rows], subject.y[rows], return_dict=True)["loss"]))
    return found


def shake(model, seed):
    """Change each weight by a seeded normal factor of about 1 + SHAKE."""
    generator = np.random.default_rng(seed)
    weights = model.get_weights()
    model.set_weights([w * (1 + SHAKE * generator.standard_normal(w.shape)).astype(w.dtype) for w in weights])


def measure(context):
    """Compute the outputs and the gradients of the first batch of training data, and the losses of settings["steps"] steps, per start.

    Adds
        equivalence: for each start {"outputs": (batch, classes) as lists, "gradients": {path of a weight: {"norm", "projections"}}};
        step_losses: for each start the loss of each step; shaken_losses: the same from weights that `shake` changed.
    """
    subject, found, plain, shaken = context.subject, [], [], []
    steps = context.row.settings["steps"]
    x, y = subject.x[: subject.batch], subject.y[: subject.batch]
    for start in range(context.extent.repeats):
        context.progress("comparing", start, context.extent.repeats)
        subject.restart(start)
        outputs = subject.model.predict_on_batch(x)
        model = subject.build(subject.x.shape[1:])
        model.set_weights(subject.model.get_weights())
        recorded = {}
        for number, (variable, value) in enumerate(zip(model.trainable_variables, gradients(model, x, y), strict=True)):
            # Without the model's own name, which counts up.
            path = "/".join(variable.path.split("/")[-2:])
            recorded[path] = {"norm": float(np.linalg.norm(value.astype(np.float64))), "projections": projections(value, number)}
        found.append({"outputs": np.asarray(outputs, np.float64).tolist(), "gradients": recorded})
        plain.append(losses(subject, steps))
        subject.restart(start)
        shake(subject.model, subject.start)
        shaken.append(losses(subject, steps))
    return {"equivalence": found, "step_losses": plain, "shaken_losses": shaken}


def output_distance(ours, theirs):
    """Return the largest difference of two records' outputs, which are probabilities."""
    return float(np.max(np.abs(np.subtract(ours["outputs"], theirs["outputs"]))))


def gradient_distance(ours, theirs):
    """Return the largest distance among two records' gradients. The n-th weights are compared: layers' names may count up differently."""
    return max(map(distance, ours["gradients"].values(), theirs["gradients"].values()))


def losses_distance(ours, theirs):
    """Return the root mean square of the relative differences of lists of losses, one list a start."""
    return math.sqrt(np.mean(np.square(np.subtract(ours, theirs) / np.asarray(theirs))))
