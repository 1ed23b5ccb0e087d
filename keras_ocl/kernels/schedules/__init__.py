"""How kernels are written for each kind of device: one table per schedule."""

from keras_ocl.kernels.schedules.schedule import Schedule, get, names, of, register

__all__ = ["Schedule", "get", "names", "of", "register"]
