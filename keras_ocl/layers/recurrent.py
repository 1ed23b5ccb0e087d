"""Fused LSTM and GRU: one matrix product for the inputs of all steps, then one product and one pointwise kernel per step,
or on a GPU one persistent kernel ("held") for all steps (compiler/launch/loops/persistent.py).

Without a mask or unrolling; otherwise Keras runs its cell through `rnn`. A step's gates are adjacent, as (batch, gates, units), so that
the last axis of the pointwise kernels is a whole row of units.
"""

from keras_ocl import primitives as P
from keras_ocl.layers.recurrence import rnn, sizes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import shapes
from keras_ocl.ops.promotion import broadcast_to, promote


def lstm(
    inputs,
    initial_state_h,
    initial_state_c,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    go_backwards=False,
    unroll=False,
):
    """An LSTM layer over inputs (batch, time, features), with the results of Keras's cell.

    Args:
        kernel, recurrent_kernel, bias: (features, 4 * units), (units, 4 * units), (4 * units,) or None; gates i, f, c, o.
    Returns:
        (last output (batch, units), outputs (batch, time or 1, units) in the order of computation, [h, c]).
    Raises:
        ValueError: an initial state is not (batch, units), nor one row for the whole batch.
        NotImplementedError: there is a mask or no step, or unrolling is asked for.
    """
    states = _fitting("lstm", inputs, recurrent_kernel, initial_state_h, initial_state_c)
    _only_plain(inputs, mask, unroll)
    inputs, kernel, recurrent, h, c = promote(inputs, kernel, recurrent_kernel, *states)
    projected = _projected(inputs, kernel, bias)

    def step(x, states):
        h, c = states
        i, f, g, o = _gates(P.add(x, _product(h, recurrent)), 4)
        c = recurrent_activation(f) * c + recurrent_activation(i) * activation(g)
        h = recurrent_activation(o) * activation(c)
        return h, [h, c]

    return _run(step, projected, [h, c], go_backwards, return_sequences)


def gru(
    inputs,
    initial_state,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    go_backwards=False,
    unroll=False,
    reset_after=True,
):
    """A GRU layer over inputs (batch, time, features), with the results of Keras's cell.

    Args:
        kernel, recurrent_kernel: (features, 3 * units), (units, 3 * units); gates z, r, h.
        bias: None, (3 * units,), or with `reset_after` (2, 3 * units): for the input's and for the recurrent product.
    Returns:
        (last output (batch, units), outputs (batch, time or 1, units) in the order of computation, [h]).
    Raises:
        ValueError: the initial state is not (batch, units), nor one row for the whole batch.
        NotImplementedError: there is a mask or no step, or unrolling is asked for.
    """
    states = _fitting("gru", inputs, recurrent_kernel, initial_state)
    _only_plain(inputs, mask, unroll)
    inputs, kernel, recurrent, h = promote(inputs, kernel, recurrent_kernel, *states)
    units, recurrent_bias = recurrent.shape[0], None
    if bias is not None:
        bias = convert_to_tensor(bias)
        if reset_after:
            bias, recurrent_bias = shapes.unstacked(bias)
    projected = _projected(inputs, kernel, bias)
    if not reset_after:
        gates = P.slice(recurrent, (0, 0), (units, 2 * units))
        candidate = P.slice(recurrent, (0, 2 * units), (units, 3 * units))

    def step(x, states):
        (h,) = states
        xz, xr, xh = _gates(x, 3)
        if reset_after:
            hz, hr, hh = _gates(_biased(_product(h, recurrent), recurrent_bias), 3)
        else:
            hz, hr = _gates(_product(h, gates), 2)
        z, r = recurrent_activation(xz + hz), recurrent_activation(xr + hr)
        hh = activation(xh + (r * hh if reset_after else _product(r * h, candidate)))
        h = z * h + (1 - z) * hh
        return h, [h]

    return _run(step, projected, [h], go_backwards, return_sequences)


