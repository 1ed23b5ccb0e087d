"""What the CPU kernels of convolutions share: loads and stores of channels, blocks of them, and the cost of register tiles."""

from dataclasses import dataclass
from functools import cached_property

from keras_ocl.core import dtypes
from keras_ocl.kernels import prelude


def padded_width(count):
    """Lanes of the narrowest OpenCL vector that holds `count` lanes, at most 16."""
    return next((w for w in (1, 2, 4, 8) if w >= count), 16)


def loose_types(dtype):
    """C typedefs of vectors with only an element's alignment, for load_vector() and store_vector().

    They are equivalent to vload and vstore, but faster to compile (quirk slow_vloads).
    """
    ctype = dtypes.register_ctype(dtype)
    size = 8 if ctype == "double" else 4
    return "".join(f"typedef {ctype}{n} loose_{ctype}{n} __attribute__((aligned({size})));\n" for n in (2, 4, 8, 16))


def load_vector(dtype, width, pointer, offset):
    """Expression that loads `width` consecutive elements from global memory into a register."""
    if width == 1 or dtype not in ("float32", "float64"):
        return prelude.load(dtype, width, pointer, f"({offset})" if width == 1 else offset)
    return f"*(__global const loose_{dtypes.register_ctype(dtype)}{width}*)({pointer} + {offset})"


def store_vector(dtype, width, pointer, offset, value):
    """Statement that stores a register of float32 or float64 to global memory."""
    if width == 1:
        return f"{pointer}[{offset}] = {value};\n"
    return f"*(__global loose_{dtypes.register_ctype(dtype)}{width}*)({pointer} + {offset}) = {value};\n"


def load_lanes(dtype, width, count, pointer, offset):
    """Expression of a `width`-lane register whose first `count` lanes are loaded, the others 0."""
    if count == width:
        return load_vector(dtype, width, pointer, offset)
    parts = [load_vector(dtype, lanes, pointer, f"{offset} + {at}") for at, lanes in prelude.runs(count)]
    return f"({prelude.register_type(dtype, width)})({', '.join(parts + ['0'] * (width - count))})"


def load_helpers(dtype, width):
    """Names of the helper functions that load_lanes() calls for vectors of up to `width` lanes."""
    return frozenset().union(*(prelude.helpers_for(dtype, lanes) for lanes in (1, 2, 4, 8, 16) if lanes <= width))


def store_lanes(dtype, width, count, pointer, offset, value):
    """Statements that store the first `count` lanes of the register `value`, as store_vector()."""
    if count == width:
        return store_vector(dtype, width, pointer, offset, value)
    return "".join(store_vector(dtype, lanes, pointer, f"{offset} + {at}", part) for at, lanes, part in _parts(value, count))


def sink_lanes(sink, args, coordinates, value, width, count):
    """The sink's code for the first `count` lanes of the register `value`, whose lanes run along the last coordinate."""
    if count == width:
        return "{ " + sink.store(args, coordinates, value, width) + " }\n"
    *outer, last = coordinates
    stores = (sink.store(args, [*outer, f"({last} + {at})"], part, lanes) for at, lanes, part in _parts(value, count))
    return "".join(f"{{ {store} }}\n" for store in stores)


def _parts(value, count):
    """(first lane, lanes, C text) of the vectors that make up the first `count` lanes of the register `value`."""
    return [(at, lanes, f"{value}.s" + "0123456789abcdef"[at : at + lanes]) for at, lanes in prelude.runs(count)]


def group_lanes(problem, width, count, line, first, inner, pointer="xp"):
    """Expression of a register whose first `count` lanes, of channels from `first` on, hold input `inner` of each lane's own group.

    line, inner: C texts of the offset of a pixel's inputs from the pointer, and of an input's index in its group.
    """
    dtype, inputs, outputs = problem.dtype, problem.geometry.group_inputs, problem.geometry.group_outputs
    if inputs == 1 and outputs == 1:
        return load_lanes(dtype, width, count, pointer, f"{line}channel + {first}")
    places = [f"{line}(channel + {first + lane}) / {outputs} * {inputs} + {inner}" for lane in range(count)]
    values = [prelude.load(dtype, 1, pointer, place) for place in places] + ["0"] * (width - count)
    return f"({problem.register(width)})({', '.join(values)})" if width > 1 else values[0]


@dataclass(frozen=True)
class Block:
    """Channels of a register tile: vectors of `width` lanes, the last with `last` lanes; `count` such blocks lie side by side."""

    vectors: int
    width: int
    last: int
    count: int = 1

    @cached_property
    def lanes(self):
        """The number of channels in each vector."""
        return [self.width] * (self.vectors - 1) + [self.last]

    def load(self, dtype, pointer):
        """Expressions of the block's vectors, from its first channel at `pointer` on."""
        return [load_lanes(dtype, self.width, count, pointer, str(v * self.width)) for v, count in enumerate(self.lanes)]


def blocks_of(channels, width, vectors):
    """The Blocks that cover `channels`: full ones, then the remainder."""
    full, left = divmod(channels, vectors * width)
    blocks = [Block(vectors, width, width, full)] if full else []
    if left:
        n = -(-left // width)
        blocks.append(Block(n, width, left - (n - 1) * width))
    return blocks


def register_tiles(channels, width, most):
    """Yields (vectors, Blocks of the channels, range of rows) of register tiles; `most(vectors)` is how many rows the registers hold."""
    for vectors in range(1, 7):
        if vectors > 1 and (vectors - 1) * width >= channels:
            return
        yield vectors, blocks_of(channels, width, vectors), range(1, most(vectors) + 1)


def cycles(extent, rows, blocks, by_lane=False, latency=4.0):
    """Estimated cycles of one step of all register tiles that cover `extent` rows and the channels' `blocks`.

    by_lane: whether each vector loads its own elements of the left operand. latency: least cycles, since each sum waits for the one before.
    """
    full, left = divmod(extent, rows)
    total = 0.0
    for block in blocks:
        vectors = block.vectors
        loaded = vectors if block.last == block.width else vectors + 1.5 * len(prelude.runs(block.last))
        for part, times in ((rows, full), (left, 1)):
            if part and times:
                loads = (part * vectors if by_lane else part) + loaded
                total += block.count * times * (max(part * vectors / 2, loads / 2, latency) + 0.7)
    return total


def cheapest(estimated):
    """The tile of the first of the pairs (cost, tile) than which no other is clearly cheaper."""
    best = None
    for found in estimated:
        if best is None or found[0] < best[0] - 1e-9:
            best = found
    return best[1]


def chunk_of(args, per_chunk, total):
    """C text of the range [begin, end) of a work-item's `chunk`. One beyond the last still runs once, on nothing, to store zeros."""
    size = args.int(per_chunk)
    return f"const int begin = chunk * {size};\nconst int end = max(begin + 1, min(begin + {size}, {args.int(total)}));\n"
