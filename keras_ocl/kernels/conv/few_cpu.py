"""Direct convolution to few output channels for CPUs: lanes run along the input channels.

Each pixel has one accumulator vector per output channel, whose lanes are added up at the end. The filter is read in the order
(taps in reverse, output channel, input channel): for an input gradient, that is the filter as it is stored.
"""

from keras_ocl.core.dim import hint
from keras_ocl.kernels.conv.forward_cpu import DirectConvolution, Tile, lanes, load_lanes, padded_width, registers, store_lanes
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.spec import KernelSpec


def suits(traits, geometry, dtype):
    """Whether a geometry has few enough output channels, and enough input channels, for this kernel."""
    few = geometry.groups == 1 and geometry.output[-1] <= tuning_of(traits).convolution.few_channels
    return few and geometry.group_inputs >= lanes(traits, dtype)


def forward(traits, geometry, x, w, dtype, sink, name) -> KernelSpec:
    """The KernelSpec of the convolution; `w` is the handle of the filter in the order given above."""
    return _FewChannels(traits, geometry, x, w, dtype, sink, name).spec()


class _FewChannels(DirectConvolution):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.merge_taps = False  # taps are in reverse order in the filter

    def _choose_tile(self, traits):
        """The Tile: as many pixels of a row as the registers hold, in equal parts of the row."""
        width, outputs = lanes(traits, self.dtype), self.geometry.output[-1]
        most = (registers(width * (2 if self.dtype == "float64" else 1)) - 2 - outputs) // outputs
        number = len(self.axes) - 1
        extent = max(1, hint(self.axes[number].per_phase))
        return Tile(number, -(-extent // -(-extent // min(most, 12))), outputs, width)

    def _blocks(self, channels):
        return [(channels, self.tile.width, 1)]

    def _filter_place(self, tap, row):
        args, spatial = self.args, self.geometry.filter[:-2]
        taps = " * ".join(args.int(t) for t in spatial)
        return f"(long)({taps} - 1 - {tap}) * {args.int(self.geometry.group_inputs * self.geometry.output[-1])}"

    def _body(self, vectors, last_lanes, start, end, length, masked=False):
        """The loop over vectors of input channels, and a step for the remaining channels."""
        inputs, width = self.geometry.group_inputs, self.tile.width
        offsets, text = self._offsets(masked)

        def step(count):
            code = ""
            for v in range(vectors):
                code += f"const {self.vector} w{v} = {load_lanes(self.dtype, width, count, 'wp', f'{v * inputs} + c')};\n"
            for r in range(start, end):
                value = load_lanes(self.dtype, width, count, "xp", f"{offsets[r]} + c")
                value = f"(m{r} ? {value} : ({self.vector})(0))" if masked else value
                sums = " ".join(f"a{r}_{v} = fma(value, w{v}, a{r}_{v});" for v in range(vectors))
                code += f"{{ const {self.vector} value = {value}; {sums} }}\n"
            return code

        full = inputs // width * width
        text += f"for (int c = 0; c < {full}; c += {width}) {{\n{step(width)}}}\n"
        return text + (f"{{\nconst int c = {full};\n{step(inputs - full)}}}\n" if inputs > full else "")

    def _store(self, vectors, last_lanes):
        """Adds up each accumulator's lanes and hands the pixels' few channels to the sink."""
        pixels, width, args = self.tile.pixels, self.tile.width, self.args
        text = f"{self.vector} results[{pixels * vectors}];\n"
        for r in range(pixels):
            text += " ".join(f"results[{r * vectors + v}] = a{r}_{v};" for v in range(vectors)) + "\n"
        text += f"for (int pixel = {self.stored}; pixel < count; ++pixel) {{\n{self.scalar} total[{vectors}];\n"
        text += f"for (int v = 0; v < {vectors}; ++v) {{\nconst {self.vector} s{width} = results[pixel * {vectors} + v];\n"
        half = width // 2
        while half:
            ctype = self.scalar if half == 1 else f"{self.scalar}{half}"
            text += f"const {ctype} s{half} = s{half * 2}.lo + s{half * 2}.hi;\n"
            half //= 2
        text += "total[v] = s1;\n}\n"
        padded = padded_width(vectors)
        if vectors == 1:
            text += f"const {self.scalar} result = total[0];\n"
        else:
            parts = [f"total[{v}]" for v in range(vectors)] + ["0"] * (padded - vectors)
            text += f"const {self.scalar}{padded} result = ({self.scalar}{padded})({', '.join(parts)});\n"
        return text + store_lanes(self.sink, args, [*self._coordinates("pixel"), "channel"], "result", padded, vectors) + "}\n"
