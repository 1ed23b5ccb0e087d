"""Winograd's minimal algorithms for convolutions with 3x3 filters and strides of 1: the transforms, shared by all schedules.

F(m x m, 3 x 3) computes a tile of m x m outputs from a patch of (m + 2) x (m + 2) inputs: patch and filter are transformed, multiplied
pointwise, summed over the input channels, and transformed back (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).
The sums over channels are (m + 2)^2 matrix products, with 4 multiply-adds per output, input channel and filter for m = 2 and 2.25 for
m = 4; the direct algorithm takes 9. The filter's gradient is the transpose: patches times gradients of tiles, summed over the tiles.

Against float64, the errors for m = 2 are no larger than those of the direct sum, which has more terms. For m = 4 they are two to three
times as large; with the usual points 0, 1, -1, 2 and -2, instead of 0 and plus and minus 3/4 and 3/2, it would be ten times (Alam et al.,
"Winograd Convolution for Deep Neural Networks: Efficient Point Selection", 2022, is about such points). Errors grow with the number of
products in a sum. `terms` limits it so that, for random numbers, they stay below 3e-6 of the largest result; longer sums are sums of parts.

An infinity or NaN in the input reaches the same outputs as in a direct convolution, and may make other outputs NaN whose tile's patch
contains it: up to m - 1 positions further away.
"""

import math
from dataclasses import dataclass

from keras_ocl.core.dim import key


@dataclass(frozen=True)
class Transforms:
    """The transform matrices of F(outputs x outputs, 3 x 3), each as a tuple of its rows: C expressions of the inputs {0}, {1}, ...

    Attributes:
        outputs: side of a tile, in outputs. terms: most products in one sum.
        patch: transforms a tile's inputs. filter: transforms the filter. result: transforms the products to the tile's outputs.
        gradient, total: for the filter's gradient: the transposes of `result` (transforms a tile's gradient) and of `filter` (the sums).
    """

    outputs: int
    terms: float
    patch: tuple
    filter: tuple
    result: tuple
    gradient: tuple
    total: tuple

    @property
    def side(self):
        """Side of a patch, in inputs."""
        return self.outputs + 2

    @property
    def planes(self):
        """Number of matrix products."""
        return self.side**2

    @property
    def saving(self):
        """Multiply-adds of the direct algorithm for one of the products'."""
        return 9 * self.outputs**2 / self.planes


TWO = Transforms(
    2,
    math.inf,
    patch=("{0} - {2}", "{1} + {2}", "{2} - {1}", "{1} - {3}"),
    filter=("{0}", "0.5f * ({0} + {1} + {2})", "0.5f * ({0} - {1} + {2})", "{2}"),
    result=("{0} + {1} + {2}", "{1} - {2} - {3}"),
    gradient=("{0}", "{0} + {1}", "{0} - {1}", "-{1}"),
    total=("{0} + 0.5f * ({1} + {2})", "0.5f * ({1} - {2})", "0.5f * ({1} + {2}) + {3}"),
)


def _four(a, b):
    """F(4 x 4, 3 x 3) with the points 0, a, -a, b, -b and infinity."""

    def f(number):
        return f"{float(number)!r}f"

    both, mean = f(a * a * b * b), f(a * a + b * b)
    # A point and its negative share the even and odd parts of their polynomials.
    near, near_odd = f"({{4}} - {f(b * b)} * {{2}})", f"{f(a)} * ({{3}} - {f(b * b)} * {{1}})"
    far, far_odd = f"({{4}} - {f(a * a)} * {{2}})", f"{f(b)} * ({{3}} - {f(a * a)} * {{1}})"
    zero, of_a, of_b = 1 / (a * a * b * b), 1 / (2 * a * a * (a * a - b * b)), 1 / (2 * b * b * (b * b - a * a))

    def powers(x, scale):
        return tuple(f"{f(scale)} * ({{0}} + {f(x * x)} * {{2}} {sign} {f(x)} * {{1}})" for sign in "+-")

    def cubic(x, sign):
        return f"{{0}} + {f(x * x)} * {{2}} {sign} ({f(x)} * {{1}} + {f(x**3)} * {{3}})"

    return Transforms(
        4,
        256,
        patch=(
            f"{both} * {{0}} - {mean} * {{2}} + {{4}}",
            f"{near} + {near_odd}",
            f"{near} - {near_odd}",
            f"{far} + {far_odd}",
            f"{far} - {far_odd}",
            f"{both} * {{1}} - {mean} * {{3}} + {{5}}",
        ),
        filter=(f"{f(zero)} * {{0}}", *powers(a, of_a), *powers(b, of_b), "{2}"),
        result=(
            "{0} + ({1} + {2}) + ({3} + {4})",
            f"{f(a)} * ({{1}} - {{2}}) + {f(b)} * ({{3}} - {{4}})",
            f"{f(a * a)} * ({{1}} + {{2}}) + {f(b * b)} * ({{3}} + {{4}})",
            f"{f(a**3)} * ({{1}} - {{2}}) + {f(b**3)} * ({{3}} - {{4}}) + {{5}}",
        ),
        gradient=("{0}", cubic(a, "+"), cubic(a, "-"), cubic(b, "+"), cubic(b, "-"), "{3}"),
        total=(
            f"{f(zero)} * {{0}} + {f(of_a)} * ({{1}} + {{2}}) + {f(of_b)} * ({{3}} + {{4}})",
            f"{f(of_a * a)} * ({{1}} - {{2}}) + {f(of_b * b)} * ({{3}} - {{4}})",
            f"{f(of_a * a * a)} * ({{1}} + {{2}}) + {f(of_b * b * b)} * ({{3}} + {{4}}) + {{5}}",
        ),
    )


FOUR = _four(0.75, 1.5)


# Why applies() is false, as a clause.
UNFIT = "Winograd's algorithm is for float32 and 3 x 3 filters of stride 1, without groups, where it is not kept out"


def applies(problem):
    """Whether the algorithms apply to this convolution."""
    geometry = problem.geometry
    if "winograd" in problem.traits.quarantine:
        return False
    if geometry.rank != 2 or problem.dtype != "float32" or tuple(map(key, geometry.filter[:2])) != (3, 3) or geometry.groups != 1:
        return False
    return all(s == 1 for s in (*geometry.strides, *geometry.dilation, *geometry.input_dilation))


def combine(source, target, rows, size):
    """C statements target = rows x source x rows^T for `size` x `size` registers, named by format strings of (i, j).

    `rows` is a transform of Transforms; the kernel's C type of registers is called `vector`.
    """
    text = ""
    for i, row in enumerate(rows):
        for j in range(size):
            text += f"const vector h{i}_{j} = {row.format(*(source.format(k, j) for k in range(size)))};\n"
    for i in range(len(rows)):
        for j, row in enumerate(rows):
            text += f"{target.format(i, j)} = {row.format(*(f'h{i}_{k}' for k in range(size)))};\n"
    return text
