"""Control flow over tensors: conditions, loops, scans and maps.

Eagerly these are Python's own. Inside a trace a condition that is a traced value computes both branches and selects, and a loop whose
number of steps is known is unrolled.
"""

import functools

from keras.src import tree
from keras.src.backend.common.backend_utils import slice_along_axis
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import Variable as KerasVariable

from keras_ocl import primitives as P
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops import numpy_shape as shapes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy_logic import as_bool, logical_or
from keras_ocl.ops.promotion import broadcast, promote

# A traced loop without a known end is unrolled, masked, at most this often.
_LONGEST_MASKED_LOOP = 256


def _unknown(x):
    """Whether the value of `x` is not to be had now: traced, or shape inference, which does not touch the device."""
    return isinstance(x, Tensor) and (x.is_symbolic() or in_symbolic_scope())


def cond(pred, true_fn, false_fn):
    """true_fn() if `pred` else false_fn(). Both run when `pred` is traced; what either assigns to Variables is selected too."""
    if isinstance(pred, KerasVariable):
        pred = pred.value
    if not _unknown(pred):
        return true_fn() if pred else false_fn()
    return _select_run(pred, [false_fn, true_fn])


def switch(index, branches, *operands):
    """branches[index](*operands), the index limited to those there are."""
    if isinstance(index, KerasVariable):
        index = index.value
    if not _unknown(index):
        return branches[max(0, min(int(index), len(branches) - 1))](*operands)
    results, states = [], []
    _run_all([functools.partial(b, *operands) for b in branches], results, states)
    result, state = results[0], states[0]
    for i in range(1, len(branches)):
        chosen = P.ge(index, convert_to_tensor(i, index.dtype))
        result = tree.map_structure(lambda a, b, chosen=chosen: _select(chosen, b, a), result, results[i])
        state = _merge(chosen, states[i], state)
    _set_state(state)
    return result


def _select_run(pred, branches):
    """Run both branches from the same state; select their results and the states they leave."""
    pred = as_bool(pred)
    results, states = [], []
    _run_all(branches, results, states)
    try:
        result = tree.map_structure(lambda a, b: _select(pred, b, a), *results)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cond: true_fn and false_fn must return the same structure, shapes included: {error}") from error
    _set_state(_merge(pred, states[1], states[0]))
    return result


def _run_all(branches, results, states):
    start = _state()
    for branch in branches:
        _set_state(start)
        results.append(branch())
        states.append(_state())
    _set_state(start)


def _state():
    """The newest values of all variables: the trace's, and those of a stateless scope."""
    trace, scope = current_trace.get(), get_stateless_scope()
    return trace.snapshot() if trace is not None else {}, dict(scope.state_mapping) if scope is not None else {}


def _set_state(state):
    trace, scope = current_trace.get(), get_stateless_scope()
    if trace is not None:
        trace.restore(state[0])
    if scope is not None:
        scope.state_mapping = dict(state[1])


def _merge(pred, chosen, other):
    """For each variable the value of `chosen` where `pred` holds, else that of `other`."""
    trace = current_trace.get()
    merged = dict(other[0])
    for key, value in chosen[0].items():
        before = other[0].get(key, trace.states[key].entry)
        merged[key] = value if value is before else _select(pred, value, before)
    for key, value in other[0].items():
        if key not in chosen[0]:
            merged[key] = value if value is trace.states[key].entry else _select(pred, trace.states[key].entry, value)
    scoped = dict(other[1])
    for key, value in chosen[1].items():
        before = other[1].get(key)
        scoped[key] = value if before is None or value is before else _select(pred, value, before)
    return merged, scoped


def _select(pred, on_true, on_false):
    if on_true is on_false or on_true is None:
        return on_true
    on_true, on_false = promote(on_true, on_false)
    if on_true.shape != on_false.shape:
        raise ValueError(f"shapes {tuple(on_true.shape)} and {tuple(on_false.shape)} differ")
    return P.select(*broadcast("cond", pred, on_true, on_false))


def while_loop(cond, body, loop_vars, maximum_iterations=None):
    """Repeat `body` on the loop variables while `cond` of them holds.

    Inside a trace the condition must not depend on traced values unless `maximum_iterations` bounds the loop; RuntimeError else.
    """
    is_sequence = isinstance(loop_vars, (tuple, list))
    state = tuple(loop_vars) if is_sequence else (loop_vars,)
    if current_trace.get() is None:
        state = tree.map_structure(convert_to_tensor, state)
    done, active = 0, None  # active: whether the loop still runs, once that is traced
    while maximum_iterations is None or done < maximum_iterations:
        going = cond(*state)
        if not _unknown(going):
            if not going:
                break
            state = _step(body, state)
        elif in_symbolic_scope():
            state = _step(body, state)
            break
        else:
            if maximum_iterations is None or maximum_iterations > _LONGEST_MASKED_LOOP:
                raise RuntimeError(
                    "while_loop: its condition depends on traced values, so the number of steps is not known while tracing. Give"
                    f" maximum_iterations (at most {_LONGEST_MASKED_LOOP}), use scan or fori_loop with a known length, or run eagerly"
                    " (run_eagerly=True)."
                )
            going = as_bool(going)
            active = going if active is None else P.and_(active, going)
            current = state
            state = _select_run(active, [lambda current=current: current, lambda current=current: _step(body, current)])
        done += 1
    state = tree.map_structure(convert_to_tensor, state)
    return state if is_sequence else state[0]


