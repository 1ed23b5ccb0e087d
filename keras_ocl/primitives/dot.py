"""dot_general: products summed over any pairs of axes, batched over others; lowered to one matrix product."""

from dataclasses import replace

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, key, present, product, size_hint
from keras_ocl.core.factors import Factors
from keras_ocl.core.index import is_one
from keras_ocl.core.precision import of_operands
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.kernels import elementwise, gemm, prelude
from keras_ocl.kernels.coordinates import unflattened
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.primitives.batching import next_axes, to_front
from keras_ocl.primitives.movement import broadcast_p, reshape_p, transpose_p


def _free(x, contract, batch):
    return tuple(i for i in range(len(x.shape)) if i not in contract and i not in batch)


def _shape(a, b, *, contract, batch, dtype, precision):
    (ac, bc), (ab, bb) = contract, batch
    for kind, here, there in (("contracted", ac, bc), ("batch", ab, bb)):
        if len(here) != len(there) or any(a.shape[i] != b.shape[j] for i, j in zip(here, there, strict=True)):
            shapes = f"{here} of shape {tuple(a.shape)} and {there} of shape {tuple(b.shape)}"
            raise ValueError(f"dot_general: {kind} axes {shapes} do not match; their extents must be equal.")
    shape = [a.shape[i] for i in (*ab, *_free(a, ac, ab))] + [b.shape[i] for i in _free(b, bc, bb)]
    return tuple(shape), dtype


# ---- gradients


def _operand_gradient(ct, other, mine_first, contract, batch, rank, dtype, precision):
    """The gradient of the operand with axes `contract[0]`, `batch[0]`; `other` has `contract[1]`, `batch[1]`.

    `mine_first` says whether the operand's free axes came before the other's in the product.
    """
    (mc, oc), (mb, ob) = contract, batch
    count = len(mb)
    mine = tuple(i for i in range(rank) if i not in mc and i not in mb)
    others = _free(other, oc, ob)
    ours, theirs = len(mine), len(others)
    start = count + ours if mine_first else count
    summed = tuple(range(start, start + theirs))
    batches = tuple(range(count))
    matched = tuple(mc[oc.index(i)] for i in sorted(oc))
    # The two orders of the product give the axes in two orders; one is often the operand's own.
    if (*mb, *matched, *mine) == tuple(range(rank)):
        return dot_general(other, ct, (others, summed), (ob, batches), dtype, precision)
    result = dot_general(ct, other, (summed, others), (batches, ob), dtype, precision)
    return P.transpose(result, P.inverse_permutation((*mb, *mine, *matched)))


def _vjp(ct, out, a, b, *, contract, batch, dtype, precision):
    (ac, bc), (ab, bb) = contract, batch
    da = _operand_gradient(ct, b, True, (ac, bc), (ab, bb), len(a.shape), a.dtype, precision)
    db = _operand_gradient(ct, a, False, (bc, ac), (bb, ab), len(b.shape), b.dtype, precision)
    return da, db


# ---- lowering


def _pointwise(gen, node, index):
    a, b = node.inputs
    (ac, bc), (ab, bb) = node.params["contract"], node.params["batch"]
    total = dtypes.accumulator(node.dtype)
    count, rows = len(ab), len(_free(a, ac, ab))
    batches, left, right = index[:count], index[count : count + rows], index[count + rows :]

    def element(x, contract, batch, free, inside):
        where = dict(zip((*contract, *batch, *_free(x, contract, batch)), (*inside, *batches, *free), strict=True))
        register = gen.value(x, tuple(where[i] for i in range(len(x.shape))))
        return register if register.dtype == total else gen.op("convert", total, register)

    def body(inside):
        return gen.op("mul", total, element(a, ac, ab, left, inside), element(b, bc, bb, right, inside))

    result = gen.reduce(node, "sum", total, [a.shape[i] for i in ac], body)
    return result if total == node.dtype else gen.op("convert", node.dtype, result)


def _strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return strides[::-1]


def _joint_stride(x, axes):
    """The stride of `axes` (row-major in their order) as one axis, None if they are not jointly strided; 0 when all are 1 long."""
    strides, result, above = _strides(x.shape), 0, None
    for i in reversed(axes):
        if is_one(x.shape[i]):
            continue
        if above is None:
            result = strides[i]
        elif key(strides[i]) != key(above):
            return None
        above = strides[i] * x.shape[i]
    return result


def joins(x, contract, batch):
    """Whether each group of axes of `x` (batch, free, contracted) has one joint stride, as a matrix operand needs."""
    return all(_joint_stride(x, group) is not None for group in (batch, _free(x, contract, batch), contract))


def _operand(x, batch, rows, columns):
    def stride(axes, otherwise):
        return _joint_stride(x, axes) or otherwise

    extent = product(x.shape[i] for i in columns)
    return gemm.Operand(x, x.dtype, stride(rows, extent), stride(columns, 1), stride(batch, 0))


