"""keras.ops on OpenCL: thin functions that promote, broadcast and compose primitives, one Keras op each."""

from keras_ocl.ops import operators

operators.install()
