"""What a process with an emulated GPU is told by its environment, and what the machine must have for it.

`driver/` reads EMULATED_DEVICE, EMULATED_GUARD, EMULATED_POISON, EMULATED_MEMORY and EMULATED_MAX_GROUP itself.
"""

import functools
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

DEVICES = {"gfx1100": "RDNA 3, Radeon RX 7900", "gfx1201": "RDNA 4, Radeon RX 9070", "gfx942": "CDNA 3, Instinct MI300"}
EMULATOR = "test/mockgpu/amd/emu.py"  # in a checkout of tinygrad
POISON = 0x7FFF7FFF  # as in driver/objects.h
GUARDS = ("start", "end", "alternate")
# Program or file -> the package of Debian that has it. `clang` compiles the functions that execute instructions.
_PROGRAMS = {"gcc": "gcc", "clang": "clang", "clang-19": "clang-19", "ld.lld-19": "lld-19"}
_HEADER = Path("/usr/include/CL/cl_icd.h")
_MODULES = {"msgpack": "msgpack", "elftools": "pyelftools"}  # module -> package of PyPI


class Unusable(Exception):
    """The emulated GPU cannot be used; the text is a sentence that says why and what helps."""


@dataclass(frozen=True)
class Settings:
    """The settings of a process.

    Attributes:
        device: a key of DEVICES. checkout: folder of tinygrad. cache: folder of what is compiled.
        seed: of the order of waves and groups; 0: one after the other. resident: groups of a launch that run at the same time, 1 to 8.
        ulps: seed of the last bits of approximate instructions (v_rcp_f32 and others); 0: correctly rounded.
        poison: what registers, scratch and local memory hold at first, a word. limit: most instructions of a wave between two barriers.
        guard: which end of a buffer lies at a page that cannot be accessed; "" for the end, with the usual sizes of buffers.
        statistics: whether counts of instructions are printed at the end; 2: of all kinds. trace: whether launches are printed; 2: kinds of
        instructions at their first use, too. dump: folder for sources of programs, or None. shadow: whether each launch is compared with a
        CPU runtime. shadow_ulps: which differences are no faults, in units of the last place.
    """

    device: str
    checkout: Path
    cache: Path
    seed: int = 1
    resident: int = 3
    ulps: int = 0
    poison: int = POISON
    limit: int = 100_000_000
    guard: str = ""
    statistics: int = 0
    trace: int = 0
    dump: Path | None = None
    shadow: bool = False
    shadow_ulps: int = 64

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """The settings that variables EMULATED_... give. Raises Unusable for a value that is none."""

        def number(name, otherwise, low=0, high=2**32 - 1):
            text = environment.get(f"EMULATED_{name}") or str(otherwise)
            try:
                value = int(text, 0)
            except ValueError:
                value = None
            if value is None or not low <= value <= high:
                raise Unusable(f"EMULATED_{name}={text!r} is no whole number from {low} to {high}.")
            return value

        guard = environment.get("EMULATED_GUARD", "")
        if guard and guard not in GUARDS:
            raise Unusable(f"EMULATED_GUARD={guard!r} is none of {', '.join(GUARDS)}.")
        cache = environment.get("EMULATED_CACHE") or Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "keras_ocl-emulated")
        number("MEMORY", 2 << 30, 1 << 24, 1 << 44), number("MAX_GROUP", 256, 1, 1024)
        return cls(
            device=known(environment.get("EMULATED_DEVICE") or "gfx1100"),
            checkout=Path(environment.get("EMULATED_CHECKOUT", "")),
            cache=Path(cache),
            seed=number("SEED", cls.seed),
            resident=number("RESIDENT", cls.resident, 1, 8),
            ulps=number("ULPS", cls.ulps),
            poison=number("POISON", cls.poison),
            limit=number("LIMIT", cls.limit, 1, 2**63),
            guard=guard,
            statistics=number("STATS", 0, 0, 2),
            trace=number("TRACE", 0, 0, 2),
            dump=Path(environment["EMULATED_DUMP"]) if environment.get("EMULATED_DUMP") else None,
            shadow=bool(number("SHADOW", 0, 0, 1)),
            shadow_ulps=number("SHADOW_ULPS", cls.shadow_ulps),
        )

    def environment(self) -> dict[str, str]:
        """The variables that tell another process the same device, checkout and cache; the others it inherits."""
        return {
            "EMULATED_DEVICE": self.device,
            "EMULATED_CHECKOUT": str(self.checkout.resolve()),
            "EMULATED_CACHE": str(self.cache.resolve()),
        }


def known(device: str) -> str:
    """`device`, if it can be emulated; else Unusable."""
    if device not in DEVICES:
        raise Unusable(f"There is no emulated device {device!r}; there are {', '.join(DEVICES)}.")
    return device


def device_libraries() -> Path | None:
    """The folder of ROCm's device libraries, if they are installed."""
    return next((found for root in ("/usr/lib", "/opt/rocm") for found in sorted(Path(root).glob("**/amdgcn/bitcode"))), None)


def check(checkout: Path) -> None:
    """Raises Unusable, where `checkout` is no checkout of tinygrad or something else is missing."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unusable(f"The emulated GPU needs Linux on x86-64, and this is {platform.system()} on {platform.machine()}.")
    if not (checkout / EMULATOR).exists():
        raise Unusable(f"{checkout} is no checkout of tinygrad (https://github.com/tinygrad/tinygrad): it has no {EMULATOR}.")
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    missing += [] if _HEADER.exists() else ["opencl-headers", "ocl-icd-opencl-dev"]
    missing += [] if device_libraries() else ["rocm-device-libs"]
    if missing:
        raise Unusable(f"The emulated GPU needs programs that are not installed: on Debian, apt install {' '.join(missing)}.")
    missing = [package for module, package in _MODULES.items() if find_spec(module) is None]
    if missing:
        raise Unusable(f"The emulated GPU needs packages that are not installed: pip install {' '.join(missing)}.")


@functools.cache
def current() -> Settings:
    """The settings of this process."""
    return Settings.of(os.environ)
