"""What Keras mixes into its models."""

from keras_ocl.hooks.trainer import OclTrainer as OclTrainer
