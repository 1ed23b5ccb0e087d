"""`python -m keras_ocl devices | doctor | verify | tune | report | cache | lower`: devices, their kernels and files, kernels of a model."""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections import Counter
from pathlib import Path

from keras_ocl.plugin.edits import SUPPORTED_KERAS, supports

VARIABLES = (
    "KERAS_OCL_DEVICE", "KERAS_OCL_SCHEDULE", "KERAS_OCL_CACHE_DIR", "KERAS_OCL_VERBOSE", "KERAS_OCL_EXACT_BUFFERS", "KERAS_OCL_CHECK",
    "KERAS_OCL_TRANSFER", "KERAS_OCL_MATRIX", "KERAS_OCL_PRECISION", "KERAS_OCL_KEEP", "KERAS_OCL_MEMORY_LIMIT", "KERAS_OCL_COMPILERS",
    "KERAS_OCL_LOOPS", "KERAS_OCL_TUNING", "KERAS_OCL_QUARANTINE", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "RUSTICL_ENABLE",
    "POCL_CACHE_DIR",
)  # fmt: skip


def main(arguments=None):
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m keras_ocl", description="OpenCL for Keras: devices and diagnosis.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("devices", help="list every OpenCL device; * marks the one in use").set_defaults(run=devices)
    doctor_parser = commands.add_parser("doctor", help="explain what was found, what is chosen, and what to install")
    doctor_parser.add_argument("--mpi", action="store_true", help="for jobs of several processes; under mpiexec or srun of the job itself")
    doctor_parser.set_defaults(run=doctor)
    verify_parser = commands.add_parser("verify", help="try whether all kernels are right on a device, and keep out those that are not")
    verify_parser.add_argument("--device", metavar="NAME", help="the device; without it the one in use")
    verify_parser.add_argument("--only", metavar="FAMILY", nargs="+", default=(), help="the families to try")
    verify_parser.add_argument("--short", action="store_true", help="few cases of each family")
    verify_parser.add_argument("--limit", type=float, metavar="SECONDS", help="of one case, after which its process is ended; 120")
    verify_parser.add_argument("--forget", action="store_true", help="delete the device's record: use all kernels again")
    verify_parser.set_defaults(run=verify)
    tune_parser = commands.add_parser("tune", help="search faster tiles for a model's kernels on a device, and use them from then on")
    tune_parser.add_argument("model", nargs="?", help="as for lower: a saved model, or SCRIPT.py:FUNCTION")
    tune_parser.add_argument("--all", action="store_true", help="a standard set of products and convolutions instead of a model's")
    tune_parser.add_argument("--device", metavar="NAME", help="the device; without it the one in use")
    tune_parser.add_argument("--minutes", type=float, default=5, help="the time that it may take; 5")
    tune_parser.add_argument("--export", metavar="FILE", help="copy the device's record to a file")
    tune_parser.add_argument("--import", metavar="FILE", dest="imported", help="add such a file to the device's record")
    tune_parser.add_argument("--forget", action="store_true", help="delete what was measured: use the estimates again")
    tune_parser.set_defaults(run=tune)
    report_parser = commands.add_parser("report", help="print what a device is, whether its kernels are right, and how fast it is, as JSON")
    report_parser.add_argument("--device", metavar="NAME", help="the device; without it the one in use")
    report_parser.add_argument("--whole", action="store_true", help="verify all cases of each family of kernels, not few")
    report_parser.add_argument("--markdown", action="store_true", help="as the text of an issue")
    report_parser.add_argument("--read", metavar="FILE", help="measure nothing: print the report in this file")
    report_parser.set_defaults(run=report)
    cache_parser = commands.add_parser("cache", help="show or clear the compiled programs and steps on disk")
    cache_parser.add_argument("--clear", action="store_true", help="delete them")
    cache_parser.set_defaults(run=cache)
    lower_parser = commands.add_parser("lower", help="print the kernels that a model's steps become, on this or any other device")
    lower_parser.add_argument("model", help="a saved model, or SCRIPT.py:FUNCTION, which returns a model, or (model, x, y, batch size)")
    lower_parser.add_argument("--traits", metavar="NAME|FILE", help="a record of a device's traits; without it those of the device in use")
    lower_parser.add_argument("--train", action="store_true", help="the training step too")
    lower_parser.add_argument("--kept", action="store_true", help="what the training step keeps from its forward part for the gradient")
    lower_parser.add_argument("--json", action="store_true", help="as JSON")
    lower_parser.add_argument("--source", action="store_true", help="the OpenCL C")
    lower_parser.add_argument("--compile", action="store_true", help="compile for the record with the vendor's compiler; estimate times")
    lower_parser.add_argument("--loops", action="store_true", help="with --compile: what kernels' inner loops consist of (NVIDIA, AMD)")
    lower_parser.add_argument("--access", action="store_true", help="cache lines and bank conflicts of each load and store")
    lower_parser.set_defaults(run=lower)
    options = parser.parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and devices may be anything
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does; Python's flush at exit must not complain again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _choice():
    """(chosen Device or None, the reason)."""
    from keras_ocl import runtime

    name = os.environ.get("KERAS_OCL_DEVICE")
    try:
        device = runtime.find_device(name) if name else runtime.current_device()
    except RuntimeError as error:
        return None, str(error)
    if name:
        return device, f"KERAS_OCL_DEVICE={name}"
    usable = [info for info in runtime.devices() if info.usable]
    if len(usable) == 1:
        return device, "the only usable device"
    return device, f"the best of {len(usable)} usable devices: GPUs first, then by float64, vector width, float16 and compute units"


