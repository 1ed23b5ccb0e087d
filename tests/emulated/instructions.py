"""A function in machine code of the host for each kind of instruction: tinygrad's emulator writes them, and they are stored on disk."""

import functools
import hashlib
import importlib
import os
import pickle
import re
import sys
import threading
import types
from pathlib import Path

from tests.emulated import patches, settings

lock = threading.RLock()  # the emulator is not made for several threads


@functools.cache
def emulator():
    """tinygrad's module `emu`, with patches. Its checkout stays as it is."""
    own = settings.current()
    own.cache.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CACHEDB", str(own.cache / "tinygrad.db"))
    os.environ.setdefault("DEV", "CPU")
    # The checkout's folder `test` is made a package here, so that Python's own package of that name does not hide it.
    for name in [name for name in sys.modules if name.partition(".")[0] == "test"]:
        del sys.modules[name]
    package = types.ModuleType("test")
    package.__path__ = [str(own.checkout / "test")]
    sys.modules["test"] = package
    sys.path.append(str(own.checkout))
    try:
        emu, pcode = (importlib.import_module(f"test.mockgpu.amd.{name}") for name in ("emu", "pcode"))
    finally:
        sys.path.remove(str(own.checkout))
    patches.apply(emu, pcode)
    return emu


class Kind:
    """A kind of instructions: those of `size` bytes whose bits in `mask` are those of `base`.

    `buffers` says which of a wave's memories the function takes. `compiled` is the function as it is stored.
    """

    def __init__(self, base, mask, size, buffers, compiled):
        self.base, self.mask, self.size, self.buffers, self.compiled = base, mask, size, buffers, compiled

    def has(self, raw):
        return int.from_bytes(raw[: self.size], "little") & self.mask == self.base

    @functools.cached_property
    def function(self):
        """The function, loaded."""
        from tinygrad.device import Device, TinyELF

        library, name, signature = self.compiled
        device = Device["CPU"]
        return device.runtime(TinyELF(library, name, device.renderer.target, signature))


class Instructions:
    """The Kinds of an architecture's instructions that have been met, also by earlier processes."""

    def __init__(self, architecture):
        emu = emulator()
        self.architecture, self.emu, self.new, self.kinds = architecture, emu, 0, {}
        pcode = sys.modules[f"{emu.__package__}.pcode"]
        sources = [Path(emu.__file__), Path(pcode.__file__), *sorted(Path(patches.__file__).parent.glob("*.py"))]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
        self.path = settings.current().cache / f"{architecture}-{digest}.pickle"
        if self.path.exists():
            with self.path.open("rb") as file:
                while True:
                    try:
                        name, *about = pickle.load(file)
                    except (EOFError, pickle.UnpicklingError):  # the last one may be unfinished
                        break
                    self.kinds.setdefault(name, []).append(Kind(*about))

    def kind(self, raw):
        """(the Kind, the emulator's object) of the instruction at the beginning of `raw`; NotImplementedError where there is none."""
        instruction = self.emu.decode_inst(raw, self.architecture)
        name = type(instruction).__name__
        for kind in self.kinds.get(name, ()):
            if kind.size == instruction.size() and kind.has(raw):
                return kind, instruction
        kind = self._compile(raw, instruction)
        self.kinds.setdefault(name, []).append(kind)
        with self.path.open("ab") as file:
            file.write(pickle.dumps((name, kind.base, kind.mask, kind.size, kind.buffers, kind.compiled)))
        self.new += 1
        return kind, instruction

    def _compile(self, raw, instruction):
        from tinygrad.device import Device

        emu, classes = self.emu, type(instruction).__mro__
        handler = next((emu._INST_HANDLERS[c] for c in classes if c in emu._INST_HANDLERS), None)
        if handler is None:
            raise NotImplementedError(f"the emulator has no instructions {type(instruction).__name__}")
        context = emu._Ctx(instruction.size(), emu._wave_size(self.architecture))
        sink = handler(instruction, context)
        base, mask, size = context.canonical_mask(raw)
        label = re.sub(r"\W", "_", f"{emu._op_name(instruction).lower()}_{base.to_bytes(size, 'little').hex()}")
        sink = sink.replace(arg=emu.KernelInfo(name=label)).rtag(1)
        with emu.Context(NOOPT=1, CHECK_OOB=0, TUPLE_ORDER=0, EMULATED_DTYPES="", CAPTURE_PROCESS_REPLAY=0, PROFILE=0):
            program = emu.to_program(sink, Device["CPU"].renderer)
        elf = program.to_elf()
        return Kind(base, mask, size, tuple(program.arg.globals), (elf.lib, elf.name, elf.signature))

    def is_barrier(self, instruction):
        """Whether a wave waits there for the others of its group."""
        emu = self.emu
        return isinstance(instruction, (emu.ir3.SOPP, emu.ir4.SOPP, emu.irc.SOPP)) and instruction.op in emu._BARRIER_OPS

    def denormals(self, instruction):
        """1 + what the instruction makes of denormal floats from then on (bit 0: operands count, bit 1: results do), or 0."""
        name = getattr(getattr(instruction, "op", None), "name", "")
        if name == "S_DENORM_MODE":
            return 1 + (int(instruction.simm16) & 3)
        if name != "S_SETREG_IMM32_B32":
            return 0
        where = int(instruction.simm16)  # register, first bit, bits - 1
        register, first, bits = where & 63, where >> 6 & 31, (where >> 11 & 31) + 1
        if register != 1 or first > 4 or first + bits < 6:
            return 0
        value = int(instruction.literal if hasattr(instruction, "literal") else instruction.simm32)
        return 1 + (value >> (4 - first) & 3)

    def text(self, raw):
        """The instruction in words."""
        try:
            return repr(self.emu.decode_inst(raw, self.architecture))
        except Exception as error:  # whatever the decoder makes of bytes that are none
            return f"that cannot be decoded ({error})"


@functools.cache
def instructions(architecture):
    """The Instructions of an architecture."""
    return Instructions(architecture)
