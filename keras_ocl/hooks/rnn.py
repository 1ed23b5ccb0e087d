"""Recurrence over time, for Keras: any cell (`rnn`) and the fused layers."""

# ruff: noqa: F401
from keras_ocl import primitives as P
from keras_ocl.layers.recurrence import rnn
from keras_ocl.layers.recurrent import bidirectional_gru, bidirectional_lstm, gru, lstm
from keras_ocl.ops.naming import named_operation

lstm, gru, bidirectional_lstm, bidirectional_gru = (named_operation(f) for f in (lstm, gru, bidirectional_lstm, bidirectional_gru))


def without_steps(layer, sequences, initial_state, training):
    """What an RNN layer returns for `sequences` (batch, 0, ...): as after one step that is masked, zeros and the initial states."""
    from keras.src.layers.rnn.rnn import RNN

    batch = sequences.shape[0]
    step = P.full((batch, 1, *sequences.shape[2:]), 0, sequences.dtype)
    result = RNN.call(layer, step, initial_state, P.full((batch, 1), False, "bool"), training)
    if not layer.return_sequences:
        return result
    outputs, *states = result if layer.return_state else (result,)
    outputs = P.slice(outputs, (0,) * outputs.ndim, (batch, 0, *outputs.shape[2:]))
    return (outputs, *states) if layer.return_state else outputs
