"""Values of one device are read from its file, or from the one that a variable names, when the device is opened."""

import dataclasses
import datetime
import os
import pickle
import re
from pathlib import Path

import pytest

from keras_ocl import cli, runtime
from keras_ocl.runtime.overrides import Overrides, device_file, read_entries, read_overrides, text_of, write_entries
from keras_ocl.runtime.traits import read_traits

FILE = """
[cpu.tuning]
"product.block" = 256
"product.streamed_vectors" = [64, 32]

[cpu.choices.product]
"float32 m=64" = { kind = "rows", rows = 4 }

[gpu.tuning]
depth = 8
"""
CPU = (("product.block", 256), ("product.streamed_vectors", (64, 32)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("KERAS_OCL_TUNING", raising=False)
    return tmp_path


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A function that writes the file which KERAS_OCL_TUNING names, and returns its path."""

    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        monkeypatch.setenv("KERAS_OCL_TUNING", str(path))
        return path

    return write


def test_without_a_file_there_are_none(folder):
    assert read_overrides("cpu", "Model", "1.0", 4) == Overrides() == runtime.Traits.overrides
    assert not list(folder.iterdir())


def test_each_schedule_has_its_part(named):
    path = named(FILE)
    choice = ("product", "float32 m=64", (("kind", "rows"), ("rows", 4)))
    cpu = read_overrides("cpu", "Model", "1.0", 4)
    assert cpu == Overrides(str(path), ("cpu", "gpu"), CPU, (choice,))
    assert hash(cpu) == hash(pickle.loads(pickle.dumps(cpu)))
    assert read_overrides("gpu", "Model", "1.0", 4) == Overrides(str(path), ("cpu", "gpu"), (("depth", 8),))
    assert read_overrides("reference", "Model", "1.0", 4) == Overrides(str(path), ("cpu", "gpu"))


def test_a_device_has_a_file_by_model_driver_and_units(folder):
    path = device_file("Intel(R) CPU @ 2 GHz/x ", "2024.1", 4)
    assert path == folder / "tuning" / "Intel-R-CPU-2-GHz-x-2024.1-4-units.toml"
    path.parent.mkdir()
    path.write_text(FILE)
    assert read_overrides("cpu", "Intel(R) CPU @ 2 GHz/x ", "2024.1", 4).tuning == CPU
    for other in (("Intel(R) CPU", "2024.1", 4), ("Intel(R) CPU @ 2 GHz/x", "2024.2", 4), ("Intel(R) CPU @ 2 GHz/x", "2024.1", 2)):
        assert read_overrides("cpu", *other) == Overrides()


@pytest.mark.skipif(os.name == "nt", reason="files have no modes there")
def test_a_file_that_others_can_write_is_refused(folder):
    path = device_file("Model", "1.0", 4)
    path.parent.mkdir()
    path.write_text(FILE)
    path.chmod(0o666)
    with pytest.raises(ValueError, match=f"^a device's own values cannot be read from {re.escape(str(path))}: .* is not a private file; "):
        read_overrides("cpu", "Model", "1.0", 4)


@pytest.mark.parametrize(
    "text, says",
    [
        ("[cpu.tuning", "end of a table declaration"),
        ("cpu = 1", "'cpu' is no schedule with the tables 'tuning' and 'choices'"),
        ("[cpu.tunings]\nblock = 1", "'cpu' is no schedule with the tables 'tuning' and 'choices'"),
        ("cpu.tuning = 1", "'tuning' has a value for each name"),
        ("cpu.choices = 1", "'choices' a table for each kind"),
        ("cpu.choices.product = 1", "'choices' a table for each kind"),
        ("[cpu.choices.product]\nx = 1", "with a table of a tile's fields for each key"),
    ],
)
def test_a_file_of_another_form_is_one_sentence(text, says, named):
    path = named(text)
    with pytest.raises(
        ValueError, match=f"^a device's own values cannot be read from {re.escape(str(path))}: .*{says}.*; correct it, or delete it"
    ):
        read_overrides("cpu", "Model", "1.0", 4)


def test_a_named_file_that_is_not_there(named):
    path = named("")
    path.unlink()
    with pytest.raises(ValueError, match=f"^a device's own values cannot be read from {re.escape(str(path))}: No such file or directory; "):
        read_overrides("cpu", "Model", "1.0", 4)


def test_a_device_that_is_opened_has_them(device, folder):
    handle = device.driver.handle
    path = device_file(handle.name, handle.driver_version, handle.max_compute_units)
    path.parent.mkdir()
    path.write_text("[cpu.tuning]\n'product.block' = 256\n[gpu.tuning]\ndepth = 8")
    assert read_traits(handle).overrides.file == str(path) and len(read_traits(handle).overrides.tuning) == 1


def test_a_record_may_have_them(tmp_path):
    text = (Path(runtime.__file__).parent / "records" / "intel-cpu.toml").read_text()
    path = tmp_path / "own.toml"
    path.write_text(f'{text}\n[overrides.tuning]\n"product.block" = 256')
    assert runtime.read_record(str(path)).overrides == Overrides(str(path), ("cpu",), (("product.block", 256),))
    path.write_text(f"{text}\n[overrides.other]\nx = 1")
    with pytest.raises(ValueError, match="'cpu' is no schedule with the tables"):
        runtime.read_record(str(path))


@pytest.mark.parametrize(
    "name, says", [("product.block", ""), ("product.blok", "has no number 'product.blok'; the nearest names are product.block")]
)
def test_commands_tell_of_them(name, says, tmp_path, capsys, monkeypatch, device):
    path = tmp_path / "own.toml"
    own = Overrides(str(path), ("cpu",), ((name, 256),), (("product", "float32 m=64", ()),))
    info = next(info for info in runtime.devices() if info.name == device.name)
    traits = dataclasses.replace(info.traits, schedule="cpu", overrides=own)
    monkeypatch.setattr(runtime, "devices", lambda: [dataclasses.replace(info, traits=traits)])
    for command in ("devices", "doctor"):
        assert cli.main([command]) == 0
        out = capsys.readouterr().out
        assert f"own numbers: 1, own tiles: 1, from {path}" in out
        assert ("not usable: " in out) == bool(says) and says in out


def test_what_is_written_is_what_is_read(folder):
    path = device_file("Model", "1.0", 4)
    tiles = {'float32 m=32* b=float32(1,"8")': {"kind": "rows", "rows": 4, "steps": (1, 2)}, "other": {"share": 0.5, "fast": True}}
    measured = {"product": {"other": {"gain": 1.25, "date": datetime.date(2026, 11, 29)}}}
    cpu = {"tuning": {"product.block": 256, "product.streamed_vectors": (64, 32)}, "choices": {"product": tiles}, "measured": measured}
    entries = {"about": {"device": 'Möd\\el "4"', "compute_units": 4}, "cpu": cpu, "gpu": {"tuning": {"depth": 8}}}
    write_entries(path, entries)
    read = read_entries(path)
    assert read["about"] == entries["about"] and read["cpu"]["measured"] == measured and read["gpu"] == entries["gpu"]
    assert text_of(read) == path.read_text()
    own = read_overrides("cpu", "Model", "1.0", 4)
    assert own.schedules == ("cpu", "gpu") and own.tuning == CPU
    assert {(kind, key): dict(fields) for kind, key, fields in own.choices} == {("product", key): tile for key, tile in tiles.items()}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_is_noted_beside_the_values_is_no_trait(named):
    plain = read_overrides("cpu", "Model", "1.0", 4) if named(FILE) else None
    path = named(FILE + '\n[about]\ndevice = "Model"\n\n[cpu.measured.product]\n"float32 m=64" = { gain = 1.5 }\n')
    assert read_overrides("cpu", "Model", "1.0", 4) == dataclasses.replace(plain, file=str(path))


def test_a_file_of_another_user_is_not_changed(folder):
    path = device_file("Model", "1.0", 4)
    write_entries(path, {"cpu": {"tuning": {"product.block": 256}}})
    os.chmod(path, 0o666)
    with pytest.raises(ValueError, match="is not a private file"):
        read_entries(path)


def test_without_a_file_there_are_no_entries(folder):
    assert read_entries(device_file("Model", "1.0", 4)) == {}
