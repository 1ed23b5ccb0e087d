"""A code object in memory, of which each instruction is compiled at its first use."""

import ctypes
import mmap
import sys
import traceback

import numpy as np

from tests.emulated import settings
from tests.emulated.compiling import architecture, read_object
from tests.emulated.instructions import instructions, lock
from tests.emulated.statistics import COUNTS, timed

# Instructions that write back or empty caches, of which there are none: (first word, mask, words). They become s_nop.
_CACHES = {
    "rdna3": [(0xE0AC0000, 0xFFFFFFFF, 2), (0xE0B00000, 0xFFFFFFFF, 2)],  # buffer_gl0_inv, buffer_gl1_inv
    "rdna4": [(0xEE000000 | op << 14, 0xFF3FC000, 3) for op in (43, 44, 79)],  # global_inv, global_wb, global_wbinv
    "cdna": [(0xE0000000 | op << 18, 0xFFFC0000, 2) for op in (40, 41)],  # buffer_wbl2, buffer_inv
}
_NOP = 0xBF800000
LONGEST = 16  # bytes of an instruction

COMPILE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)


class Step(ctypes.Structure):
    """`struct step` of driver/waves.h."""

    _fields_ = [
        ("fn", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("lanes", ctypes.c_uint64),
        ("buffer", ctypes.c_uint8 * 6),
        ("waits", ctypes.c_uint8),
        ("mode", ctypes.c_uint8),
    ]


class CodeObject:
    """A code object.

    Attributes:
        base, size: address and bytes of its memory. kernels: name -> (its metadata, offset of its descriptor).
        steps: a Step per word of memory. known: index of a Step -> instruction, of those that were executed.
    """

    def __init__(self, code, device):
        self.architecture = architecture(device)
        elf, kernels = read_object(code)
        if any(section["sh_type"] == "SHT_RELA" and section.num_relocations() for section in elf.iter_sections()):
            raise NotImplementedError("a code object with relocations")
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        self.size = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loads)
        self.memory = mmap.mmap(-1, self.size + 8192)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for segment in loads:
            self.memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
        text = elf.get_section_by_name(".text")
        words = np.frombuffer(self.memory, "<u4")[text["sh_addr"] // 4 : (text["sh_addr"] + text["sh_size"]) // 4]
        for first, mask, length in _CACHES[self.architecture]:
            for k in np.flatnonzero((words & mask) == first):
                words[k : k + length] = _NOP
        symbols = {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
        self.kernels = {kernel[".name"]: (kernel, symbols[kernel[".symbol"]]) for kernel in kernels}
        self.steps, self.known = (Step * (self.size // 4 + 1))(), {}
        self.compile = COMPILE(self._compile)

    def _compile(self, place):
        """Compile the instruction at an address; 1 if that cannot be done."""
        raw = bytes((ctypes.c_char * LONGEST).from_address(place))
        known, trace = instructions(self.architecture), settings.current().trace
        try:
            with lock, timed("seconds of compiling instructions"):
                kind, instruction = known.kind(raw)
                index = (place - self.base) >> 2
                step = self.steps[index]
                for k, buffer in enumerate(kind.buffers):
                    step.buffer[k] = buffer
                step.waits, step.mode = known.is_barrier(instruction), known.denormals(instruction)
                step.fn = kind.function.addr
                self.known[index] = instruction
            if trace > 1:
                print(f"emulated: {place - self.base:#x} {instruction!r}", file=sys.stderr, flush=True)
            return 0
        except Exception as error:  # whatever the emulator cannot do; the launch fails
            if trace:
                traceback.print_exc()
            why = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"emulated: {why}, in the instruction {known.text(raw)} ({raw.hex()})", file=sys.stderr, flush=True)
            return 1

    def counted(self):
        """Add what has been executed to COUNTS, and forget it here."""
        for index, instruction in self.known.items():
            step = self.steps[index]
            if step.count:
                COUNTS.add(instruction, instructions(self.architecture).emu._op_name(instruction), step.count, step.lanes)
                step.count = step.lanes = 0
