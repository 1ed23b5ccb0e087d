"""GPU vendors' compilers, run for a device that is not present: what they reject, and each kernel's resources.

- "nvidia:sm_86": clang compiles OpenCL C to PTX, NVIDIA's ptxas to machine code. NVIDIA's own OpenCL compiler has another front end.
- "amd:gfx1030": clang's AMDGPU target with ROCm's device libraries, of which ROCm's OpenCL compiler consists, too.
- "intel:dg2": ocloc, Intel's OpenCL compiler itself.

On Debian: clang-19, libclc-19 and rocm-device-libs, intel-opencl-icd; ptxas and nvdisasm come in the wheels nvidia-cuda-nvcc and
nvidia-cuda-nvdisasm. The variables CLANG, PTXAS, NVDISASM and OCLOC name other executables.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from keras_ocl.vendors.instructions import Mix, inner_loop

_CLANG = ["-x", "cl", "-cl-std=CL1.2", "-O3", "-Xclang", "-finclude-default-header", "-S"]
_LIBCLC = Path("/usr/lib/clc")
_ROCM = (Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"), Path("/opt/rocm/amdgcn/bitcode"))
_PTXAS = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r"\s+ptxas info\s*: Used (\d+) registers",
    re.S,
)
_REQUIRED = re.compile(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)\)\)\s*(?:__attribute__\S+\s*)*void (\w+)\(")
_ENTRY = re.compile(r"(\.entry (\w+)\(.*?\))(\s*\{)", re.S)
_REMARK = re.compile(r"remark: [^\n]*?(Function Name|VGPRs|VGPRs Spill|ScratchSize \[bytes/lane\]): (\S+)")


class Rejected(RuntimeError):
    """A vendor's compiler refused a program; the message holds its log."""


@dataclass(frozen=True)
class Resources:
    """A kernel's resources, as its compiler reports them.

    Attributes:
        registers: 32-bit registers per work-item.
        spilled: bytes (AMD: registers) per work-item that are spilled to memory.
        private: bytes of private memory per work-item: arrays that are not in registers, and spills.
        wave: work-items that run in lockstep.
        loop: the instruction mix of its inner loop; None if not asked for, or not readable.
    """

    registers: int
    spilled: int
    private: int
    wave: int
    loop: Mix | None = None


def compile_program(target, source, loops=False):
    """Compiles OpenCL C for a device.

    Args:
        target: vendor and device, such as "nvidia:sm_86", "amd:gfx1030" or "intel:dg2".
        source: the program's text.
        loops: whether to read kernels' inner loops; NVIDIA's need nvdisasm, and Intel's are not read.

    Returns:
        A dict from the kernels' names to their Resources.

    Raises:
        Rejected: the compiler refuses the program.
        FileNotFoundError: a tool is not installed; the message says what is missing.
        ValueError: there is no such vendor.
    """
    vendor, _, device = target.partition(":")
    if vendor not in _VENDORS:
        raise ValueError(f"there is no compiler {target!r}: it is one of {', '.join(_VENDORS)}, a colon and a device's name")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.cl")
        path.write_text(source)
        return _VENDORS[vendor](path, device, Path(folder), loops)


def tool(variable, *names):
    """The path of an executable: the environment variable's value, or the first of `names` on the path."""
    found = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if not found and variable in ("PTXAS", "NVDISASM") and (cu := util.find_spec("nvidia")):
        found = next((str(p) for root in cu.submodule_search_locations for p in Path(root).glob(f"cu*/bin/{names[-1]}")), None)
    if not found:
        raise FileNotFoundError(f"{names[-1]} is not installed; on Debian and PyPI: {_PACKAGES[variable]}, or set {variable}")
    return found


_PACKAGES = {
    "CLANG": "apt install clang-19 libclc-19 libclc-19-dev rocm-device-libs",
    "PTXAS": "pip install nvidia-cuda-nvcc",
    "NVDISASM": "pip install nvidia-cuda-nvdisasm",
    "OCLOC": "apt install intel-opencl-icd",
}


