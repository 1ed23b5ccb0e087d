"""Logs for callbacks, as numbers."""

from keras_ocl.ops import core


def pythonify_logs(logs):
    """Like Keras's function of this name: numbers become floats, and dicts inside are merged. Waits for the device.

    Keras's takes any exception to mean "no number", even Ctrl-C and a lost device; here these are raised.
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
