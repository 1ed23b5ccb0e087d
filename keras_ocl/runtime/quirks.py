"""Quirks: faults of OpenCL implementations that kernels and the runtime work around.

Code with a workaround that costs time or text asks `"name" in traits.quirks`, so that it ends where a version mends the fault: that version
is then the `good` of the implementation. Workarounds that cost next to nothing are always applied, and comments there name their rows.
"""

import re
from dataclasses import dataclass
from typing import Literal

POCL, INTEL_CPU, RUSTICL = "Portable Computing Language", "Intel(R) OpenCL", "rusticl"
NVIDIA, AMD = "NVIDIA CUDA", "AMD Accelerated Parallel Processing"


@dataclass(frozen=True)
class Implementation:
    """What is known of a fault in one implementation.

    Attributes:
        platform: the OpenCL platform's name.
        seen: the driver version with which the fault was seen, "" where none was noted.
        good: the first version that is known not to have it, "" where none is; earlier ones are taken to have it.
    """

    platform: str
    seen: str = ""
    good: str = ""


@dataclass(frozen=True)
class Quirk:
    """A fault and its workaround.

    Attributes:
        name: the name under which `Traits.quirks` has it.
        fault: what goes wrong. workaround: what is done instead, and where.
        known: the Implementations of which something is known.
        applied: "always": everywhere, and nothing asks. "unless good": on all devices but those whose version is known to be good. "where
            seen": on the known implementations alone, since other devices would lose by it.
    """

    name: str
    fault: str
    workaround: str
    known: tuple[Implementation, ...]
    applied: Literal["always", "unless good", "where seen"] = "always"

    def concerns(self, platform: str, version: str) -> bool:
        """Whether a device of the platform with this name and with this driver version is to be taken to have the fault."""
        for one in self.known:
            if one.platform == platform:
                return not one.good or _numbers(version) < _numbers(one.good)
        return self.applied == "unless good"


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (3, 1) of "3.1+debian"; none, which is less than any, where it begins with none."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