def _quiet():
    """Silence the log line that names the device, as these commands print the same."""
    import logging

    logging.getLogger("keras_ocl").setLevel(logging.WARNING)


def _found():
    """(DeviceInfos, Platforms, chosen Device or None, the reason), without log lines of refused matrix units, which are printed instead."""
    import logging

    _quiet()
    log = logging.getLogger("keras_ocl.matrix_units")
    log.disabled = True
    try:
        from keras_ocl import compiler, runtime  # noqa: F401 - the compiler tries matrix units

        return runtime.devices(), runtime.platform_list(), *_choice()
    except ValueError as error:  # a setting that means nothing
        return [], [], None, str(error)
    finally:
        log.disabled = False


def _print_devices(infos, chosen, indent=""):
    from keras_ocl.runtime.errors import readable

    for info in infos:
        mark = "*" if chosen is not None and info.name == chosen.name.partition("/")[0] else " "
        print(f"{indent}{mark} {info.name or info.kind:6s} {info.model} ({info.platform}, driver {info.driver})")
        if not info.usable:
            print(f"{indent}         not usable: {info.reason}")
            continue
        t = info.traits
        types = ", ".join(name for name, has in (("float64", t.fp64), ("float16", t.fp16), ("sub-groups", t.subgroups)) if has)
        clock = f" at {t.clock} MHz" if t.clock else ""
        print(
            f"{indent}         {t.compute_units} compute units{clock}, {t.vector_width}-wide vectors, {readable(t.global_memory)} memory, "
            f"{readable(t.local_memory)} local{', ' + types if types else ''}"
        )
        if t.matrix_units:
            print(f"{indent}         matrix units: {', '.join(t.matrix_units)}")
        for unit, reason in info.refused_units.items():
            print(f"{indent}         matrix unit {unit} is not used: {reason}")
        print("\n".join(f"{indent}         {line}" for line in _quarantine_of(info)))
        if own := t.overrides.file:
            problem = _problem_of_overrides(t)
            amounts = f"own numbers: {len(t.overrides.tuning)}, own tiles: {len(t.overrides.choices)}"
            print(f"{indent}         {amounts}, from {own}" + (f"\n{indent}         not usable: {problem}" if problem else ""))


def _quarantine_of(info):
    """Lines about what `verify` found on a device."""
    from keras_ocl.runtime import Target, read_quarantine

    record = read_quarantine(Target(info.platform, info.model, info.driver, info.traits.schedule))
    if record is None:
        return ["not verified with this driver: python -m keras_ocl verify"]
    ignored = "" if info.traits.quarantine else " (ignored, KERAS_OCL_QUARANTINE=0)"
    right = [name for name in record.verified if name not in record.kept_out]
    lines = [f"verified with keras_ocl {record.version}: {', '.join(right)}"] if right else []
    return lines + [f"{name} is not used{ignored}: {why}" for name, why in record.kept_out.items()]


