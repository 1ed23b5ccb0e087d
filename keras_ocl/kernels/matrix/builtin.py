"""The instruction of a matrix unit as a function of the compiler, whose operands and sums are vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_ocl.kernels.prelude import vector_type


@dataclass(frozen=True, eq=False)
class Builtin:
    """The Instruction that calls a function of three vectors.

    Attributes:
        functions: the function's name, by the operands' dtype.
        operands: the C types of both operands' vectors, or scalars, by the operands' dtype.
        more: C text of further arguments.
        each: C text of an argument before each operand.
        kind: C type of a sum.
        declared: a macro that is defined where the compiler declares the function; else it is declared here. "" where no declaration is
            needed.
    """

    functions: Mapping[str, str]
    operands: Mapping[str, tuple[str, str]]
    more: str = ""
    each: str = ""
    kind: str = "float"
    declared: str = ""

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str:
        function, kinds, sums = self.functions[dtype], self.operands[dtype], vector_type(self.kind, len(c))
        left, right = (f"{self.each}as_{kind}({_vector('uint', names)})" for kind, names in zip(kinds, (a, b), strict=True))
        text = ""
        if self.declared:
            parameters = ", ".join((*kinds, sums))
            text = f"#ifndef {self.declared}\n{sums} __attribute__((overloadable)) {function}({parameters});\n#endif\n"
        text += f"const {sums} sums = {function}({left}, {right}, {_vector(self.kind, c)}{self.more});\n"
        return f"{{\n{text}{''.join(f'{name} = sums.s{i:x};' + chr(10) for i, name in enumerate(c))}}}\n"


def _vector(kind: str, names: Sequence[str]) -> str:
    """C text of the vector of these variables, or of the one."""
    return names[0] if len(names) == 1 else f"({vector_type(kind, len(names))})({', '.join(names)})"
