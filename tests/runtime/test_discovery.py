"""Finding, naming and choosing devices."""

import contextlib
import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
from pathlib import Path

import pytest

from keras_ocl import cli, runtime
from keras_ocl.runtime import discovery, selection


def run(code, **environment):
    """Output of `code` in a fresh Python; its errors too."""
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    return result.stdout + result.stderr


class Wheel:
    """Stands for an installed distribution."""

    metadata = {"Name": "some-runtime"}

    def __init__(self, folder):
        self.folder = folder

    def locate_file(self, name):
        return self.folder / name


def test_a_wheels_placeholder_path_is_resolved_to_its_own_library(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"")
    (tmp_path / "a.icd").write_text("/opt/placeholder/lib.so\n")
    (tmp_path / "b.icd").write_text("/opt/placeholder/not_in_this_wheel.so\n")
    found = list(discovery._from_wheel(Wheel(tmp_path), ["lib.so", "a.icd", "b.icd"]))
    assert found == [discovery.Runtime(str(tmp_path / "lib.so"), "some-runtime")]


def test_a_distribution_whose_record_is_spoilt_stops_nothing(tmp_path, monkeypatch):
    for name, record in (("bad", b"\xff\xfe.icd,\n"), ("good", b"a.icd,,\nlib.so,,\n")):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\n")
        (folder / "RECORD").write_bytes(record)
    (tmp_path / "lib.so").write_bytes(b"")
    (tmp_path / "a.icd").write_text("/opt/placeholder/lib.so\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert list(discovery._from_distributions()) == [discovery.Runtime(str(tmp_path / "lib.so"), "good")]


def test_vendors_variable_may_name_a_folder_a_file_or_a_library(tmp_path):
    (tmp_path / "one.icd").write_text("libone.so\n")
    (tmp_path / "readme").write_text("no")
    assert [r.library for r in discovery._from_folder(str(tmp_path))] == ["libone.so"]
    assert [r.library for r in discovery._from_folder(str(tmp_path / "one.icd"))] == ["libone.so"]
    assert [r.library for r in discovery._from_folder("/opt/libtwo.so")] == ["/opt/libtwo.so"]
    assert [list(discovery._from_folder(str(tmp_path / name))) for name in ("missing.icd", "missing")] == [[], []]


def make_useless_entries(folder):
    """Fills a folder with .icd files that name no library; returns what is said of each."""
    (folder / "blank.icd").write_text("\n\n")
    (folder / "bytes.icd").write_bytes(b"\xe4\0" * 1500)
    (folder / "dangling.icd").symlink_to("/nowhere/gone.icd")
    (folder / "empty.icd").touch()
    (folder / "folder.icd").mkdir()
    os.mkfifo(folder / "pipe.icd")
    nothing, unread = "it names no library", "it cannot be read: "
    said = {"blank": nothing, "bytes": nothing, "empty": nothing, "pipe": "it is no file"}
    said |= {"dangling": f"{unread}No such file or directory", "folder": f"{unread}Is a directory"}
    return {str(folder / f"{name}.icd"): problem for name, problem in said.items()}


@pytest.mark.skipif(os.name == "nt", reason="Windows' loader reads no .icd files")
def test_useless_entries_are_named_and_read_past(tmp_path):
    said = make_useless_entries(tmp_path)
    for name, path in (("latin", b"/opt/\xe4/lib.so"), ("utf", "/opt/\xe4/lib.so".encode()), ("windows", b"liba.so\r\n")):
        (tmp_path / f"{name}.icd").write_bytes(path)
    found = list(discovery._from_folder(str(tmp_path)))
    assert {r.origin: r.problem for r in found if not r.library} == said
    assert [os.fsencode(r.library) for r in found if r.library] == [b"/opt/\xe4/lib.so", "/opt/\xe4/lib.so".encode(), b"liba.so"]
    with discovery._vendors_folder([r for r in found if r.library]) as folder:
        assert Path(folder, "00.icd").read_bytes() == b"/opt/\xe4/lib.so\n"


def test_the_users_own_vendors_are_kept(tmp_path, monkeypatch):
    (tmp_path / "one.icd").write_text("libone.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    libraries = [r.library for r in discovery.runtimes()]
    assert libraries[0] == "libone.so"
    assert not any(r.origin.startswith(discovery.SYSTEM_VENDORS) for r in discovery.runtimes())


def test_vendors_folder_holds_all_runtimes_and_is_gone_afterwards():
    with discovery._vendors_folder([discovery.Runtime("/a/liba.so", "a"), discovery.Runtime("libb.so", "b")]) as folder:
        assert [icd.read_text() for icd in sorted(Path(folder).iterdir())] == ["/a/liba.so\n", "libb.so\n"]
        status = os.stat(folder)
        assert os.name == "nt" or status.st_mode & 0o077 == 0 and status.st_uid == os.getuid()
    assert not os.path.exists(folder)


def test_the_loader_reads_a_folder_whose_name_nobody_knows_beforehand(tmp_path, monkeypatch):
    """What somebody else prepared where earlier versions kept their .icd files is not read."""
    found = [discovery.Runtime("/a/liba.so", "a")]
    digest = hashlib.sha256(b"/a/liba.so").hexdigest()[:16]
    for base in (tmp_path / f"keras_ocl-{os.getuid()}", tmp_path / "cache"):
        (base / f"icd-{digest}").mkdir(parents=True)
        (base / f"icd-{digest}" / "99.icd").write_text("/tmp/malice.so\n")
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with discovery._vendors_folder(found) as one, discovery._vendors_folder(found) as two:
        assert one != two and os.listdir(one) == os.listdir(two) == ["00.icd"]


@pytest.fixture
def no_temporary_files(monkeypatch):
    real = tempfile.mkdtemp

    def mkdtemp(suffix=None, prefix=None, dir=None):
        if dir is None:
            raise FileNotFoundError("No usable temporary directory found")
        return real(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)


def test_where_temporary_files_have_no_place_the_cache_folder_has(tmp_path, monkeypatch, no_temporary_files):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "cache"))
    with discovery._vendors_folder([discovery.Runtime("/a/liba.so", "a")]) as folder:
        assert os.path.dirname(folder) == str(tmp_path / "cache") and os.listdir(folder) == ["00.icd"]
    assert os.listdir(tmp_path / "cache") == []


