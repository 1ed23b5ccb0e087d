"""Recurrence over time: any cell, step by step. Keras's LSTM and GRU layers use it through their cells."""

from keras.src import tree
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from keras_ocl import primitives as P
from keras_ocl.core.dim import Dim
from keras_ocl.ops import numpy_shape as shapes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy_logic import as_bool
from keras_ocl.ops.promotion import broadcast_to


def rnn(
    step_function,
    inputs,
    initial_states,
    go_backwards=False,
    mask=None,
    constants=None,
    unroll=False,
    input_length=None,
    time_major=False,
    zero_output_for_mask=False,
    return_all_outputs=True,
):
    """output, states = step_function(input at t, states + constants), over the time axis of `inputs`.

    Args:
        inputs: tensor or nest of tensors (batch, time, ...), with `time_major` (time, batch, ...).
        initial_states: list of tensors or nests of them.
        go_backwards: from the last time step to the first; outputs are in the order in which they were made.
        mask: (batch, time) or (batch, time, 1) bool; where it is False the states stay, and the output is the one before, or with
            `zero_output_for_mask` zero.
        constants: further tensors handed to each step.
        return_all_outputs: False makes `outputs` of the last step only.
    Returns:
        (last output, outputs (batch, time, ...), states after the last step).
    """
    inputs = tree.map_structure(convert_to_tensor, inputs)
    if not time_major:
        inputs = tree.map_structure(_time_batch_swapped, inputs)
    flat = tree.flatten(inputs)
    length = flat[0].shape[0]
    constants = tuple(constants or ())
    if unroll and not length:
        raise ValueError("Unrolling requires a fixed number of timesteps.")
    steps = [_times(x) for x in flat]
    masks = None
    if mask is not None:
        mask = as_bool(mask)
        if mask.ndim == 2:
            mask = P.reshape(mask, (*mask.shape, 1))
        masks = _times(mask if time_major else _time_batch_swapped(mask))

    states = tree.map_structure(convert_to_tensor, tuple(initial_states))
    outputs, previous = [], None
    order = range(len(steps[0]))
    for t in reversed(order) if go_backwards else order:
        x = tree.pack_sequence_as(inputs, [s[t] for s in steps])
        output, new_states = step_function(x, states + constants)
        output, new_states = tree.map_structure(convert_to_tensor, (output, tuple(new_states)))
        if masks is not None:
            if zero_output_for_mask or previous is None:
                previous = tree.map_structure(lambda y: P.full(y.shape, 0, y.dtype), output)
            output = tree.map_structure(lambda new, old, t=t: _where(masks[t], new, old), output, previous)
            new_states = tree.map_structure(lambda new, old, t=t: _where(masks[t], new, old), new_states, states)
        states, previous = new_states, output
        outputs = [*outputs, output] if return_all_outputs else [output]
    if not outputs:
        raise ValueError(f"rnn: inputs of shape {tuple(flat[0].shape)} have no time steps.")
    last = outputs[-1]
    together = tree.map_structure(lambda *ys: _together(ys, length if return_all_outputs else 1), *outputs)
    if not time_major:
        together = tree.map_structure(_time_batch_swapped, together)
    return last, together, list(states)


def _time_batch_swapped(x):
    return P.transpose(x, (1, 0, *range(2, x.ndim)))


def _times(x):
    """The slices along the first axis; in shape inference one of them stands for an unknown number."""
    if in_symbolic_scope() and isinstance(x.shape[0], Dim):
        return [P.reshape(P.slice(x, (0,) * x.ndim, (1, *x.shape[1:])), x.shape[1:])]
    return shapes.unstacked(x)


def _together(outputs, length):
    if len(outputs) == 1:
        y = outputs[0]
        return P.broadcast(y, (length, *y.shape), tuple(range(1, y.ndim + 1)))
    return shapes.stack(list(outputs))


def _where(mask, new, old):
    """`new` where the (batch, 1) mask holds, else `old`."""
    mask = P.reshape(mask, (*mask.shape, *(1 for _ in range(new.ndim - mask.ndim)))) if new.ndim > mask.ndim else mask
    return P.select(broadcast_to(mask, new.shape), new, convert_to_tensor(old, new.dtype))


def lstm(*args, **kwargs):
    """No fused LSTM: Keras's layer runs its cell through `rnn`."""
    raise NotImplementedError("The ocl backend has no fused LSTM; Keras's LSTM layer runs its cell step by step instead.")


def gru(*args, **kwargs):
    """No fused GRU: Keras's layer runs its cell through `rnn`."""
    raise NotImplementedError("The ocl backend has no fused GRU; Keras's GRU layer runs its cell step by step instead.")


def bidirectional_lstm(*args, **kwargs):
    """No fused bidirectional LSTM: Keras's wrapper runs both directions."""
    raise NotImplementedError("The ocl backend has no fused bidirectional LSTM; Keras's Bidirectional runs both layers instead.")


def bidirectional_gru(*args, **kwargs):
    """No fused bidirectional GRU: Keras's wrapper runs both directions."""
    raise NotImplementedError("The ocl backend has no fused bidirectional GRU; Keras's Bidirectional runs both layers instead.")
