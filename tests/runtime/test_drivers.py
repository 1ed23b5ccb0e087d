"""Drivers that are broken, beside one that works: those that die are left out, those that answer badly cost what they are asked for."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from keras_ocl import runtime
from keras_ocl.runtime import discovery, drivers
from tests.runtime.test_discovery import make_useless_entries

PLACES = ("load", "entry", "platforms", "platforminfo", "devices", "deviceinfo", "context")
DEATHS = {"crash": "crashes (SIGSEGV)", "abort": "crashes (SIGABRT): fake driver: assertion failed"}
DEATHS |= {"exit": "ends the process (exit status 7)"}
TEXTS = ("0901", "0902", "0903", "102B", "102C", "102D", "102F", "1030")  # queries that are answered by text
NUMBERS = tuple(f"{name:04X}" for name in (*range(0x1000, 0x103E), 0x1053) if f"{name:04X}" not in TEXTS)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake driver is one for Linux's loader")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a fake driver")
    library = tmp_path_factory.mktemp("driver") / "fake.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def fake(built, tmp_path, monkeypatch):
    """Function that makes a driver which is broken as `how` and `where` say, and returns its path; nothing is remembered of any."""
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path / "cache"))

    def make(how, where=""):
        return shutil.copy(built, tmp_path / f"libfake-{how}-{where}.so")

    return make


def deaths(libraries, anew=False):
    return drivers.deaths([str(library) for library in libraries], discovery._loading_mode(), anew)


@pytest.fixture
def trials(monkeypatch):
    """The libraries that were tried, one after the other."""
    tried, real = [], drivers._tried
    monkeypatch.setattr(drivers, "_tried", lambda libraries, mode: tried.extend(libraries) or real(libraries, mode))
    return tried


def test_what_a_driver_dies_of_is_told(fake):
    expected = {str(fake(how, where)): text for how, text in DEATHS.items() for where in PLACES}
    assert deaths([*expected, fake("sound")]) == expected


def test_a_driver_that_hangs_is_not_waited_for(fake, monkeypatch):
    monkeypatch.setattr(drivers, "PATIENCE", 1)
    libraries = [str(fake("hang", where)) for where in PLACES]
    assert deaths(libraries) == dict.fromkeys(libraries, "does not answer within 1 seconds")


def test_each_driver_is_tried_once_for_each_version_of_its_file(fake, trials):
    sound, broken = str(fake("sound")), str(fake("crash", "load"))
    for _ in range(3):
        assert list(deaths([sound, broken])) == [broken]
    assert trials == [sound, broken]
    os.utime(sound, (1, 1))
    assert list(deaths([sound, broken])) == [broken] and trials[2:] == [sound]
    assert list(deaths([sound, broken], anew=True)) == [broken] and trials[3:] == [sound, broken]


def test_what_died_is_tried_again_the_next_day(fake, trials, monkeypatch):
    sound, broken = str(fake("sound")), str(fake("crash", "load"))
    deaths([sound, broken])
    later = time.time() + drivers.FORGET + 1
    monkeypatch.setattr(drivers.time, "time", lambda: later)
    deaths([sound, broken])
    assert trials[2:] == [broken]


def test_a_name_that_the_linker_resolves_is_remembered_with_the_file_behind_it(fake, trials, monkeypatch):
    sound = Path(fake("sound"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(sound.parent))
    for _ in range(2):
        assert deaths([sound.name]) == {}
    assert trials == [sound.name]
    os.utime(sound, (1, 1))
    assert deaths([sound.name]) == {} and len(trials) == 2
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert deaths([sound.name]) == {} and len(trials) == 3


def test_libraries_that_are_not_there_are_not_tried_again_and_again(fake, trials):
    for _ in range(2):
        assert deaths(["libnothere.so.1", "/nowhere/lib.so"]) == {}
    assert trials == ["libnothere.so.1"]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a": 1}', b"\xff", b'{"a": {"file": "", "state": null}}'])
def test_a_spoilt_memory_is_written_anew(fake, trials, text):
    broken = str(fake("crash", "load"))
    folder = drivers.cache_folder()
    folder.mkdir(mode=0o700)
    (folder / drivers.FILE).write_bytes(text)
    (folder / drivers.FILE).chmod(0o600)
    assert list(deaths([broken])) == [broken] == list(json.loads((folder / drivers.FILE).read_bytes()))


def test_without_a_folder_to_remember_in_they_are_tried_each_time(fake, trials, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", "/proc/nothing")
    broken = str(fake("crash", "load"))
    for _ in range(2):
        assert list(deaths([broken])) == [broken]
    assert trials == [broken, broken]


def test_what_cannot_be_tried_is_taken_as_it_is(fake, monkeypatch):
    broken = str(fake("crash", "load"))
    monkeypatch.setattr(drivers, "interpreter", lambda: "/nowhere/python")
    assert deaths([broken]) == {}
    monkeypatch.setattr(drivers, "interpreter", lambda: None)
    assert deaths([broken]) == {}


def doctor(folder, code="", **environment):
    """What `doctor` prints where OCL_ICD_VENDORS is a folder that names these drivers, and in its errors."""
    run = f"from keras_ocl import cli; {code}\nraise SystemExit(cli.main(['doctor']))"
    own = {"OCL_ICD_VENDORS": str(folder), "KERAS_OCL_COMPILERS": "0", "KERAS_OCL_DEVICE": runtime.current_device().platform}
    environment = {**os.environ, **own, **environment}
    result = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, timeout=120)
    errors = result.stderr.decode(errors="replace")
    assert result.returncode == 0, errors
    return result.stdout.decode(), errors


@pytest.fixture(scope="module")
def good():
    """The library of the device in use."""
    platform = runtime.current_device().platform
    for found in discovery.runtimes():
        code = f"""
            import os, sys
            os.environ["OCL_ICD_VENDORS"] = {found.library!r}
            import pyopencl
            sys.exit(all(p.name.strip() != {platform!r} for p in pyopencl.get_platforms()))
        """
        if not subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.DEVNULL, timeout=60).returncode:
            return found.library
    pytest.skip("nobody tells which library the device in use has")


@pytest.fixture
def folder(good, tmp_path):
    """A vendors' folder that names the driver of the device in use."""
    path = tmp_path / "vendors"
    path.mkdir()
    (path / "good.icd").write_text(good)
    return path