def full(monkeypatch, *folders):
    """Nothing can be written to a file in these."""
    write = Path.write_bytes

    def write_bytes(path, data):
        if any(path.is_relative_to(folder) for folder in folders):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def test_where_one_disk_is_full_another_serves(tmp_path, monkeypatch):
    temporary, cache, memory = (tmp_path / name for name in ("temporary", "cache", "memory"))
    for folder in (temporary, cache, memory):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(discovery, "SHARED_MEMORY", str(memory))
    found = [discovery.Runtime("/a/liba.so", "a")]
    for places, served in (((), temporary), ((temporary,), cache), ((temporary, cache), memory)):
        with monkeypatch.context() as there:
            full(there, *places)
            with discovery._vendors_folder(found) as folder:
                assert Path(folder).parent == served and Path(folder, "00.icd").read_bytes() == b"/a/liba.so\n"
    full(monkeypatch, tmp_path)
    with pytest.raises(OSError, match="No space left"), discovery._vendors_folder(found):
        pass
    assert [os.listdir(folder) for folder in (temporary, cache, memory)] == [[], [], []]


SYSTEM, WHEEL = discovery.Runtime("libsystem.so", "/etc/OpenCL/vendors/system.icd"), discovery.Runtime("/venv/libwheel.so", "some-runtime")


@pytest.mark.parametrize(
    "found, useless, path, lost",
    [
        ([WHEEL], False, WHEEL.library, None),
        ([SYSTEM, WHEEL], False, None, WHEEL.library),
        ([SYSTEM, WHEEL], True, SYSTEM.library, WHEEL.library),
        ([], True, os.devnull, None),
    ],
)
def test_where_nothing_can_be_written_the_loader_gets_what_can_be_named(found, useless, path, lost, monkeypatch, caplog):
    def nowhere(found):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(discovery, "_vendors_folder", nowhere)
    with contextlib.ExitStack() as stack:
        assert discovery._named_by_a_path(found, useless, stack) == path
    said = f"Read-only file system), which goes without {lost}: make room, or name a folder"
    assert [said in record.getMessage() for record in caplog.records] == [True] * bool(lost)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of files' sizes stands for full disks")
