"""The part of a GPU's record beside its traits: what estimates of kernels' times need, and the vendor's compiler for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """A GPU's resources and peak rates.

    Attributes:
        units: number of parts that run work-groups and share local memory. OpenCL's count may be another, such as that of their SIMDs.
        wave: work-items that run in lockstep (a warp or wavefront).
        simds: number of parts of a unit that issue waves independently.
        waves: most waves that are resident on one SIMD.
        registers: 32-bit registers of one SIMD, over all lanes of all its waves.
        unit_local: bytes of local memory of a unit, which its resident work-groups share.
        dedicated_local: whether local memory is separate from other memory.
        banks: number of banks of local memory, of 4 bytes each; 0 if it is not dedicated.
        max_group_items: most work-items of a work-group in each dimension.
        fma: whether a fused multiply-add is one instruction.
        flops: peak float32 operations per second; a multiply-add counts as two.
        bandwidth: peak bytes per second of global memory.
        launch: seconds between the starts of two successive short launches.
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
