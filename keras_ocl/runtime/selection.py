"""Device selection: ranking by traits, probing, names, scopes."""

import contextlib
import contextvars
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyopencl as cl

from keras_ocl.runtime import parts, state
from keras_ocl.runtime.device import Device, living_devices
from keras_ocl.runtime.discovery import ADVICE, platforms
from keras_ocl.runtime.errors import KernelBuildError
from keras_ocl.runtime.memory import memory_limit
from keras_ocl.runtime.opencl import OpenCL
from keras_ocl.runtime.quarantine import read_quarantine, target_of
from keras_ocl.runtime.traits import Traits, forced_sharing, read_traits, ways_of_sharing

logger = logging.getLogger("keras_ocl")

OLDEST = (1, 2)  # version of OpenCL
SELF_TEST = "__kernel void probe(__global int* a, const int n) { int i = get_global_id(0); a[i] = a[i] * 3 + n; }"


@dataclass(frozen=True)
class DeviceInfo:
    """One device as `devices()` lists it.

    Attributes:
        name: what `KERAS_OCL_DEVICE`, `keras.device` and this package's functions take, such as "gpu:0"; "" where it is not usable.
        kind: "cpu" or "gpu" (accelerators are GPUs here).
        platform: the OpenCL implementation, in its own words.
        model: the device, in the driver's words.
        driver: the driver's version.
        usable: whether a kernel was compiled and ran on it.
        reason: why it is not usable, else "".
        traits: the properties that kernels depend on, see `Traits`; `traits.matrix_units` are those that work.
        refused_units: name of each matrix unit that was tried and does not work -> the reason, as a clause.
    """

    name: str
    kind: str
    platform: str
    model: str
    driver: str
    usable: bool
    reason: str
    traits: Traits
    refused_units: dict[str, str] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.name or self.kind} ({self.model}, {self.platform})"


@dataclass(frozen=True)
class Platform:
    """An OpenCL implementation: its name and version, its number of devices, and the reasons why unreadable ones are left out."""

    name: str
    version: str
    devices: int
    left_out: tuple[str, ...]


class _Candidate:
    """A device that was found: not probed yet, usable (`device`) or not usable (`reason`)."""

    def __init__(self, handle):
        self.handle = handle
        version = re.match(r"OpenCL (\d+)\.(\d+)", handle.version)
        if not version or tuple(map(int, version.groups())) < OLDEST:
            raise _Unreadable(f"it has {handle.version.strip() or 'no version'}, and OpenCL {OLDEST[0]}.{OLDEST[1]} is needed")
        platform = handle.platform
        if platform is None:
            raise _Unreadable("it has no platform")
        self.traits = read_traits(handle)
        self.platform, self.model, self.driver = platform.name.strip(), handle.name.strip(), handle.driver_version
        # PoCL and others give the name that people know only in the vendor or version.
        self._words = f"{self.platform} {platform.vendor} {platform.version} {self.model} {handle.vendor}".lower()
        self.device = None
        self.reason = ""

    def rank(self):
        """A sort key, of traits alone, that puts better devices first."""
        t = self.traits
        accelerator = bool(self.handle.type & cl.device_type.ACCELERATOR)
        width = t.vector_width if t.kind == "cpu" else 1
        return (
            accelerator, t.kind == "cpu", t.unified_memory and t.kind == "gpu", -t.fp64, -width, -t.fp16,
            -t.compute_units, -t.subgroups, -t.global_memory,
        )  # fmt: skip

    def matches(self, part):
        return part in self._words

    def info(self):
        d = self.device
        name, traits, refused = (d.name, d.traits, dict(d.refused_units)) if d else ("", self.traits, {})
        return DeviceInfo(name, traits.kind, self.platform, self.model, self.driver, d is not None, self.reason, traits, refused)


class _Unreadable(Exception):
    """A driver's answers make its device or platform unusable; the message is a clause."""


BAD_ANSWERS = cl.Error, UnicodeDecodeError, _Unreadable  # not ValueError: an invalid setting is an error


def _read(platform):
    """(Platform, its _Candidates). An invalid answer about a device leaves out that device; one about the platform, all of its devices."""
    try:
        name, version = platform.name.strip(), platform.version.strip()
    except BAD_ANSWERS as error:
        return Platform("a platform whose name cannot be read", "", 0, (_why(error),)), []
    try:
        handles = platform.get_devices()
    except cl.Error:
        handles = []  # a platform without devices
    found, left_out = [], []
    for handle in handles:
        try:
            found.append(_Candidate(handle))
        except BAD_ANSWERS as error:
            left_out.append(f"{_called(handle)}: {_why(error)}")
    return Platform(name, version, len(handles), tuple(left_out)), found


def _called(handle):
    try:
        return handle.name.strip()
    except BAD_ANSWERS:
        return "a device whose name cannot be read"


