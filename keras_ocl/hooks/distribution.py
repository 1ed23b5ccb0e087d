"""The distribution hook: one device of Keras's meshes per rank of an MPI job, or several where the mesh names as many for each."""

import os
from contextlib import contextmanager
from functools import partial

import numpy as np
from keras.src.backend.common.global_state import get_global_attribute

from keras_ocl import runtime
from keras_ocl.distribution import mpi
from keras_ocl.distribution.central import CentralPlacement, check_one_process
from keras_ocl.distribution.cut import Cut, layout_of
from keras_ocl.distribution.local import LocalPlacement
from keras_ocl.distribution.placement import Placement
from keras_ocl.distribution.spread import Spread

_MEASURED = "auto"


def list_devices(device_type=None):
    """Names the devices that a mesh can consist of: in an MPI job one per rank, in rank order, such as ``["cpu:0", "cpu:1"]``.

    Args:
        device_type: "cpu" or "gpu", to name all of that kind; by default those with the platform and model of the device in use, since
            equal parts of a batch would wait for the slowest device, and two platforms may list the same device.
    """
    if num_processes() > 1:
        return [f"{kind}:{rank}" for rank, kind in enumerate(mpi.device_kinds()) if device_type in (None, kind)]
    usable = [device for device in runtime.devices() if device.usable]
    if device_type:
        return [device.name for device in usable if device.kind == device_type.lower()]
    if not usable:
        return []
    used = runtime.current_device().name.partition("/")[0]
    alike = next((device.platform, device.model) for device in usable if device.name == used)
    return [device.name for device in usable if (device.platform, device.model) == alike]


def get_device_count(device_type=None):
    """Counts the devices that `list_devices` names."""
    return len(list_devices(device_type))


def initialize(job_addresses=None, num_processes=None, process_id=None):
    """Joins the MPI job that this process was started in (`mpiexec`, `srun`); without one, a single process does nothing.

    Where no seed has been set, all ranks get the first rank's, so that weights and shuffling are equal everywhere.

    Raises:
        ValueError: the arguments do not match the job.
        RuntimeError: several processes are asked for, but there is no MPI job, or mpi4py is not installed.
    """
    mpi.initialize(job_addresses, num_processes, process_id)
    from keras.src.utils import rng_utils  # not while Keras is being imported

    if mpi.world().size == 1:
        return
    mpi.device_kinds()
    if rng_utils.get_random_seed() is None:
        rng_utils.set_random_seed(mpi.world().gather_objects(int(np.random.SeedSequence().generate_state(1)[0]))[0])


def num_processes():
    """The number of processes that compute together."""
    return mpi.world().size


def process_id():
    """This process's rank among them."""
    return mpi.world().rank


def distribute_tensor(tensor, layout):
    """Returns `tensor`: placement follows from the variables and the batch; a layout of a tensor in between is only a hint."""
    _backend_layout(layout)
    return tensor


def distribute_data_input(per_process_batch, layout, batch_dim_name):
    """Returns the batch; a compiled step takes from it the rows that this process computes."""
    _backend_layout(layout)
    return per_process_batch


def _backend_layout(layout):
    return getattr(layout, "backend_layout", layout)


def _to_backend_mesh(device_mesh):
    """Returns the mesh's devices, as Keras names them.

    Raises:
        ValueError: the number of devices is no multiple of the number of processes; or a process's several devices do not all exist, or
            one is named twice.
    """
    if device_mesh.devices.size % num_processes():
        raise ValueError(
            f"The mesh {device_mesh.axis_names} has {device_mesh.devices.size} devices (shape {tuple(device_mesh.shape)}), but"
            f" {num_processes()} processes compute together, which need as many each: start {device_mesh.devices.size} with `mpiexec -n"
            f" {device_mesh.devices.size}`, or pass the devices of `list_devices()` ({len(list_devices())})."
        )
    _own_devices(device_mesh)
    return device_mesh.devices


def _own_devices(device_mesh):
    """The Devices of a mesh for this process: the current one, or if there are several per rank, those at this rank's positions."""
    count = device_mesh.devices.size // num_processes()
    if count == 1:
        return [runtime.current_device()]
    names = [str(name) for name in device_mesh.devices.flat][count * process_id() :][:count]
    try:
        found = [runtime.find_device(name) for name in names]
    except RuntimeError as error:
        raise ValueError(
            f"The mesh {device_mesh.axis_names} has {count} devices for each process, {names}: {error} Devices of other processes come"
            f" with `mpiexec -n {device_mesh.devices.size}` and `keras.distribution.initialize()`."
        ) from None
    if len(set(found)) < len(found):
        raise ValueError(
            f"The mesh {device_mesh.axis_names} names a device twice: {names}; give different ones, such as those of `list_devices()`, or"
            " parts of one, such as cpu:0/1of2 and cpu:0/2of2."
        )
    return found


def _to_backend_layout(tensor_layout):
    """Returns the names of the mesh axes along which the tensor's axes are sharded.

    Raises:
        ValueError: the layout has no mesh.
    """
    if tensor_layout.device_mesh is None:
        raise ValueError("Cannot place a tensor: its TensorLayout has no device mesh. Set `device_mesh` first.")
    _to_backend_mesh(tensor_layout.device_mesh)
    return tensor_layout.axes


