"""All gradients of attention in one kernel, for CPUs: a work-item has a whole key head, so that weights are recomputed once, not twice.

Blocks of keys run along the lanes as in cpu.py. The queries' gradient is accumulated in global scratch memory, with lanes along the depth.
"""

from keras_ocl.core.dim import hint, product
from keras_ocl.kernels.attention.cpu import CpuWriter
from keras_ocl.kernels.attention.parts import KEY_VALUE_GRADIENT
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Buffer


def enough(traits, batch, key_heads):
    """Whether batch x key_heads, one work-item each, are enough to keep the device busy."""
    return hint(batch) * hint(key_heads) >= 4 * traits.compute_units


def kernel(problem, sinks):
    """The KernelSpec that computes the gradients of query, key and value."""
    p = problem
    writer = _Writer(p, KEY_VALUE_GRADIENT, sinks)
    body = writer.body()
    return writer.args.kernel(
        name="attention: gradients",
        body=body,
        grid=(1, p.batch * p.key_heads, 1),
        group=(1, 1, 1),
        helpers=writer.all_helpers(),
        title="attention: all gradients of one key head per work-item",
    )


class _Writer(CpuWriter):
    result = 1

    def __init__(self, problem, scheme, sinks):
        super().__init__(problem, scheme, sinks)
        p = problem
        self.total = self.args.pointer(Buffer(product((p.batch, p.time, p.heads, p.depth)), p.wide), p.wide, out=True)
        # (lanes, vectors) of the loops along a row of the queries' gradient: few in eager code, which does not know the depth.
        halves = [w for w in (8, 4, 2) if w < p.lanes]
        some = [(p.lanes, 1), (4, 1), (1, 1)]
        self.widths = some if p.all_arguments else [(p.lanes, 2), (p.lanes, 1), *((w, 1) for w in halves), (1, 1)]
        start = f"(({self.i})batch * {self.time} * {self.heads} + head) * {self.depth}"
        self.row = f"({self.i}){self.heads} * {self.depth}"
        self.declared = f"__global {self.register}* total = {self.total} + {start};\n"

    def body(self):
        each = f"{self.declared}for (int q = 0; q < {self.time}; ++q) {{\n__global {self.register}* sums = total + q * ({self.row});\n"
        lines = [self.head(1), self.private(), *(self.rows(name) for name in self.scheme.kept)]
        clear = f"for (int d = 0; d < {self.depth}; ++d) sums[d] = 0;\n"
        lines.append(self.every_head(f"{each}{clear}}}\n"))
        lines.append(f"for (int first = 0; first < {self.own}; first += {self.block}) {{\n{self.own_block()}}}\n")

        def store(lanes, vectors):
            text = ""
            for v in range(vectors):
                place = f"d + {v * lanes}"
                load = f"sums[{place}]" if lanes == 1 else f"vload{lanes}(0, sums + {place})"
                text += f"{{\nconst {self.vector(lanes)} value = {load} * {self.scale};\n"
                text += self.finish(0, ("batch", "own", "head", f"({place})"), "value", lanes) + "}\n"
            return text

        lines.append(self.every_head(f"{each}const {self.i} own = q;\n{self._walk(store)}}}\n"))
        return "".join(lines)

    def _walk(self, text):
        """C loops over `d`, 0 to the depth, that run the statements `text(lanes, vectors)` for lanes * vectors elements at a time."""
        lines, left = ["int d = 0;\n"], int(self.depth) if self.depth.isdigit() else None
        for lanes, vectors in self.widths:
            width = lanes * vectors
            if left is None or left >= width:
                lines.append(f"for (; d + {width} <= {self.depth}; d += {width}) {{\n{text(lanes, vectors)}}}\n")
            left = left and left % width
        return "".join(lines)

    def step(self, count):
        lines = [super().step(count), f"{{\n{self.declared}total += j * ({self.row});\n"]

        def add(lanes, vectors):
            def place(c, v):
                return f"total + {c} * ({self.row}) + d + {v * lanes}"

            def loaded(c, v):
                return f"*({place(c, v)})" if lanes == 1 else f"vload{lanes}(0, {place(c, v)})"

            def stored(c, v, name):
                return f"*({place(c, v)}) = {name};\n" if lanes == 1 else f"vstore{lanes}({name}, 0, {place(c, v)});\n"

            sums = RegisterTile(count, vectors, self.vector(lanes))
            right = [self.load("key", lanes, "x", v * lanes) for v in range(vectors)]
            step = self.pointer("key", "x", "key_rows + (first + r) * key_row + d")
            step += sums.step(lambda c: f"slopes[{c * self.block} + r]", right)
            return f"{sums.begin(loaded)}for (int r = 0; r < rows; ++r) {{\n{step}}}\n{sums.each(stored)}"

        lines.append(f"const int rows = min({self.block}, {self.own} - first);\n{self._walk(add)}}}\n")
        return "".join(lines)
