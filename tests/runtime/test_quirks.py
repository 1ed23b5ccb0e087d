"""Quirks: which devices have them, by platform and version, and that code, list, records and docs agree."""

import ast
import re
from pathlib import Path

import pytest

import keras_ocl
from keras_ocl import runtime
from keras_ocl.runtime.quirks import QUIRKS, Implementation, Quirk, quirks_of
from keras_ocl.runtime.traits import Traits, read_traits

PACKAGE = Path(keras_ocl.__file__).parent
DOCS = PACKAGE.parent / "docs/extending/opencl.md"
ASKED = {quirk.name for quirk in QUIRKS if quirk.applied != "always"}
ALWAYS = {quirk.name for quirk in QUIRKS if quirk.applied == "always"}
NAMES = {"Portable Computing Language": "PoCL", "Intel(R) OpenCL": "Intel's CPU runtime", "NVIDIA CUDA": "NVIDIA's driver"}
NAMES |= {"AMD Accelerated Parallel Processing": "AMD's driver", "rusticl": "rusticl, Mesa"}


def quirk(applied, *known):
    return Quirk("fake", "It fails.", "It is avoided.", known, applied)


@pytest.mark.parametrize(
    "version,has",
    [
        ("3.1+debian", True),
        ("", True),
        ("unknown", True),
        ("9", True),
        ("10.1.9", True),
        ("10.2", False),
        ("10.2.0-rc1", False),
        ("10.10", False),
        ("11", False),
        ("2026.22.10.0.29_160000", False),
        ("3649.0 (HSA1.1,LC)", False),
    ],
)
@pytest.mark.parametrize("applied", ["unless good", "where seen"])
def test_a_fault_ends_with_the_version_that_is_known_to_be_good(applied, version, has):
    assert quirk(applied, Implementation("Other"), Implementation("Fake", "3.1", "10.2")).concerns("Fake", version) == has


@pytest.mark.parametrize("version", ["", "1", "3.1", "999.9"])
def test_without_a_good_version_all_have_it(version):
    for applied in ("unless good", "where seen"):
        assert quirk(applied, Implementation("Fake", "3.1")).concerns("Fake", version)


def test_other_implementations_have_what_is_harmless_to_them():
    known = Implementation("Fake", "3.1", "4")
    for platform, version in (("Other", "5"), ("Fake two", "3"), ("", "")):
        assert quirk("unless good", known).concerns(platform, version)
        assert not quirk("where seen", known).concerns(platform, version)
    assert not quirk("unless good", known, Implementation("Other", good="5")).concerns("Other", "5")  # which never had it


def test_an_unknown_device_has_the_quirks_that_harm_none():
    everywhere = {quirk.name for quirk in QUIRKS if quirk.applied == "unless good"}
    assert quirks_of("Unheard of", "1.0") == quirks_of("", "") == everywhere
    (default,) = (field.default for field in Traits.__dataclass_fields__.values() if field.name == "quirks")
    assert default == everywhere


class Handle:
    """A pyopencl Device as one of another platform has it."""

    def __init__(self, handle, platform, version):
        self._handle, self.driver_version = handle, version
        self.platform = type("Platform", (), {"name": f"{platform} "})  # some drivers' names end in a space

    def __getattr__(self, name):
        return getattr(self._handle, name)


@pytest.mark.parametrize("platform,version", [("NVIDIA CUDA", "580.159.04"), ("Portable Computing Language", "3.1+debian"), ("New", "1")])
def test_a_devices_traits_have_its_quirks(platform, version):
    traits = read_traits(Handle(runtime.current_device().driver.handle, platform, version))
    nvidia = platform == "NVIDIA CUDA"
    assert traits.quirks == quirks_of(platform, version)
    assert (traits.sub_buffers, traits.required_groups) == (not nvidia, nvidia)
    assert ("overlapping_sub_buffers" in traits.quirks, "stated_group_limit" in traits.quirks) == (nvidia, nvidia)


@pytest.mark.parametrize("name", runtime.record_names())
def test_records_have_the_quirks_of_their_implementations(name):
    platform, version = ("NVIDIA CUDA", "580.159.04") if name.startswith("sm_") else ("", "")
    if name == "pocl-cpu":
        platform, version = "Portable Computing Language", "3.1+debian"
    if name == "intel-cpu":
        platform, version = "Intel(R) OpenCL", "2026.22.10.0.01_160000"
    traits = runtime.read_record(name)
    assert traits.quirks == quirks_of(platform, version)
    assert traits.sub_buffers == ("overlapping_sub_buffers" not in traits.quirks)


@pytest.mark.parametrize("name", ["invented", "vectoriser_crash"])
def test_a_records_quirks_are_asked_for(name, tmp_path):
    text = (PACKAGE / "runtime/records/sm_86.toml").read_text()
    file = tmp_path / "device.toml"
    file.write_text(text.replace("quirks = [", f'quirks = ["{name}", '))
    with pytest.raises(ValueError, match=f"the traits record .*device.toml: nothing asks for the quirks {name}; its entries are"):
        runtime.read_record(str(file))
    file.write_text(re.sub("quirks = .*", "quirks = []", text))
    assert runtime.read_record(str(file)).quirks == frozenset()


def asked(text):
    """The names for which code asks: `"name" in quirks` or `"name" not in traits.quirks`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            (container,) = node.comparators
            if getattr(container, "attr", getattr(container, "id", "")) == "quirks":
                yield ast.literal_eval(node.left)


def test_code_and_list_agree():
    """Code asks for each row that is not always applied, comments name those that are, and neither knows others."""
    found, named = set(), set()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "quirks.py":
            text = path.read_text()
            found.update(asked(text))
            named.update(re.findall(r"\bquirk (\w+_\w+)", text))
    assert (found, named) == (ASKED, ALWAYS)


def test_rows():
    assert len({quirk.name for quirk in QUIRKS}) == len(QUIRKS)
    for row in QUIRKS:
        platforms = [one.platform for one in row.known]
        assert row.known and len({*platforms}) == len(platforms)
        assert row.fault.endswith(".") and row.workaround.endswith(".")
        places = re.findall(r"`(\w[\w/]*\.py)`", row.workaround)
        assert all((PACKAGE / place).is_file() for place in places) and (places or "`Traits." in row.workaround)


def table():
    """The list as docs have it."""
    lines = ["| quirk | what goes wrong | seen with | workaround | applied |", "|---|---|---|---|---|"]
    for row in QUIRKS:
        known = []
        for one in row.known:
            known.append(f"{NAMES[one.platform]} {one.seen}".strip() + (f", good from {one.good} on" if one.good else ""))
        lines.append(f"| `{row.name}` | {row.fault} | {'; '.join(known)} | {row.workaround} | {row.applied} |")
    return "\n".join(lines)


def test_docs_have_the_list():
    shown = "\n".join(re.findall(r"^\|.*$", DOCS.read_text().partition("## Quirks")[2].partition("\n## ")[0], re.MULTILINE))
    assert shown == table()
