"""Compiled programs and steps on disk, shared by all processes of a user.

    programs/<key>   one program: a header line, its digest, the names and keys of its kernels, the binary
    kernels/<key>    the key of the program that has this kernel (64 characters)
    steps/<key>      what the compiler made of one function (compiler/run/stored.py): a header line, its digest, its key, and bytes
    quarantine/<name> what was found wrong on a device (quarantine.py): a header line, its digest, its name, and bytes; never trimmed
    key              random bytes, the key of the digests, which are HMACs

A program is code that runs in this user's processes, so only this user's are loaded: folders and files must belong to the user and not
be writable by others, and the digest shows that an entry was stored whole, by somebody who could read the key. Failures here are no
errors: the kernel is compiled again.
"""

import hashlib
import hmac
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from keras_ocl.runtime.claims import Claims
from keras_ocl.runtime.private import NotOurs, check_folder, make_private, read_private, write_private

logger = logging.getLogger("keras_ocl")

MAGIC = b"keras_ocl program 2\n"
STEP_MAGIC = b"keras_ocl step 1\n"
RECORD_MAGIC = b"keras_ocl quarantine 1\n"
KEY_BYTES = 32
SIZE_LIMIT = 512 << 20
TRIM_TO = 0.8  # fraction of the limit to trim to, so that not every new entry trims


def cache_folder():
    """The folder of everything kept on disk: KERAS_OCL_CACHE_DIR, else in the user's cache folder; None for a user without a home."""
    own = os.environ.get("KERAS_OCL_CACHE_DIR")
    try:
        if own:
            return Path(own).expanduser()
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and a user id without an entry
        return None
    return Path(base) / "keras_ocl"


_warned = set()  # problems that a warning was given of


def _warn_once(problem):
    if problem and problem not in _warned:
        _warned.add(problem)
        logger.warning("keras_ocl compiles every program anew: %s.", problem)


