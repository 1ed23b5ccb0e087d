"""The distribution hook for one process and one device."""

from keras_ocl import runtime


def list_devices(device_type=None):
    """Names the usable devices of one kind, such as ``["gpu:0"]``.

    Args:
        device_type: "cpu" or "gpu"; by default "gpu" if there is a usable one, else "cpu".
    """
    names = [device.name for device in runtime.devices() if device.usable]
    kinds = [device_type.lower()] if device_type else ["gpu", "cpu"]
    for kind in kinds:
        found = [name for name in names if name.startswith(f"{kind}:")]
        if found:
            return found
    return []


def get_device_count(device_type=None):
    """Counts the devices that `list_devices` names."""
    return len(list_devices(device_type))


def initialize(job_addresses=None, num_processes=None, process_id=None):
    """Accepts a cluster of one process, which needs no setting up.

    Raises:
        NotImplementedError: more than one process is asked for.
    """
    several_addresses = job_addresses is not None and "," in job_addresses
    if several_addresses or (num_processes or 1) > 1 or (process_id or 0) > 0:
        raise NotImplementedError("keras_ocl computes in one process: `keras.distribution.initialize` cannot join several.")


def num_processes():
    """The number of processes that compute together: one."""
    return 1


def process_id():
    """This process's place among them: the first."""
    return 0


def distribute_tensor(tensor, layout):
    """Returns `tensor`, which lies whole on its device whatever the layout on a mesh of one device says."""
    _backend_layout(layout)
    return tensor


def distribute_data_input(per_process_batch, layout, batch_dim_name):
    """Returns the batch, as one process holds all of it."""
    _backend_layout(layout)
    return per_process_batch


def _backend_layout(layout):
    return getattr(layout, "backend_layout", layout)


def _to_backend_mesh(device_mesh):
    """Returns the mesh's only device, as Keras names it.

    Raises:
        NotImplementedError: the mesh holds more than one device.
    """
    if device_mesh.devices.size != 1:
        raise NotImplementedError(
            f"keras_ocl computes on one device, but the mesh {device_mesh.axis_names} has the shape {device_mesh.shape}: "
            "pass a single device, such as `keras.distribution.list_devices()[:1]`."
        )
    return device_mesh.devices.item()


def _to_backend_layout(tensor_layout):
    """Returns the device that holds a tensor of this layout.

    Raises:
        ValueError: the layout has no mesh.
    """
    if tensor_layout.device_mesh is None:
        raise ValueError("Cannot place a tensor: its TensorLayout has no device mesh. Set `device_mesh` first.")
    return tensor_layout.device_mesh.backend_mesh
