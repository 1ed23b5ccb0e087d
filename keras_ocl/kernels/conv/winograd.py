"""Winograd's minimal algorithms for convolutions with 3x3 filters and strides of 1: the transforms, which all schedules share.

F(m x m, 3 x 3) computes a tile of m x m outputs from a patch of (m + 2) x (m + 2) inputs: patch and filter are transformed, multiplied
pointwise, summed over the input channels, and transformed back (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).
Summing over channels makes (m + 2)^2 matrix products, with 4 multiply-adds for each output, channel and filter where m = 2 and 2.25 where
m = 4; the direct algorithm takes 9. The filter's gradient is the transpose: patches times gradients of tiles, summed over the tiles.

Against float64 the errors of m = 2 are no more than those of the direct sum, which is longer. Those of m = 4 are two to three times as
large; with the usual points 0, 1, -1, 2 and -2, in place of 0 and plus and minus 3/4 and 3/2, it would be ten times (Alam et al., "Winograd
Convolution for Deep Neural Networks: Efficient Point Selection", 2022, is about such points). They grow with the number of products in a
sum, which `terms` limits so that of random numbers they stay below 3e-6 of the largest result; longer sums are sums of such parts.

An infinity or NaN in the input reaches the outputs that it does in a direct convolution, and may make others NaN whose tile's patch holds
it: up to m - 1 positions further.
"""

import math
from dataclasses import dataclass

from keras_ocl.core.dim import key


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(outputs x outputs, 3 x 3): for each row its expression of the names {0}, {1}, ...

    Attributes:
        outputs: side of a tile. terms: most products that one sum may have.
        patch: of a tile's inputs. filter: of the filter. result: from the products to the tile's outputs.
        gradient, total: of the filter's gradient, the transposes of `result` (for a tile's gradient) and of `filter` (for the sums).
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
        """Side of a patch."""
        return self.outputs + 2

    @property
    def planes(self):
        """Number of matrix products."""
        return self.side**2


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
    # The polynomials of the points a and b are even and odd parts, which their negatives share.
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


def applies(geometry, dtype):
    """Whether the algorithms compute this convolution."""
    if geometry.rank != 2 or dtype != "float32" or tuple(map(key, geometry.filter[:2])) != (3, 3) or geometry.groups != 1:
        return False
    return all(s == 1 for s in (*geometry.strides, *geometry.dilation, *geometry.input_dilation))


def combine(source, target, rows, size):
    """C statements target = rows x source x rows^T for `size` x `size` registers, named by format strings of (i, j).

    The kernel calls the type of a register `vector`. `rows` holds the expressions of a transform's rows.
    """
    text = ""
    for i, row in enumerate(rows):
        for j in range(size):
            text += f"const vector h{i}_{j} = {row.format(*(source.format(k, j) for k in range(size)))};\n"
    for i in range(len(rows)):
        for j, row in enumerate(rows):
            text += f"{target.format(i, j)} = {row.format(*(f'h{i}_{k}' for k in range(size)))};\n"
    return text