def _why(error):
    return f"its driver's text is not UTF-8 ({error.object!r})" if isinstance(error, UnicodeDecodeError) else str(error)


class _Registry:
    """The candidates of this process, best first, and the devices chosen from them."""

    def __init__(self):
        self.lock = threading.RLock()
        self.found = None
        self.platforms = []  # Platforms
        self.default = None
        self.turn = 0  # this process's index among the processes of its host that share devices
        self.by_name = {}
        self.parts = {}  # name -> Device of some of another one's compute units
        self.announced = set()
        self.examiners = {}  # name -> function of a Device
        self.users = {}  # name -> function of a Device
        self.examined = weakref.WeakKeyDictionary()  # Device -> names of the examiners that have seen it

    def candidates(self):
        with self.lock:
            if self.found is None:
                forced_sharing(), memory_limit()  # invalid settings are errors at once
                read = [_read(platform) for platform in platforms()]
                self.platforms = [platform for platform, _ in read]
                found = [candidate for _, candidates in read for candidate in candidates]
                self.found = sorted(found, key=_Candidate.rank)
            return self.found

    def usable(self, candidate):
        """The Device of a candidate; None if it fails the self-test."""
        with self.lock:
            if candidate.device is None and not candidate.reason:
                same = [c for c in self.candidates() if c.traits.kind == candidate.traits.kind and not c.reason]
                candidate.device, candidate.reason = self_test(candidate.handle, f"{candidate.traits.kind}:{same.index(candidate)}")
                if candidate.device is not None:
                    self.examine(candidate.device)
            return candidate.device

    def examine(self, device):
        """Call the examiners that have not seen `device`, which may take out what does not work on it."""
        seen = self.examined.setdefault(device, set())
        for name, examine in self.examiners.items():
            if name not in seen:
                seen.add(name)
                examine(device)

    def resolve(self, name):
        """The Device that `name` means; raises RuntimeError that lists the devices."""
        whole, part = parts.parse(name)
        return self.whole(whole) if part is None else self.part(self.whole(whole), part)

    def part(self, device, part):
        """The Device of a parts.Part of `device`; the same object each time."""
        with self.lock:
            name = f"{device.name}/{part}"
            if name not in self.parts:
                handle = parts.split(device, part)
                found, reason = (device, "") if handle is device.driver.handle else self_test(handle, name)
                if found is None:
                    raise RuntimeError(f"{device} has the part {part}, but it is not usable: {reason}")
                self.examine(found)
                self.parts[name] = found
            return self.parts[name]

    def whole(self, name):
        """The undivided Device that `name` means."""
        part = name.strip().lower().lstrip("/")
        with self.lock:
            kind = re.fullmatch(r"(cpu|gpu)(?::(\d+))?", part)
            if kind:
                skip = int(kind[2] or 0)
                matching = [c for c in self.candidates() if c.traits.kind == kind[1]]
            else:
                skip, matching = 0, [c for c in self.candidates() if part and c.matches(part)]
            for candidate in matching:
                if self.usable(candidate):
                    if not skip:
                        return candidate.device
                    skip -= 1
            raise RuntimeError(self.not_found(name))

    def not_found(self, name=None):
        known = [c.info() for c in self.candidates() if self.usable(c)]
        broken = [c.info() for c in self.candidates() if c.reason]
        if name is None or not known and not broken:
            text = "no usable OpenCL device found"
        else:
            text = f"no usable OpenCL device is called {name!r}"
        if known:
            text += "; there are: " + ", ".join(map(str, known))
        if left_out := [reason for platform in self.platforms for reason in platform.left_out]:
            text += "; left out: " + ", ".join(left_out)
        if broken:
            text += "; unusable: " + ", ".join(f"{info} ({info.reason})" for info in broken)
        if not known and not forced_sharing():
            text += f"; {ADVICE}; `python -m keras_ocl doctor` shows what was looked at"
        return text

    def choose_default(self):
        """The device of KERAS_OCL_DEVICE, which is read once, else the best device that works."""
        with self.lock:
            if self.default is None:
                name = os.environ.get("KERAS_OCL_DEVICE", "")
                if name:
                    chosen = self.resolve(name)
                else:
                    chosen = next((c.device for c in self.candidates() if self.usable(c)), None)
                    if chosen is None:
                        raise RuntimeError(self.not_found())
                self.default = chosen if re.search(r":\d|/\w", name) else self.in_turn(chosen)
            return self.default

    def in_turn(self, device):
        """This process's device among the usable ones like `device`, of one platform only: two may list the same hardware."""
        alike = [c for c in self.candidates() if (c.platform, c.model) == (device.platform, device.model) and self.usable(c)]
        return alike[self.turn % len(alike)].device if self.turn and alike else device

    def announce(self, device):
        with self.lock:
            if device.name in self.announced:
                return
            self.announced.add(device.name)
        if not device.runs:
            return
        announce("keras_ocl runs on %s: %s, %s, driver %s", device.name, device.model, device.platform, device.driver_version)
        record = read_quarantine(target_of(device)) if device.traits.quarantine else None
        if record is not None:
            kept_out = "; ".join(f"{name}: {why}" for name, why in record.kept_out.items())
            logger.warning("keras_ocl does not use all of its kernels on %s, as `python -m keras_ocl verify` said: %s.", device, kept_out)
        for use in self.users.values():
            use(device)


