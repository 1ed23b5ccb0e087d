"""What Keras's recurrent layers reach: any cell over time, and the fused layers."""
