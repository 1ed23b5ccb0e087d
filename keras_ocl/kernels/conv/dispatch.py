"""Convolution and its two gradients over channels-last data: the choice of kernels for a geometry, device and dtype.

forward, input_grad and filter_grad return KernelSpecs to launch in order, [] if the result has no elements.
Buffers among the kernels' arguments that are no operands are scratch memory that the caller provides. The sink receives
(n, *spatial, channel) coordinates in the result's shape (for the filter's gradient: (*taps, input channel of the group, output channel)).
"""

from dataclasses import replace

from keras_ocl.core.dim import present
from keras_ocl.kernels.conv import elements
from keras_ocl.kernels.conv.geometry import Geometry
from keras_ocl.kernels.conv.problem import Problem

__all__ = ["Geometry", "Problem", "filter_grad", "forward", "input_grad"]

_EAGER_FLOPS = 4e6  # flops below which eager work uses shared kernels, whose every extent is an argument


def forward(problem):
    """Kernels of the convolution of x (geometry.input) with w (geometry.filter), in geometry.output's shape."""
    if problem.geometry.empty:
        return []
    if _is_small(problem):
        return elements.forward(problem)
    return problem.schedule.convolution(_literal(problem))


def input_grad(problem):
    """Kernels of the gradient in x's shape (geometry.input): dy (geometry.output) convolved with the flipped filter."""
    geometry, name = problem.geometry.transposed(), "convolution input gradient"
    sources = {"x" if operand == "dy" else operand: source for operand, source in problem.sources.items()}
    return forward(replace(problem, geometry=geometry, x=problem.dy, dy=None, name=name, transposed=True, sources=sources))


def filter_grad(problem):
    """Kernels of the gradient in the filter's shape (geometry.filter) from x and dy (geometry.output)."""
    if 0 in problem.geometry.filter:
        return []
    problem = replace(problem, name="convolution filter gradient")
    if _is_small(problem):
        return elements.filter_grad(problem)
    return problem.schedule.filter_gradient(_literal(problem))


def _is_small(problem):
    return problem.all_arguments and not problem.sources and problem.geometry.flops < _EAGER_FLOPS


def _literal(problem):
    """The Problem, with ints for the Dims of large eager work, which gets kernels of its own, with tiles chosen for its extents."""
    if not problem.all_arguments:
        return problem
    shapes = {name: tuple(map(present, getattr(problem.geometry, name))) for name in ("input", "filter", "output")}
    return replace(problem, geometry=replace(problem.geometry, **shapes))
