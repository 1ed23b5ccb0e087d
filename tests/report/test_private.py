"""What `hidden` takes out of texts, and what it leaves."""

import platform
import tempfile

import pytest

from keras_ocl.report.private import hidden


@pytest.fixture(autouse=True)
def person(monkeypatch):
    """A user and a host that no other text has."""
    for name in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, "zyx")
    monkeypatch.setenv("HOME", "/home/Zyx Wvu")
    monkeypatch.setattr(platform, "node", lambda: "vault.zyx.example")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/usr/lib/libOpenCL.so.1: no such file", "PATH: no such file"),
        ("in '/opt/some where/a.cl', line 3", "in 'PATH', line 3"),
        ("../secret/x.cl and ~/x/y and file:///srv/data/x", "PATH and PATH and file:PATH"),
        (r"C:\Users\someone\a.dll, \\server\share", "PATH, PATH"),
        ("/home/Zyx Wvu/cache/x.bin", "PATH"),
        ("built by zyx@vault.zyx.example on vault", "built by USER@HOST on HOST"),
        ("tmp_zyx_1", "tmp_USER_1"),
        ("the cache of Zyx Wvu", "the cache of USER"),
        ("3 GB/s, I/O, 1/2, a / b, n/a", "3 GB/s, I/O, 1/2, a / b, n/a"),
        ("OpenCL 3.0 PoCL 3.1+debian  Linux, LLVM 15.0.6", "OpenCL 3.0 PoCL 3.1+debian  Linux, LLVM 15.0.6"),
        ("zyxel, Zyx", "zyxel, Zyx"),  # other words
    ],
)
def test_hidden(text, left):
    assert hidden(text) == left


def test_folders_with_spaces(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/var/my files")
    assert hidden("cannot open /var/my files") == "cannot open PATH"
