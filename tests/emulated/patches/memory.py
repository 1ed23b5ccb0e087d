"""Loads and stores at any address, as the hardware has them, and the values that atomic operations return."""

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from tests.emulated.patches.text import ask_in_place_of, changed, inner, statements

_HALVES = (dtypes.uint16, dtypes.int16, dtypes.short, dtypes.half)


def apply(emu, pcode):
    loads_of_16_bits(pcode)
    stores_of_32_bits(emu)
    local_stores_and_returned_values(emu)


def loads_of_16_bits(pcode):
    """They took what is in one word; the compiler makes one of two neighbouring bytes wherever these are."""
    parser = next(v for v in vars(pcode).values() if isinstance(v, type) and hasattr(v, "_handle_mem_load"))
    before = parser._handle_mem_load

    def load(self, address, dtype):
        memory = self.vars.get("_vmem") if "_vmem" in self.vars else self.vars.get("_lds")
        if dtype not in _HALVES or memory is None or memory.dtype == dtypes.uint8:
            return before(self, address, dtype)

        def word(value):
            return UOp.const(value, dtypes.uint32)

        start = address & UOp.const(~3 & (2**64 - 1 if address.dtype == dtypes.uint64 else 2**32 - 1), address.dtype)
        byte = (address & UOp.const(3, address.dtype)).cast(dtypes.uint32)
        first = (before(self, start, dtypes.uint32) >> (byte * word(8))) & word(0xFFFF)
        crosses = byte.eq(word(3))
        # The next word is read only where a value crosses: else this one again.
        step = crosses.where(UOp.const(4, address.dtype), UOp.const(0, address.dtype))
        second = before(self, start + step, dtypes.uint32)
        both = crosses.where((first & word(0xFF)) | ((second & word(0xFF)) << word(8)), first).cast(dtypes.uint16)
        return both.bitcast(dtypes.half) if dtype == dtypes.half else pcode._cast_to(both, dtype)

    parser._handle_mem_load = load


def stores_of_32_bits(emu):
    """They went to the beginning of their word. The memory is there once more by bytes, since an instruction's stores may share a word."""
    before, by_bytes = emu._mem_store, UOp.param(6, dtypes.uint8, (1 << 46,))

    def store(memory, address, value, active, addr_bits=32, data_bits=32):
        if data_bits != 32 or memory is not emu._Ctx.vmem:
            return before(memory, address, value, active, addr_bits, data_bits)
        return bytes_of(emu, by_bytes, address, value, active)

    emu._mem_store = store


def bytes_of(emu, memory, address, value, active):
    """Stores of the four bytes of a value."""
    word = emu._to_u32(value)
    places = [memory.index((address + UOp.const(k, address.dtype)).valid(active)) for k in range(4)]
    return [place.store((word >> UOp.const(8 * k, dtypes.uint32)).cast(dtypes.uint8)) for k, place in enumerate(places)]


def local_stores_and_returned_values(emu):
    """Stores of 32 bits to local memory, likewise, but for atomic operations, which read and write words.

    And RDNA 4 and CDNA 3 say in other fields than `glc` that an atomic operation returns what was there.
    """
    by_bytes = UOp.param(7, dtypes.uint8, (65536,))
    emu._local_store = lambda address, value, active: UOp.group(*bytes_of(emu, by_bytes, address, value, active))
    emu._returns = lambda inst: emu._iattr(inst, "glc") or emu._iattr(inst, "sc0") or emu._iattr(inst, "th") & 1
    names = ("STORE_B", "WRITE_B", "STORE_2ADDR", "WRITE2")
    ours = f"if data_bits == 32 and is_lds and any(n in op_name for n in {names}): return _local_store(addr, val, active)"

    def change(tree):
        inner(tree, "wmem").body[:0] = statements(ours)
        ask_in_place_of(tree, "glc", "_returns")

    changed(emu, "_compile_mem_op", change)