def bidirectional_lstm(
    inputs,
    fwd_initial_state_h,
    fwd_initial_state_c,
    bwd_initial_state_h,
    bwd_initial_state_c,
    mask,
    fwd_kernel,
    fwd_recurrent_kernel,
    fwd_bias,
    bwd_kernel,
    bwd_recurrent_kernel,
    bwd_bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    unroll=False,
):
    """Two LSTM layers, the second backwards in time; each direction's result is that of `lstm`, but with outputs in the order of time."""
    common = (activation, recurrent_activation, return_sequences)
    ahead, back = (fwd_kernel, fwd_recurrent_kernel, fwd_bias), (bwd_kernel, bwd_recurrent_kernel, bwd_bias)
    forward = lstm(inputs, fwd_initial_state_h, fwd_initial_state_c, mask, *ahead, *common, False, unroll)
    backward = lstm(inputs, bwd_initial_state_h, bwd_initial_state_c, mask, *back, *common, True, unroll)
    return forward, _in_time(backward)


def bidirectional_gru(
    inputs,
    fwd_initial_state_h,
    bwd_initial_state_h,
    mask,
    fwd_kernel,
    fwd_recurrent_kernel,
    fwd_bias,
    bwd_kernel,
    bwd_recurrent_kernel,
    bwd_bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    unroll=False,
    reset_after=True,
):
    """Two GRU layers, the second backwards in time; each direction's result is that of `gru`, but with outputs in the order of time."""
    common = (activation, recurrent_activation, return_sequences)
    forward = gru(inputs, fwd_initial_state_h, mask, fwd_kernel, fwd_recurrent_kernel, fwd_bias, *common, False, unroll, reset_after)
    backward = gru(inputs, bwd_initial_state_h, mask, bwd_kernel, bwd_recurrent_kernel, bwd_bias, *common, True, unroll, reset_after)
    return forward, _in_time(backward)


def _fitting(op, inputs, recurrent_kernel, *states):
    """Initial states as tensors (batch, units); a single row is repeated for the batch."""
    states, wanted = [convert_to_tensor(s) for s in states], (inputs.shape[0], recurrent_kernel.shape[0])
    if any(s.ndim not in (1, 2) or s.shape[-1] != wanted[1] or s.shape[:-1] not in (wanted[:1], (), (1,)) for s in states):
        raise ValueError(
            f"{op}: initial_state of {' and '.join(str(sizes(s)) for s in states)} does not fit inputs of shape {sizes(inputs)} and"
            f" {int(wanted[1])} units; each needs shape ({int(wanted[0])}, {int(wanted[1])})."
        )
    return [broadcast_to(s, wanted) for s in states]


def _only_plain(inputs, mask, unroll):
    if mask is not None or unroll or inputs.shape[1] == 0:
        raise NotImplementedError(
            "The fused recurrent layers take at least one step and no mask, and are not unrolled; Keras runs the cell step by step instead."
        )


def _projected(inputs, kernel, bias):
    """The inputs of all steps times the kernel: (time, batch, gates * units)."""
    return _biased(P.dot_general(P.transpose(inputs, (1, 0, 2)), kernel, ((2,), (0,))), bias)


def _run(step, projected, states, go_backwards, return_sequences):
    last, outputs, states = rnn(step, projected, states, go_backwards, time_major=True, return_all_outputs=return_sequences)
    return last, P.transpose(outputs, (1, 0, 2)), states


def _product(h, kernel):
    return P.dot_general(h, kernel, ((1,), (0,)))


def _biased(x, bias):
    if bias is None:
        return x
    return P.add(x, P.broadcast(convert_to_tensor(bias, x.dtype), x.shape, (len(x.shape) - 1,)))


def _gates(x, count):
    """Split (batch, count * units) into `count` tensors of shape (batch, units)."""
    batch, units = x.shape[0], x.shape[1] // count
    x = P.reshape(x, (batch, count, units))
    return [P.reshape(P.slice(x, (0, k, 0), (batch, k + 1, units)), (batch, units)) for k in range(count)]


def _in_time(result):
    last, outputs, states = result
    return last, P.reverse(outputs, (1,)), states
