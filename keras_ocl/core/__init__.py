"""The array language: dtypes, dimensions, tensors, tracing and reverse-mode autodiff.

Nothing here imports Keras or pyopencl; a tensor's storage is opaque to this package.
"""
