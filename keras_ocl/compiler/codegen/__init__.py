"""Code generation for pointwise values: from "node at an index" to OpenCL C statements.

A kernel's nodes are evaluated twice (evaluator.py): by an Analysis, which finds out what its loops may be and how it accesses memory
(analysis.py), and by a Generator, which writes statements in such loops. Each of the Generator's files adds a layer: writer.py (statements
and registers), indices.py (index expressions), loops.py, values.py. Reductions met on the way become loops of their own.
"""

from keras_ocl.compiler.codegen.analysis import Analysis
from keras_ocl.compiler.codegen.values import Generator

__all__ = ["Analysis", "Generator"]
