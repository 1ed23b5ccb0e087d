"""What a record tells of a GPU beside its traits: what estimates of a kernel's time need, and the vendor's compiler for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """A GPU's resources and peaks.

    Attributes:
        units: parts that run work-groups and share local memory. OpenCL may count others, such as each of their SIMDs.
        wave: work-items that run in lockstep.
        simds: parts of a unit that issue waves by themselves.
        waves: most waves that are resident on one of those.
        registers: 32-bit registers of one of those, over all lanes of all its waves.
        unit_local: bytes of local memory of a unit, which resident groups share.
        dedicated_local: whether that is memory of its own.
        banks: its banks, of 4 bytes each; 0 where it is not.
        max_group_items: most work-items of a group in each dimension.
        fma: whether a fused multiply-add is one instruction.
        flops: peak float32 operations per second, of which a multiply-add is two.
        bandwidth: peak bytes per second of the memory.
        launch: seconds from one short launch to the next.
        compiler: the vendor's compiler for it as vendors.compile_program takes it, "" where there is none.
    """

    units: int
    wave: int
    simds: int
    waves: int
    registers: int
    unit_local: int
    dedicated_local: bool
    banks: int
    max_group_items: list
    fma: bool
    flops: float
    bandwidth: float
    launch: float
    compiler: str = ""
