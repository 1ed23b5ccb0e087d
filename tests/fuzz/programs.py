"""Random programs: operations on each other's results, drawn by hypothesis, which also makes failing ones small."""

import warnings
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.loops import rounding
from tests.fuzz.operations import MOST, OPERATIONS, elements

_EXTENTS = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 8, 16, 17])
_NAMES = {exact: sorted(name for name, o in OPERATIONS.items() if o.exact or not exact) for exact in (False, True)}
_LARGEST = 200.0  # of values, so that few programs are ill-conditioned


@dataclass
class Program:
    """
    inputs: shapes, whose first extents may be None: unknown. batches: the values that these have, in one call after the other.
    steps: (operation, positions of the operands among inputs and earlier results, params). outputs: positions of results.
    odd: whether some elements of inputs are NaN or infinite.

    Its repr is Python that makes it again.
    """

    inputs: list
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    dtype: str = "float32"
    seed: int = 0
    batches: list = field(default_factory=lambda: [3])
    odd: bool = False

    def arrays(self, batch=None):
        """The values of the inputs for one of the batches, the first unless it is given; rounded to the dtype, in float64."""
        rng, batch = np.random.default_rng(self.seed), self.batches[0] if batch is None else batch
        shapes = [tuple(batch if n is None else n for n in shape) for shape in self.inputs]
        if self.dtype == "int32":
            return [rng.integers(-3, 4, shape).astype(float) for shape in shapes]
        rounded = "float32" if self.dtype == "bfloat16" else self.dtype
        made = [rng.uniform(-2, 2, shape).astype(rounded).astype(float) for shape in shapes]
        if self.odd:
            for a in made:
                a[rng.random(a.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
        return made

    def __call__(self, *inputs):
        """The results, by `keras.ops`."""
        values = list(inputs)
        for name, operands, params in self.steps:
            values.append(OPERATIONS[name].ours(*(values[k] for k in operands), **params))
        return [values[k] for k in self.outputs]

    def reference(self, inputs, noise=0.0, rng=None):
        """The results, by NumPy in float64; with `noise`, each step's are off by a relative error of that size, in loops too."""
        values = list(inputs)

        def rounded(value):
            return value if rng is None else value * (1 + noise * rng.uniform(-1, 1, value.shape))

        with np.errstate(all="ignore"), rounding(rounded):
            for name, operands, params in self.steps:
                values.append(rounded(np.asarray(OPERATIONS[name].theirs(*(values[k] for k in operands), **params), float)))
        return [values[k] for k in self.outputs]


def _value(operation, operands, params, odd):
    """What NumPy makes of a step, or None: for a shape that does not fit, or numbers that are not small, or, unless odd, not finite."""
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # the mean of nothing
        try:
            value = np.asarray(operation.theirs(*operands, **params), float)
        except (ValueError, IndexError):
            return None
    finite = np.isfinite(value)
    fine = value.size <= MOST and (odd or finite.all()) and np.abs(value[finite]).max(initial=0) <= _LARGEST
    return value if fine else None


@st.composite
def programs(draw, steps=8, dtypes=("float32", "float32", "float16", "float64", "int32")):
    """Programs of up to so many steps, each of which NumPy can do for every batch."""
    some = st.lists(_EXTENTS, max_size=4).map(tuple).filter(lambda s: elements(s) <= MOST)
    shapes = draw(st.lists(some, min_size=1, max_size=3))
    batches = draw(st.lists(_EXTENTS, min_size=1, max_size=3))
    if draw(st.booleans()):
        shapes = [(None, *shape[1:]) if shape else shape for shape in shapes]
    program = Program(shapes, dtype=draw(st.sampled_from(dtypes)), seed=draw(st.integers(0, 99)), batches=batches)
    program.odd = program.dtype != "int32" and draw(st.integers(0, 4)) == 0
    values = [[a] for a in program.arrays(batches[0])]
    for batch in batches[1:]:
        for known, a in zip(values, program.arrays(batch), strict=True):
            known.append(a)
    wanted = draw(st.integers(1, steps))
    for _ in range(3 * wanted):  # many operations do not apply to the shapes at hand
        if len(program.steps) == wanted:
            break
        found = OPERATIONS[draw(st.sampled_from(_NAMES[program.dtype == "int32"]))]
        # Mostly recent results: deep programs, with shared ones between.
        operands = [len(values) - 1 - draw(st.integers(0, len(values) - 1)) for _ in range(found.arity)]
        params = found.draw(draw, *(values[k][0].shape for k in operands))
        if params is None:
            continue
        results = [_value(found, [values[k][b] for k in operands], params, program.odd) for b in range(len(batches))]
        if all(r is not None and r.ndim == results[0].ndim for r in results):
            program.steps.append((found.name, operands, params))
            values.append(results)
    last = len(values) - 1
    program.outputs = sorted({last, *draw(st.sets(st.integers(len(shapes), last), max_size=2))}) if program.steps else [last]
    return program
