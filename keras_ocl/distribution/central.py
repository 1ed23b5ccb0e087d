"""A step on several devices of this process, one of which has the variables; the others get copies of those that have changed."""

from keras_ocl.compiler.jit import own_copy
from keras_ocl.core import dtypes
from keras_ocl.core.variable import Owned
from keras_ocl.distribution.local import LocalPlacement, Parts
from keras_ocl.distribution.mirror import Mirrored


class CentralParts(Parts):
    """All parts (one per device) of a trace, compiled; the part with the variables returns its results, and alone updates them."""

    def __init__(self, placement, trace, *rest):
        super().__init__(placement, trace, *rest)
        self._variables = [slot.variable for slot in trace.states.values()]
        assigned = {id(slot.variable) for slot in trace.assigned()}
        read = {id(mirror) for part in self._others for mirror in part.reads}
        self._copied = []  # (variable, [(Mirror that a part reads, its device)])
        self._changing = []  # Mirrors of the variables that the step assigns
        for variable, mirrors in zip(self._variables, self._mirrored, strict=True):
            pairs = zip(mirrors.each, placement.devices, strict=True)
            readers = [(mirror, device) for mirror, device in pairs if id(mirror) in read]
            if readers:
                self._copied.append((variable, readers))
            if id(variable) in assigned:
                self._changing += mirrors.each

    def _begin(self):
        missing = []  # (variable, its value, [(Mirror with another value, its device)], array)
        with self.device.state_lock:
            for variable in self._variables:
                if variable._owned.storage.device is not self.device or isinstance(variable._owned, Mirrored):
                    own_copy(variable, self.device)
            for variable, readers in self._copied:
                value = variable._owned.lend()
                others = [(mirror, device) for mirror, device in readers if mirror.shown is not value]
                if others:
                    missing.append((variable, value, others, self.device.download(*_contents(variable._owned))))
        try:
            for variable, value, others, array in missing:
                for mirror, device in others:
                    mirror._owned = Owned(mirror.shape, mirror.dtype, device.upload(array, variable.path))
                    mirror.shown = value
        except BaseException:
            self._end(failed=True)
            raise
        for mirror in self._changing:  # their old values would be held, and could not be overwritten in place
            mirror.shown = None

    def _end(self, failed):
        for mirror in self._changing:
            mirror.release()


def _contents(owned):
    """The arguments of `Device.download` for a variable's value."""
    return owned.storage, dtypes.numpy_dtype(owned.dtype), owned.shape


def check_one_process(count):
    """Raises NotImplementedError if `count`, the number of processes that compute together, is more than one."""
    if count > 1:
        raise NotImplementedError(
            f"CentralStorage keeps variables on one device of one process, but {count} processes compute together: use"
            " keras.distribution.DataParallel, which keeps a copy for each, or start one process."
        )


class CentralPlacement(LocalPlacement):
    """Placements for several devices of this process; the one with index `home` has the variables.

    Args:
        home: its index among the devices.
        others: the arguments of LocalPlacement.
    """

    kind = CentralParts

    def __init__(self, home, *others):
        super().__init__(*others)
        self.home = home

    def duty(self, k):
        return ((lambda variable: variable), True) if k == self.home else (super().duty(k)[0], False)
