"""What Keras's layers and losses reach: convolution, pooling, normalization, losses, attention."""
