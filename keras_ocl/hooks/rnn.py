"""Recurrence over time for Keras: `rnn` for any cell, and the fused layers."""

# ruff: noqa: F401
from keras_ocl.layers.recurrence import rnn, without_steps
from keras_ocl.layers.recurrent import bidirectional_gru, bidirectional_lstm, gru, lstm
from keras_ocl.ops.naming import named_operation

lstm, gru, bidirectional_lstm, bidirectional_gru = (named_operation(f) for f in (lstm, gru, bidirectional_lstm, bidirectional_gru))
