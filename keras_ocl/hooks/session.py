"""This backend's part of `keras.utils.clear_session`."""

from keras_ocl import compiler, runtime


def forget():
    """Forget compiled functions, and give unused memory back. Functions still in use are traced again at their next call."""
    compiler.forget()
    for device in runtime.living_devices():
        device.release_unused()