def test_drivers_that_die_are_left_out_and_named(fake, folder):
    names = [fake("crash", "load"), fake("abort", "platforms"), fake("exit", "devices"), fake("crash", "context")]
    for k, name in enumerate(names):
        (folder / f"{k}.icd").write_text(str(name))
    out, errors = doctor(folder)
    assert "chosen: " in out and runtime.current_device().platform in out and "Fake Platform" not in out
    for name in names:
        said = out.partition(str(name))[2].splitlines()[1]
        assert said.startswith("      not used: it crashes (SIG") or said == "      not used: it ends the process (exit status 7)"
        assert f"leaves out the OpenCL driver {name}" in errors and "`python -m keras_ocl doctor` tries it again" in errors
    again = textwrap.dedent("""
        from keras_ocl.runtime import drivers, discovery
        drivers._tried = lambda libraries, mode: sys.exit(str(libraries)) if libraries else {}
        discovery.with_problems = lambda found: found
    """)
    assert "chosen: " in doctor(folder, f"import sys{again}")[0]  # nothing is tried any more


def test_useless_entries_stop_nothing_in_the_plainest_locale_either(folder):
    said = make_useless_entries(folder)
    (folder / "utf.icd").write_bytes("/opt/\xe4\xf6/lib.so\n".encode())
    (folder / "latin.icd").write_bytes(b"/opt/\xe4\xf6/lib.so\n")
    out, errors = doctor(folder, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert errors == "" and "chosen: " in out and runtime.current_device().platform in out.partition("chosen: ")[2]
    for icd, problem in said.items():
        assert f"  {icd}\n      not used: {problem}\n" in out


WRONG = [("error", name) for name in TEXTS + NUMBERS] + [("bytes", name) for name in TEXTS] + [("empty", name) for name in TEXTS]
WRONG += [("zero", name) for name in NUMBERS] + [("version", "10"), ("sound", "")]
WRONG += [(how, where) for how in ("error", "zero") for where in ("platforms", "devices")]
UNTRIED = "from keras_ocl.runtime import drivers; drivers.deaths = lambda *rest: {}"


def test_answers_that_cannot_be_read_cost_only_what_they_are_about(fake, folder):
    for k, (how, where) in enumerate(WRONG):
        (folder / f"{k:03}.icd").write_text(str(fake(how, where)))
    # The self-test would take most of the time.
    untested = "from keras_ocl.runtime import selection; tested = selection.self_test; selection.self_test = lambda handle, name: "
    untested += "(None, 'fake') if handle.platform.name == 'Fake Platform' else tested(handle, name)"
    out, errors = doctor(folder, f"{UNTRIED}; {untested}")
    assert errors == ""
    assert "chosen: " in out and runtime.current_device().platform in out.partition("chosen: ")[2]
    assert "left out: Fake GPU: it has OpenCL 1.0 fake, and OpenCL 1.2 is needed" in out
    assert r"left out: its driver's text is not UTF-8 (b'Fake \xae\xff')" in out
    assert r"left out: a device whose name cannot be read: its driver's text is not UTF-8 (b'Fake \xae\xff')" in out
    assert "left out: Fake GPU: clGetDeviceInfo failed: INVALID_VALUE" in out
    listed = out.count("not usable: ")
    left_out = out.count("left out: ")
    assert listed + left_out >= len(WRONG) - 4, (listed, left_out)  # those without platforms or devices
    assert listed > left_out > 20, (listed, left_out)


def test_where_there_is_nothing_else_the_error_names_what_was_left_out(fake, folder):
    for icd in folder.iterdir():
        icd.unlink()
    (folder / "old.icd").write_text(str(fake("version", "10")))
    code = f"{UNTRIED}; from keras_ocl.runtime import discovery; discovery._from_distributions = lambda: ()\nfrom keras_ocl import runtime"
    run = f"{code}\ntry: runtime.current_device()\nexcept RuntimeError as error: print(error)"
    environment = {**os.environ, "OCL_ICD_VENDORS": str(folder)}
    environment.pop("KERAS_OCL_DEVICE", None)
    out = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, text=True, timeout=60).stdout
    assert "no usable OpenCL device found; left out: Fake GPU: it has OpenCL 1.0 fake, and OpenCL 1.2 is needed" in out