def _files_of(device):
    """Lines that tell which files about a device there are: verify's record, with what it keeps out, and the tuning file."""
    from keras_ocl import runtime

    target, traits, named = runtime.target_of(device), device.traits, os.environ.get("KERAS_OCL_TUNING")
    file, record = runtime.quarantine_file(target), runtime.read_quarantine(target)
    yield f"verify's record: {file}" if record else f"verify's record: none (python -m keras_ocl verify writes {file or 'one'})"
    ignored = "" if traits.quarantine or not (record and record.kept_out) else " (ignored, KERAS_OCL_QUARANTINE=0)"
    yield f"quarantine: {(', '.join(record.kept_out) if record else '') or 'nothing is kept out'}{ignored}"
    file = runtime.device_file(device.model, device.driver_version, traits.compute_units)
    how = ", which KERAS_OCL_TUNING names" if named else ""
    own = traits.overrides.file
    yield f"tuning file: {own}{how}" if own else f"tuning file: none (it would be {file or 'in the cache'})"


def _problem_of_overrides(traits):
    """The sentence that says why a device's own numbers cannot be used; "" where they can."""
    from keras_ocl.kernels.overrides import tuning_of

    try:
        tuning_of(traits)
    except ValueError as error:
        return str(error)
    return ""


def devices(options):
    """List the devices."""
    infos, _, chosen, why = _found()
    _print_devices(infos, chosen)
    if chosen is None:
        print(why)
    return 0 if chosen is not None else 1


def doctor(options):
    """Print everything that decides which device is used, or how processes find one another; status 1 on failure."""
    if options.mpi:
        from keras_ocl.distribution import doctor as of_jobs

        _quiet()
        return of_jobs.check(_choice)
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    print("packages: " + ", ".join(f"{name} {_version(name)}" for name in ("keras-ocl", "keras", "numpy", "pyopencl")))
    if _version("keras")[0].isdigit() and not supports(_version("keras")):
        print(f"keras {_version('keras')} is not supported: pip install 'keras{SUPPORTED_KERAS}'")
    try:
        from keras_ocl.runtime import discovery
    except ImportError as error:
        print(f"no device can be used: {error}")
        return 1
    settings = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    print("environment: " + (", ".join(settings) or "nothing set that matters here"))

    found = discovery.with_problems(discovery.runtimes())
    print("\nOpenCL runtimes" + ("" if found else ": none"))
    for item in found:
        named = f"{item.library} (from {item.origin})" if item.library else item.origin
        print(f"  {named}" + (f"\n      not used: {item.problem}" if item.problem else ""))

    infos, platforms, chosen, why = _found()
    print("\nplatforms" + ("" if platforms else ": none"))
    for item in platforms:
        version = f" ({item.version})" if item.version else ""
        print(f"  {item.name}{version}: {item.devices or 'no'} device{'' if item.devices == 1 else 's'}")
        for reason in item.left_out:
            print(f"      left out: {reason}")
        if not item.devices and "rusticl" in item.name.lower() and "RUSTICL_ENABLE" not in os.environ:
            print("      rusticl shows the devices named in RUSTICL_ENABLE only, for example RUSTICL_ENABLE=llvmpipe")
    if infos:
        print("\ndevices")
        _print_devices(infos, chosen)

    print()
    if chosen is None:
        print(f"no device can be used: {why}")
    else:
        how = {"shared": "shared with the host", "mapped": "mapped", "copied": "reached by copies"}[chosen.sharing]
        print(f"chosen: {chosen}, {why}; its memory is {how}, {chosen.traits.schedule} schedules")
        print("\n".join(f"        {line}" for line in _files_of(chosen)))
    cache(argparse.Namespace(clear=False))
    return 0 if chosen is not None else 1


def verify(options):
    """Try the families of kernels on a device."""
    from keras_ocl import compiler  # noqa: F401 - tries matrix units
    from keras_ocl.verify.command import command
    from keras_ocl.verify.run import LIMIT

    device = _to_verify(options.device)
    return 2 if device is None else command(device, options.only, options.short, options.forget, options.limit or LIMIT)


def report(options):
    """Print the report of a device, or one that was made before."""
    os.environ["KERAS_BACKEND"] = "ocl"  # whatever else Keras would use
    from keras_ocl import compiler  # noqa: F401 - tries matrix units
    from keras_ocl.report import command

    if options.read:
        return command.show(options.read, options.markdown)
    device = _to_verify(options.device)
    return 2 if device is None else command.command(device, not options.whole, options.markdown)


