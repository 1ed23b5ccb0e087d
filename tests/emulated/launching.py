"""A launch: kernel arguments and registers as AMD's runtime makes them (code object version 5), and what the driver says of its end."""

import ctypes
import itertools
import struct
import sys

from tests.emulated import settings
from tests.emulated.code_objects import COMPILE
from tests.emulated.statistics import COUNTS, timed

_WAVE = {"rdna3": 32, "rdna4": 32, "cdna": 64}
_NUMBER = {"rdna3": 0, "rdna4": 1, "cdna": 2}  # Launch.arch
_DONE, _BAD_ACCESS = 0, 4
_OUTCOMES = {  # `enum outcome` of driver/waves.h
    1: "an instruction cannot be emulated",
    2: "a wave left the program's code",
    3: "a wave executed too many instructions without a barrier (EMULATED_LIMIT)",
    _BAD_ACCESS: "an access outside of all buffers",
    5: "there is no memory for the waves",
    6: "no wave can continue",
}
_launches = itertools.count(1)


class Launch(ctypes.Structure):
    """`struct launch` of driver/waves.h."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("steps", ctypes.c_void_p),
        ("compile", COMPILE),
        ("groups", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("wave", "arch", "users")),
        ("user", ctypes.c_uint32 * 32),
        *((name, ctypes.c_uint32) for name in ("rsrc2", "scratch", "local", "denormals", "poison", "resident", "ulps")),
        *((name, ctypes.c_uint64) for name in ("seed", "limit", "executed", "place", "address")),
    ]


def run(library, code, name, grid, group, offset, args):
    """Execute a kernel of a CodeObject.

    Args:
        library: the driver. name: the kernel's. grid, group, offset: three numbers each, in work-items.
        args: (kind, value) each: ("g", address), ("l", bytes of local memory) or ("v", the value's bytes).

    Returns:
        0, or a key of _OUTCOMES, after a message on stderr.
    """
    own, (about, descriptor) = settings.current(), code.kernels[name]
    header = bytes(code.memory[descriptor : descriptor + 64])
    local, private = struct.unpack_from("<II", header, 0)
    (entry,) = struct.unpack_from("<q", header, 16)
    registers, rsrc2, properties = struct.unpack_from("<IIH", header, 48)
    groups = [g // n for g, n in zip(grid, group, strict=True)]
    values, local = _arguments(about, groups, grid, group, offset, args, local)
    memory = (ctypes.c_char * len(values)).from_buffer(values)
    # The dispatch packet, from which programs may read sizes of the group and the grid.
    packet = ctypes.create_string_buffer(struct.pack("<4x3H2x3I", *group, *grid), 64)
    pointers = {1: ctypes.addressof(packet), 3: ctypes.addressof(memory), 6: private}
    user = []  # scalar registers at the beginning, of which bits of the descriptor ask for some
    for bit, words in enumerate((4, 2, 2, 2, 2, 2, 1)):
        if properties >> bit & 1:
            user += [pointers.get(bit, 0) >> 32 * k & 0xFFFFFFFF for k in range(words)]
    start = code.base + descriptor + entry
    number = next(_launches)
    launch = Launch(
        base=code.base,
        size=code.size,
        steps=ctypes.addressof(code.steps),
        compile=code.compile,
        wave=_WAVE[code.architecture],
        arch=_NUMBER[code.architecture],
        users=max(rsrc2 >> 1 & 31, len(user)),
        rsrc2=rsrc2,
        scratch=-(-private // 4) * 4,
        local=local,
        denormals=registers >> 16 & 3,
        poison=own.poison,
        resident=own.resident,
        ulps=own.ulps,
        seed=own.seed and own.seed * 0x9E3779B97F4A7C15 + number & (1 << 64) - 1,
        limit=own.limit,
        place=start,
    )
    launch.groups[:], launch.group[:], launch.user[: len(user)] = groups, group, user
    with timed("seconds of executing, and of compiling instructions"):
        outcome = library.emulated_run(ctypes.byref(launch))
    COUNTS.totals.update({"launches": 1, "groups": groups[0] * groups[1] * groups[2], "instructions of waves": launch.executed})
    if own.trace:
        print(f"emulated: {number}: {name} {[*grid]} {[*group]}, {launch.executed} instructions", file=sys.stderr, flush=True)
    if outcome != _DONE:
        why = _OUTCOMES[outcome]
        if outcome == _BAD_ACCESS:
            nearest = ctypes.create_string_buffer(200)
            library.emulated_nearest(launch.address, nearest, len(nearest))
            why += f", at {launch.address:#x}: the nearest is {nearest.value.decode()}"
        print(f"emulated: {name} {[*grid]} {[*group]}: {why}; at byte {launch.place - start:#x} of its code", file=sys.stderr, flush=True)
    return outcome


def _arguments(about, groups, grid, group, offset, args, local):
    """(the memory of a kernel's arguments, bytes of local memory) where the kernel itself has `local` bytes of it."""
    values, given = bytearray(about[".kernarg_segment_size"] + 64), iter(args)
    dimensions = 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    sizes = {"block_count": groups, "group_size": group, "global_offset": offset}
    hidden = {f"hidden_{what}_{axis}": number for what, numbers in sizes.items() for axis, number in zip("xyz", numbers, strict=True)}
    hidden["hidden_grid_dims"] = dimensions
    for argument in about[".args"]:
        kind, at, size = argument[".value_kind"], argument[".offset"], argument[".size"]
        if kind.startswith("hidden_"):
            value = hidden.get(kind, 0)
        else:
            what, value = next(given)
            if what == "l":
                unit = max(argument.get(".pointee_align", 16), 16)
                start = -(-local // unit) * unit
                value, local = start, start + value
        values[at : at + size] = value if isinstance(value, bytes) else int(value).to_bytes(size, "little")
    return values, local
