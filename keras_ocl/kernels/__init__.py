"""Kernel templates: Python that turns parameters into OpenCL C. Nothing here launches kernels."""

from keras_ocl.kernels.schedules import cpu, gpu, reference, rows  # noqa: F401  each registers its schedule
