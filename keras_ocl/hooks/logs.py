"""Logs as callbacks get them: numbers."""

from keras_ocl.ops import core


def pythonify_logs(logs):
    """As Keras's function of this name: what is a number becomes a float, dicts within are joined. Waits for the device.

    Keras's takes everything that happens meanwhile for "no number", Ctrl-C and a device that is lost too; here they are raised.
    """
    result = {}
    for name, value in sorted((logs or {}).items()):
        if isinstance(value, dict):
            result.update(pythonify_logs(value))
            continue
        if core.is_tensor(value):
            value = core.convert_to_numpy(value)
        try:
            result[name] = float(value)
        except (TypeError, ValueError):
            result[name] = value
    return result
