"""Direct convolution to few output channels for CPUs: lanes run along the input channels.

Each pixel has one accumulator vector per output channel, whose lanes are added up at the end. The filter is read in the order
(taps in reverse, output channel, input channel), a transposed Problem's: for an input gradient, that is the filter as it is stored.
"""

from keras_ocl.core.dim import hint
from keras_ocl.kernels.conv.forward_cpu import DirectConvolution, Tile
from keras_ocl.kernels.conv.parts_cpu import Block, load_lanes, padded_width, sink_lanes
from keras_ocl.kernels.register_tile import halved
from keras_ocl.kernels.spec import KernelSpec


def suits(problem):
    """Whether there are few enough output channels, and enough input channels, for this kernel."""
    geometry = problem.geometry
    few = geometry.groups == 1 and geometry.output[-1] <= problem.tuning.convolution.few_channels
    return few and geometry.group_inputs >= problem.lanes


def forward(problem) -> KernelSpec:
    """The KernelSpec of the convolution, for a transposed Problem."""
    return _FewChannels(problem).spec()


class _FewChannels(DirectConvolution):
    def __init__(self, problem):
        super().__init__(problem)
        self.merge_taps = False  # taps are in reverse order in the filter

    def _choose_tile(self):
        """The Tile: as many pixels of a row as the registers hold, in equal parts of the row."""
        width, outputs = self.problem.lanes, self.geometry.output[-1]
        most = (self.problem.registers(width) - 2 - outputs) // outputs
        number = len(self.axes) - 1
        extent = max(1, hint(self.axes[number].per_phase))
        return Tile(number, -(-extent // -(-extent // min(most, 12))), outputs, width)

    def _blocks(self, channels):
        return [Block(channels, self.tile.width, self.tile.width)]

    def _filter_place(self, tap, row):
        args, spatial = self.args, self.geometry.filter[:-2]
        taps = " * ".join(args.int(t) for t in spatial)
        return f"(long)({taps} - 1 - {tap}) * {args.int(self.geometry.group_inputs * self.geometry.output[-1])}"

    def _body(self, block, start, end, length, masked=False):
        """The loop over vectors of input channels, and a step for the remaining channels."""
        inputs, width = self.geometry.group_inputs, self.tile.width
        offsets, text = self._offsets(masked)

        def step(count):
            def value(r):
                text = load_lanes(self.dtype, width, count, "xp", f"{offsets[r]} + c")
                return f"(m{r} ? {text} : ({self.vector})(0))" if masked else text

            right = [load_lanes(self.dtype, width, count, "wp", f"{v * inputs} + c") for v in range(block.vectors)]
            return self._sums(block).step(value, right, range(start, end))

        full = inputs // width * width
        text += f"for (int c = 0; c < {full}; c += {width}) {{\n{step(width)}}}\n"
        return text + (f"{{\nconst int c = {full};\n{step(inputs - full)}}}\n" if inputs > full else "")

    def _store(self, block):
        """Adds up each accumulator's lanes and hands the pixels' few channels to the sink."""
        width, args, vectors = self.tile.width, self.args, block.vectors
        text = self._results(block)
        text += f"for (int pixel = {self.stored}; pixel < count; ++pixel) {{\n{self.scalar} total[{vectors}];\n"
        text += f"for (int v = 0; v < {vectors}; ++v) {{\nconst {self.vector} s{width} = results[pixel * {vectors} + v];\n"
        halves, total = halved(self.problem.register, f"s{width}", width, lambda _, lanes: f"s{lanes}")
        text += f"{halves}total[v] = {total};\n}}\n"
        padded = padded_width(vectors)
        if vectors == 1:
            text += f"const {self.scalar} result = total[0];\n"
        else:
            parts = [f"total[{v}]" for v in range(vectors)] + ["0"] * (padded - vectors)
            text += f"const {self.scalar}{padded} result = ({self.scalar}{padded})({', '.join(parts)});\n"
        return text + sink_lanes(self.problem.sink, args, [*self._coordinates("pixel"), "channel"], "result", padded, vectors) + "}\n"