def run(command, target):
    """The output of a command. Raises Rejected, with the end of the output, where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise Rejected(f"{target}: {Path(command[0]).name} refused the program:\n{done.stdout[-4000:]}")
    return done.stdout


def _bitcode(paths, what):
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        raise FileNotFoundError(f"{what} is not installed; on Debian: {_PACKAGES['CLANG']}")
    return str(found)


def _nvidia(source, device, folder, loops):
    clang, ptxas, ptx = tool("CLANG", "clang-19", "clang"), tool("PTXAS", "ptxas"), folder / "program.ptx"
    library = _bitcode([_LIBCLC / "nvptx64--nvidiacl.bc"], "libclc for NVIDIA")
    options = [x for option in ("-target-cpu", device, "-mlink-bitcode-file", library) for x in ("-Xclang", option)]
    # NVIDIA's OpenCL C has the keyword asm, which clang's strict standard leaves out, and this function as an instruction, not libclc.
    language = ["-fgnu-keywords", "-Dnative_exp2=__nvvm_ex2_approx_f", "-target", "nvptx64-nvidia-nvcl"]
    run([clang, *_CLANG, *language, *options, "-o", str(ptx), str(source)], device)
    # clang does not tell ptxas a kernel's required work-group size. Unless told, ptxas gives the work-items of a large group more registers
    # than a unit has for all of them; told of smaller groups, it would spill some bytes in order to fill a unit.
    large = {name: f"\n.reqntid {x}, {y}, {z}" for x, y, z, name in _REQUIRED.findall(source.read_text()) if int(x) * int(y) * int(z) > 256}
    ptx.write_text(_ENTRY.sub(lambda found: found[1] + large.get(found[2], "") + found[3], ptx.read_text()))
    log = run([ptxas, "-v", f"-arch={device}", str(ptx), "-o", str(folder / "program.cubin")], device)
    texts = {}
    if loops:
        code = run([tool("NVDISASM", "nvdisasm"), "-c", str(folder / "program.cubin")], device)
        texts = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", code, re.S | re.M))
    return {
        name: Resources(int(registers), int(stores) + int(loads), int(stack), 32, inner_loop(texts[name]) if loops else None)
        for name, stack, stores, loads, registers in _PTXAS.findall(log)
    }


def _amd(source, device, folder, loops):
    clang, long = tool("CLANG", "clang-19", "clang"), len(device) > len("gfx900")  # RDNA's names are longer
    wave = 32 if long else 64
    libraries = ["opencl", "ocml", "ockl", _isa_library(device), f"oclc_wavefrontsize64_{'off' if long else 'on'}"]
    libraries += [f"oclc_{option}" for option in ("daz_opt_on", "finite_only_off", "unsafe_math_off", "correctly_rounded_sqrt_off")]
    libraries.append("oclc_abi_version_500")
    links = []
    for name in libraries:
        path = _bitcode([folder / f"{name}.bc" for folder in _ROCM], f"ROCm's library {name}")
        links += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", path]
    target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={device}", "-nogpulib"]
    remarks = ["-Rpass-analysis=kernel-resource-usage", "-o", str(folder / "program.s"), str(source)]
    found, kernels = {}, run([clang, *_CLANG, *target, *links, *remarks], device)
    for key, value in _REMARK.findall(kernels):
        if key == "Function Name":
            found[value] = now = {}
        else:
            now[key] = int(value)
    code = (folder / "program.s").read_text() if loops else ""
    texts = dict(re.findall(r"^(\w+):.*?\n(.*?)^\t\.section", code, re.S | re.M))
    return {
        # Spilled scalar registers are kept in lanes of vector registers, not in memory.
        name: Resources(k["VGPRs"], k["VGPRs Spill"], k["ScratchSize [bytes/lane]"], wave, inner_loop(texts[name]) if loops else None)
        for name, k in found.items()
    }


def _isa_library(device):
    """The library that defines the device's instructions for the others; if ROCm is older than the device, the newest one below it."""
    wanted = int(device.removeprefix("gfx"), 16)
    known = {int(path.stem.rpartition("_")[2], 16) for folder in _ROCM for path in folder.glob("oclc_isa_version_*.bc")}
    return f"oclc_isa_version_{max((n for n in known if n <= wanted), default=wanted):x}"


def _intel(source, device, folder, loops):
    ocloc = tool("OCLOC", "ocloc")
    command = [ocloc, "compile", "-file", str(source), "-device", device, "--format", "zebin", "-options", "-cl-std=CL1.2"]
    run([*command, "-out_dir", str(folder)], device)
    binary = next(folder.glob("*.bin")).read_bytes()
    about = binary[binary.index(b"\nkernels:") :].split(b"\0", 1)[0].decode()  # the section .ze_info, which is YAML
    found = {}
    for text in re.split(r"\n  - name: +", about)[1:]:
        if "simd_size" not in text:
            continue  # an entry with names of arguments
        number = {key: int(n) for key, n in re.findall(r"\n      (grf_count|simd_size): +(\d+)", text)}
        wave, item = number["simd_size"], {"spill_fill_space": 0}
        for usage, size, each in re.findall(r"usage: +(\w+)\n +size: +(\d+)(\n +is_simt_thread: +true)?", text):
            item[usage] = int(size) if each else -(-int(size) // wave)
        registers = number["grf_count"] * (64 if device == "pvc" else 32) // 4 // wave
        found[text.split("\n", 1)[0].strip()] = Resources(registers, item["spill_fill_space"], sum(item.values()), wave)
    return found


_VENDORS = {"nvidia": _nvidia, "amd": _amd, "intel": _intel}
