"""Data parallelism over the devices of one process, with the variables on one of them, as on a parameter server."""

from collections.abc import Sequence

from keras.src.distribution.distribution_lib import DataParallel

from keras_ocl import runtime
from keras_ocl.distribution import mpi
from keras_ocl.distribution.central import check_one_process


class CentralStorage(DataParallel):
    """A Keras distribution: several devices of this process divide batches, and one device has the variables.

        keras.distribution.set_distribution(keras_ocl.CentralStorage(devices=["gpu:0", "gpu:1"]))
        model.fit(x, y, batch_size=256)  # unchanged: 256 rows are a whole batch

    Variables, including those of the optimizer and the metrics, lie on the storage device. In each step the other devices get the values
    that they read and do not have yet, compute the gradients of their rows, and drop copies of values that the step changes. Gradients are
    summed in the host's memory, and the storage device updates the variables once. `keras.distribution.DataParallel` instead keeps a copy
    of the variables on each device (mirrored), which transfers only sums but updates everywhere: prefer it unless the other devices lack
    memory for the optimizer's state. Results equal, except for rounding, those of one device with the same batch, as long as steps are
    compiled.

    With one device that is also the storage device, this has no effect: the device in use computes.

    After Dean et al., "Large scale distributed deep networks" (NIPS 2012) and Li et al., "Scaling distributed machine learning with the
    parameter server" (OSDI 2014), with one server and steps in unison: as `tf.distribute.experimental.CentralStorageStrategy`.

    Args:
        devices: names of the devices that compute, such as "gpu:0" or "cpu:0/1of2" (see `keras_ocl.devices`); by default those of
            `keras.distribution.list_devices()`. They get equal numbers of rows, or numbers in the ratio that the environment
            variable KERAS_OCL_SHARES gives in their order, such as "3,1".
        storage: the name of the device that has the variables, by default the first of `devices`. Any other device gets no rows.

    Attributes:
        storage: the device's full name.

    Raises:
        ValueError: there is no such device, or one is named twice.
        NotImplementedError: several processes compute together (an MPI job): the variables of a storage device belong to one process.
    """

    def __init__(self, devices: Sequence[str] | None = None, storage: str | None = None):
        check_one_process(mpi.world().size)
        if devices is not None and (isinstance(devices, str) or not len(devices)):
            raise ValueError(f"CentralStorage: devices={devices!r}: give a list of names, such as ['gpu:0', 'gpu:1'], or None for all.")
        super().__init__(devices=None if devices is None else [_named(name) for name in devices])
        names = [str(name) for name in self.device_mesh.devices]
        if len(set(names)) < len(names):
            raise ValueError(
                f"CentralStorage names a device twice: {names}; give different ones, such as those of `list_devices()`, or parts of one,"
                " such as cpu:0/1of2 and cpu:0/2of2."
            )
        self.storage = names[0] if storage is None else _named(storage)


def _named(name):
    try:
        return runtime.find_device(str(name)).name
    except RuntimeError as error:
        raise ValueError(f"CentralStorage cannot use the device {name!r}: {error}") from None
