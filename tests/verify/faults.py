"""Faults planted between the package and a device: in the text of chosen kernels, and at their launch."""

import os
import re
import signal
import time
from dataclasses import dataclass

import pyopencl as cl


@dataclass(frozen=True)
class Fault:
    """What goes wrong in the kernels whose first line matches `title`.

    Attributes:
        family: what the kernels belong to.
        old, new: a pattern in their text and what takes the place of its first `times` occurrences (0: all).
        launch: "crash", "hang", "refuse", or "lost group": the last work-group does not run.
        kernels: names of the only kernels in which it does; () for all.
    """

    family: str
    title: str
    old: str = ""
    new: str = ""
    times: int = 0
    launch: str = ""
    kernels: tuple[str, ...] = ()


_BARRIER = r"barrier\(CLK_LOCAL_MEM_FENCE\);"
_POINTWISE = "elementwise operations and reductions"

# By schedule and name.
FAULTS = {
    ("cpu", "flushed halves"): Fault("pointwise", _POINTWISE, r"const float(\d+) (t\d+) = from_float16_\1\((.*?)\);",
        r"const float\1 f\2 = from_float16_\1(\3);\nconst float\1 \2 = select(f\2, (float\1)(0), fabs(f\2) < (float\1)(0x1p-14f));"),
    ("cpu", "wrong lane of a sum"): Fault("reductions", _POINTWISE, r"\((\w+)\.lo\) \+ \(\1\.hi\)", r"(\1.lo) + (\1.lo)"),
    ("cpu", "wrong multiply-add"): Fault("products", r"matrix product: \d+ rows x", r"s0_1 = fma\(e, y1,", "s0_1 = fma(e, y0,"),
    ("cpu", "wrong multiply-add of wide vectors"): Fault("products", r"matrix product: \d+ rows x",
        r"(float(?:8|16) .*)s0_1 = fma\(e, y1,", r"\1s0_1 = fma(e, y0,"),
    ("cpu", "lost last step of a sum"): Fault("products", r"matrix product: \d+ rows x", "q < depth", "q < depth - 1"),
    ("cpu", "lost tile of pixels"): Fault("convolutions", "convolution: .* per tile|convolution: a ", launch="lost group"),
    ("cpu", "refused build"): Fault("winograd", "convolution by Winograd", r"\{\n", "{\nno_such_type x;\n", 1),
    ("cpu", "lost end of a piece"): Fault("sorts", "sort: merge", r"last - first\)", "last - first - 1)"),
    ("cpu", "lost last kernel"): Fault("joined", "kernels, one after the other", r"part_\w+\([^;]*;\n\}", "}"),
    ("cpu", "refused launch"): Fault("attention", "attention: .* positions", launch="refuse"),
    ("gpu", "lost barrier of a transposition"): Fault("transposes", _POINTWISE, _BARRIER, ""),
    ("gpu", "lost barriers of a reduction"): Fault("reductions", _POINTWISE, _BARRIER, ""),
    ("gpu", "lost barriers of a product"): Fault("products", r"matrix product: \d+ rows x", _BARRIER, ""),
    ("gpu", "lost tile of a product"): Fault("products", r"matrix product: \d+ rows x", launch="lost group"),
    ("gpu", "lost barriers of few rows"): Fault("few_rows", "lanes along the sum per result", _BARRIER, ""),
    ("gpu", "lost barriers of a convolution"): Fault("convolutions", r"convolution.*: \d+ rows x", _BARRIER, ""),
    ("gpu", "lost barriers of a scan"): Fault("scans", "elements of each, per work-group", _BARRIER, ""),
    ("gpu", "lost chunk of updates"): Fault("scatters", "scatter of sorted updates: chunks", launch="lost group"),
    ("gpu", "lost fences of a chain"): Fault("joined", "of one group", r"barrier\(CLK_LOCAL_MEM_FENCE \| CLK_GLOBAL_MEM_FENCE\);", ""),
    ("gpu", "lost last row of a loop's group"): Fault("loops", "all steps of a loop", r"end = min\(", "end = -1 + min("),
}  # fmt: skip


def plant(device, fault):
    """Let a Device have a fault from now on; returns a list that gets the titles of the kernels that have it."""
    build, launch, found, names = device.programs.build, device.driver.launch, [], set()

    def built(specs, *others, **options):
        return build([_edited(spec) for spec in specs], *others, **options)

    def _edited(spec):
        name, source, *helpers = spec
        if not re.search(fault.title, source.partition("\n")[0]) or fault.kernels and name not in fault.kernels:
            return spec
        edited = re.sub(fault.old, fault.new, source, count=fault.times, flags=re.DOTALL) if fault.old else source
        if fault.launch or edited != source:
            names.add(name)
            found.append(source.partition("\n")[0])
        return (name, edited, *helpers)

    def launched(queue, kernel, grid, group):
        if fault.launch and kernel.function_name in names:
            grid = _at_launch(fault, grid, group)
        return launch(queue, kernel, grid, group)

    device.programs.build, device.driver.launch = built, launched
    return found


def _at_launch(fault, grid, group):
    if fault.launch == "crash":
        os.kill(os.getpid(), signal.SIGABRT)
    if fault.launch == "hang":
        time.sleep(600)
    if fault.launch == "refuse":
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES", cl.status_code.OUT_OF_RESOURCES)
    size = group[0] if group else 1
    return (max(size, grid[0] - size), *grid[1:])
