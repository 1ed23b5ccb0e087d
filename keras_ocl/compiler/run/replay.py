"""Replay: enqueues bound launches, repeats loops and computes host operations."""

import struct
import time
from concurrent.futures import Future
from functools import partial

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.run.binding import BoundEnd, BoundLoop
from keras_ocl.core import dtypes

_FEWEST_AHEAD, _MOST_AHEAD = 4, 32  # steps of a while loop that are launched before its condition is read: at first, and at most


class Replay:
    """Runs bound launches on a device.

    Args:
        storages: dict from the launches' buffers to their present Storages (a Binding's).
    """

    def __init__(self, device, storages):
        self._device, self._storages = device, storages
        self._running = []  # (Future, BoundHost, operand arrays, result arrays) of each operation that the device's worker computes

    def launch(self, segments, copies=(), then=()):
        """Enqueue everything in `segments` (see Binding), and with the last launches `copies` and `then` (see Device.replay).

        Waits only for the values that host operations and conditions of loops read.
        """
        last = segments[-1] if type(segments[-1]) is list else []
        try:
            for segment in segments:
                kind = type(segment)
                if segment is last:
                    break
                if kind is list:
                    self._device.replay(segment)
                elif kind is BoundLoop:
                    self._loop(segment)
                elif kind is BoundEnd:
                    self._end(segment.host)
                elif segment.ends:
                    self._begin(segment)
                else:
                    self._host(segment)
            self._device.replay(last, copies, then)
        except BaseException:
            if self._running:
                self._leave()
            raise

    def _loop(self, bound):
        for flag, taken in bound.guards:
            if self._device.download(self._storages[flag], np.dtype(bool), ()) != taken:
                return
        self._copy(bound.before)
        if bound.condition is not None:
            done = self._while_ahead(bound) if bound.state is not None else self._while(bound)
            if done % len(bound.variants):
                self._copy(bound.last)
        else:
            n, count = bound.length, len(bound.variants)
            # The last step is of variant 0, which leaves the results where they belong.
            order = [(bound.variants[(n - 1 - k) % count], n - 1 - k if bound.reverse else k) for k in range(n)]
            if bound.plain:
                self._repeat(order)
            else:
                for variant, number in order:
                    self._step(variant, number)
        self._copy(bound.after)

    def _repeat(self, order):
        """Launch steps that consist of kernels alone; `order`: a list of (variant, step number)."""
        self._device.repeat([(segments[0], places, struct.pack("i", number)) for (segments, places), number in order])

    def _step(self, variant, number):
        segments, places = variant
        for kernel, position in places:
            runtime.set_argument(kernel, position, struct.pack("i", number))
        self.launch(segments)

    def _while(self, bound):
        """Runs a while loop, whose condition is read before each step; returns the number of steps."""
        count, done = len(bound.variants), 0
        flag = bound.condition[0]
        while self._device.download(self._storages[flag], np.dtype(bool), ()):
            variant = (done + 1) % count
            self._step(bound.variants[variant], done)
            flag = bound.condition[variant]
            done += 1
        return done

    def _while_ahead(self, bound):
        """`_while` with several steps launched before the condition is read; steps after the last one do nothing."""
        device, count, done, ahead = self._device, len(bound.variants), 0, _FEWEST_AHEAD
        going = device.download(self._storages[bound.condition[0]], np.dtype(bool), ())
        if going:
            device.write(self._storages[bound.state], np.asarray(1, np.int32))
        while going:
            self._repeat([(bound.variants[(k + 1) % count], k) for k in range(done, done + ahead)])
            state = int(device.download(self._storages[bound.state], np.dtype(np.int32), ()))
            going, done, ahead = state & 1, state >> 1, min(2 * ahead, _MOST_AHEAD)
        return done

    def _copy(self, copies):
        for source, target, nbytes, start, end in copies:
            self._device.copy(self._storages[source], self._storages[target], nbytes, start, end)

    def _host(self, bound):
        device = self._device
        if not device.runs:
            return
        if device.sharing == "shared":
            device.finish()
        arrays, targets = self._arrays(bound, device.download)
        with device.operation(bound.label, _bytes(arrays)):
            results = bound.primitive.host(arrays, targets, **bound.params)
        self._store(bound, results, targets)

    def _begin(self, bound):
        """Give a host operation to the device's worker thread, which computes it when all that is enqueued now is done."""
        device, future = self._device, Future()
        if not device.runs:
            return
        arrays, targets = self._arrays(bound, device.download_later)
        held = [self._storages[buffer] for buffer in (*bound.reads, *bound.writes) if buffer is not None]
        self._running.append((future, bound, arrays, targets))
        device.worker.give(future, partial(_compute, device, device.last_event, bound, arrays, targets, held))

    def _end(self, bound):
        """Wait for a host operation that the worker began; it does them in order."""
        device = self._device
        if not device.runs:
            return
        future, begun, arrays, targets = self._running[0]
        assert begun is bound
        with device.span(runtime.WAIT):
            results, start, end = future.result()
        device.overlapped(bound.label, start, end, _bytes(arrays))
        self._store(bound, results, targets)
        del self._running[0]

    def _leave(self):
        """After an exception: let the worker finish what it began, as other ranks count on it, before the memory is used again."""
        self._running = []
        try:
            self._device.worker.finish()
        except BaseException:  # interrupted again
            self._device.arena.abandon()
            raise

    def _arrays(self, bound, download):
        """(operand arrays, result arrays) of a host operation: views of the device's memory where host and device share it."""
        device = self._device
        shared, arrays, targets = device.sharing == "shared", [], []
        for buffer, dtype, shape in zip(bound.reads, bound.read_dtypes, bound.read_shapes, strict=True):
            array = (device.view if shared else download)(self._storages[buffer], dtypes.numpy_dtype(dtype), shape)
            array.flags.writeable = False
            arrays.append(array)
        for buffer, dtype, shape in zip(bound.writes, bound.written_dtypes, bound.written_shapes, strict=True):
            dtype, read = dtypes.numpy_dtype(dtype), buffer is not None
            targets.append(device.view(self._storages[buffer], dtype, shape) if shared and read else np.empty(shape, dtype))
        return arrays, targets

    def _store(self, bound, results, targets):
        """Write the results of a host operation to their buffers."""
        device = self._device
        for buffer, array, target in zip(bound.writes, [results] if bound.single else results, targets, strict=True):
            if array is not target:
                assert np.shape(array) == target.shape, f"{bound.label} on the host gave {np.shape(array)}, not {target.shape}"
                np.copyto(target, array, casting="unsafe")
            if buffer is not None and device.sharing != "shared":
                device.write(self._storages[buffer], target)


def _compute(device, ready, bound, arrays, targets, held):
    """(results, start, end) of a host operation, times in ns; its operands are there after the event `ready`. `held` is kept alive."""
    device.await_quietly(ready)
    start = time.perf_counter_ns()
    results = bound.primitive.host(arrays, targets, **bound.params)
    return results, start, time.perf_counter_ns()


def _bytes(arrays):
    return sum(array.nbytes for array in arrays)
