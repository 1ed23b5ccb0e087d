"""Random programs: operations on each other's results, drawn by hypothesis, which also makes failing ones small."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.operations import MOST, OPERATIONS, elements

_EXTENTS = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 8, 16, 17])
_NAMES = {exact: sorted(name for name, o in OPERATIONS.items() if o.exact or not exact) for exact in (False, True)}
_LARGEST = 200.0  # of values, so that few programs are ill-conditioned


@dataclass
class Program:
    """
    inputs: shapes. steps: (operation, positions of the operands among inputs and earlier results, params). outputs: positions of results.

    Its repr is Python that makes it again.
    """

    inputs: list
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    dtype: str = "float32"
    seed: int = 0

    def arrays(self):
        """The values of the inputs, rounded to the dtype, in float64."""
        rng = np.random.default_rng(self.seed)
        if self.dtype == "int32":
            return [rng.integers(-3, 4, shape).astype(float) for shape in self.inputs]
        rounded = "float32" if self.dtype == "bfloat16" else self.dtype
        return [rng.uniform(-2, 2, shape).astype(rounded).astype(float) for shape in self.inputs]

    def __call__(self, *inputs):
        """The results, by `keras.ops`."""
        values = list(inputs)
        for name, operands, params in self.steps:
            values.append(OPERATIONS[name].ours(*(values[k] for k in operands), **params))
        return [values[k] for k in self.outputs]

    def reference(self, inputs, noise=0.0, rng=None):
        """The results, by NumPy in float64; with `noise`, each step's are off by a relative error of that size."""
        values = list(inputs)
        with np.errstate(all="ignore"):
            for name, operands, params in self.steps:
                value = np.asarray(OPERATIONS[name].theirs(*(values[k] for k in operands), **params), float)
                values.append(value if rng is None else value * (1 + noise * rng.uniform(-1, 1, value.shape)))
        return [values[k] for k in self.outputs]


@st.composite
def programs(draw, steps=8, dtypes=("float32", "float32", "float16", "float64", "int32")):
    """Programs of up to so many steps."""
    shapes = draw(st.lists(st.lists(_EXTENTS, max_size=4).map(tuple).filter(lambda s: elements(s) <= MOST), min_size=1, max_size=3))
    program = Program(shapes, dtype=draw(st.sampled_from(dtypes)), seed=draw(st.integers(0, 99)))
    values = program.arrays()
    wanted = draw(st.integers(1, steps))
    for _ in range(3 * wanted):  # many operations do not apply to the shapes at hand
        if len(program.steps) == wanted:
            break
        found = OPERATIONS[draw(st.sampled_from(_NAMES[program.dtype == "int32"]))]
        # Mostly recent results: deep programs, with shared ones between.
        operands = [len(values) - 1 - draw(st.integers(0, len(values) - 1)) for _ in range(found.arity)]
        params = found.draw(draw, *(values[k].shape for k in operands))
        if params is None:
            continue
        with np.errstate(all="ignore"):
            value = np.asarray(found.theirs(*(values[k] for k in operands), **params), float)
        if np.isfinite(value).all() and np.abs(value).max(initial=0) <= _LARGEST and value.size <= MOST:
            program.steps.append((found.name, operands, params))
            values.append(value)
    last = len(values) - 1
    program.outputs = sorted({last, *draw(st.sets(st.integers(len(shapes), last), max_size=2))}) if program.steps else [last]
    return program
