"""Numbers that were measured, or that follow from a device's caches: one table per schedule, with the reasons.

Kernels read them through a device's traits, `schedule_of(traits).tuning`. CLBlast's database of tuned parameters is the example.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """Regions of pointwise work and reductions that become one kernel."""

    alone: int = 8192  # element steps of reductions that one work-item may do alone
    nodes: int = 96  # nodes in a region: bounds the size of a kernel's source
    fetched: int = 96  # price of an operand's element that a template may compute where it reads it
    copies: int = 8  # places of a kernel where the code of a reduction may be repeated


@dataclass(frozen=True)
class Splitting:
    """Long reductions with few results, whose parts are summed side by side."""

    long: int = 2048  # elements per result from which splitting pays, along rows
    high: int = 2048  # and along columns
    worth: int = 0  # elements in all
    few: int = 4096  # results up to which rows alone give too few work-items
    part: int = 16384  # elements per part
    parts: int = 64  # most parts
    steps: int = 1  # least elements per result of a part
    first: bool = False  # cut the first axis that is long enough, so that what is left of the axes is one loop; else the longest
    least: int = 8  # steps of the longest axis, below which there is nothing to split
    rows: int = 32  # rows per part of a sum along columns: streams of memory that a CPU's prefetcher follows at once
    wide: int = 2**19  # elements from which that pays, more than a second-level cache holds
    tall: int = 512  # columns shorter than this need more elements, in proportion


@dataclass(frozen=True)
class CpuPointwise:
    """Generated code."""

    chunk: int = 8192  # elements of elementwise work that repay a work-item's start


@dataclass(frozen=True)
class CpuProduct:
    """Matrix products. What is called a cost is cycles measured on a machine with AVX-512; only their ratios matter."""

    item: float = 1500  # cost of a work-item's start, and its first cache misses
    tile: float = 20  # cost of a tile's start: addresses, zeroing
    fetch: float = 0.35  # cost of a vector of B that comes from the second-level cache
    scalar: float = 0.25  # cost of an element of A, mostly hidden
    whole: float = 0.05  # cost of a vector of A
    whole_far: float = 4  # the same from beyond the second-level cache
    close: int = 2**20  # bytes of A that a second-level cache holds
    spilled: float = 0.3  # cost of a vector of either operand where a tile's rows and columns do not fit the first-level cache
    first: int = 3 * 2**13  # bytes that one holds beside all else
    turn: float = 0.5  # cost of transposing an element of B into a packed block
    read: float = 1.5  # cost of a vector of B that is contiguous in k, by an item's first rows
    read_far: float = 4  # from memory
    copy: float = 3  # cost of a vector of B into a packed block
    copy_far: float = 24  # from memory
    near: int = 2**24  # bytes of B that a last-level cache holds
    # Tiles that a panel of a far B is wide: it is read in longer runs, and a tile's rows of A twice from the first-level cache.
    across: int = 2
    latency: float = 4  # a step of k cannot take less than an fma waits for the one before
    kept: int = 2048  # vectors of partial sums that an item keeps for a panel, in the second-level cache too
    block: int = 512  # depth of a packed block: 64 columns of it and the part of A that meets it stay in the second-level cache
    turned: int = 64  # steps of k whose packed rows stay in the first-level cache while column after column is written into them
    streamed: int = 2**21  # bytes of a B from which few rows of A pass over it in wide panels
    streamed_rows: int = 2  # most such rows
    streamed_computed: int = 2**25  # bytes of a B computed where it is read, from which twice the rows do
    streamed_steps: int = 8  # steps of k of a pass: as many rows of B are read at once
    streamed_vectors: tuple = (128, 96, 64, 48, 32, 24, 16)  # of a panel, the widest first
    split: int = 4096  # least steps of k in a part
    split_strided: int = 1024  # steps of k whose rows of both operands, which are strided, fit a core's cache
    partial: int = 2**21  # elements of partial sums that are worth writing
    strips: int = 2**18  # elements of A, strided in k, that the caches do not hold: it is packed into strips
    strips_stride: int = 2048  # least bytes from a step of k to the next where that pays
    strips_panels: int = 8  # least panels that read each strip
    strips_depth: int = 16  # steps of k that an item packs: as many rows are read at once


@dataclass(frozen=True)
class CpuConvolution:
    """Convolutions and their gradients."""

    item_flops: float = 1.5e6  # least work of an item: some ten microseconds
    cached_filter: int = 512 * 1024  # bytes of a filter that stays in a second-level cache
    packed_block: int = 32 * 1024  # bytes of a block of the filter that a first-level cache does not hold
    packed_tiles: int = 64  # tiles that read a block, below which packing costs more than it saves
    bodies: int = 10  # most tile bodies of one kernel; other borders run the masked body
    large_bodies: int = 16  # the same where masks would cost seconds: more bodies take seconds to compile
    large_flops: float = 1e9  # work from which that is so
    # Where a result is the sum of few terms its store is a part of the work: the epilogue is then repeated for every pixel
    # of a tile (if no longer than so many characters). Elsewhere it is one loop, which halves the time to compile.
    unrolled_terms: int = 64
    unrolled_store: int = 400
    few_channels: int = 4  # output channels up to which lanes run along the input channels
    band: int = 384 * 1024  # bytes of input and gradient of a filter gradient's band: a good part of a core's second-level cache
    cached: int = 12 * 1024 * 1024  # bytes of input and gradient that a last-level cache is taken to hold
    sum_elements: int = 4096  # filter elements that one item of the summing kernel handles


@dataclass(frozen=True)
class CpuWinograd:
    """Winograd's algorithm for convolutions, and for their filters' gradients."""

    channels: int = 32  # fewer, and the transforms cost what the products save
    flops: float = 3e7  # least work
    items: int = 8  # least for every compute unit
    local: int = 256 * 1024  # bytes of patches and products: what a second-level cache holds beside the filter
    gradient_cached: int = 40 * 1024  # bytes of the two matrices of a gradient's product: a first-level cache
    most_tiles: int = 96  # terms of a gradient that a register tile sums at a time
    least_tiles: int = 16


@dataclass(frozen=True)
class CpuAttention:
    """Attention."""

    private: int = 1 << 17  # bytes of private memory that a work-item may use
    depth: int = 64  # up to which rows the kernels were measured
    row_depth: int = 256  # of a single query, whose rows are held in registers
    row_heads: int = 8  # which saturate the memory, whatever the number of units


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
    """The table of the gpu schedule."""

    pointwise_group: int = 64  # work-items of a work-group of generated code, and where a kernel leaves it open
    tile: int = 32  # side of a group's tile where an operand is transposed, kept in local memory: runs of 128 bytes
    tile_items: int = 256  # most items of such a group
    tile_bytes: int = 1 << 14  # of local memory for such a group's operands: as many groups as fill a unit fit
    tile_least: int = 16  # shorter axes are not cut; side of tiles whose operands are not kept, but in the cache: runs of 64 bytes
    team: int = 256  # most of a group that reduces together
    team_elements: int = 4  # least that each of them reduces
    team_lanes: int = 32  # neighbouring results of a group whose memory is contiguous along them
    unit_items: int = 512  # work-items of a compute unit that hide the latency of memory
    product_items: int = 256  # most work-items of a work-group of a product
    product_depth: int = 512  # multiply-adds of an item for a tile of k: more elements on their way take too many registers
    product_block: int = 32  # columns of a work-group of a small product, as of a recurrent step
    product_few: int = 8  # rows or columns of a product that is a matter of reading the other operand once
    product_readers: int = 2  # work-groups of such a product that together read as fast as a unit can
    product_split: int = 128  # least steps of k in a part of a product
    # Costs of a product in multiply-adds of a work-item, by the ratios of instructions and of bytes to operations of current GPUs.
    product_fetch: float = 8  # an element that comes to local memory: half of 4 of some 32 bytes that 128 lanes get in a cycle, else hidden
    product_turn: float = 80  # a tile of k: addresses, stores to local memory, the barrier
    product_start: float = 1200  # of a group, which waits for its first elements
    product_store: float = 8  # a result
    product_hiding: float = 128  # work-items whose work a round of groups on a unit waits: its lanes, for latencies that few groups leave
    product_part: float = 100  # a result of a part, which is written and read again: 8 of some 10 bytes that a unit gets in a cycle
    product_launch: float = 400_000  # of the kernel that sums parts: 3 microseconds of 128 lanes
    depth: int = 16  # steps of a contraction in local memory
    summing_items: int = 1 << 15  # work-items of a sum of parts
    convolution_places: int = 16  # registers that an item holds for the places of its pixels in the images
    convolution_rows: int = 4  # pixels whose places an item holds at most
    convolution_channels: int = 8  # output channels of a group below which a product's tile would stay empty
    winograd_direct: float = 0.7  # of the multiply-adds beside Winograd's algorithms' that a direct convolution reaches, by H200's times
    launch: float = 1_000_000  # the least that a launch costs, in multiply-adds of a unit: 5 microseconds of 128 lanes
    winograd_share: int = 16  # of the device's memory that transformed tensors may take
    # Attention is one kernel where its multiply-adds take the time of so many launches. A transformer's step with as many as one's is 1.4
    # times as fast so (128 positions, 4 heads of 32, on an H200).
    attention_launches: float = 2
    attention_least: int = 16  # positions: fewer leave most of a group's rows empty
    attention_most: int = 512  # positions over which a group walks in the time of some launches
    attention_weight: float = 24  # multiply-adds that a logit's exponential, mask and way to local memory take the time of
    attention_local: float = 4  # multiply-adds in the time of an element from local memory: 128 lanes' while 128 bytes come
    attention_wait: float = 64_000  # of a unit, while a block's rows come from memory: 500 cycles of 128 lanes; other groups compute then
    scatter_items: int = 1 << 15  # work-items of a scatter that walk all updates
    scatter_walked: int = 1 << 25  # steps of all of them that take as long as sorting's launches
    scatter_chunk: int = 32  # sorted updates that an item combines
    scan_least: int = 32  # elements of a row that a group scans
    scan_group: int = 256  # most work-items of such a group
    scan_each: int = 8  # elements of a block that one of them takes
    scan_blocks: int = 4  # least blocks of a piece of a row, which the group does in the time of a launch
    scan_steps: int = 32  # least steps of an item's piece
    scan_pieces: int = 4  # of items' walks, from which cutting pays for two more launches
