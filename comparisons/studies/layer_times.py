"""The milliseconds that a step spends in each convolution and pool, forward and backward. A measure of the CNN study, on backend ocl."""

import re

from comparisons.measures import spread

LAYER = re.compile(r"(?:^|/)(conv|pool)_(\d+)$")


def operation(name, gradient):
    """Return the document's name of a layer's pass, such as "Conv_back_0" for "sequential/conv_0" with `gradient`; None for others."""
    found = LAYER.search(name)
    return found and f"{found[1].capitalize()}_{'back' if gradient else 'fwd'}_{found[2]}"


def measure(context):
    """Profile whole epochs after one that compiles, as many as the extent's repeats.

    Adds layer_ms: {operation: spread of the device's milliseconds per step}; device_ms: the spread of those of all layers together;
    profiled_steps: in each epoch. A fused kernel's time is divided among the layers that it computes, see keras_ocl.profile.
    """
    import keras_ocl

    subject, layers, totals = context.subject, {}, []
    subject.restart(0)
    context.progress("compiling")
    subject.fit(0)
    for epoch in range(1, context.extent.repeats + 1):
        context.progress("profiling", epoch, context.extent.repeats)
        with keras_ocl.profile(by="layer") as profile:
            subject.fit(epoch)
        rows = profile.table(steps=subject.steps)
        totals.append(sum(row.device_ms for row in rows))
        for row in rows:
            name = operation(row.name, row.gradient)
            if name:
                layers.setdefault(name, []).append(row.device_ms)
    return {
        "layer_ms": {name: spread(times) for name, times in sorted(layers.items())},
        "device_ms": spread(totals),
        "profiled_steps": subject.steps,
    }
