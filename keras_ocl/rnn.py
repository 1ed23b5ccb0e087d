"""Recurrence over time, for Keras: any cell (`rnn`) and the fused layers."""

# ruff: noqa: F401
from keras_ocl.layers.recurrence import rnn
from keras_ocl.layers.recurrent import bidirectional_gru, bidirectional_lstm, gru, lstm
