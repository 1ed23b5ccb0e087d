"""Attention for GPUs by a matrix unit: as gpu.py, but each wave of a group multiplies for its own positions (matrix/contraction.py).

As in FlashAttention-2 (Dao, 2023), a wave has whole rows of logits, so that its lanes find a row's maximum among themselves. The group's
own rows stay in local memory. The other positions' rows follow one another through one tile of it: while the unit multiplies by some, the
next are on their way in registers. Weights and slopes go to local memory in the operands' dtype, from where the wave that has written them
loads them as the next product's left operand.
"""

import math

from keras_ocl.core.dim import ceil_div
from keras_ocl.kernels import prelude
from keras_ocl.kernels.attention.gpu import GpuWriter, written
from keras_ocl.kernels.matrix.contraction import MatrixContraction


def kernel(problem, scheme, sinks, tile):
    """The KernelSpec of one Scheme of `problem` with a UnitTile."""
    return written(MatrixWriter(problem, scheme, sinks, tile))


class MatrixWriter(GpuWriter):
    """Writes the kernel of a scheme with a UnitTile."""

    def contractions(self):
        tile, scheme = self.tile, self.scheme
        *self.kept, self.factors = (
            MatrixContraction.memory(self.args, of, of.elements(tile.block)) for of in (*[tile.logits] * tile.kept, tile.results)
        )
        shared = MatrixContraction.memory(self.args, tile.logits, tile.shared)

        def contraction(of, left):
            return MatrixContraction(self.args, of, self.register, "", "int", self.p.dtype, memory=(left, shared))

        self.products = [contraction(tile.logits, own) for own in self.kept]
        self.logits, self.results = self.products[0], contraction(tile.results, self.factors)
        # The contractions of one block of other positions in their order, each with the operand whose rows it reads.
        self.stages = [*zip(self.products, scheme.met, strict=True), *((self.results, name) for _, name in scheme.sums)]

    def indices(self):
        return f"{self.logits.head()}const int across = {self.tile.unit.c.texts(0)[1]};\n"

    def keep(self):
        lines = ["{\nconst int k_begin = 0;\n"]
        for own, name in zip(self.kept, self.scheme.kept, strict=True):
            rows = self.loader(name, "first", self.own, True, self.tile.depth)
            lines.append(self.logits.fill(own, self.tile.block, rows, self.width(name)))
        return "".join([*lines, "}\n"])

    def enter(self, begin, end):
        declared = [contraction.declare(self._extent(n), self._rows(n, "j"), f"next{n}_") for n, (contraction, _) in enumerate(self.stages)]
        return "".join(declared) + self._fetch(0, begin, end)

    def product(self, k, name, end):
        depth = self.p.depth if self.scheme.met[k] in ("query", "key") else self.p.value_depth
        steps = self.tile.unit.steps
        used = self.tile.depth if self.p.all_arguments else int(ceil_div(depth, steps) * steps)
        return self.products[k].results(name) + self._stage(k, name, end, used)

    def sum(self, k, factor, name, end):
        return self._put("s" if factor == "weights" else "g") + self._stage(len(self.products) + k, f"sum{k}_", end, self.tile.met)

    def across(self, name, first, combine):
        lines, unit, barrier = [], self.tile.unit, self.args.barrier()
        for r in self.rows_of_item:
            own = f"{name}{r}"
            lines.append(f"{self.register} {own} = {first(r)};\n")
            lines += [f"{{\n{unit.shuffle('more', own, mask, barrier)}{own} = {combine('more', own, 1)};\n}}\n" for mask in unit.masks]
        return "".join(lines)

    def vectors(self, name, along):
        width, v = self.p.depth if name in ("query", "key") else self.p.value_depth, self.tile.logits.fragment
        if not isinstance(width, int) or self.p.all_arguments:
            return 1
        while width % v or along % v:
            v //= 2
        return v

    def exp(self, value):
        # An instruction of all GPUs with matrix units, good to two units in the last place; weights are rounded to 16 bits.
        return f"native_exp2(({value}) * {math.log2(math.e):.9g}f)" if self.tile.unit.packed > 1 else super().exp(value)

    def elements(self, name, vector, where):
        return prelude.load_stored(self.p.dtype, vector, f"{name}_rows", where)

    def _extent(self, n):
        """Rows in local memory of stage `n`: other positions, or columns of theirs."""
        return self.tile.met if n < len(self.products) else self.tile.width

    def _rows(self, n, first):
        """The Loader of stage `n` for the block of other positions from `first` (C text) on."""
        _, name = self.stages[n]
        if n < len(self.products):
            return self.loader(name, first, self.others, True, self.tile.depth)
        return self.loader(name, "column_first", self.width(name), False, self.tile.width)

    def _fetch(self, n, first, end):
        """Statements that load the rows of stage `n` of the block from `first` on into registers, if that is before `end` (C texts)."""
        contraction, name = self.stages[n]
        begin, steps = ("0", self.width(name)) if n < len(self.products) else (first, self.others)
        exact = steps.isdigit() and int(steps) % contraction.tile.depth == 0
        text = contraction.fetch(self._extent(n), self._rows(n, first), steps, f"next{n}_", exact)
        return f"if ({first} < {end}) {{\nconst int k_begin = {begin};\n{text}}}\n"

    def _stage(self, n, name, end, depth):
        """Statements that multiply by the first `depth` steps of the rows of stage `n`, in registers, and load those of the next stage."""
        contraction, barrier = self.stages[n][0], f"{self.args.barrier()}\n"
        text = contraction.stash(contraction.b, self._extent(n), self._rows(n, "j"), f"next{n}_") + barrier
        last = n + 1 == len(self.stages)
        text += self._fetch(0 if last else n + 1, f"j + {self.tile.met}" if last else "j", end)
        return text + contraction.multiply_in_turn(name, depth) + barrier

    def _put(self, name):
        """Statements that store {name}{row}_{column} in the factors' local memory, rounded."""
        t, unit, lines = self.tile.results, self.tile.unit, []
        run = self.tile.logits.beside
        for r in self.rows_of_item:
            instruction, row = divmod(r, unit.lane_rows)
            begin = t.begin(f"wave_row + {instruction * unit.rows}", t.fragment)
            for c in range(0, self.tile.others, run):
                beside, column = divmod(c, unit.lane_columns)
                values = ", ".join(f"{name}{r}_{n}" for n in range(c, c + run))
                values = f"({self.vector(run)})({values})" if run > 1 else values
                value, helpers = prelude.stored(self.p.dtype, run, values)
                self.helpers |= helpers
                where = f"{begin} + {unit.c.text(unit.sums(row, column), t.offset)} + {beside * unit.columns}"
                lines.append(f"{self.results.vector(self.factors, where, run)} = {value};\n")
        return "".join(lines)
