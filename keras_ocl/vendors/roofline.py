"""An estimate of a kernel's time on a GPU: a roofline, lowered where too few waves are resident to reach it.

Williams, Waterman and Patterson, "Roofline" (2009): a kernel takes the time of its arithmetic at the device's peak or that of its memory
traffic, whichever is longer. Two effects keep it below the roof. Occupancy: registers, local memory and a maximum limit the resident
waves, and fewer than `HIDING` of them on a SIMD cannot hide the latency of arithmetic, nor too few bytes in flight that of memory (Volkov,
"Understanding Latency Hiding on GPUs", 2016). Wave quantisation: the last round of work-groups may leave units idle. Caches, bank
conflicts, divergence and instructions other than multiply-adds are not modelled: the estimate is a bound, good for comparisons.
"""

import math
from dataclasses import dataclass

HIDING = 4  # waves on a SIMD that hide the latency of its arithmetic
LATENCY = 600e-9  # seconds of latency of a read from memory
STAGE = 500e-9  # seconds of a stage of a persistent kernel's step: a wait for the unit's other items, and a read of their results
IN_FLIGHT = 16  # bytes that a work-item has in flight
CACHE, LANES = 64, 128  # a unit reads CACHE bytes from the cache shared by all units in the time of LANES multiply-adds
GROUP = 64  # work-items of a work-group where the driver chooses
STEP = 8  # registers of a work-item are allocated in multiples of this


@dataclass(frozen=True)
class Estimate:
    """The estimated time of a launch.

    Attributes:
        seconds: time in seconds. bound: what limits it: "compute", "memory" or "launch".
        waves: waves resident on a SIMD. occupancy: their fraction of the most that can be.
        share: fraction of the peak rate that bounds it.
    """

    seconds: float
    bound: str
    waves: int
    occupancy: float
    share: float


def resident(hardware, group_items, local, registers, wave):
    """Number of a kernel's waves that are resident on one SIMD.

    Args:
        hardware: runtime.Hardware.
        group_items: work-items of a work-group. local: bytes of its local memory.
        registers: 32-bit registers per work-item. wave: work-items in lockstep.
    """
    of_group = -(-group_items // wave)
    by_registers = hardware.registers // (-(-max(1, registers) // STEP) * STEP * wave)
    groups = min(by_registers, hardware.waves) * hardware.simds // of_group
    if local and hardware.dedicated_local:
        groups = min(groups, hardware.unit_local // local)
    return max(1, min(hardware.waves, groups * of_group // hardware.simds))


def estimate(hardware, launch, resources=None, rate=1):
    """The Estimate for a lowering.Launch, with the Resources from its compiler (without them registers are no limit).

    rate: its operations in the time of one of a work-item, on average; more than 1 if matrix units do some.
    """
    wave = resources.wave if resources else hardware.wave
    items, group = math.prod(launch.grid), math.prod(launch.group) if launch.group else GROUP
    waves = resident(hardware, group, launch.local, resources.registers if resources else 1, wave)
    simds, all_waves = hardware.units * hardware.simds, -(-items // group) * -(-group // wave)
    rounds = -(-all_waves // (simds * waves))
    at_once = min(simds * waves, all_waves)
    even = all_waves / (rounds * simds * waves) if rounds > 1 else 1
    operations, moved = launch.steps * launch.operations, launch.steps * (launch.read + launch.written - launch.reread) + launch.reread
    flops = hardware.flops * rate
    compute = operations / (flops * even * min(1, at_once / (simds * min(HIDING, hardware.waves))))
    flying = at_once * wave * IN_FLIGHT / LATENCY
    memory = moved / (even * min(hardware.bandwidth, flying))
    if launch.steps > 1:
        # Bytes that every group rereads in each step come from the device's cache, of which a unit gets CACHE bytes in the time of LANES of
        # its multiply-adds, between the stages' waits.
        beside = -(-items // (group * hardware.units))  # work-groups per unit
        again = launch.reread * beside * 2 * hardware.units * LANES / (CACHE * hardware.flops)
        memory = max(memory, launch.steps * (launch.stages * STAGE + again))
    seconds, bound = max((compute, "compute"), (memory, "memory"), (hardware.launch, "launch"))
    peak = {"compute": operations / flops, "memory": moved / hardware.bandwidth, "launch": 0}[bound]
    return Estimate(seconds, bound, waves, waves / hardware.waves, peak / seconds)
