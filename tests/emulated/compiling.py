"""OpenCL C to machine code of an AMD GPU, by clang and ROCm's device libraries, and what a code object says of its kernels."""

import io
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.emulated.settings import device_libraries

CLANG, LLD = "clang-19", "ld.lld-19"
_FAST, _FINITE, _UNSAFE = "-cl-fast-relaxed-math", "-cl-finite-math-only", "-cl-unsafe-math-optimizations"
_IGNORED = ("-cl-kernel-arg-info", "-cl-opt-disable", "-g")
_KINDS = {"global_buffer": "g", "dynamic_shared_pointer": "l", "by_value": "v"}


def architecture(device):
    """The name of a device's instruction set: rdna3, rdna4 or cdna."""
    return "cdna" if len(device) <= len("gfx942") else "rdna4" if device.startswith("gfx12") else "rdna3"


def compile_object(source, options, device):
    """(the code object or None, the compiler's messages) for a source with a driver's options."""
    given = shlex.split(options)
    level = "-O0" if "-cl-opt-disable" in given else "-O3"
    links = [part for name in _libraries(given, device) for part in ("-Xclang", "-mlink-builtin-bitcode", "-Xclang", name)]
    if not any(option.startswith("-cl-std") for option in given):
        given.insert(0, "-cl-std=CL1.2")
    given = [option for option in given if option not in _IGNORED]
    with tempfile.TemporaryDirectory() as folder:
        text, code = Path(folder, "program.cl"), Path(folder, "program.hsaco")
        text.write_text(source)
        target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={device}", "-nogpulib", f"-fuse-ld={shutil.which(LLD)}", "-fno-caret-diagnostics"]
        command = [CLANG, "-x", "cl", level, *given, "-Xclang", "-finclude-default-header", *target, *links, "-o", str(code), str(text)]
        done = subprocess.run(command, capture_output=True, text=True)
        return (code.read_bytes() if done.returncode == 0 else None), done.stderr.replace(str(text), "program.cl")


def _libraries(options, device):
    """Paths of the device libraries for a program's options."""
    folder = device_libraries()
    versions = [int(path.stem.rpartition("_")[2], 16) for path in folder.glob("oclc_isa_version_*.bc")]
    version = max(v for v in versions if v <= int(device[3:], 16))  # old libraries know no new devices, but run on them
    fast = _FAST in options
    switches = {
        "wavefrontsize64": architecture(device) == "cdna",
        "daz_opt": "-cl-denorms-are-zero" in options,
        "finite_only": fast or _FINITE in options,
        "unsafe_math": fast or _UNSAFE in options,
        "correctly_rounded_sqrt": "-cl-fp32-correctly-rounded-divide-sqrt" in options,
    }
    names = ["opencl", "ocml", "ockl", f"oclc_isa_version_{version:x}", "oclc_abi_version_500"]
    names += [f"oclc_{name}_{'on' if on else 'off'}" for name, on in switches.items()]
    return [str(folder / f"{name}.bc") for name in names]


def read_object(code):
    """(the ELF file, the kernels of its metadata) of a code object."""
    import msgpack
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(code))
    notes = (note for part in elf.iter_segments() if part["p_type"] == "PT_NOTE" for note in part.iter_notes())
    note = next(note for note in notes if note["n_name"].startswith("AMDGPU"))
    about = note["n_descdata"] if "n_descdata" in note else note["n_desc"]
    return elf, msgpack.unpackb(about, strict_map_key=False).get("amdhsa.kernels", [])


def describe(code):
    """What the driver has to know of each kernel, as lines: `understand` of driver/programs.c reads them."""
    lines = []
    for kernel in read_object(code)[1]:
        arguments = [a for a in kernel.get(".args", []) if not a[".value_kind"].startswith("hidden_")]
        required = kernel.get(".reqd_workgroup_size", [0, 0, 0])
        sizes = [kernel[key] for key in (".group_segment_fixed_size", ".private_segment_fixed_size", ".max_flat_workgroup_size")]
        lines.append(" ".join(map(str, ["K", kernel[".name"], len(arguments), *sizes, *required, kernel[".wavefront_size"]])))
        lines += [f"A {_KINDS[a['.value_kind']]} {a['.size']} {a.get('.name') or '-'}" for a in arguments]
    return "\n".join(lines) + "\n"
