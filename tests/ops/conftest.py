"""The ops are Keras's functions of this backend: Keras must run on it."""

import os

os.environ["KERAS_BACKEND"] = "ocl"
