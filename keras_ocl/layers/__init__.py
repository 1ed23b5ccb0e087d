"""Recurrence for Keras's recurrent layers: any cell over time, and the fused layers."""
