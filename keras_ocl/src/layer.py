"""What Keras mixes into its layers."""

from keras_ocl.hooks.layer import OclLayer as OclLayer
