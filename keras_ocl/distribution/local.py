"""A step on several devices of this process: each part is compiled for its device, and run by its own thread."""

import contextvars
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

from keras_ocl.distribution.mirror import Mirrors
from keras_ocl.distribution.overlap import overlaps
from keras_ocl.distribution.placement import Placement
from keras_ocl.distribution.spread import Pieces
from keras_ocl.distribution.step import Part
from keras_ocl.distribution.team import Team


class Parts(Part):
    """All parts (one per device) of a trace, compiled; one part's results are returned. Each has the variables, and updates them."""

    def __init__(self, placement, trace, result, device, name, variables, unknowns, division):
        self._placement = placement
        self._mirrored = [placement.mirrors(slot.variable) for slot in trace.states.values()]
        parts = [
            (place, trace, result, device, name, variables, unknowns, division, *placement.duty(k))
            for k, (place, device) in enumerate(zip(placement.places, placement.devices, strict=True))
        ]
        super().__init__(*parts.pop(placement.home))
        self._others = [Part(*part) for part in parts]
        if any(slot.variable._owned.layout is not None for slot in trace.assigned()):  # half an update of those would be worse than none
            for part in (self, *self._others):
                part.meets = True

    def _begin(self):
        """Give all devices the values of variables that they need."""
        for mirrors in self._mirrored:
            mirrors.refresh()

    def _end(self, failed):
        """Called when all devices are done; `failed` if one of them raised an exception."""
        for mirrors in self._mirrored if failed else ():
            mirrors.release()  # devices may have different values

    def run(self, arrays, bound):
        with self._placement.lock:
            return self._run(arrays, bound)

    def _run(self, arrays, bound):
        self._begin()
        team, threads = self._placement.team, self._placement.threads
        running = [threads.submit(contextvars.copy_context().run, self._run_part, part, arrays, bound.values) for part in self._others]
        errors, result = [], None
        try:
            result = super().run(arrays, bound)
        except BaseException as error:
            errors.append(error)
            team.abort()
        wait(running)
        errors += [future.exception() for future in running if future.exception() is not None]
        self._end(bool(errors))
        if errors:
            team.renew()
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return result

    def _run_part(self, part, arrays, values):
        try:
            part.launch(arrays, values)
        except BaseException:
            self._placement.team.abort()
            raise


class LocalPlacement:
    """Placements for several devices of this process, each of which has a copy of the variables (mirrored).

    Args:
        devices: this rank's Devices, in the mesh's row-major order.
        communicator: the Communicator of all ranks, which have equally many devices.
        shape, names, batch_axis, shares, measured: the arguments of Placement, as are the attributes.
    """

    kind = Parts
    home = 0  # index of the device whose results are returned

    def __init__(self, devices, communicator, shape, names, batch_axis, shares=None, measured=False):
        alike = communicator.overlaps or overlaps([device.kind for device in devices])  # equal on all ranks, as are the devices
        self.devices, self.team = devices, Team(communicator, alike)
        self.world, self.measured, self.ranks = communicator, measured, communicator if communicator.size > 1 else None
        members = [self.team.join() for _ in devices]
        self.places = [Placement(shape, names, batch_axis, member, shares, measured=measured) for member in members]
        for place in self.places:
            place.ranks = self.ranks
        self.axes, self.batch_axis = self.places[0].axes, self.places[0].batch_axis
        self.threads = ThreadPoolExecutor(len(devices) - 1, "keras_ocl device")
        self._mirrors = {}
        self.lock = threading.RLock()  # held while a step runs, and while a variable cut over the devices is gathered

    def duty(self, k):
        """The arguments (held, updates) of device k's Part."""
        return lambda variable: self.mirrors(variable).each[k], None

    def mirrors(self, variable):
        """The Mirrors of a variable, or the Pieces of one that is cut; the same object each time."""
        found = self._mirrors.get(id(variable))
        if found is None:
            cut = variable._owned.layout is not None
            found = self._mirrors[id(variable)] = Pieces(variable) if cut else Mirrors(variable, self.devices)
            weakref.finalize(variable, self._mirrors.pop, id(variable), None)
        return found