class _ResultSink:
    """Between the template, which knows (batch, m, n), or `turned` (batch, n, m), and the sink of the node's own shape and dtype."""

    def __init__(self, sink, parts, accumulator, turned):
        self.sink, self.parts, self.accumulator, self.turned = sink, parts, accumulator, turned
        self.shape, self.dtype, self.uniform = sink.shape, sink.dtype, sink.uniform
        self._helpers = set()

    @property
    def helpers(self):
        return self.sink.helpers | self._helpers

    def store(self, args, coordinates, value, width):
        if dtypes.register_ctype(self.dtype) != dtypes.register_ctype(self.accumulator) or self.dtype == "bool":
            value, helpers = elementwise.emit("convert", width, self.dtype, [self.accumulator], [value])
            self._helpers |= helpers
        coordinates, along = list(coordinates), -1
        if self.turned:
            coordinates[-2:], along = coordinates[:-3:-1], -2
        columns = self.parts[along]
        last = columns[-1] if columns else 1
        whole = (args.all_arguments or not isinstance(last, Dim)) and present(last) % width == 0
        if width == 1 or (sum(not is_one(n) for n in columns) <= 1 or whole) and (not self.turned or is_one(product(self.parts[-1]))):
            return self.sink.store(args, self._split(args, coordinates), value, width)
        # Lanes may cross from one row of the last axis to the next, or run along the first.
        text = [f"const {prelude.register_type(self.dtype, width)} lanes = {value};\n"]
        first = coordinates[along]
        for lane in range(width):
            coordinates[along] = f"({first} + {lane})"
            text.append(self.sink.store(args, self._split(args, coordinates), f"lanes.s{lane:x}", 1))
        return "{\n" + "".join(text) + "}\n"

    def _split(self, args, coordinates):
        parts = self.parts if len(coordinates) == 3 else self.parts[1:]
        return tuple(c for flat, extents in zip(coordinates, parts, strict=True) for c in unflattened(args, flat, extents))


def _kernels(builder, node, sink):
    a, b = node.inputs
    (ac, bc), (ab, bb) = node.params["contract"], node.params["batch"]
    af, bf = _free(a, ac, ab), _free(b, bc, bb)
    parts = [[x.shape[i] for i in axes] for x, axes in ((a, ab), (a, af), (b, bf))]
    batch, m, n = (product(p) for p in parts)
    k = product(a.shape[i] for i in ac)
    total = dtypes.accumulator(node.dtype)
    left = replace(_operand(a, ab, af, ac), source=builder.sources.get(0))
    right = replace(_operand(b, bb, bc, bf), source=builder.sources.get(1))
    # One column (the gradient of the last layer of a regression): its lanes run along the rows where these are contiguous. And what a CPU
    # computes where it packs it is the right operand.
    vectors = schedule_of(builder.traits).vectors
    column = not builder.all_arguments and is_one(n) and not is_one(m) and is_one(left.row_stride) and not is_one(left.column_stride)
    turned = vectors and bool(column or left.source)
    if turned:
        m, n, left, right = n, m, right.transposed(), left.transposed()
    return gemm.plan(
        builder.traits,
        batch=batch if ab else None,
        m=m,
        n=n,
        k=k,
        a=left,
        b=right,
        dtype=total,
        sink=_ResultSink(sink, parts, total, turned),
        all_arguments=builder.all_arguments,
        repeated=builder.repeated,
        precision=node.params["precision"],
    )


# ---- what passes of the compiler ask


def _terms(node):
    return size_hint(node.inputs[0].shape[i] for i in node.params["contract"][0])


def _operations(node):
    """Two per multiply-add."""
    return 2 * product(node.shape) * product(node.inputs[0].shape[i] for i in node.params["contract"][0])


def _fetches(node, schedule):
    """The right operand of few rows, where it lies as a matrix does."""
    a, b = node.inputs
    (ac, bc), (_, batch) = node.params["contract"], node.params["batch"]
    rows, columns = product(a.shape[i] for i in _free(a, ac, ())), product(b.shape[i] for i in _free(b, bc, ()))
    if batch or any(isinstance(n, Dim) for n in (*([rows] if schedule.vectors else []), *b.shape)):
        return None
    lies = _joint_stride(b, bc) == columns and _joint_stride(b, _free(b, bc, ())) == 1
    few = size_hint((rows,)) <= schedule.fetched_rows and columns >= schedule.widest
    return (1, (product(b.shape[i] for i in bc), columns)) if few and lies else None