def _to_verify(name):
    """The Device of this name, "" for the one in use, with the kernels that are kept out; None, with a message, where there is none."""
    from keras_ocl import runtime

    _quiet()
    before = os.environ.get("KERAS_OCL_QUARANTINE")
    os.environ["KERAS_OCL_QUARANTINE"] = "0"  # what is kept out now is tried again
    try:
        return runtime.find_device(name) if name else runtime.current_device()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return None
    finally:
        if before is None:
            del os.environ["KERAS_OCL_QUARANTINE"]
        else:
            os.environ["KERAS_OCL_QUARANTINE"] = before


def tune(options):
    """Search faster tiles on a device, or do something with its record."""
    os.environ.setdefault("KERAS_BACKEND", "ocl")
    from keras_ocl import compiler, runtime  # noqa: F401 - the compiler tries matrix units
    from keras_ocl.tune import command

    _quiet()
    wanted = [options.model is not None, options.all, options.forget, options.export is not None, options.imported is not None]
    if sum(wanted) != 1:
        print("tune: name one model, or one of --all, --export FILE, --import FILE and --forget", file=sys.stderr)
        return 2
    try:
        device = runtime.find_device(options.device) if options.device else runtime.current_device()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.forget:
        return command.forget(device)
    if options.export is not None:
        return command.export_to(device, Path(options.export))
    if options.imported is not None:
        return command.import_from(device, Path(options.imported))
    return command.command(device, options.model, options.minutes)


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def cache(options):
    """Show the folder and size of the compiled programs and steps on disk, or clear them."""
    from keras_ocl.runtime.disk_cache import DiskCache
    from keras_ocl.runtime.errors import readable

    disk = DiskCache()
    problem = disk.problem()
    if problem:
        print(f"cache: not used: {problem}")
        return int(options.clear)
    if options.clear:
        print(f"cache: {disk.clear()} programs deleted from {disk.folder}")
        return 0
    entries = disk.entries()
    size = sum(n for _, n, _ in entries)
    counts = Counter(Path(path).parent.name for _, _, path in entries)
    held = f"{counts['programs']} programs, {counts['steps']} compiled steps, {readable(size)} of at most {readable(disk.limit)}"
    print(f"cache: {disk.folder}, {held}")
    if why := disk.unwritable():
        print(f"       nothing can be added: {why}; make room, or name another folder in KERAS_OCL_CACHE_DIR")
    print("       (PoCL and NVIDIA's driver keep compiled programs in caches of their own)")
    return 0


def lower(options):
    """Print the launches, or the OpenCL C, of a model's steps."""
    os.environ.setdefault("KERAS_BACKEND", "ocl")
    from keras_ocl import lowering, runtime

    _quiet()
    try:
        traits = runtime.read_record(options.traits) if options.traits else runtime.current_device().traits
        steps = lowering.lower(lowering.load(options.model), traits, options.train or options.kept, options.traits or "this device")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.compile:
        return _compiled(options.traits, steps, options.loops)
    if options.access:
        return _accesses(options.traits, steps)
    if options.kept:
        print(steps[0].memory.kept_text())
    elif options.json:
        print(json.dumps([_described(step, options.source) for step in steps], indent=1))
    elif options.source:
        print("\n".join(step.program() for step in steps))
    else:
        for step in steps:
            _print_step(step)
    return 0


def _compiled(record, steps, loops):
    """Print the vendor's compiler's figures for each kernel and estimated times; status 1 where a kernel is refused or spills registers."""
    from keras_ocl import runtime, vendors

    hardware = runtime.read_hardware(record) if record else None
    if hardware is None or not hardware.compiler:
        compiled = [name for name in runtime.record_names() if getattr(runtime.read_hardware(name), "compiler", "")]
        print(f"lower: --compile needs --traits with a record that names a vendor's compiler: {', '.join(compiled)}", file=sys.stderr)
        return 2
    status, traits = 0, runtime.read_record(record)
    rates = dict(zip(traits.matrix_units, traits.matrix_rates, strict=True))
    for step in steps:
        try:
            found = vendors.compile_program(hardware.compiler, step.program(), loops)
        except (FileNotFoundError, vendors.Rejected) as error:
            print(error, file=sys.stderr)
            return 2 if isinstance(error, FileNotFoundError) else 1
        seconds = operations = 0
        print(f"{step.name} on {record}: registers, spilled and private bytes of an item; local bytes; waves; estimated time and its bound")
        for launch in (launch for launch in step.launches if launch.kernel):
            r = found[launch.kernel]
            e = vendors.estimate(hardware, launch, r, launch.rate(rates))
            times = math.prod(n or 1 for _, n in launch.loops)
            seconds, operations = seconds + times * e.seconds, operations + times * launch.steps * launch.operations
            status |= bool(r.spilled or r.private)
            takes = f"{r.registers:4} {r.spilled:4} {r.private:5} {launch.local:6} {e.waves:3} ({e.occupancy:4.0%})"
            amounts = f"{launch.operations / 1e6:9.4g} Mop {(launch.read + launch.written) / 1e6:9.4g} MB"
            name = f"{times} x {launch.name}" if times > 1 else launch.name
            name = f"{name} ({launch.steps})" if launch.steps > 1 else name
            name = f"{r.loop}  {name}" if loops and r.loop else name
            print(f"  {takes} {amounts} {e.seconds * 1e6:9.2f} us {e.bound:7} {e.share:4.0%}  {name}")
        print(f"  {len(step.launches)} launches, {seconds * 1e3:.4g} ms, {operations / seconds / hardware.flops:.1%} of the peak")
    return status


