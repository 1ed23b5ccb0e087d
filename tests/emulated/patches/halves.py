"""Halves of registers: on RDNA, numbers from 128 on name the upper halves in instructions of 16 bits; on CDNA, which has 256, registers."""

import ast

from tinygrad.uop.ops import UOp

from tests.emulated.patches.text import changed

_FUNCTIONS = {"_load_vsrc0": 1, "_compile_vop12": 2, "_compile_vopc": 2}  # the emulator's function -> comparisons in it
_BOUNDS = (128, 256 + 128)  # of a vector register, and of one as a source


def apply(emu, pcode):
    emu._upper_half = lambda inst, register, bound: UOp.const(False) if type(inst).__module__ == emu.irc.__name__ else register >= bound
    for name, count in _FUNCTIONS.items():
        changed(emu, name, lambda tree, name=name, count=count: _ask_for_upper_halves(tree, name, count))


def _ask_for_upper_halves(tree, name, count):
    found = _Comparisons()
    found.visit(tree)
    assert found.count == count, (
        f"{name} of this version of the emulator has {found.count} comparisons of halves where {count} are expected"
    )


class _Comparisons(ast.NodeTransformer):
    count = 0

    def visit_Compare(self, node):
        bound = node.comparators[0]
        if not isinstance(node.ops[0], ast.GtE) or not isinstance(bound, ast.Call) or bound.args[0].value not in _BOUNDS:
            return node
        self.count += 1
        return ast.Call(ast.Name("_upper_half", ast.Load()), [ast.Name("inst", ast.Load()), node.left, bound], [])