def _packs(node, traits):
    """The left operand of a gradient of weights, where it lies as a matrix of steps and rows: the transposed product packs it."""
    a, b = node.inputs
    (ac, bc), (batch, _) = node.params["contract"], node.params["batch"]
    free = _free(a, ac, ())
    steps, rows, columns = (product(x.shape[i] for i in axes) for x, axes in ((a, ac), (a, free), (b, _free(b, bc, ()))))
    if batch or a.dtype != "float32" or _joint_stride(a, free) != 1 or _joint_stride(a, ac) != rows:
        return None
    return (0, (steps, rows)) if schedule_of(traits).packs_right(columns, rows, steps) else None


def _repeats(node, traits):
    """Both operands, where they lie as matrices do, transposed or not."""
    if node.params["batch"][0]:
        return []
    found, (a, b), (ac, bc) = [], node.inputs, node.params["contract"]
    for position, x, contracted, other in ((0, a, ac, _free(b, bc, ())), (1, b, bc, _free(a, ac, ()))):
        free = _free(x, contracted, ())
        outer, inner = (contracted, free) if _last(x) in free else (free, contracted)
        extents = tuple(product(x.shape[i] for i in axes) for axes in (outer, inner))
        if not isinstance(extents[1], Dim) and _joint_stride(x, inner) == 1 and _joint_stride(x, outer) in (extents[1], 0):
            found.append((position, extents, product((b, a)[position].shape[i] for i in other), 1))
    return found


def _last(x):
    """The last axis of more than one element, along which adjacent elements lie; None where there is none."""
    return max((i for i, n in enumerate(x.shape) if not is_one(n)), default=None)


def _simplify(graph, inputs, params, origin):
    """A transposed operand is the operand with its axes renamed, where its free axes stay in order."""
    if _is_outer(inputs, params):
        return _outer(graph, inputs, params, origin)
    operands, contract, batch = list(inputs), list(params["contract"]), list(params["batch"])
    changed = False
    for side, x in enumerate(inputs):
        if x.primitive is not transpose_p:
            continue
        perm = x.params["perm"]
        free = [perm[i] for i in range(len(perm)) if i not in contract[side] and i not in batch[side]]
        if free != sorted(free):
            continue
        contracted, batched = tuple(perm[i] for i in contract[side]), tuple(perm[i] for i in batch[side])
        if not joins(x.inputs[0], contracted, batched):
            continue
        operands[side], contract[side], batch[side] = x.inputs[0], contracted, batched
        changed = True
    if not changed:
        return None
    return graph.simplest(dot_general_p, tuple(operands), {**params, "contract": tuple(contract), "batch": tuple(batch)}, origin)


def _is_outer(inputs, params):
    """Whether each sum is one product of floats."""
    single = all(is_one(inputs[0].shape[i]) for i in params["contract"][0])
    return single and dtypes.is_float(params["dtype"]) and all(x.dtype == params["dtype"] for x in inputs)


def _outer(graph, inputs, params, origin):
    """An outer product as an elementwise one, which can be fused into the kernel before or after it."""
    shape, _ = _shape(*inputs, **params)
    count = len(params["batch"][0])
    operands, first = [], count
    for x, batch, contract in zip(inputs, params["batch"], params["contract"], strict=True):
        free = [i for i in range(len(x.shape)) if i not in (*batch, *contract)]
        x = graph.simplest(transpose_p, (x,), {"perm": (*batch, *free, *contract)}, origin)
        x = graph.simplest(reshape_p, (x,), {"shape": tuple(x.shape[: count + len(free)])}, origin)
        dims = (*range(count), *range(first, first + len(free)))
        operands.append(graph.simplest(broadcast_p, (x,), {"shape": shape, "dims": dims}, origin))
        first += len(free)
    return graph.simplest(Primitive.registry["mul"], tuple(operands), {}, origin)


def _batch(inputs, batched, size, *, contract, batch, dtype, precision):
    (a, b), (a_batched, b_batched) = inputs, batched
    (ac, bc), (ab, bb) = contract, batch
    if a_batched and b_batched:
        together = (0, *next_axes(ab, size)), (0, *next_axes(bb, size))
        return dot_general(a, b, (next_axes(ac, size), next_axes(bc, size)), together, dtype, precision)
    if a_batched:  # the examples are a's first free axis
        return to_front(dot_general(a, b, (next_axes(ac, size), bc), (next_axes(ab, size), bb), dtype, precision), len(ab))
    result = dot_general(a, b, (ac, next_axes(bc, size)), (ab, next_axes(bb, size)), dtype, precision)
    return to_front(result, len(a.shape) - len(ac))


def _total(summed, stacked, inputs, params, number):
    """One product that contracts the steps too."""
    a, b = (stacked(x) for x in inputs)
    if a is None or b is None:
        return None
    (ac, bc), batch = ([next_axes(axes, None) for axes in params[pair]] for pair in ("contract", "batch"))
    return lambda: dot_general(a(), b(), ((0, *ac), (0, *bc)), batch, params["dtype"], params["precision"])


