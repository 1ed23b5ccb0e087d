"""Files and folders that only this user can have written.

Windows knows no such owners and modes; there a user's own folders are private by their access lists, and everything counts as the user's.
"""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


class NotOurs(OSError):
    """Another user may have written a file or folder; the message is a clause that names it."""


def _check_owner(status, path):
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise NotOurs(f"{path} belongs to another user")


def check_folder(path, may_be_link=False):
    """Check that only this user can write to a folder and made it (or the link to it, where `may_be_link`).

    Raises:
        NotOurs: others can write to it, or may have made it.
        OSError: it does not exist.
    """
    link = os.lstat(path)
    _check_owner(link, path)
    if stat.S_ISLNK(link.st_mode) and not may_be_link:
        raise NotOurs(f"{path} is a link")
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path))
    _check_owner(status, path)
    if hasattr(os, "geteuid") and status.st_mode & 0o022:
        raise NotOurs(f"{path} can be written by others (chmod go-w {path})")


def read_private(path, secret=False):
    """The bytes of a regular file, not a link, that only this user can write to and, if it is `secret`, read.

    Raises:
        NotOurs: others can write to it or read the secret, or may have made it.
        OSError: it cannot be read.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as f:
        status = os.fstat(f.fileno())
        _check_owner(status, path)
        if not stat.S_ISREG(status.st_mode) or hasattr(os, "geteuid") and status.st_mode & (0o077 if secret else 0o022):
            raise NotOurs(f"{path} is not a private file")
        return f.read()


def write_private(path, data, replace=True):
    """Write bytes to `path` atomically, readable by the user only, in folders that are private too.

    Without `replace`, a file that exists stays.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    make_private(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")  # mkstemp: mode 0600
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        if replace or not _link(temporary, path):
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _link(source, path):
    """Make a hard link unless `path` exists; returns whether the file system has hard links."""
    try:
        os.link(source, path)
    except FileExistsError:
        pass
    except OSError:
        return False
    return True


def make_private(folder):
    """Make a folder and its missing parents, with mode 0700."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for f in reversed(missing):
        f.mkdir(mode=0o700, exist_ok=True)
