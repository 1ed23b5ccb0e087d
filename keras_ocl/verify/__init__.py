"""`python -m keras_ocl verify`: which families of kernels are right on a device, and a record that keeps out the others."""