def _step(body, state):
    result = body(*state)
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def fori_loop(lower, upper, body_fun, init_val):
    """body_fun(i, value) for i from `lower` up to, not including, `upper`; the bounds must be known while tracing."""
    for bound in (lower, upper):
        if _unknown(bound):
            if in_symbolic_scope():
                return body_fun(convert_to_tensor(0, "int32"), init_val)
            raise RuntimeError(
                "fori_loop: a bound is a traced value, so the number of steps is not known while tracing. Use Python ints, or run eagerly"
                " (run_eagerly=True)."
            )
    value = init_val
    for i in range(int(lower), int(upper)):
        value = body_fun(convert_to_tensor(i, "int32"), value)
    return value


def map(f, xs):
    """f of each slice of `xs` (a tensor or nest of them) along the first axis, stacked."""
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def scan(f, init, xs=None, length=None, reverse=False, unroll=1):
    """carry, y = f(carry, x) over the first axis of `xs`, or `length` times; the last carry and the stacked ys."""
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and (not isinstance(unroll, int) or unroll < 1):
        raise ValueError(f"`unroll` must be an positive integer or boolean. Received: unroll={unroll}")
    if xs is None and length is None:
        raise ValueError("Got no `xs` to scan over and `length` not provided.")
    flat = [convert_to_tensor(x) for x in tree.flatten(xs)] if xs is not None else []
    n = length if length is not None else flat[0].shape[0]
    if any(x.shape[0] != n for x in flat):
        raise ValueError(f"scan: all xs must have the same first extent, {int(n)}; got shapes {[tuple(x.shape) for x in flat]}.")
    carry = tree.map_structure(convert_to_tensor, init)
    once = in_symbolic_scope() and isinstance(n, Dim)  # shape inference: one step tells the shapes of all
    steps = 1 if once else int(n)
    slices = [shapes.unstacked(x) if not once else [_element(x, 0)] for x in flat]
    ys = []
    for i in reversed(range(steps)) if reverse else range(steps):
        x = tree.pack_sequence_as(xs, [s[i] for s in slices]) if xs is not None else None
        carry, y = f(carry, x)
        ys.append(y)
    if not ys:
        return carry, None
    if reverse:
        ys.reverse()
    stacked = tree.map_structure(lambda *parts: _stack(parts, n if once else None), *ys)
    return carry, stacked


def _element(x, i):
    return P.reshape(P.slice(x, (i,) + (0,) * (x.ndim - 1), (i + 1, *x.shape[1:])), x.shape[1:])


def _stack(parts, extent):
    """Results of all steps along a new first axis; one stands for `extent` of them in shape inference."""
    if parts[0] is None:
        return None
    if extent is None:
        return shapes.stack(parts)
    part = convert_to_tensor(parts[0])
    return P.broadcast(part, (extent, *part.shape), tuple(range(1, part.ndim + 1)))


def vectorized_map(function, elements):
    """`function` of each slice of the nest `elements` along the first axis, results stacked."""
    return map(function, tree.map_structure(convert_to_tensor, elements))


def mapped_over(function, in_axes):
    """`function` mapped over the first axis of the arguments whose `in_axes` is 0; the others (None) are passed whole."""

    def mapped(*args):
        moving = [a for a, axis in zip(args, in_axes, strict=True) if axis == 0]

        def one(slices):
            slices = iter(slices)
            return function(*[next(slices) if axis == 0 else a for a, axis in zip(args, in_axes, strict=True)])

        return map(one, moving)

    return mapped


def unstack(x, num=None, axis=0):
    """The slices along an axis as a list."""
    return shapes.unstacked(convert_to_tensor(x), axis)


def associative_scan(f, elems, reverse=False, axis=0):
    """All prefixes combined by the associative `f`, in a logarithmic number of steps (Blelloch 1990)."""
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    flat = [convert_to_tensor(e) for e in tree.flatten(elems)]
    if reverse:
        flat = [shapes.flip(e, axis) for e in flat]
    n = flat[0].shape[axis]
    if any(e.shape[axis] != n for e in flat):
        raise ValueError(
            f"Array inputs to associative_scan must have the same first dimension. (saw: {[tuple(e.shape) for e in flat]})"
        )

    def combine(a, b):
        return tree.flatten(f(tree.pack_sequence_as(elems, a), tree.pack_sequence_as(elems, b)))

    result = _prefixes(combine, flat, axis)
    if reverse:
        result = [shapes.flip(e, axis) for e in result]
    return tree.pack_sequence_as(elems, result)


def _prefixes(combine, elems, axis):
    n = elems[0].shape[axis]
    if n < 2:
        return elems

    def part(items, *bounds):
        return [slice_along_axis(e, *bounds, axis=axis) for e in items]

    odd = _prefixes(combine, combine(part(elems, 0, n - 1, 2), part(elems, 1, None, 2)), axis)
    even = part(elems, 0, 1)
    if n > 2:
        rest = combine(part(odd, 0, (n - 1) // 2), part(elems, 2, None, 2))
        even = [shapes.concatenate([first, others], axis) for first, others in zip(even, rest, strict=True)]
    return [_interleaved(e, o, axis) for e, o in zip(even, odd, strict=True)]


def _interleaved(even, odd, axis):
    """even[0], odd[0], even[1], ... along an axis."""
    axis %= even.ndim
    n = even.shape[axis] + odd.shape[axis]

    def spread(x, first):
        zero = convert_to_tensor(0, x.dtype)
        before = first
        after = n - (2 * x.shape[axis] - 1) - before

        def at(v):
            return tuple(v if i == axis else 0 for i in range(x.ndim))

        return P.pad(x, zero, at(before), at(after), at(1))

    even, odd = spread(even, 0), spread(odd, 1)
    return logical_or(even, odd) if even.dtype == "bool" else P.add(even, odd)