def placement():
    """The Placement (or LocalPlacement) for Keras's present distribution; None where this process computes alone with one device."""
    distribution = get_global_attribute("distribution")
    if distribution is None:
        return None
    storage = getattr(distribution, "storage", None)  # of keras_ocl.CentralStorage
    if num_processes() == distribution.device_mesh.devices.size == 1 and storage in (None, *distribution.device_mesh.devices.flat):
        return None
    found = getattr(distribution, "_ocl_placement", None)
    if found is None:
        mesh = distribution.device_mesh
        if storage is not None:
            check_one_process(num_processes())
        _to_backend_mesh(mesh)
        names, batch_axis = mesh.axis_names, distribution.batch_dim_name or mesh.axis_names[0]
        shares = _shares(distribution.num_model_replicas)
        measured = shares == _MEASURED
        devices = _own_devices(mesh)
        shares = None if measured else shares
        if storage is not None:
            found = _central(mesh, batch_axis, runtime.find_device(storage), shares, measured)
        elif len(devices) > 1:
            found = LocalPlacement(devices, mpi.world(), mesh.shape, names, batch_axis, shares, measured)
        else:
            found = Placement(mesh.shape, names, batch_axis, mpi.world(), shares, _compared(), measured)
        distribution._ocl_placement = found
    return found


def own_ranks():
    """The Communicator of the ranks that each give their own rows (`auto_shard_dataset=False`); None where all give whole batches."""
    place = placement()
    return None if place is None or get_global_attribute("distribution").auto_shard_dataset else place.ranks


def _central(mesh, batch_axis, storage, shares, measured):
    """The CentralPlacement of a keras_ocl.CentralStorage; a storage device not among its devices is added, without rows."""
    devices = [runtime.find_device(name) for name in mesh.devices.flat]
    if storage not in devices:
        shares = [*(shares or [1] * len(devices)), 0]
        devices = [*devices, storage]
    return CentralPlacement(devices.index(storage), devices, mpi.world(), (len(devices),), mesh.axis_names, batch_axis, shares, measured)


def _shares(parts):
    """The relative numbers of rows of the parts of a batch: KERAS_OCL_SHARES, such as "2,1", or _MEASURED; None, the default, if they are
    equal."""
    text = os.environ.get("KERAS_OCL_SHARES", "")
    if not text:
        return None
    if text == _MEASURED:
        return _MEASURED
    shares = [int(share) if share.strip().isdecimal() else 0 for share in text.split(",")]
    if len(shares) != parts or min(shares) < 1:
        raise ValueError(
            f"KERAS_OCL_SHARES={text!r}: give {parts} whole numbers above 0, one for each part of a batch, such as 2,1, or auto."
        )
    return shares


def _compared():
    """Number of steps after which ranks are compared, again and again: KERAS_OCL_COMPARE, by default 0 for never."""
    text = os.environ.get("KERAS_OCL_COMPARE", "0")
    if not text.isdecimal():
        raise ValueError(f"KERAS_OCL_COMPARE={text!r}: give a number of steps, after each of which all ranks are compared, or 0.")
    return int(text)


def cut(variable):
    """A function from a variable's whole value, a Tensor, to the part of it that this process keeps (core/variable.py), if the present
    distribution shards ("cuts") the variable, which is being made; None if it stays whole.

    As on JAX, the variable's `_layout` becomes Keras's TensorLayout, which an optimizer's slots inherit.

    Raises:
        ValueError: the layout does not fit the variable.
        NotImplementedError: the layout cuts the variable over several devices of several processes.
    """
    distribution = get_global_attribute("distribution")
    if distribution is None:
        return None
    if variable._layout is None:
        variable._layout = distribution.get_variable_layout(variable)
    axes, shape = getattr(variable._layout, "axes", variable._layout), tuple(variable.shape)
    place = placement()
    if place is None or not any(axes):
        return None
    named = place.axes
    cut = [name for name in axes if name is not None]
    if len(axes) != len(shape) or len(set(cut)) < len(cut) or not set(cut) <= set(named):
        raise ValueError(
            f"Variable {variable.path} of shape {shape}: the layout {tuple(axes)} does not fit; give for each of its {len(shape)} axes"
            f" None or one of the mesh's axes {tuple(named)}, each of these at most once."
        )
    layouts = [layout_of(shape, [part.axes.get(name) for name in axes]) for part in getattr(place, "places", [place])]
    if layouts[0] is None:
        return None
    if not isinstance(place, LocalPlacement):
        return partial(Cut.of, layout=layouts[0])
    if num_processes() > 1:
        raise NotImplementedError(
            f"Variable {variable.path} of shape {shape}: the layout {tuple(axes)} cuts it over the devices of several processes that have"
            f" {len(place.devices)} each; start a process for each device, or one process for all."
        )
    return partial(Spread.of, placement=place, path=variable.path, layouts=layouts)


def check_mesh(variables):
    """Raises ValueError where one of these variables is cut over another mesh than that of the present distribution."""
    axes = placement().axes
    for variable in variables:
        for shard in variable._owned.layout or ():
            if shard is not None and axes.get(shard.axis.name) is not shard.axis:
                raise ValueError(
                    f"Variable {variable.path} was cut over the mesh of another distribution; make the model (or load it) after"
                    " `keras.distribution.set_distribution`."
                )


@contextmanager
def whole_batches():
    """Within this context, new data adapters give whole batches, as in one process; steps take their rows from them."""
    distribution = get_global_attribute("distribution")
    if distribution is None or not distribution._is_multi_process:
        yield
        return
    distribution._is_multi_process = False
    try:
        yield
    finally:
        distribution._is_multi_process = True
