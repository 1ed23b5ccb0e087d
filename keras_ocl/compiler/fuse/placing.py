"""Placing: kernels store the operands of a concat straight into its buffer, where other kernels may read them as well.

A row of the concat is then written by several kernels, and by none twice. It saves storing and loading what one kernel would only copy. A
concat of concats along the same axis, as in a DenseNet's block, is one buffer that grows.
"""

from keras_ocl.compiler.fuse import cost
from keras_ocl.compiler.fuse.light import PLACED
from keras_ocl.compiler.fuse.regions import Part
from keras_ocl.core.dim import product, size_hint
from keras_ocl.core.primitive import Kind

RUN = 64  # least bytes of an operand that are adjacent in the concat: a cache line


class Placing:
    """Which operands of a graph's concats can be placed.

    Args:
        placements: dict from a node to its Placement. users: dict from a node to the nodes that read it. border: graph.border.
        whole: set of concats of which other kernels store no parts.
        by_template: function of a node: whether a template or the host computes it.
        may_be_epilogue: function of a node: whether a template can store it.
        schedule: the device's Schedule.
    """

    def __init__(self, placements, users, border, whole, by_template, may_be_epilogue, schedule):
        self._at, self._users, self._border, self._whole, self._schedule = placements, users, border, whole, schedule
        self._by_template, self._may_be_epilogue = by_template, may_be_epilogue

    def parts(self, node, outer=None):
        """(dict from each operand of a concat that its own kernel should place to its Part, [(other operands in a row, their Part)]).

        None where a kernel that copies all operands costs less. `outer`: the Part by which the concat lies in another one's buffer.
        """
        axis, start = node.params[node.primitive.joined_axis], 0
        if node in self._whole or outer is not None and outer.split != axis:
            return None
        unit = product(node.shape[axis + 1 :])
        found, others, apart = {}, [], True
        for x in node.inputs:
            part = Part(node, axis, node.shape[axis] * unit, start * unit)
            part = part if outer is None else part.inside(outer)
            start = start + x.shape[axis]
            if x not in found and self._fits(x, node, axis) and self._is_stored(x):
                found[x] = part
                apart = True
                continue
            alone = self.may_take(x, node)
            if apart or alone:
                others.append(([x], part))
            else:
                others[-1][0].append(x)
            apart = alone
        return (found, others) if pays(found, len(others), self._schedule) else None

    def may_take(self, x, node):
        """Whether an operand of a concat may yet be placed, if it turns out that a kernel has to store it."""
        return x.kind is Kind.ELEMENTWISE and self._fits(x, node, node.params[node.primitive.joined_axis]) and not self._is_stored(x)

    def _is_stored(self, x):
        """Whether it is certain that a kernel stores an operand, or computes it in a template's epilogue."""
        return self._by_template(x) or self._may_be_epilogue(x) or x.kind is not Kind.ELEMENTWISE and len(set(self._users[x])) > 1

    def _fits(self, x, node, axis):
        """Whether an operand can be stored in the concat: in adjacent elements enough, and no reader needs it contiguous or for longer."""
        at = self._at[x]
        if x.kind in (*PLACED, Kind.VIEW, Kind.SOURCE) or x.results is not None or x.primitive.host is not None:
            return False
        if at.wanted or at.cut or at.parts or at.passed or at.anchored or x.order < self._border <= node.order:
            return False
        if size_hint(x.shape[axis:]) * cost.itemsize(x) < RUN:
            return False
        others = [u for u in self._users[x] if u is not node and self._at[u].fetches is not x]
        if any(self._by_template(u) or u.kind is Kind.VIEW and u.primitive.flat for u in others):
            return False
        return not any(map(_late, others)) or _late(x) or any(map(_late, self._users[node]))


def pays(placed, copies, schedule):
    """Whether the kernels of the operands `placed` save more by storing them in a concat than this number of copies costs."""
    saved = schedule.byte * sum(cost.size(x) * cost.itemsize(x) for x in placed)
    return saved > schedule.launch * max(1, copies - 1)


def _late(node):
    """Whether a gradient reads the operands of `node`, which are in memory until then."""
    return node.origin.gradient
