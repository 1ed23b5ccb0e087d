"""Statements in blocks, and the registers they define."""

from keras_ocl.compiler.codegen.evaluator import Evaluator
from keras_ocl.compiler.codegen.nests import Register
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import elementwise, prelude


class Writer(Evaluator):
    """Writes statements; a value is defined in the outermost block where all its operands are defined.

    Args:
        args: kernels.spec.Args that collects the kernel's parameters.
        materialised, own, nests: as for Evaluator; the nests of an Analysis.
        width: vector lanes.

    Attributes:
        helpers: names of the prelude's functions that the statements call.
        wide: whether indices are 64 bits wide.
    """

    def __init__(self, args, materialised, width, nests, own=()):
        super().__init__(materialised, own, nests, args.all_arguments)
        self.args, self.width = args, width
        self.helpers = set()
        self.wide = False
        self._count = 0

    def name(self, stem="t"):
        """A new C name that begins with `stem`."""
        self._count += 1
        return f"{stem}{self._count}"

    def emit(self, line):
        self.block.lines.append(line)

    def define(self, dtype, width, expression, blocks, ctype=None):
        """A new register holding `expression`, in the deepest of `blocks`."""
        block = self._deepest(blocks)
        name = self.name()
        block.lines.append(f"const {ctype or prelude.register_type(dtype, width)} {name} = {expression};")
        return Register(name, dtype, width, block)

    @property
    def ctype(self):
        """The C type of indices."""
        return "long" if self.wide else "int"

    def int(self, extent):
        """C text of an extent or stride."""
        return self.args.int(extent, self.ctype)

    def constant(self, value, dtype):
        """A Register of one lane that holds a Python number or a Dim."""
        text = self._constant_text(value, dtype)
        return Register(text, dtype, 1, self.top)

    def _constant_text(self, value, dtype):
        if isinstance(value, Dim):
            text = self.args.int(value, "long" if dtypes.is_integer(dtype) else "int")
            if dtypes.is_complex(dtype):  # a single number would become both parts
                return f"(({dtypes.register_ctype(dtype)})({text}, 0))"
            return f"(({dtypes.register_ctype(dtype)}){text})"
        if dtypes.is_float(dtype) and value not in (0.0, 1.0, -1.0, 0.5, 2.0) and value == value and abs(value) != float("inf"):
            rounded = dtypes.numpy_dtype(dtype).type(value)
            return self.args.scalar(float(rounded), dtypes.register_ctype(dtype))
        return elementwise.literal(value, dtype)

    def op(self, name, out_dtype, *registers):
        """Apply an elementwise operation; one-lane operands widen where another operand has lanes."""
        width = max(r.width for r in registers)
        operands = [self.widen(r, width).text for r in registers]
        in_dtypes = [r.dtype for r in registers]
        text, helpers = elementwise.emit(name, width, out_dtype, in_dtypes, operands)
        self.helpers |= helpers
        return self.define(out_dtype, width, text, [r.block for r in registers])

    def widen(self, register, width):
        """The Register with its value in each of `width` lanes."""
        if register.width == width:
            return register
        return Register(f"({prelude.register_type(register.dtype, width)})({register.text})", register.dtype, width, register.block)