def test_a_process_that_can_write_nothing_computes(tmp_path):
    if all(found.origin.endswith(".icd") for found in discovery.runtimes()):
        pytest.skip("no runtime from PyPI")  # the system's PoCL computes nothing where it cannot write
    code = """
        import logging, resource
        logging.getLogger("keras_ocl").setLevel(logging.WARNING)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        from keras_ocl import runtime
        device = runtime.current_device()
        device.build([("one", "__kernel void one(__global float* a) { a[0] = 1; }")])
        print(device.platform)
    """
    environment = {**os.environ, "HOME": str(tmp_path), "OCL_ICD_VENDORS": "/nowhere", "KERAS_OCL_COMPILERS": "0"}
    unset = "XDG_CACHE_HOME", "KERAS_OCL_CACHE_DIR", "KERAS_OCL_DEVICE"
    environment = {name: value for name, value in environment.items() if name not in unset}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip(), result.stderr
    (warning,) = [line for line in result.stderr.splitlines() if "keras_ocl" in line]
    assert f"compiles every program anew: {tmp_path}/.cache/keras_ocl cannot be written (File too large); make room" in warning


@pytest.mark.skipif(os.name == "nt", reason="folders below a device are a matter of POSIX")
def test_a_home_that_cannot_be_written_is_quiet():
    if runtime.current_device().programs.disk is None:
        pytest.skip("PoCL itself computes nothing where it cannot write")
    out = run("from keras_ocl import runtime; runtime.current_device()", HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache")
    assert "Exception ignored" not in out and "Traceback" not in out


def test_a_run_leaves_no_temporary_files(tmp_path):
    out = run("from keras_ocl import runtime; print(runtime.current_device().name)", TMPDIR=str(tmp_path))
    assert runtime.current_device().name in out
    assert [name for name in os.listdir(tmp_path) if "keras_ocl" in name] == []


@pytest.fixture
def open_folder():
    """A folder in which every user may write."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield folder


@pytest.mark.skipif(getattr(os, "getuid", lambda: 1)() != 0, reason="only root can run a process as another user")
@pytest.mark.parametrize("home", [None, "/", "/nowhere"])
def test_a_user_without_an_entry_or_a_home_computes(home, open_folder):
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "KERAS_OCL_CACHE_DIR")}
    if home is not None:
        environment["HOME"] = home
    environment["POCL_CACHE_DIR"] = open_folder  # PoCL itself computes nothing where it cannot write
    # It starts as root and becomes the other, who may not enter the folder of root's Python: what is needed from there is imported before.
    code = """
        import os, pwd
        from keras_ocl import runtime
        from keras_ocl.runtime import discovery
        discovery.runtimes()
        os.setgroups([])
        os.setgid(12345)
        os.setuid(12345)
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            print("no entry")
        device = runtime.current_device()
        device.build([("one", "__kernel void one(__global float* a) { a[0] = 1; }")])
        print(device.name)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["no", "entry", runtime.current_device().name]
    assert ("no home folder" in result.stderr) == (home is None and runtime.current_device().programs.disk is not None)


def test_the_environment_is_left_alone():
    before = os.environ.get("OCL_ICD_VENDORS")
    assert discovery.platforms()
    assert os.environ.get("OCL_ICD_VENDORS") == before


def test_a_library_that_does_not_load_is_explained():
    (checked,) = discovery.with_problems([discovery.Runtime("/nowhere/libintelocl.so", "intel-opencl-rt")])
    assert "intel-cmplr-lib-rt" in checked.problem


def test_no_runtime_at_all_says_what_to_install(monkeypatch):
    monkeypatch.setattr(selection, "platforms", list)
    with pytest.raises(RuntimeError, match=r"no usable OpenCL device found; install one with `pip install \"keras-ocl\[cpu\]\"`"):
        selection._Registry().choose_default()


def test_names(device):
    assert runtime.find_device(device.name) is device
    assert runtime.find_device(device.name.upper()) is device
    assert runtime.find_device("/" + device.name) is device
    assert runtime.find_device(device.platform[:9].swapcase()).platform == device.platform


@pytest.mark.parametrize("name", ["warp drive", "gpu:99", "cpu:99", ""])
def test_an_unknown_name_lists_what_exists(name, device):
    with pytest.raises(RuntimeError, match="no usable OpenCL device is called") as error:
        runtime.find_device(name)
    assert device.name in str(error.value) and "\n" not in str(error.value)
    assert runtime.current_device() is device


def test_variable_with_an_unknown_name():
    out = run("from keras_ocl import runtime; runtime.current_device()", KERAS_OCL_DEVICE="warp drive")
    assert "RuntimeError: no usable OpenCL device is called 'warp drive'; there are: " in out
    assert runtime.current_device().name in out.rpartition("there are: ")[2]


def test_a_device_that_cannot_build_is_skipped_with_the_reason(monkeypatch):
    real = selection.Device
    best = selection._Registry().candidates()[0].handle

    class Broken(real):
        def build(self, specs, options=""):
            if self.driver.handle == best:
                raise runtime.KernelBuildError(["probe"], self, "", "unknown target CPU 'generic'", "")
            return super().build(specs, options)

    monkeypatch.setattr(selection, "Device", Broken)
    registry = selection._Registry()
    first = registry.candidates()[0]
    assert registry.usable(first) is None
    assert first.info().reason == "cannot compile a one-line kernel: unknown target CPU 'generic'"
    others = [registry.usable(c) for c in registry.candidates()[1:] if c.traits.kind == first.traits.kind]
    if any(others):
        assert registry.resolve(first.traits.kind) is next(d for d in others if d)
        assert registry.resolve(first.traits.kind).name == f"{first.traits.kind}:0"
    else:
        with pytest.raises(RuntimeError, match="unusable: .*unknown target CPU"):
            registry.resolve(first.traits.kind)


def test_wrong_results_are_noticed(monkeypatch):
    monkeypatch.setattr(selection, "SELF_TEST", selection.SELF_TEST.replace("* 3", "* 4"))
    device, reason = selection.self_test(runtime.current_device().driver.handle, "cpu:7")
    assert device is None and reason == "a one-line kernel computes wrong values"


def test_the_better_cpu_comes_first():
    def candidate(**traits):
        values = dict(kind="cpu", unified_memory=True, fp64=True, fp16=True, subgroups=True)
        values |= dict(vector_width=16, compute_units=2, global_memory=1)
        c = object.__new__(selection._Candidate)
        c.handle = types.SimpleNamespace(type=0)
        c.traits = types.SimpleNamespace(**{**values, **traits})
        return c

    good, no_half, narrow = candidate(), candidate(fp16=False), candidate(fp64=False, fp16=False, vector_width=4, compute_units=8)
    gpu, integrated = candidate(kind="gpu", unified_memory=False, fp64=False), candidate(kind="gpu")
    assert sorted([narrow, integrated, no_half, good, gpu], key=selection._Candidate.rank) == [gpu, integrated, good, no_half, narrow]


def test_scope(device):
    other = runtime.find_device([info.name for info in runtime.devices() if info.usable][-1])
    seen = []
    with runtime.device_scope(other.name) as inside:
        assert inside is other and runtime.current_device() is other
        with runtime.device_scope(None):
            assert runtime.current_device() is other
        with runtime.device_scope(device):
            assert runtime.current_device() is device
        thread = threading.Thread(target=lambda: seen.append(runtime.current_device()))
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="gpu:77"), runtime.device_scope("gpu:77"):
            pass
        assert runtime.current_device() is other
    assert runtime.current_device() is device
    assert seen == [device]  # a scope belongs to the thread that entered it