def _accesses(record, steps):
    """Print each kernel's memory accesses, and those that take more than 1.5 times as many cache lines or rounds as necessary."""
    from keras_ocl import runtime, vendors

    hardware = runtime.read_hardware(record) if record else None
    wave = hardware.wave if hardware else 32
    for step in steps:
        launches = {launch.kernel: launch for launch in step.launches if launch.kernel}
        try:
            found = vendors.accesses(step.program(), [(k, x.grid, x.group, x.arguments) for k, x in launches.items()], wave)
        except (FileNotFoundError, vendors.Rejected, vendors.Unknown) as error:
            print(error, file=sys.stderr)
            return 2 if isinstance(error, FileNotFoundError) else 1
        print(f"{step.name}: cache lines of global memory / as few as hold the bytes; rounds of local memory / without bank conflicts")
        for kernel, launch in launches.items():
            amounts = [f"{sum(x.cost for x in some)} / {sum(x.fewest for x in some)}" for some in _by_memory(found[kernel])]
            print(f"  {amounts[0]:>15}; {amounts[1]:>15}  {launch.name}")
            for x in sorted(found[kernel], key=lambda x: x.fewest - x.cost):
                if x.ratio > 1.5:
                    where = f"{'local' if x.local else 'global'} {'store' if x.store else 'load'}, {x.nbytes} bytes"
                    print(f"      {x.cost} / {x.fewest}, {where}: {x.text}")
    return 0


def _by_memory(accesses):
    """(accesses to global memory, accesses to local memory)."""
    return [x for x in accesses if not x.local], [x for x in accesses if x.local]


def _described(step, source):
    """A step as a dict for JSON; with `source`, including the OpenCL C."""
    launches = []
    for launch in step.launches:
        entry = dataclasses.asdict(launch)
        entry["shares"] = [
            {"layer": share.origin.layer, "operation": share.operation, "gradient": share.origin.gradient, "fraction": share.fraction}
            for share in launch.shares
        ]
        if not source:
            del entry["source"], entry["helpers"]
        launches.append(entry)
    return {"step": step.name, "arena_bytes": step.arena_bytes, "live_bytes": step.live_bytes, "launches": launches}


def _print_step(step):
    from keras_ocl.runtime.errors import readable

    total = sum(launch.steps * launch.operations for launch in step.launches)
    arena = f"arena {readable(step.arena_bytes)} for {readable(step.live_bytes)} alive at once"
    by_units = sum(launch.steps * n for launch in step.launches for _, _, n in launch.by_units) / max(1, total)
    units = f", {by_units:.0%} of them on matrix units" if by_units else ""
    print(f"{step.name}: {len(step.launches)} launches, {total / 1e6:.4g} million operations{units}, {arena}")
    for launch in step.launches:
        times = "".join(f"{name} x {length or 'while'}: " for name, length in launch.loops)
        grid = "x".join(map(str, launch.grid)) + (f" in groups of {'x'.join(map(str, launch.group))}" if launch.group else "")
        amounts = f"reads {readable(launch.read)}, writes {readable(launch.written)}, {launch.operations / 1e6:.4g} Mop"
        print(f"  {times}{launch.name}\n      {launch.kernel or 'host'}  {grid}  {amounts}")
        for share in launch.shares:
            gradient = " gradient" if share.origin.gradient else ""
            print(f"      {share.fraction:4.0%} {share.origin.layer or '(no layer)'}: {share.operation}{gradient}")