class DiskCache:
    """The cache that the module describes.

    `limit`: bytes above which the least recently used programs and steps are deleted. `warns`: whether to warn where it cannot be used.
    """

    def __init__(self, folder=None, limit=SIZE_LIMIT, warns=True):
        self.folder = Path(folder) if folder else cache_folder()
        self.limit, self._warns = limit, warns
        self._size = None  # bytes, counted at the first put
        self._key = None  # the key's bytes, once read
        self._refused = False
        self.claims = Claims(self)

    def _warn(self, problem):
        if self._warns:
            _warn_once(problem)

    def problem(self):
        """Why the disk is not used, as a sentence without its full stop; "" where it is used, or has nothing yet."""
        return self._look()[1]

    def _look(self):
        """(the key's bytes or None, problem)."""
        if self.folder is None:
            return None, "this user has no home folder; name a folder in KERAS_OCL_CACHE_DIR"
        try:
            check_folder(self.folder, may_be_link=True)
            for part in ("programs", "kernels", "steps", "quarantine"):
                if os.path.lexists(self.folder / part):
                    check_folder(self.folder / part)
        except NotADirectoryError as error:
            return None, f"{error.filename} is no folder, or below a file; delete that, or name another folder in KERAS_OCL_CACHE_DIR"
        except NotOurs as error:
            return None, f"{error}; make it yours alone, or name another folder in KERAS_OCL_CACHE_DIR"
        except OSError:
            return None, ""
        path = self.folder / "key"
        try:
            key = read_private(path, secret=True)
        except FileNotFoundError:
            return None, ""
        except OSError:
            key = b""
        if len(key) != KEY_BYTES:
            what = f"{path} is not a file of {KEY_BYTES} bytes that only you can read"
            return None, f"{what}; delete it, or name another folder in KERAS_OCL_CACHE_DIR"
        return key, ""

    def _trusted(self):
        """Whether the folder may be used. Checked until folder and key exist or are refused, which gives one warning."""
        if self._key is None and not self._refused:
            self._key, problem = self._look()
            self._refused = bool(problem)
            self._warn(problem)
        return not self._refused

    def unwritable(self):
        """Why nothing can be stored, in the system's words; "" if it can."""
        folder = self.folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            if folder != self.folder:  # nothing is stored yet, and this shall not make the folder
                return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"
            with tempfile.TemporaryFile(dir=folder) as f:
                f.write(bytes(1 << 16))
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _make_key(self):
        """Make the folder and its key, unless they exist."""
        if self._trusted() and self._key is None:
            make_private(self.folder)
            if self._trusted() and self._key is None:
                write_private(self.folder / "key", os.urandom(KEY_BYTES), replace=False)
                self._trusted()  # reads this key, or that of another process that was faster

    def can_store(self):
        """Whether programs can be stored; makes the folder and its key if they do not exist."""
        try:
            self._make_key()
        except OSError:
            return False
        return self._key is not None

    def _digest(self, payload):
        return hmac.new(self._key, payload, hashlib.sha256).hexdigest().encode() + b"\n"

    def _program(self, key):
        return self.folder / "programs" / key

    def _kernel(self, key):
        return self.folder / "kernels" / key

    def _opened(self, path, magic):
        """What a file holds behind its header and digest. OSError where it cannot be read, ValueError where it is none of ours."""
        data = read_private(path)
        if not data.startswith(magic):
            raise ValueError("not an entry")
        payload = data[len(magic) + 65 :]
        if not hmac.compare_digest(data[len(magic) : len(magic) + 65], self._digest(payload)):
            raise ValueError("not the digest of one of our processes")
        try:
            os.utime(path)
        except OSError:
            pass
        return payload

    def get(self, kernel_key):
        """(program's key, {kernel name: kernel key}, binary) of the program that has a kernel, or None."""
        if not self._trusted() or self._key is None:
            return None
        try:
            program_key = read_private(self._kernel(kernel_key)).decode()
        except (OSError, UnicodeDecodeError):
            return None
        if len(program_key) != 64 or not program_key.isalnum():
            return None
        try:
            head, _, binary = self._opened(self._program(program_key), MAGIC).partition(b"\n")
            members = json.loads(head)
            if kernel_key not in members.values():
                raise ValueError("another kernel's program")
        except OSError:
            return None
        except (ValueError, AttributeError):
            self.remove(program_key)
            return None
        return program_key, members, binary

    def put(self, members, binary):
        """Store a program; `members` maps its kernels' names to their keys."""
        program_key = hashlib.sha256("\0".join(members.values()).encode()).hexdigest()
        self._put("programs", program_key, MAGIC, json.dumps(members).encode() + b"\n" + binary, members.values())

    def get_step(self, key):
        """The bytes of the step that is stored under a key, or None."""
        if not self._trusted() or self._key is None:
            return None
        try:
            found, _, data = self._opened(self.folder / "steps" / key, STEP_MAGIC).partition(b"\n")
        except (OSError, ValueError):
            return None
        return data if found == key.encode() else None

    def put_step(self, key, data):
        """Store a step's bytes under a key, in the place of any that are there."""
        self._put("steps", key, STEP_MAGIC, key.encode() + b"\n" + data)

    def get_record(self, name):
        """The bytes of the record of this name, None where there is none. OSError or ValueError where it is none of this user's."""
        path = self.folder and self.folder / "quarantine" / name
        if path is None or not os.path.lexists(path):
            return None
        if not self._trusted() or self._key is None:
            raise ValueError(self.problem() or f"{self.folder} has no key")
        found, _, data = self._opened(path, RECORD_MAGIC).partition(b"\n")
        if found != name.encode():
            raise ValueError("it is another device's")
        return data

    def put_record(self, name, data):
        """Store a record's bytes under a name, in the place of any that are there. OSError, which says why, where it cannot be written."""
        if not self.can_store():
            raise OSError(self.problem() or self.unwritable() or f"{self.folder} cannot be written")
        payload = name.encode() + b"\n" + data
        write_private(self.folder / "quarantine" / name, RECORD_MAGIC + self._digest(payload) + payload)

    def remove_record(self, name):
        """Delete a record; whether there was one. OSError where it cannot be deleted."""
        if self.folder is None or not self._trusted():
            return False
        try:
            os.unlink(self.folder / "quarantine" / name)
        except FileNotFoundError:
            return False
        return True

    def _put(self, folder, key, magic, payload, kernels=()):
        """Store a payload in a folder under a key; `kernels`: keys of the kernels whose program it is."""
        try:
            self._make_key()
            if self._key is None:
                return
            data = magic + self._digest(payload) + payload
            write_private(self.folder / folder / key, data)
            for kernel in kernels:
                write_private(self._kernel(kernel), key.encode())
            self._size = self.size() if self._size is None else self._size + len(data)
            if self._size > self.limit:
                self._trim()
        except OSError as error:  # no space, no permission: go without
            what = error.strerror or error
            self._warn(f"{self.folder} cannot be written ({what}); make room, or name another folder in KERAS_OCL_CACHE_DIR")

    def remove(self, program_key):
        """Drop one program."""
        if not self._trusted():
            return
        try:
            self._program(program_key).unlink()
        except OSError:
            pass

    def entries(self):
        """(time of last use, bytes, path) of every program and step, oldest first."""
        found = []
        if not self._trusted():
            return found
        for folder in ("programs", "steps"):
            try:
                for entry in os.scandir(self.folder / folder):
                    status = entry.stat()
                    found.append((status.st_mtime, status.st_size, entry.path))
            except OSError:
                pass
        return sorted(found)

    def size(self):
        """Bytes of all programs and steps."""
        return sum(size for _, size, _ in self.entries())

    def clear(self):
        """Delete every entry; returns how many programs there were."""
        count = 0
        if not self._trusted():
            return count
        for folder in ("programs", "kernels", "steps"):
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
