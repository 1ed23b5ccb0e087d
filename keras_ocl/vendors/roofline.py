"""An estimate of a kernel's time on a GPU: a roofline, lowered where too few waves are there to reach it.

Williams, Waterman and Patterson, "Roofline" (2009): a kernel takes the time of its arithmetic at the device's peak or that of its memory
traffic, whichever is longer. Two things keep it from the roof. Waves are resident as far as registers, local memory and their number
allow (occupancy), and fewer than `HIDING` of them on a SIMD cannot hide the latency of arithmetic, nor too few bytes on their way that of
memory (Volkov, "Understanding Latency Hiding on GPUs", 2016). And the last round of groups may leave units idle (wave quantisation).
Caches, bank conflicts, divergence and what instructions beside multiply-adds cost are not in it: it is a bound, good for comparisons.
"""

import math
from dataclasses import dataclass

HIDING = 4  # waves on a SIMD that keep its arithmetic busy
LATENCY = 600e-9  # seconds of a read of memory
STAGE = 500e-9  # seconds of a stage of a loop's step, which waits for the unit's other items and reads what they have written
IN_FLIGHT = 16  # bytes that a work-item has on their way
CACHE, LANES = 64, 128  # bytes that a unit gets of the cache that all share, in the time of so many multiply-adds
GROUP = 64  # work-items of a group where the driver chooses
STEP = 8  # registers of an item are given out in such steps


@dataclass(frozen=True)
class Estimate:
    """What a launch should take.

    Attributes:
        seconds: its time. bound: what takes it: "compute", "memory" or "launch".
        waves: resident on a SIMD. occupancy: the share of those that could be.
        share: of the peak of what bounds it.
    """

    seconds: float
    bound: str
    waves: int
    occupancy: float
    share: float


def resident(hardware, group_items, local, registers, wave):
    """Waves of a kernel that are on a SIMD at the same time.

    Args:
        hardware: runtime.Hardware.
        group_items: work-items of a group. local: bytes of its local memory.
        registers: of an item. wave: work-items in lockstep.
    """
    of_group = -(-group_items // wave)
    by_registers = hardware.registers // (-(-max(1, registers) // STEP) * STEP * wave)
    groups = min(by_registers, hardware.waves) * hardware.simds // of_group
    if local and hardware.dedicated_local:
        groups = min(groups, hardware.unit_local // local)
    return max(1, min(hardware.waves, groups * of_group // hardware.simds))


def estimate(hardware, launch, resources=None):
    """The Estimate of a lowering.Launch, given what its compiler says (else registers are enough)."""
    wave = resources.wave if resources else hardware.wave
    items, group = math.prod(launch.grid), math.prod(launch.group) if launch.group else GROUP
    waves = resident(hardware, group, launch.local, resources.registers if resources else 1, wave)
    simds, all_waves = hardware.units * hardware.simds, -(-items // group) * -(-group // wave)
    rounds = -(-all_waves // (simds * waves))
    at_once = min(simds * waves, all_waves)
    even = all_waves / (rounds * simds * waves) if rounds > 1 else 1
    operations, moved = launch.steps * launch.operations, launch.steps * (launch.read + launch.written - launch.reread) + launch.reread
    compute = operations / (hardware.flops * even * min(1, at_once / (simds * min(HIDING, hardware.waves))))
    flying = at_once * wave * IN_FLIGHT / LATENCY
    memory = moved / (even * min(hardware.bandwidth, flying))
    if launch.steps > 1:
        # What every group reads in each step comes from the device's cache, of which a unit gets CACHE bytes in the time of LANES of its
        # multiply-adds, between the stages' waits.
        beside = -(-items // (group * hardware.units))  # groups of a unit
        again = launch.reread * beside * 2 * hardware.units * LANES / (CACHE * hardware.flops)
        memory = max(memory, launch.steps * (launch.stages * STAGE + again))
    seconds, bound = max((compute, "compute"), (memory, "memory"), (hardware.launch, "launch"))
    peak = {"compute": operations / hardware.flops, "memory": moved / hardware.bandwidth, "launch": 0}[bound]
    return Estimate(seconds, bound, waves, waves / hardware.waves, peak / seconds)
