"""An operand of a GPU's convolution kernels, in memory or computed in a prologue."""

from keras_ocl.core.dim import product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type


class Operand:
    """The operand of a Problem called `name`; if it is in memory, its pointer becomes the next of the kernel's `args`.

    helpers: names of the prelude functions that its loads call.
    """

    def __init__(self, problem, args, name):
        self.dtype, self.args, self.source, self.helpers = problem.dtype, args, problem.sources.get(name), set()
        handle = getattr(problem, name)
        self.size = product(handle.shape) if self.source else 0
        self.pointer = None if self.source else args.pointer(handle, problem.dtype)

    def load(self, width, where, stored=False, guarded=False):
        """(statements, C text of a register) of `width` adjacent elements from the offset `where` (C text) on, a multiple of `width`.

        stored: the register has their bits in memory. guarded: a condition guards the text, not the statements, wherever the offset may be.
        """
        self.helpers |= prelude.helpers_for(self.dtype, width)
        if self.source is None:
            load = prelude.load_stored if stored else prelude.load
            return "", load(self.dtype, width, self.pointer, where, **({} if stored else {"aligned": width > 1}))
        before, index = "", index_type(self.size)
        if guarded:
            last = self.args.int(self.size - width, index)
            before, where = f"const {index} place = clamp(({index}){where}, ({index})0, ({index}){last});\n", "place"
        statements, text = self.source.load(self.args, "0", where, (1, self.size), width, index == "long")
        if stored:
            text, helpers = prelude.stored(self.dtype, width, text)
            self.helpers |= helpers
        return before + statements, text

    def alone(self, name, where):
        """(statements, C text) like load() of one element, whose statements define no C variable but `name`."""
        statements, text = self.load(1, where)
        if not statements:
            return "", text
        return f"{prelude.register_type(self.dtype, 1)} {name};\n{{\n{statements}{name} = {text};\n}}\n", name