def announce(text, *values):
    """Log a message that users should see, such as which device is used; `text` is formatted with the values."""
    if not logger.hasHandlers() and logger.level == logging.NOTSET:  # nobody has set up logging
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
    logger.info(text, *values)


_registry = _Registry()
_scope = contextvars.ContextVar("keras_ocl device", default=None)


def self_test(handle, name):
    """(Device, "") if a one-line kernel builds, runs and gives the right values on `handle`; else (None, reason)."""
    reason, ways, forced = "", ways_of_sharing(handle), forced_sharing()
    if forced and forced not in ways:
        return None, f"KERAS_OCL_TRANSFER={forced} is no way to its memory; there {'are' if ways[1:] else 'is'} {', '.join(ways)}"
    for sharing in [forced] if forced else ways:
        try:
            device = Device(OpenCL(handle, sharing), name)
            kernel = device.build([("probe", SELF_TEST)])["probe"]
            values = np.arange(64, dtype=np.int32)
            storage = device.upload(values, "probe")
            kernel.set_arg(0, storage.mem)
            kernel.set_arg(1, np.int32(7))
            device.enqueue(kernel, (64,), None, "probe")
            if np.array_equal(device.download(storage, np.int32, (64,)), values * 3 + 7):
                device.statistics.reset()
                return device, ""
            reason = reason or "a one-line kernel computes wrong values"
        except KernelBuildError as error:
            return None, f"cannot compile a one-line kernel: {error.reason}"
        except (cl.Error, MemoryError, ValueError) as error:
            reason = reason or f"cannot run a one-line kernel: {error}"
    return None, reason


def open_again(device: Device, traits: Traits) -> Device:
    """Another Device of the same hardware, with memory, programs and a queue of its own, whose kernels are written for these `traits`."""
    found = Device(OpenCL(device.driver.handle, device.sharing), device.name)
    found.traits, found.refused_units = traits, dict(device.refused_units)
    return found


def examine_devices(name: str, examine: Callable[[Device], None]) -> None:
    """Call `examine` with every Device before it is handed out: with those that were, now. Another function of that `name` is replaced."""
    with _registry.lock:
        _registry.examiners[name] = examine
        for device in living_devices():
            _registry.examine(device)


def when_used(name: str, use: Callable[[Device], None]) -> None:
    """Call `use` with each Device when this process uses it for the first time. Another function of that `name` is replaced."""
    _registry.users[name] = use


def current_device() -> Device:
    """The device of the enclosing `device_scope`, else KERAS_OCL_DEVICE, else the best one that works.

    Raises RuntimeError, with advice what to install, if there is none.
    """
    device = _scope.get() or _registry.default
    if device is None:
        state.check_not_forked()
        device = _registry.choose_default()
    if device.name not in _registry.announced:
        _registry.announce(device)
    return device


def take_turn(place: int) -> None:
    """Where several like devices could be the default, choose the one `place` positions after the first, so that ranks of a host differ."""
    _registry.turn = place


def find_device(name: str) -> Device:
    """The Device called `name`: "gpu:0", "cpu", or part of a platform's or device's name (letter case is ignored).

    With `/units=N` or `/KofN` behind it, the name means a part of that device, see keras_ocl.runtime.parts.
    """
    state.check_not_forked()
    device = _registry.by_name.get(name)
    if device is None:
        device = _registry.by_name[name] = _registry.resolve(name)
    return device


@contextlib.contextmanager
def device_scope(name):
    """Within this context, current_device() is the device called `name` (or the Device given; None changes nothing)."""
    device = find_device(name) if isinstance(name, str) else name
    token = _scope.set(device if device is not None else _scope.get())
    try:
        yield device
    finally:
        _scope.reset(token)


def devices() -> list[DeviceInfo]:
    """Lists every OpenCL device found, usable or not, best first. Probes all of them.

    Returns:
        A list of `DeviceInfo`; empty when there is none.

    Raises:
        RuntimeError: in a forked child of a process that has used OpenCL.
    """
    state.check_not_forked()
    for candidate in _registry.candidates():
        _registry.usable(candidate)
    return [candidate.info() for candidate in _registry.candidates()]


def platform_list() -> list[Platform]:
    """Every platform, including those without devices."""
    state.check_not_forked()
    _registry.candidates()
    return list(_registry.platforms)
