"""Code generation for pointwise values: from "node at an index" to OpenCL C statements.

`Generator.value(node, index)` walks from a result back to what is in memory, composing views by
substituting index expressions (as tinygrad's rangeify does), and defines each intermediate value in
the outermost block of the loop nest where its operands are known, which hoists loop-invariant code.
Reductions met on the way become loops of their own. A dry run without output records every index
expression that is printed; from it `nests.analyse` learns which dimensions of a nest may be merged into one
loop and whether the innermost loop may be vectorised.

Each file adds a layer: writer.py (statements and registers), indices.py (index expressions), loops.py, values.py.
"""

from keras_ocl.compiler.codegen.values import Generator

__all__ = ["Generator"]
