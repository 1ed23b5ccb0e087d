"""Which matrix units a device may have, and on disk, which of them a probe has shown to work.

No driver tells of all of them. So a device's architecture says which to try, and a kernel shows whether each does what is expected of it
(compiler/matrix_units.py). Its verdict is kept in the cache's folder, by device and driver. A compiler may end the process instead of
refusing an instruction: that the probe has begun is written first, and one that did not end is not begun again.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from keras_ocl.runtime.disk_cache import DiskCache, cache_folder
from keras_ocl.runtime.private import read_private, write_private

# Bytes: of MFMA by the cycles of its instructions in LLVM's scheduling model: of gfx90a as many as float16's for as many steps of k, from
# gfx940 on as many for twice the steps. Of the others assumed: twice the rate of float16, as an instruction has twice the steps; of sm_86
# and its like four times, since float32 sums halve that of float16 there; of gfx11, whose instruction has no more steps, the same.
_CDNA3_I8: dict[str, float] = {"mfma_32x32x16_i8": 16, "mfma_16x16x32_i8": 16}
# Pattern of an architecture's whole name -> its units, and the multiply-adds that each does in the time of one of a work-item, by the
# vendors' stated peaks. Of sm_90, mma.sync reaches some 60 % of what wgmma does (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper
# GPU Architecture", 2024). Of gfx11 and gfx12, one of two multiply-adds that a SIMD may issue counts.
_BY_ARCHITECTURE: tuple[tuple[str, dict[str, float]], ...] = (
    (r"sm_75", {"mma_m16n8k8": 8, "mma_m8n8k16_i8": 16}),
    (r"sm_80", {"mma_m16n8k16": 16, "mma_m16n8k8_tf32": 8, "mma_m16n8k32_i8": 32}),
    (r"sm_8[679]", {"mma_m16n8k16": 2, "mma_m16n8k32_i8": 8}),
    (r"sm_9\d", {"mma_m16n8k16": 9, "mma_m16n8k8_tf32": 4.5, "mma_m16n8k32_i8": 18}),
    (r"sm_10\d", {"mma_m16n8k16": 9, "mma_m16n8k8_tf32": 4.5, "mma_m16n8k32_i8": 18}),
    (r"sm_1[12]\d", {"mma_m16n8k16": 2, "mma_m16n8k32_i8": 8}),
    (r"gfx11\d\d", {"wmma_gfx11": 4, "wmma_gfx11_i8": 4}),
    (r"gfx12\d\d", {"wmma_gfx12": 8, "wmma_gfx12_i8": 16}),
    (
        r"gfx94\d",
        {"mfma_32x32x8": 8, "mfma_16x16x16": 8, "mfma_32x32x2": 2, "mfma_32x32x4_xf32": 4, "mfma_16x16x8_xf32": 4} | _CDNA3_I8,
    ),
    (r"gfx90a", {"mfma_32x32x8": 8, "mfma_16x16x16": 8, "mfma_32x32x2": 2, "mfma_32x32x8_i8": 8, "mfma_16x16x16_i8": 8}),
    (r"gfx95\d", {"mfma_32x32x8": 8, "mfma_16x16x16": 8, "mfma_32x32x2": 2} | _CDNA3_I8),
)
_INTEL = {"dpas_16": 16.0, "dpas_8": 8.0, "dpas_8_i8": 16.0}
USUAL_RATE = 8.0  # of a unit of which nothing is known
_BEGUN, _ENDED = "begun", "its probe ended a process"


def candidates(architecture: str, extensions: list[str]) -> dict[str, float]:
    """Names of the matrix units that a GPU may have, or those that KERAS_OCL_MATRIX names, by commas, none where it is "off"; with
    the multiply-adds that each does in the time of one of a work-item."""
    known = next((units for pattern, units in _BY_ARCHITECTURE if re.fullmatch(pattern, architecture)), {})
    if "cl_intel_subgroup_matrix_multiply_accumulate" in extensions:
        known = _INTEL
    named = os.environ.get("KERAS_OCL_MATRIX", "")
    if not named:
        return known
    return {} if named == "off" else {name.strip(): known.get(name.strip(), USUAL_RATE) for name in named.split(",")}


class Verdicts:
    """The verdicts on a device's units, in one file; in memory alone where there is no folder to write to.

    A verdict is "" where the unit works, else the reason why it is not used, as a clause.
    """

    def __init__(self, model: str, driver: str) -> None:
        folder = cache_folder()
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{model.strip()} {driver}").strip("-.")
        self.file: Path | None = folder / "units" / f"{name}.json" if folder else None
        self._claims = DiskCache(warns=False).claims

    def of(self, name: str, source: str, probe: Callable[[], str]) -> str:
        """The verdict on the kernel `name` with this source: the stored one, else that of `probe`, which one process calls, once."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        key = f"{name} {digest[:16]}"
        self._claims.take_all([digest])  # while another process tries it, this one waits
        try:
            found = self._read().get(key)
            if found is None:
                self._write(key, _BEGUN)
                found = probe()
                self._write(key, found)
            return _ENDED if found == _BEGUN else found
        finally:
            self._claims.give_back([digest])

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(read_private(self.file)) if self.file else {}
        except (OSError, ValueError):
            return {}
        return {k: v for k, v in content.items() if isinstance(v, str)} if isinstance(content, dict) else {}

    def _write(self, key: str, verdict: str) -> None:
        if self.file:
            try:
                write_private(self.file, json.dumps({**self._read(), key: verdict}, indent=1).encode())
            except OSError:
                self.file = None  # no verdict outlives the process then