QUIRKS = (
    Quirk(
        "divergent_loops",
        "A loop inside a loop that the items of a group leave at different steps is miscompiled.",
        "All items leave the outer loop of a shared reduction together (`compiler/codegen/loops.py`).",
        (Implementation(POCL, "3.1"),),
        "unless good",
    ),
    Quirk(
        "conditions_beside_barriers",
        "In a branch with barriers, the last condition that differs between the items of a group, or a `return` under it, is taken by all.",
        "Kernels with barriers are not fused horizontally (`compiler/launch/horizontal.py`).",
        (Implementation(POCL, "3.1"),),
        "where seen",
    ),
    Quirk(
        "restrict_outlives_calls",
        "Compilers of LLVM before 12, as NVIDIA's may be, take a parameter's `restrict` for a promise that outlasts the call, if they "
        "unroll the loop around it.",
        "Functions that persistent kernels and chains of one group call have no `restrict` (`compiler/launch/loops/persistent.py`, "
        "`compiler/launch/group_chain.py`).",
        (Implementation(NVIDIA),),
        "unless good",
    ),
    Quirk(
        "overlapping_sub_buffers",
        "The driver crashes when one of several overlapping sub-buffers is released.",
        "Kernels get whole buffers and offsets (`Traits.sub_buffers`).",
        (Implementation(NVIDIA, "580.159"),),
        "where seen",
    ),
    Quirk(
        "stated_group_limit",
        "A limit of 256 work-items is stated for kernels that require groups of 1,024, and can have them.",
        "The device's limit is taken in place of the kernel's (`Traits.required_groups`).",
        (Implementation(NVIDIA, "580.159"),),
        "where seen",
    ),
    Quirk(
        "unrolled_barriers",
        "Short loops are unrolled whole, barriers included, and registers are spilled.",
        "The loop over a product's tiles has `#pragma unroll 1` (`kernels/contraction.py`).",
        (Implementation(AMD),),
    ),
    Quirk(
        "vectoriser_crash",
        "The compiler's own vectoriser crashes on some loops.",
        "Kernels, which are written in vectors already, forbid it where the device can be told so (`Traits.vec_len_hint`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "long_header",
        "1,600 lines of declarations of Intel's extensions are parsed for every program, which takes longer than a small kernel.",
        "Programs that name none of them are compiled without (`runtime/opencl.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "slow_loop_nests",
        "A loop nest over lines and pixels takes eight times as long to compile as one loop.",
        "Gradients of filters walk in one loop (`kernels/conv/filter_grad_cpu.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "slow_vloads",
        "Kernels with many vloads and vstores take twice as long to compile as with the equivalent dereferenced pointers.",
        "Convolutions load and store through vector types with an element's alignment (`kernels/conv/parts_cpu.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "separate_mad",
        "`mad`, and `a * b + c` too, become a product and a sum, although the processor has an instruction for both.",
        "The helper `mad` calls `fma` where that is fast (`kernels/prelude/floats.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "nan_to_integers",
        "Saturating conversions of vectors of float to uint make 2,147,483,648 of NaN, not 0.",
        "The helper `nan_to_zero` comes before conversions to all integers (`kernels/prelude/floats.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "loop_selected",
        "Where `?:` chooses between a loop's result and another value, and the sign is copied to it, the result is zero.",
        "The helper `rem` chooses only once behind its loop, between its result and NaN (`kernels/prelude/floats.py`).",
        (Implementation(RUSTICL, "25.0"),),
    ),
    Quirk(
        "flushed_atan2",
        "If denormal numbers are flushed, `atan2` of them is NaN.",
        "Both operands are scaled first (`kernels/prelude/floats.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "inexact_hypot",
        "If denormal numbers are flushed, `atan2` and `hypot` are off by up to 100 % for very small and very large numbers.",
        "Both operands are scaled first (`kernels/prelude/floats.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "flushed_rsqrt",
        "If denormal numbers are flushed, `rsqrt` of vectors is off by a factor of 2 where the square of its result is denormal.",
        "Large operands are scaled first (`kernels/prelude/floats.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "flushed_pow",
        "`pow` takes a denormal number that should be flushed for 0.0138.",
        "Denormal operands are made 0 first (`kernels/prelude/floats.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "vector_pow",
        "`pow` of vectors of doubles mixes up the lanes.",
        "It is called lane by lane (`kernels/prelude/floats.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "merged_sincos",
        "The compiler crashes when it merges `sin` and `cos` of an argument that is itself a result of such a merged pair.",
        "The cosine of float64 is taken from `sincos` (`kernels/prelude/floats.py`).",
        (Implementation(INTEL_CPU, "2026.22"),),
    ),
    Quirk(
        "vector_erf",
        "`erf` and `sin` of vectors are slow or wrong.",
        "Functions of float32 are our own (`kernels/prelude/transcendentals.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "aligned_halves",
        "Loads and stores of vectors of half fault at addresses that are not multiples of the vector's size.",
        "They convert in registers of bits (`kernels/prelude/integers.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "context_of_parts",
        "The context of a sub-device is said to be one of the whole device.",
        "Queues name their device (`runtime/opencl.py`).",
        (Implementation(POCL, "3.1"),),
    ),
    Quirk(
        "unmap_aborts",
        "Unmapping a buffer aborts the process.",
        "CPUs without shared virtual memory get copies (`runtime/traits.py`).",
        (Implementation(RUSTICL, "22.3"),),
    ),
)


def quirks_of(platform: str, version: str) -> frozenset[str]:
    """The names of the quirks to ask for that a device has: its platform's name and driver version; "" where they are not known."""
    return frozenset(quirk.name for quirk in QUIRKS if quirk.applied != "always" and quirk.concerns(platform, version))
