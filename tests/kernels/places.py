"""Where a kernel stores, for tensors too large to exist: its own index arithmetic runs on the device, and no element is read or written."""

import re

import numpy as np

from keras_ocl.kernels import prelude

_FORMATS = {"int": np.int32, "long": np.int64, "float": np.float32}


def stored(device, spec, *item):
    """Offsets, in the order of the text, at which the work-item with these global ids stores single elements of 32 bits."""
    pointers = {a.name: a.kind for a in spec.args if a.kind in ("in", "out")}
    pointers |= dict.fromkeys(re.findall(r"__global const \w+\* (\w+) =", spec.body), "in")
    body = spec.text({("global", k): f"(size_t){number}UL" for k, number in enumerate(item)})
    text, at, places = "", 0, 0
    access = re.compile(rf"\b({'|'.join(pointers)})\[")
    while found := access.search(body, at):
        end = _closing(body, found.end())
        text, at = text + body[at : found.start()], end + 1
        if pointers[found[1]] == "in":
            text += "(1)"
        else:
            text += f"places[{places}] = {body[found.end() : end]}; float stored{places}"
            places += 1
    scalars = [a for a in spec.args if a.name not in pointers]
    head = "".join(f", __global float* {name}" for name in pointers if name.startswith("p"))
    head += "".join(f", {a.kind} {a.name}" for a in scalars)
    source = f"__kernel void places(__global long* places{head}) {{\n{text}{body[at:]}}}\n"
    kernel = device.build([("places", source, prelude.pieces(spec.helpers))])["places"]
    results = device.upload(np.zeros(max(1, places), np.int64))
    memory = [results.mem] * (1 + sum(name.startswith("p") for name in pointers))
    for position, value in enumerate([*memory, *(_FORMATS[a.kind](int(a.value)) for a in scalars)]):
        kernel.set_arg(position, value)
    device.enqueue(kernel, (1,))
    return device.download(results, np.int64, (places,)).tolist()


def _closing(text, start):
    """Position of the bracket that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError(text[start:])
