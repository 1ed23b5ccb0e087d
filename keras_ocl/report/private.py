"""Free text, such as a driver's messages, without what tells who made a report, and on which machine."""

import getpass
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

from keras_ocl.runtime.disk_cache import cache_folder

PATH, USER, HOST = "PATH", "USER", "HOST"
_REST = r"[^\s:;,'\"()]*"  # of a path
_PATHS = re.compile(
    r"(?<=['\"])(?:~|\.{1,2})?/[^'\"\n]*/[^'\"\n]*(?=['\"])|"  # in quotes, where it may have spaces
    r"(?<![\w.~/])(?:~|\.{1,2})?/+(?:[^\s/:;,'\"()]+/)+[^\s:;,'\"()]*"  # with two parts or more: "GB/s" and "I/O" are none
    r"|\b[A-Za-z]:[\\/][^\s:;,'\"()]+|\\\\[^\s:;,'\"()]+"
)
_ACCOUNT = ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")


def hidden(text: str) -> str:
    """The text with PATH, USER and HOST in the place of paths, the user's names and the host's."""
    for path in _own_paths():
        text = re.sub(re.escape(path) + _REST, PATH, text)
    text = _PATHS.sub(PATH, text)
    words = dict.fromkeys(_user_names(), USER) | dict.fromkeys(_host_names(), HOST)
    for name in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", words[name], text)
    return text


def _own_paths():
    """Folders of this process, the longest first: those whose names have spaces are no paths to a pattern."""
    found = {os.getcwd(), sys.prefix, sys.base_prefix, tempfile.gettempdir(), str(cache_folder() or "")}
    try:
        found.add(str(Path.home()))
    except RuntimeError:  # no HOME, and a user id without an entry
        pass
    return sorted((path for path in found if path.count(os.sep) > 1), key=len, reverse=True)


def _user_names():
    found = {os.environ.get(name, "") for name in _ACCOUNT}
    try:
        found.add(Path.home().name)
        found.add(getpass.getuser())
        import pwd  # not on Windows

        found.add(pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0])
    except (ImportError, KeyError, OSError, RuntimeError):  # a user id without an entry
        pass
    return found - {""}


def _host_names():
    name = platform.node()
    return {name, name.partition(".")[0], os.environ.get("HOSTNAME", "")} - {""}
