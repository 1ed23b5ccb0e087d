"""The part of `keras.utils.clear_session` that is this backend's."""

from keras_ocl import compiler, runtime


def forget():
    """Forgets what was compiled, and gives unused memory back. What still is in use is traced again when it is next called."""
    compiler.forget()
    for device in runtime.living_devices():
        device.release_unused()
