"""The epilogues of kernel templates: what a template can compute with an element of its result before it stores it."""

from keras_ocl.compiler.codegen import Analysis
from keras_ocl.compiler.codegen.nests import Register, analyse
from keras_ocl.compiler.fuse import cost
from keras_ocl.compiler.fuse.light import PLACED
from keras_ocl.core.index import Affine, is_one
from keras_ocl.core.primitive import Kind


class _Outside:
    """The set of nodes that an epilogue reads from memory: those whose Placement says so, and all that are not in `inside`."""

    def __init__(self, placements, inside):
        self.placements, self.inside = placements, inside

    def __contains__(self, node):
        return self.placements[node].in_memory or node not in self.inside


def fits(node, region, placements, more=()):
    """Whether `region`, as the epilogue of `node`, uses the accumulator at its own element only and can be vectorised.

    `placements`: dict from a node to its Placement. `more`: further results.
    """
    analysis = Analysis(_Outside(placements, {*region.maps, node}), [*region.outputs, *more])
    axes = [i for i, n in enumerate(node.shape) if not is_one(n)]
    nest, index = analysis.nest("root", [node.shape[i] for i in axes]), [Affine()] * len(node.shape)
    for place, i in enumerate(axes):
        index[i] = Affine.of(analysis.open_loop(nest, place))
    analysis.bind_anchor(node, index, Register("", node.dtype, 1, analysis.block))
    for n in (*region.outputs, *more):
        analysis.value(n, index)
    analyse(analysis.nests)
    return analysis.anchor_identity and nest.vectorisable and len(analysis.nests) == 1


def may_hold(node, users, by_template):
    """Whether a template, such as a matrix product's, can store `node` in its epilogue: for no launch, and no load of its result.

    `users`: dict from a node to the nodes that read it. `by_template`: function of a node: whether a template computes it.
    """
    chain, stack = {node}, [node]
    while stack:
        for i in stack.pop().inputs:
            if i in chain or i.kind in PLACED or cost.size(i) != cost.size(node) or not chain.issuperset(users[i]):
                continue
            if by_template(i):
                return True
            if i.kind is Kind.ELEMENTWISE or i.kind is Kind.VIEW and i.primitive.flat:
                chain.add(i)
                stack.append(i)
    return False
