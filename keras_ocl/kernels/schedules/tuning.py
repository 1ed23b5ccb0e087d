"""Numbers that were measured, or that follow from a device's caches: one table per schedule, with the reasons.

Kernels read them through `overrides.tuning_of(traits)`, which puts a device's own numbers in place. CLBlast's database of tuned parameters
is the example.

Costs have four units, named where they are used: cheap operations (one elementwise operation on one element of a vector; the unit of
Schedule's prices), CPU cycles (CpuProduct), and multiply-adds, either of one work-item or of a whole compute unit. The last two add up: a
unit's cost is the sum of its items' (GpuTuning; 128 multiply-adds take one cycle of a unit with 128 lanes).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """Limits of fusion: how much pointwise work and how many reductions become one kernel."""

    alone: int = 8192  # most element steps (elements x evaluations in a kernel) of a reduction that one work-item may do alone
    nodes: int = 96  # most graph nodes in a region: bounds the size of a kernel's source
    fetched: int = 96  # prologue: most cheap operations per element of an operand that a template computes where it loads it
    # The same where it packs it: of an operand that a last-level cache holds, so that a store costs less, and of a larger one.
    packed: int = 16
    packed_far: int = 96
    far: int = 2**24  # bytes of an operand that is larger
    copies: int = 8  # most places of a kernel where the code of one reduction is repeated
    terms: int = 0  # most multiply-adds per result of a matrix product, however large, that is elementwise code and fused as such


@dataclass(frozen=True)
class Splitting:
    """When long reductions with few results are split into parts that run in parallel (compiler/trace/split.py)."""

    long: int = 2048  # least elements per result for a split, of reductions along rows (the last, contiguous axis)
    high: int = 2048  # the same of reductions along columns
    worth: int = 0  # least elements of the operand
    few: int = 4096  # most results: with more, the results alone give enough work-items
    few_rows: int = 1 << 30  # the same of reductions along rows, if that is less
    part: int = 16384  # elements of the operand per part
    parts: int = 64  # most parts
    steps: int = 1  # least elements per result that a part reduces
    first: bool = False  # split the first axis long enough for all parts, so that the axes left are one loop; else the longest axis
    least: int = 8  # least extent of the longest reduced axis
    run: int = 64  # least adjacent elements of a part, where another axis can be split instead
    rows: int = 32  # rows per part of a sum along columns: memory streams that a CPU's prefetcher follows at once
    wide: int = 2**19  # least elements for that split of columns: more than a second-level cache holds
    tall: int = 512  # columns shorter than this need proportionally more elements


@dataclass(frozen=True)
class CpuPointwise:
    """Generated elementwise code."""

    chunk: int = 8192  # cheap operations that repay the start of a work-item


@dataclass(frozen=True)
class CpuProduct:
    """Matrix products A (m, k) x B (k, n). Costs are CPU cycles, measured with AVX-512; only their ratios matter."""

    item: float = 1500.0  # starting a work-item, with its first cache misses, in cycles
    tile: float = 20.0  # starting a register tile: addresses and zeroing the accumulators, in cycles
    fetch: float = 0.35  # loading a vector of a packed B from the second-level cache, in cycles
    # The same of a B in place, whose rows lie apart: prefetchers do not follow them. Measured with AVX2 (88 shapes, packed and in place).
    fetch_near: float = 0.5  # where the first-level cache holds all rows of the panel, or the rows touch
    fetch_apart: float = 1.6  # where it does not
    line: int = 64  # bytes of a cache line
    sets: int = 64  # sets of a first-level cache
    keep: float = 4.0  # storing a vector of a tile's sums and loading it again for the epilogue of a packed product, in cycles
    # Per step of k and register that values of the epilogue take from a tile's sums, in cycles. Most kernels lose none, some ten.
    crowded: float = 0.25
    uniform: int = 3  # most registers of those values that count
    scalar: float = 0.25  # loading and broadcasting an element of A, mostly hidden, in cycles
    whole: float = 0.05  # loading a vector of A along k, in cycles
    whole_far: float = 4.0  # the same from beyond the second-level cache, in cycles
    close: int = 2**20  # bytes of A that a second-level cache holds
    spilled: float = 0.3  # extra cycles per vector of A or B where a tile's rows and columns do not fit the first-level cache
    first: int = 3 * 2**13  # bytes of them that a first-level cache holds beside all else
    turn: float = 0.5  # transposing one element of B into a packed block, in cycles
    read: float = 1.5  # the first read of a vector of B along k by a work-item, from a cache, in cycles
    read_far: float = 4.0  # the same from memory, in cycles
    copy: float = 3.0  # copying a vector of B into a packed block, from a cache, in cycles
    copy_far: float = 24.0  # the same from memory, in cycles
    near: int = 2**24  # bytes of B that a last-level cache holds: larger ones are far
    # Register tiles across a panel of a far B: B is read in longer runs, and each tile's rows of A twice, from the first-level cache.
    across: int = 2
    latency: float = 4.0  # least cycles per step of k: each fma waits for the one before
    kept: int = 2048  # most vectors of partial sums that a work-item keeps for a panel, in the second-level cache too
    block: int = 512  # steps of k in a packed block of B: 64 columns of it and the matching part of A stay in the second-level cache
    turned: int = 64  # steps of k transposed at a time: their packed rows stay in the first-level cache while columns are written into them
    streamed: int = 2**21  # least bytes of a B that a product with few rows of A streams from memory in wide panels
    streamed_rows: int = 2  # most such rows of A
    streamed_computed: int = 2**25  # least bytes of a B computed in the prologue (such as quantised weights) for twice as many rows
    streamed_steps: int = 8  # steps of k per pass over a panel: as many rows of B are read at once
    streamed_vectors: tuple[int, ...] = (128, 96, 64, 48, 32, 24, 16)  # vectors across a panel, the widest first
    split: int = 4096  # least steps of k in a part of a split product
    split_strided: int = 1024  # least steps of k in a part where A and B are both strided along k: their rows then fit a core's cache
    partial: int = 2**21  # most elements of all parts' partial sums that are worth writing
    strips: int = 2**18  # least elements of an A, strided along k, that the caches do not hold and that is therefore packed into strips
    strips_stride: int = 2048  # least bytes between consecutive steps of k for packing to pay
    strips_panels: int = 8  # least panels that read each strip
    strips_depth: int = 16  # steps of k that a work-item packs: as many rows are read at once


@dataclass(frozen=True)
class CpuConvolution:
    """Convolutions and their gradients."""

    item_flops: float = 1.5e6  # flops that a work-item should do: some ten microseconds
    cached_filter: int = 512 * 1024  # bytes of the largest filter that stays in a second-level cache
    packed_block: int = 32 * 1024  # least bytes of a block of the filter that is packed: a first-level cache does not hold it
    packed_tiles: int = 64  # least tiles that read each block: with fewer, packing costs more than it saves
    bodies: int = 10  # most specialised tile bodies of one kernel; other borders run the masked body
    large_bodies: int = 16  # the same in large convolutions, where masks would cost seconds, as compiling more bodies does
    large_flops: float = 1e9  # flops from which a convolution is large
    # If a result sums at most `unrolled_terms` products, its store is much of the work: the epilogue (of at most `unrolled_store`
    # characters) is then unrolled over the pixels of a tile. Otherwise it is in a loop, which halves the time to compile.
    unrolled_terms: int = 64
    unrolled_store: int = 400
    few_channels: int = 4  # most output channels for which lanes run along the input channels
    band: int = 384 * 1024  # bytes of input and gradient in a band of a filter gradient: a good part of a core's second-level cache
    panel: int = 24 * 1024  # bytes that a tile reads of such a band: what a first-level cache holds beside all else
    partial: int = 2**21  # most elements of all chunks' sums of a filter gradient that are worth writing
    sum_elements: int = 4096  # filter elements per work-item of the kernel that adds partial sums


@dataclass(frozen=True)
class CpuWinograd:
    """Winograd's algorithm for convolutions."""

    channels: int = 32  # least input and output channels: with fewer, the transforms cost what the products save
    flops: float = 3e7  # least flops of the convolution
    items: int = 8  # least work-items per compute unit
    local: int = 256 * 1024  # bytes of transformed patches and products: what a second-level cache holds beside the filter