def test_the_device_is_named_once():
    code = "from keras_ocl import runtime; runtime.current_device(); runtime.current_device()"
    assert run(code).count("keras_ocl runs on ") == 1
    assert run("import logging; logging.getLogger('keras_ocl').setLevel(logging.WARNING); " + code) == ""


def test_commands(capsys, tmp_path, monkeypatch, device):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    assert cli.main(["devices"]) == 0
    assert f"* {device.name}" in capsys.readouterr().out
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"chosen: {device}" in out and "pyopencl" in out and str(tmp_path) in out
    assert cli.main(["cache"]) == 0
    assert "0 programs" in capsys.readouterr().out
    tmp_path.chmod(0o777)
    assert cli.main(["cache"]) == 0 and cli.main(["cache", "--clear"]) == 1
    assert capsys.readouterr().out.count(f"cache: not used: {tmp_path} can be written by others") == (2 if os.name != "nt" else 0)


def test_a_reader_that_has_seen_enough():
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([sys.executable, "-m", "keras_ocl", "doctor"], stdout=writer, stderr=subprocess.PIPE, timeout=120)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_doctor_without_a_device(capsys, monkeypatch):
    monkeypatch.setattr(selection, "platforms", list)
    monkeypatch.setattr(selection, "_registry", selection._Registry())
    monkeypatch.delenv("KERAS_OCL_DEVICE", raising=False)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "platforms: none" in out and 'pip install "keras-ocl[cpu]"' in out and "pocl-opencl-icd" in out
