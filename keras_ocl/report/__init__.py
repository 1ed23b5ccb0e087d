"""`python -m keras_ocl report`: what a device is, whether its kernels are right, and how fast it is, as JSON without anything private."""
