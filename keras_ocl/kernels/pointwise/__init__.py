"""Loops of generated code over the index space of a fused region, per schedule.

`gen` is the compiler's code generator, `nest` the loop nest over the index space (`nest.groups` are runs of dimensions that merge into
one loop), and `evaluate(variables)` emits the statements that compute and store the results at a point.
"""
