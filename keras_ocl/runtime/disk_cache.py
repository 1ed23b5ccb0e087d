"""Compiled programs on disk, shared by all processes of a user.

    programs/<key>   one program: a header line, the names and keys of its kernels, the binary
    kernels/<key>    which program holds this kernel (its file name, 64 characters)

Files appear by rename, so a reader sees whole entries only; a checksum guards against the rest. Nothing that
goes wrong here is an error: the kernel is compiled again.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

MAGIC = b"keras_ocl program 1\n"
SIZE_LIMIT = 512 << 20
TRIM_TO = 0.8  # of the limit, so that not every new entry trims


def cache_folder():
    """The folder of everything we keep on disk: KERAS_OCL_CACHE_DIR, else the user's cache folder."""
    own = os.environ.get("KERAS_OCL_CACHE_DIR")
    if own:
        return Path(own)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "keras_ocl"


def write_private(path, data):
    """Write bytes to `path` by rename, readable by the user only, in folders that are private too."""
    path = Path(path)
    make_private(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")  # mkstemp: mode 0600
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def make_private(folder):
    """Make a folder, and those above it that do not exist yet, with mode 0700."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for f in reversed(missing):
        f.mkdir(mode=0o700, exist_ok=True)


class DiskCache:
    """See the module. `limit` is the size in bytes above which the least recently used programs go."""

    def __init__(self, folder=None, limit=SIZE_LIMIT):
        self.folder = Path(folder or cache_folder())
        self.limit = limit
        self._size = None  # bytes, counted at the first put

    def _program(self, key):
        return self.folder / "programs" / key

    def _kernel(self, key):
        return self.folder / "kernels" / key

    def get(self, kernel_key):
        """(program's key, {kernel name: kernel key}, binary) of the program that holds a kernel, or None."""
        try:
            program_key = self._kernel(kernel_key).read_bytes().decode()
            if len(program_key) != 64 or not program_key.isalnum():
                return None
            path = self._program(program_key)
            data = path.read_bytes()
        except (OSError, UnicodeDecodeError):
            return None
        try:
            if not data.startswith(MAGIC):
                raise ValueError("not an entry")
            payload = data[len(MAGIC) + 65 :]
            if data[len(MAGIC) : len(MAGIC) + 65] != hashlib.sha256(payload).hexdigest().encode() + b"\n":
                raise ValueError("checksum")
            head, _, binary = payload.partition(b"\n")
            members = json.loads(head)
            if kernel_key not in members.values():
                raise ValueError("another kernel's program")
        except (ValueError, AttributeError):
            self.remove(program_key)
            return None
        try:
            os.utime(path)
        except OSError:
            pass
        return program_key, members, binary

    def put(self, members, binary):
        """Store a program; `members` maps its kernels' names to their keys."""
        payload = json.dumps(members).encode() + b"\n" + binary
        program_key = hashlib.sha256("\0".join(members.values()).encode()).hexdigest()
        data = MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
        try:
            write_private(self._program(program_key), data)
            for key in members.values():
                write_private(self._kernel(key), program_key.encode())
            self._size = (self.size() if self._size is None else self._size + len(data))
            if self._size > self.limit:
                self._trim()
        except OSError:
            pass  # no space, no permission: we go without

    def remove(self, program_key):
        """Drop one program."""
        try:
            self._program(program_key).unlink()
        except OSError:
            pass

    def entries(self):
        """(time of last use, bytes, path) of every program, oldest first."""
        found = []
        try:
            for entry in os.scandir(self.folder / "programs"):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
        except OSError:
            pass
        return sorted(found)

    def size(self):
        """Bytes of all programs."""
        return sum(size for _, size, _ in self.entries())

    def clear(self):
        """Delete every entry; returns how many programs there were."""
        count = 0
        for folder in ("programs", "kernels"):
            try:
                names = list(os.scandir(self.folder / folder))
            except OSError:
                continue
            for entry in names:
                try:
                    os.unlink(entry.path)
                    count += folder == "programs"
                except OSError:
                    pass
        self._size = 0
        return count

    def _trim(self):
        entries = self.entries()
        size = sum(n for _, n, _ in entries)
        for _, n, path in entries:
            if size <= self.limit * TRIM_TO:
                break
            os.unlink(path)
            size -= n
        self._size = size
        alive = {Path(path).name for _, _, path in self.entries()}
        for entry in os.scandir(self.folder / "kernels"):
            try:
                if Path(entry.path).read_text() not in alive:
                    os.unlink(entry.path)
            except (OSError, UnicodeDecodeError):
                pass
