"""The pieces of generated code: registers, blocks and loop nests, and what an analysis finds out about a nest."""

from typing import NamedTuple

from keras_ocl.core.dim import Dim, key, product
from keras_ocl.core.index import is_one

MASKED = "masked"  # kind of an index expression that has one value per lane in a mask: neither an address nor a scalar


class Register:
    """A value in a C variable (or literal): its text, dtype, number of lanes, and the Block in which it is defined."""

    __slots__ = ("text", "dtype", "width", "block", "affine")

    def __init__(self, text, dtype, width, block, affine=None):
        self.text, self.dtype, self.width, self.block = text, dtype, width, block
        self.affine = affine  # the index expression (core.index.Affine) that an integer is, if it is one


class Block:
    """A braced region of C: statements and inner blocks in order."""

    def __init__(self, parent=None, header=""):
        self.parent, self.header, self.lines = parent, header, []
        self.var = None  # the variable of the loop whose body this is
        self.together = None  # for a loop shared by a team: (header, statement, condition) with which all its items leave it together
        self.depth = 0 if parent is None else parent.depth + 1

    def render(self, indent=1):
        pad = "  " * indent
        out = []
        for line in self.lines:
            if isinstance(line, Block):
                out.append(f"{pad}{line.header} {{\n{line.render(indent + 1)}{pad}}}\n")
            else:
                out.append(f"{pad}{line}\n")
        return "".join(out)


class Place(NamedTuple):
    """Memory that a kernel reads or writes: the Buffer, its dtype, and the index expression (None: less than an element, as a nibble)."""

    buffer: object
    dtype: str
    offset: object


class Nest:
    """A loop nest over `extents`, one Var per dimension; `groups` are runs of dimensions merged into one loop."""

    def __init__(self, extents):
        self.extents = tuple(extents)
        self.groups = [[i] for i in range(len(self.extents))]
        self.vectorisable = True
        self.uses = []  # for each printed index expression, the coefficient of each dimension
        self.loads = []  # for each of these, whether it was the address of a load or a number per lane, or MASKED
        self.breaks = set()  # dimensions that must begin a loop of their own
        self.unit = 0  # loads whose innermost stride is 1
        self.strided = 0  # loads whose innermost stride is neither 0 nor 1
        self.levels = []  # of a reduction: for each place in the code, the number of index-space loops around it; None in another reduction
        self.chunks = {}  # dimension -> elements of it that a partial reduction runs through
        self.spread = None  # number of the loop (in `groups`) that the work-items of a team share
        self.pack = 1  # elements that each of these items loads at once, as an aligned vector
        self.staged = set()  # of a reduction: the staged nodes (see Evaluator) that it reads
        self.places = []  # of the index space's nest: every Place that the kernel accesses
        self.masked = False  # of the index space's nest: whether the kernel masks elements

    def split(self, dimension):
        """Cut merged loops in front of `dimension`, so that no loop runs through it and the dimensions before it."""
        cut = [[[i for i in g if i < dimension], [i for i in g if i >= dimension]] for g in self.groups]
        self.groups = [part for parts in cut for part in parts if part]

    def length(self, group):
        """Number of steps of the loop over a group of dimensions."""
        return product(self.chunks.get(i, self.extents[i]) for i in group)


def analyse(nests):
    """From what an analysis has noted: which dimensions merge into one loop, and which nests vectorise."""
    for nest in nests.values():
        groups = []
        for i in range(len(nest.extents)):
            if groups and i not in nest.breaks and all(_proportional(use, i - 1, i, nest.extents[i]) for use in nest.uses):
                groups[-1].append(i)
            else:
                groups.append([i])
        nest.groups = groups
        if not groups:
            continue
        inner = groups[-1][-1]
        for use, load in zip(nest.uses, nest.loads, strict=True):
            c = use[inner]
            if (c == 0 and not isinstance(c, Dim)) or load is MASKED:
                continue
            if not load:
                nest.vectorisable = False  # lanes would need vector index arithmetic
            elif is_one(c):
                nest.unit += 1
            else:
                nest.strided += 1
    root = nests.get("root")
    if root is not None and root.strided and any(n is not root and n.vectorisable and n.unit and not n.strided for n in nests.values()):
        root.vectorisable = False  # lanes run along the reduction, where memory is contiguous


def _proportional(use, outer, inner, extent):
    return key(use[outer]) == key(use[inner] * extent)