def _invariant_operand(inputs, params):
    """A matrix contracted along its rows: once it is transposed, lanes run along the rows of the transposed matrix."""
    (ac, bc), (_, batch) = params["contract"], params["batch"]
    if len(inputs[1].shape) != 2 or batch or bc != (1,):
        return None
    return 1, (1, 0), {**params, "contract": (ac, (0,))}


def _factors(seen):
    (a, b), ((ac, bc), (ab, bb)) = seen.inputs, (seen.params["contract"], seen.params["batch"])
    left, right = {}, {}
    for name, mine, theirs in (("summed", ac, bc), ("batch", ab, bb)):
        for k, (i, j) in enumerate(zip(mine, theirs, strict=True)):
            left[i] = right[j] = (name, k)
    rows, columns = _free(a, ac, ab), _free(b, bc, bb)
    left |= {i: ("row", i) for i in rows}
    right |= {j: ("column", j) for j in columns}
    result = (*(left[i] for i in ab), *(left[i] for i in rows), *(right[j] for j in columns))
    labels = tuple(tuple(side[i] for i in range(len(x.shape))) for side, x in ((left, a), (right, b)))
    return Factors(labels, (result,), {("summed", k): "sum" for k in range(len(ac))})


dot_general_p = Primitive(
    "dot_general",
    _shape,
    _vjp,
    _pointwise,
    _kernels,
    kind=Kind.CONTRACTION,
    cost=_terms,
    terms=_terms,
    operations=_operations,
    simplify=_simplify,
    batch=_batch,
    total=_total,
    fetches=_fetches,
    repeats=_repeats,
    packs=_packs,
    factors=_factors,
    invariant_operand=_invariant_operand,
)


def dot_general(a, b, contract, batch=((), ()), dtype=None, precision=None):
    """Products of `a` and `b` summed over pairs of contracted axes, for each index of the pairs of batch axes.

    The result has the batch axes, then a's free axes, then b's; its dtype is that of the operands unless `dtype` is given. Floats are
    summed in float32 or better, integers below 32 bits in 32. `precision`: one of core.precision.PRECISIONS, None for the one asked for.
    """
    (ac, bc), (ab, bb) = (tuple(map(tuple, pair)) for pair in (contract, batch))
    for x, axes in ((a, (*ac, *ab)), (b, (*bc, *bb))):
        if len(set(axes)) != len(axes) or any(not 0 <= i < len(x.shape) for i in axes):
            raise ValueError(f"dot_general: {axes} are not distinct axes of shape {tuple(x.shape)}.")
    if a.dtype != b.dtype and not (dtypes.is_float(a.dtype) and dtypes.is_float(b.dtype)):
        raise TypeError(f"dot_general: operands have dtypes {a.dtype} and {b.dtype}; convert them to one dtype first.")
    if a.dtype == "bool":
        counts = dot_general(P.convert(a, "int32"), P.convert(b, "int32"), contract, batch)
        return P.convert(counts, dtype or "bool")
    if dtypes.is_complex(a.dtype):
        return _complex_product(a, b, contract, batch, precision)
    dtype = dtypes.canonical(dtype or a.dtype)
    order = sorted(range(len(ac)), key=lambda i: ac[i])
    if not joins(b, tuple(bc[i] for i in order), bb):
        other = sorted(range(len(bc)), key=lambda i: bc[i])
        if joins(b, tuple(bc[i] for i in other), bb) and joins(a, tuple(ac[i] for i in other), ab):
            order = other
    ac, bc = tuple(ac[i] for i in order), tuple(bc[i] for i in order)
    if not joins(a, ac, ab):
        a, ac, ab = _rearranged(a, ac, ab, True)
    if not joins(b, bc, bb):
        b, bc, bb = _rearranged(b, bc, bb, False)
    return dot_general_p(a, b, contract=(ac, bc), batch=(ab, bb), dtype=dtype, precision=of_operands(precision, a.dtype, b.dtype))


def _rearranged(x, contract, batch, contract_last):
    """`x` transposed to batch, free and contracted axes (or contracted before free), with the new axis numbers."""
    free, rank = _free(x, contract, batch), len(x.shape)
    nb, nc = len(batch), len(contract)
    batches = tuple(range(nb))
    if contract_last:
        return P.transpose(x, (*batch, *free, *contract)), tuple(range(rank - nc, rank)), batches
    return P.transpose(x, (*batch, *contract, *free)), tuple(range(nb, nb + nc)), batches


def _complex_product(a, b, contract, batch, precision):
    def part(x, y):
        return dot_general(x, y, contract, batch, None, precision)

    ar, ai, br, bi = P.real(a), P.imag(a), P.real(b), P.imag(b)
    return P.complex(P.sub(part(ar, br), part(ai, bi)), P.add(part(ar, bi), part(ai, br)))
