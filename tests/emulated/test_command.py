"""`python -m tests.emulated` without an emulated device: its arguments, settings and messages, and what compares a launch with another."""

import numpy as np
import pytest

from tests.emulated import __main__ as command
from tests.emulated import settings, shadow
from tests.emulated.compiling import architecture
from tests.emulated.settings import Settings, Unusable
from tests.emulated.statistics import Counts


def message(*arguments):
    with pytest.raises(SystemExit) as raised:
        command.main([*arguments])
    return raised.value.code


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / settings.EMULATOR).parent.mkdir(parents=True)
    (tmp_path / settings.EMULATOR).touch()
    return tmp_path


def test_mistakes_in_a_command(tmp_path, monkeypatch):
    unknown = "There is no emulated device 'gfx906'; there are gfx1100, gfx1201, gfx942."
    assert message(str(tmp_path), "gfx906") == message(str(tmp_path), "gfx906", "kernels") == unknown
    there = "there are driver, kernels, operations, models, fuzz, verify."
    assert message(str(tmp_path), "gfx942", "kernel") == f"There is no 'kernel' to run; {there}"
    no_checkout = f"{tmp_path} is no checkout of tinygrad (https://github.com/tinygrad/tinygrad): it has no test/mockgpu/amd/emu.py."
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert message(str(tmp_path), "models") == no_checkout


def test_what_is_missing(checkout, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda program: None if program in ("clang-19", "ld.lld-19") else f"/usr/bin/{program}")
    monkeypatch.setattr(settings, "_HEADER", checkout)
    monkeypatch.setattr(settings, "device_libraries", lambda: None)
    needs = "The emulated GPU needs programs that are not installed: on Debian, apt install clang-19 lld-19 rocm-device-libs."
    assert message(str(checkout)) == needs
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(settings, "device_libraries", lambda: checkout)
    monkeypatch.setattr(settings, "find_spec", lambda module: None)
    assert message(str(checkout)) == "The emulated GPU needs packages that are not installed: pip install msgpack pyelftools."
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert message(str(checkout)) == "The emulated GPU needs Linux on x86-64, and this is Linux on arm64."


def test_what_runs(checkout, monkeypatch):
    """The device may be left out, and arguments take the place of the usual ones."""
    ran = []
    monkeypatch.setattr(settings, "check", lambda folder: None)
    monkeypatch.setattr("os.chdir", lambda folder: None)
    monkeypatch.setattr("os.execve", lambda python, line, environment: ran.append((line, environment)))
    start = ["-m", "tests.emulated.program", str(checkout)]
    for arguments, expected in (
        ([], [*start, "gfx1100", *command.WHAT["kernels"][0], "tests/kernels", "tests/primitives", "--every", "5"]),
        (["gfx942", "kernels", "tests/kernels/conv", "-k", "depthwise"], [*start, "gfx942", *command.WHAT["kernels"][0]]),
        (["fuzz", "--seed", "3"], [*start, "gfx1100", "-m", "tests.fuzz", "--seed", "3"]),
        (["gfx1201", "verify"], [*start, "gfx1201", "-m", "tests.emulated.verifying", "--short"]),
    ):
        command.main([str(checkout), *arguments])
        assert ran[-1][0][1:][: len(expected)] == expected
    assert ran[1][0][-3:] == ["tests/kernels/conv", "-k", "depthwise"]
    assert ran[-1][1]["EMULATED_DEVICE"] == "gfx1201"


def test_settings(tmp_path):
    own = Settings.of({"XDG_CACHE_HOME": str(tmp_path), "EMULATED_POISON": "0x1", "EMULATED_SEED": "0", "EMULATED_DEVICE": "gfx942"})
    assert (own.device, own.poison, own.seed, own.resident, own.ulps) == ("gfx942", 1, 0, 3, 0)
    assert own.cache == tmp_path / "keras_ocl-emulated" and own.environment()["EMULATED_DEVICE"] == "gfx942"
    for given, why in (
        ({"EMULATED_SEED": "first"}, "EMULATED_SEED='first' is no whole number from 0 to 4294967295."),
        ({"EMULATED_RESIDENT": "9"}, "EMULATED_RESIDENT='9' is no whole number from 1 to 8."),
        ({"EMULATED_GUARD": "middle"}, "EMULATED_GUARD='middle' is none of start, end, alternate."),
        ({"EMULATED_MEMORY": "1"}, "EMULATED_MEMORY='1' is no whole number from 16777216 to 17592186044416."),
    ):
        with pytest.raises(Unusable) as raised:
            Settings.of(given)
        assert str(raised.value) == why


def test_architectures():
    assert [architecture(device) for device in settings.DEVICES] == ["rdna3", "rdna4", "cdna"]


def test_differences_of_a_launch():
    want = np.array([1, -2, np.nan, 1e-9], "f4")
    near = np.nextafter(want, np.float32(9))
    assert shadow.differences(near.view("u1"), want.view("u1"), 1) == ""
    wrong = np.array([1, -2.5, np.nan, 1e-9], "f4")
    text = shadow.differences(wrong.view("u1"), want.view("u1"), 1)
    assert text.startswith("1 words and 0 last bytes differ; at words [1] are [-2.5]") and "not [-2.0]" in text
    assert shadow.differences(np.array([1, 2], "u1"), np.array([1, 3], "u1"), 1).startswith("0 words and 1 last bytes")


def test_counts(capsys):
    counts = Counts()
    for name, operation in (("VOP2", "V_ADD_F32"), ("VGLOBAL", "GLOBAL_LOAD_B32"), ("SOP1", "S_MOV_B32")):
        counts.add(type(name, (), {})(), operation, 2, 64)
    counts.show(1)
    assert capsys.readouterr().err == (
        "emulated: 2 global memory, 64 items' accesses of global memory, 2 scalar, 2 vector\nemulated: V_ADD_F32 2\n"
    )
