"""Numbers of 4 bits, two in a byte: what quantised weights are stored as."""

from keras_ocl.core import dtypes
from keras_ocl.core.access import ANYWHERE, Along
from keras_ocl.core.dim import ceil_div
from keras_ocl.core.index import linear
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives.batching import next_axes


def _shape(x, *, axis, length, dtype):
    if x.dtype not in ("int8", "uint8") or dtype not in ("int8", "uint8"):
        raise TypeError(f"unpack_int4: {x.dtype} into {dtype}; both are int8 or uint8.")
    return (*x.shape[:axis], length, *x.shape[axis + 1 :]), dtype


def _access(node, position):
    axis = node.params["axis"]
    return tuple(ANYWHERE if i == axis else Along(i) for i in range(len(node.shape)))


def _pointwise(gen, node, index):
    (x,), axis = node.inputs, node.params["axis"]
    last = node.shape[-1]
    if axis == len(node.shape) - 1 and gen.in_memory(x) and gen.known(last) and last % 2 == 0:
        nibble = gen.load_nibble(x, linear(index, node.shape), node.dtype)
    else:
        where, upper = gen.divmod(index[axis], 2)
        byte = gen.value(x, (*index[:axis], where, *index[axis + 1 :]))
        byte = byte if x.dtype == node.dtype else gen.op("convert", node.dtype, byte)
        shift = gen.op("mul", node.dtype, gen.number(upper, node.dtype), gen.constant(4, node.dtype))
        nibble = gen.op("and", node.dtype, gen.op("shift_right", node.dtype, byte, shift), gen.constant(15, node.dtype))
    if not dtypes.is_signed(node.dtype):
        return nibble
    eight = gen.constant(8, node.dtype)
    return gen.op("sub", node.dtype, gen.op("xor", node.dtype, nibble, eight), eight)


def _batch(inputs, batched, size, *, axis, length, dtype):
    (axis,) = next_axes((axis,), size)
    return _unpack_int4(*inputs, axis=axis, length=length, dtype=dtype)


_unpack_int4 = Primitive("unpack_int4", _shape, None, _pointwise, access=_access, cost=6, dynamic_extents=("length",), batch=_batch)


def unpack_int4(x, axis, length, dtype="int8"):
    """The `length` numbers along `axis` that lie in half as many bytes of `x`, an even one in the lower four bits.

    `dtype` int8: numbers from -8 to 7, in two's complement; uint8: from 0 to 15. Raises TypeError, ValueError.
    """
    if not 0 <= axis < len(x.shape) or ceil_div(length, 2) != x.shape[axis]:
        raise ValueError(f"unpack_int4: {length} numbers along axis {axis} do not lie in shape {tuple(x.shape)}, two in a byte.")
    return _unpack_int4(x, axis=axis, length=length, dtype=dtype)