@dataclass(frozen=True)
class CpuAttention:
    """Attention."""

    private: int = 1 << 17  # most bytes of private memory of a work-item
    depth: int = 64  # largest depth of a head for which the kernels were measured
    row_depth: int = 256  # largest depth for the single-query kernel, which holds rows in registers
    row_heads: int = 8  # heads (batch x key heads) whose work-items saturate the memory, however many compute units there are


@dataclass(frozen=True)
class CpuTuning:
    """The table of the cpu schedule."""

    pointwise: CpuPointwise = CpuPointwise()
    product: CpuProduct = CpuProduct()
    convolution: CpuConvolution = CpuConvolution()
    winograd: CpuWinograd = CpuWinograd()
    attention: CpuAttention = CpuAttention()


@dataclass(frozen=True)
class GpuTuning:
    """The table of the gpu schedule. Costs are multiply-adds of one work-item unless a compute unit is named."""

    pointwise_group: int = 64  # work-items of a group of generated code, and of kernels that leave their group open
    tile: int = 32  # side of a group's tile, in elements, where an operand is transposed by way of local memory: runs of 128 bytes
    tile_items: int = 256  # most work-items of such a group
    tile_bytes: int = 1 << 14  # bytes of local memory for such a group's operands: enough groups to fill a unit still fit
    tile_least: int = 16  # axes shorter than this are not tiled; also the side of tiles kept in the cache only: runs of 64 bytes
    team: int = 256  # most work-items that reduce together (a team)
    team_elements: int = 4  # least elements that each of them reduces
    team_lanes: int = 32  # neighbouring results per group, where memory is contiguous along the results, not along the reduction
    unit_items: int = 512  # work-items per compute unit that hide the latency of memory
    product_items: int = 256  # most work-items of a group of a product
    product_depth: int = 512  # most multiply-adds of an item per tile of k: deeper tiles have more loads in flight, which take registers
    product_block: int = 32  # columns per group of a small product, such as a recurrent step
    product_few: int = 8  # most rows (or columns) of a product whose time is that of reading the other operand once
    product_readers: int = 2  # groups of such a product that together read as fast as a unit can
    product_split: int = 128  # least steps of k in a part of a split product
    product_slice: int = 64  # least steps of k in a slice of a group's items
    # What slices have to save where k is in one part, at least a tenth of all, in multiply-adds of a unit: two fifths of a launch.
    product_saved: float = 400_000
    product_sliced: int = 512  # most work-items of a group with slices
    # Costs of a product in multiply-adds of one work-item, from the ratios of instructions and bytes to operations of current GPUs.
    # Loading one float to local memory: a unit loads some 32 bytes in a cycle of 128 multiply-adds, so 4 bytes cost 16; half is hidden.
    product_fetch: float = 8.0
    product_turn: float = 80.0  # overhead per tile of k: addresses, stores to local memory, the barrier
    product_start: float = 1200.0  # latency of a group's first loads
    product_store: float = 8.0  # storing a result
    product_hiding: float = 128.0  # exposed latency of a wave of groups on a unit, as the work of so many items: one per lane
    product_latency: float = 1 << 17  # latency of memory, in multiply-adds of a unit: 1,024 cycles of 128 lanes
    product_flying: float = 16  # bytes that a work-item has in flight, of those that no other group reads
    product_part: float = 100.0  # a part's partial result, written and read again: 8 bytes of some 10 per cycle of a unit
    # Launching the kernel that sums the parts, in multiply-adds of a unit: four fifths of a launch, since others may join it.
    product_launch: float = 800_000
    # What groups of fewer than `product_items` items cost, in multiply-adds of a unit: a tenth of a launch, because kernels with groups of
    # different sizes cannot be joined.
    product_apart: float = 100_000
    product_terms: float = (
        1.2  # how much cheaper a product of several terms of float32 must be: its price is an estimate, not a measurement
    )
    depth: int = 16  # steps of k of a product's tile in local memory
    summing_items: int = 1 << 15  # work-items in all that a kernel which adds partial sums should have
    convolution_places: int = 16  # registers of an item for the image positions of its pixels
    convolution_rows: int = 4  # most pixels whose positions an item holds
    convolution_channels: int = 8  # least output channels per group for a tiled product: with fewer its tile would stay empty
    winograd_direct: float = 0.7  # a direct convolution's multiply-add rate relative to the Winograd kernels', by times on an H200
    launch: float = 1_000_000  # least time of a launch, in multiply-adds of a unit: 5 microseconds of 128 lanes
    winograd_share: int = 16  # transformed tensors may take 1/16 of the device's memory
    # Attention is one kernel if its multiply-adds take no longer than so many launches. If they take one launch's time, a transformer's
    # step is 1.4 times as fast with one kernel (128 positions, 4 heads of 32, on an H200).
    attention_launches: float = 2
    attention_least: int = 16  # least positions: fewer leave most of a group's rows empty
    attention_most: int = 512  # most positions: a group's loop over them takes the time of some launches
    attention_weight: float = 24  # cost of one attention weight beside the two products: exp, mask and a store to local memory
    attention_local: float = 4  # loading a float from local memory: 128 bytes, so 32 floats, come in a cycle of 128 multiply-adds
    attention_wait: float = 64_000  # latency of a block's loads, in multiply-adds of a unit: 500 cycles of 128 lanes; other groups hide it
    scatter_items: int = 1 << 15  # most work-items of a scatter in which each visits all updates
    scatter_walked: int = 1 << 25  # visits, over all items, that take as long as the launches of a sort do
    scatter_chunk: int = 32  # sorted updates that an item combines
    scan_least: int = 32  # least elements of a row that a group scans together
    scan_group: int = 256  # most work-items of such a group
    scan_each: int = 8  # elements of a block per work-item
    scan_blocks: int = 4  # least blocks per piece of a row: the group scans them in the time of a launch
    scan_steps: int = 32  # least elements of a column's piece, which one item scans
    scan_pieces: int = 4  # least pieces of a column for which cutting pays for two more launches
