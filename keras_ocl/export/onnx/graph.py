"""The ONNX graph under construction: names, initializers, nodes, and extents that the model computes when it runs."""

import copy

import numpy as np
from onnx import helper

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind
from keras_ocl.primitives.movement import broadcast_p, constant_p, iota_p

# These have no rule: their values are made where they are used, in the shape needed there.
WHERE_USED = (constant_p, broadcast_p, iota_p)

_FUNCTIONS = {"add": "Add", "sub": "Sub", "mul": "Mul", "mod": "Mod", "min": "Min", "max": "Max"}


def onnx_type(dtype):
    """ONNX's number for the name of a dtype."""
    return helper.np_dtype_to_tensor_dtype(dtypes.numpy_dtype(dtype))


class OnnxGraph:
    """Nodes in order of execution. All methods that add nodes or arrays return the names of their values.

    Args:
        opset: the version of ONNX's operators to use.
        unknowns: {key of an unknown extent: (name of a graph input, axis)}.
        rules, refused: {name of a primitive: its rule}, {name of a primitive: the reason why it has none}.
    """

    def __init__(self, opset, unknowns, rules, refused):
        self.opset, self.unknowns, self.rules, self.refused = opset, unknowns, rules, refused
        self.nodes, self.initializers = [], {}
        self.layer = ""  # name of the layer from which the nodes being added come
        self._taken, self._values, self._extents, self._derived = set(), {}, {}, {}

    # ---- names and nodes

    def fresh(self, name):
        """`name`, or `name` with a number, unique in the graph."""
        unique, count = name, 1
        while unique in self._taken:
            unique, count = f"{name}_{count}", count + 1
        self._taken.add(unique)
        return unique

    def add(self, operator, *inputs, count=None, **attributes):
        """Add one node; returns the name of its result, or the names of its `count` results."""
        name = self.fresh(f"{self.layer}/{operator}" if self.layer else operator)
        outputs = [name] if count is None else [name, *(self.fresh(f"{name}:{k}") for k in range(1, count))]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, name=name, **attributes))
        return name if count is None else outputs

    def cast(self, name, dtype):
        """The value converted to another dtype."""
        return self.add("Cast", name, to=onnx_type(dtype))

    # ---- constants

    def initializer(self, name, array):
        """Store an array, under `name` or a similar name."""
        unique = self.fresh(name)
        self.initializers[unique] = array
        return unique

    def constant(self, array, name="constant"):
        """Store a small array; equal arrays are stored once."""
        array = np.asarray(array)
        identity = ("constant", array.dtype, array.shape, array.tobytes())
        if identity not in self._values:
            self._values[identity] = self.initializer(name, array)
        return self._values[identity]

    def scalar(self, value, dtype):
        """A rank-0 constant from a number or a Dim."""
        if isinstance(value, Dim):
            extent = self.add("Squeeze", self.extent(value))
            return extent if dtype == "int64" else self.cast(extent, dtype)
        return self.constant(np.asarray(value).astype(dtypes.numpy_dtype(dtype)))

    # ---- extents

    def extent(self, n):
        """An int or Dim as int64 of shape (1,)."""
        if not isinstance(n, Dim):
            return self.constant(np.array([n], "int64"), "extents")
        if n.key not in self._extents:
            self._extents[n.key] = self._computed(n)
        return self._extents[n.key]

    def _computed(self, n):
        if n.key in self.unknowns:
            name, axis = self.unknowns[n.key]
            return self.add("Shape", name, start=axis, end=axis + 1)
        if n.made is None:
            raise RuntimeError(f"ONNX export: an extent of {self.where()} belongs to another trace.")
        function, a, b = n.made
        a, b = self.extent(a), self.extent(b)
        if function == "floordiv":  # ONNX truncates
            return self.add("Div", self.add("Sub", a, self.add("Mod", a, b)), b)
        return self.add(_FUNCTIONS[function], a, b)

    def extents(self, numbers):
        """Ints and Dims as an int64 vector."""
        if not any(isinstance(n, Dim) for n in numbers):
            return self.constant(np.array(numbers, "int64"), "extents")
        parts = []  # runs of ints, and Dims
        for n in numbers:
            if isinstance(n, Dim) or not parts or isinstance(parts[-1], Dim):
                parts.append(n if isinstance(n, Dim) else [n])
            else:
                parts[-1].append(n)
        names = [self.extent(p) if isinstance(p, Dim) else self.constant(np.array(p, "int64"), "extents") for p in parts]
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=0)

    # ---- views

    def reshape(self, name, shape):
        """The value with another shape. A stored array is stored again in that shape."""
        if name in self.initializers and not any(isinstance(n, Dim) for n in shape):
            return self._stored(name, ("reshape", tuple(shape)), lambda a: a.reshape(shape))
        unknown = [i for i, n in enumerate(shape) if isinstance(n, Dim)]
        if len(unknown) == 1 and 0 not in shape:
            return self.add("Reshape", name, self.extents([-1 if i in unknown else n for i, n in enumerate(shape)]))
        return self.add("Reshape", name, self.extents(shape), **({"allowzero": 1} if 0 in shape else {}))

    def transpose(self, name, perm):
        """The value with permuted axes. A stored array is stored again in that order."""
        perm = tuple(int(p) for p in perm)
        if perm == tuple(range(len(perm))):
            return name
        if name in self.initializers:
            return self._stored(name, ("transpose", perm), lambda a: a.transpose(perm))
        return self.add("Transpose", name, perm=perm)

    def unsqueeze(self, name, axes):
        """The value with axes of extent 1 at the result's positions `axes`."""
        if not axes:
            return name
        if name in self.initializers:
            return self._stored(name, ("unsqueeze", tuple(axes)), lambda a: np.expand_dims(a, tuple(axes)))
        return self.add("Unsqueeze", name, self.extents(list(axes)))

    def _stored(self, name, how, function):
        if (name, how) not in self._derived:
            self._derived[name, how] = self.initializer(f"{name}:{how[0]}", np.ascontiguousarray(function(self.initializers[name])))
        return self._derived[name, how]

    # ---- values of the compiler's graph

    def set(self, node, name):
        """Make `name` the value of `node`."""
        self._values[node] = name

    def write(self, node):
        """Add nodes that compute `node` by the rule of its primitive. Raises NotImplementedError if there is none."""
        self.layer = node.origin.layer
        if any(dtypes.is_complex(dtype) for _, dtype in node.results or [(node.shape, node.dtype)]):
            self._refuse(node, "ONNX has no complex arithmetic")
        if node.kind is Kind.INPUT or node.primitive in WHERE_USED:
            return
        if node.kind is Kind.PROJECTION:
            self._values[node] = self.value(node.inputs[0])[node.params["index"]]
        elif node.name in self.rules:
            self._values[node] = self.rules[node.name](self, node)
        else:
            self._refuse(node, self.refused.get(node.name, "it has no rule"))

    def _refuse(self, node, why):
        raise NotImplementedError(f"ONNX export: `{node.name}` of {self.where()} cannot be exported: {why}.")

    def inner(self):
        """A graph for a loop's body, which can use all values of this graph; its nodes are its own."""
        body = copy.copy(self)
        body.nodes, body._values, body._extents = [], dict(self._values), dict(self._extents)
        return body

    def value(self, node):
        """The name of a node's value in the node's full shape (broadcasts expanded)."""
        if node not in self._values:
            name, dims, shape = self._compact(node)
            if len(shape) < len(node.shape) or any(is_one(n) and not is_one(m) for n, m in zip(shape, node.shape, strict=True)):
                name = self.add("Expand", self._aligned(name, dims, len(node.shape)), self.extents(node.shape))
            self._values[node] = name
        return self._values[node]

    def _compact(self, node):
        """(name, dims, shape) of a value that broadcasts to the node's value: its axis i is the node's axis dims[i]."""
        if node in self._values:
            return self._values[node], tuple(range(len(node.shape))), tuple(node.shape)
        if node.primitive is constant_p:
            return self.scalar(node.params["value"], node.dtype), (), ()
        if node.primitive is iota_p:
            axis = node.params["axis"]
            return self.counted(node.shape[axis], node.dtype), (axis,), (node.shape[axis],)
        if node.primitive is not broadcast_p:
            raise RuntimeError(f"ONNX export: {node} of {node.origin.layer} is used before it is computed.")
        name, dims, shape = self._compact(node.inputs[0])
        return name, tuple(node.params["dims"][d] for d in dims), shape

    def counted(self, n, dtype):
        """The vector 0, 1, 2, ..., n - 1."""
        if not isinstance(n, Dim):
            return self.constant(np.arange(n).astype(dtypes.numpy_dtype(dtype)), "iota")
        count = self.add("Range", self.scalar(0, "int64"), self.scalar(n, "int64"), self.scalar(1, "int64"))
        return count if dtype == "int64" else self.cast(count, dtype)

    def _aligned(self, name, dims, rank):
        """A value whose axes are axes `dims` of `rank`, reshaped so that NumPy's rules broadcast it to `rank` axes."""
        return self.unsqueeze(name, [i - dims[0] for i in range(dims[0], rank) if i not in dims]) if dims else name

    def operands(self, node):
        """Names of the node's inputs, not expanded along axes where ONNX's broadcasting gives the node's shape."""
        rank, values = len(node.shape), [self._compact(x) for x in node.inputs]
        covered = {d for _, dims, shape in values for d, n in zip(dims, shape, strict=True) if not is_one(n)}
        names = [self._aligned(name, dims, rank) for name, dims, _ in values]
        whole = not rank or any(0 in dims for _, dims, _ in values)
        if not whole or any(not is_one(n) and i not in covered for i, n in enumerate(node.shape)):
            names[0] = self.value(node.inputs[0])
        return names

    # ---- the end

    def where(self):
        """The present layer, as text for errors."""
        return f"layer {self.layer}" if self.layer else "the model"

    def finished_initializers(self, outputs):
        """{name: array} of arrays used by the nodes and `outputs`. If only a converted form of an array is used, that gets its name."""
        nodes = list(_with_bodies(self.nodes))
        used = {i for node in nodes for i in node.input} | set(outputs)
        renamed = {}
        for (source, _), name in reversed(self._derived.items()):
            alone = [derived for (other, _), derived in self._derived.items() if other == source and derived in used] == [name]
            if alone and source not in used:
                renamed[name], used = source, (used - {name}) | {source}
                self.initializers[source] = self.initializers[name]
        for node in nodes:
            for k, i in enumerate(node.input):
                while i in renamed:
                    i = renamed[i]
                node.input[k] = i
        return {name: array for name, array in self.initializers.items() if name in used}


def _with_bodies(nodes):
    """The nodes, and recursively those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _with_bodies(attribute.g.node)
