"""What the cache on disk trusts: its user's own folder, key and entries, and nothing that another user may have put there."""

import errno
import hashlib
import hmac
import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_ocl.runtime import disk_cache
from keras_ocl.runtime.disk_cache import DiskCache, cache_folder

KEY = "{:064x}".format
OTHER_USER = 12345

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX owners and permissions")
as_root = pytest.mark.skipif(getattr(os, "getuid", lambda: 1)() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder(tmp_path):
    """The folder of a cache with one program, kernel "k" with key 1."""
    DiskCache(tmp_path / "cache").put({"k": KEY(1)}, b"the binary")
    assert DiskCache(tmp_path / "cache").get(KEY(1))[2] == b"the binary"
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog):
    """The texts of the warnings logged so far."""
    caplog.set_level(logging.WARNING, "keras_ocl")
    disk_cache._warned.clear()
    return lambda: [record.getMessage() for record in caplog.records]


def the_program(folder):
    (path,) = (folder / "programs").iterdir()
    return path


def serves(folder, key=1):
    return DiskCache(folder).get(KEY(key)) is not None


def refuses_folder(folder, warnings, remedy, refused=None):
    """Nothing is read or written by two caches of this folder, and one warning names what is refused and the remedy."""
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    for _ in range(2):
        disk = DiskCache(folder)
        assert disk.get(KEY(1)) is None
        disk.put({"k": KEY(2)}, b"another binary")
        assert disk.get(KEY(2)) is None and disk.clear() == 0 and disk.entries() == []
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    (warning,) = warnings()
    assert str(refused or folder) in warning and remedy in warning and "KERAS_OCL_CACHE_DIR" in warning


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_turns_the_cache_off(folder, warnings, mode):
    folder.chmod(mode)
    refuses_folder(folder, warnings, "chmod")
    folder.chmod(0o700)
    assert serves(folder)


@posix
def test_a_folder_that_others_can_read_is_fine(folder, warnings):
    folder.chmod(0o755)
    assert serves(folder) and warnings() == []


@posix
@as_root
@pytest.mark.parametrize("part", ["", "programs", "kernels"])
def test_another_users_folder_turns_the_cache_off(folder, warnings, part):
    os.chown(folder / part, OTHER_USER, OTHER_USER)
    refuses_folder(folder, warnings, "another user", folder / part)


@posix
@as_root
def test_a_link_of_another_user_turns_the_cache_off(folder, warnings):
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert serves(link)  # one's own may lead to another disk
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    refuses_folder(link, warnings, "another user")


@posix
def test_a_link_inside_the_folder_turns_the_cache_off_and_what_it_leads_to_is_kept(folder, warnings, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one").write_text("dear")
    (folder / "programs").rename(tmp_path / "programs")
    (folder / "programs").symlink_to(tmp_path / "letters")
    refuses_folder(folder, warnings, "link", folder / "programs")
    assert (tmp_path / "letters" / "one").read_text() == "dear" and len(os.listdir(tmp_path / "letters")) == 1


@posix
def test_the_key_is_random_and_private(folder, tmp_path):
    key = folder / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.stat().st_uid == os.getuid() and key.stat().st_size == 32
    DiskCache(tmp_path / "second").put({"k": KEY(1)}, b"the binary")
    assert key.read_bytes() != (tmp_path / "second" / "key").read_bytes()
    assert sorted(os.listdir(folder)) == ["kernels", "key", "programs"]  # no temporary files left


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_processes_that_make_the_key_at_once_one_wins(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    urandom = os.urandom

    def slow(n):
        monkeypatch.setattr(os, "urandom", urandom)
        if has_links:
            DiskCache(tmp_path).put({"k": KEY(1)}, b"of the faster")
        return bytes(n)

    monkeypatch.setattr(os, "urandom", slow)
    DiskCache(tmp_path).put({"k": KEY(2)}, b"of the slower")
    assert serves(tmp_path, 2) and serves(tmp_path, 1) == has_links
    assert ((tmp_path / "key").read_bytes() == bytes(32)) != has_links
    assert sorted(os.listdir(tmp_path)) == ["kernels", "key", "programs"]


def no_links(source, path):
    raise PermissionError("hard links are not permitted")


def key_of_mode(key):
    key.chmod(0o640)


def key_that_others_can_write(key):
    key.chmod(0o602)


def key_behind_a_link(key):
    key.rename(key.parent.parent / "elsewhere")
    key.symlink_to(key.parent.parent / "elsewhere")


def key_cut_short(key):
    key.write_bytes(key.read_bytes()[:31])


def key_of_a_pipe(key):
    key.unlink()
    os.mkfifo(key, 0o600)


@posix
@pytest.mark.parametrize("spoil", [key_of_mode, key_that_others_can_write, key_behind_a_link, key_cut_short, key_of_a_pipe])
def test_a_doubtful_key_is_not_used(folder, warnings, spoil):
    spoil(folder / "key")
    refuses_folder(folder, warnings, "delete", folder / "key")


@posix
@as_root
def test_another_users_key_is_not_used(folder, warnings):
    os.chown(folder / "key", OTHER_USER, OTHER_USER)
    refuses_folder(folder, warnings, "delete", folder / "key")


def entry_with_a_plain_checksum(path, data):
    """As anybody can write it, who knows the format but not the key."""
    magic, _, payload = data.split(b"\n", 2)
    path.write_bytes(magic + b"\n" + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def entry_of_another_key(path, data):
    disk = DiskCache(path.parents[2] / "attacker")
    disk.put({"k": KEY(1)}, b"malice")
    path.write_bytes(the_program(disk.folder).read_bytes())


def entry_with_another_binary(path, data):
    path.write_bytes(data[:-1] + b"?")


def entry_without_a_digest(path, data):
    magic, _, payload = data.split(b"\n", 2)
    path.write_bytes(magic + b"\n\n" + payload)


@pytest.mark.parametrize("forge", [entry_with_a_plain_checksum, entry_of_another_key, entry_with_another_binary, entry_without_a_digest])
def test_an_entry_whose_digest_does_not_match_is_ignored_and_overwritten(folder, warnings, forge):
    path = the_program(folder)
    forge(path, path.read_bytes())
    assert not serves(folder)
    DiskCache(folder).put({"k": KEY(1)}, b"the binary")
    assert DiskCache(folder).get(KEY(1))[2] == b"the binary" and warnings() == []


def entry_that_others_can_write(path):
    path.chmod(0o602)


def entry_behind_a_link(path):
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def entry_of_another_user(path):
    if os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    os.chown(path, OTHER_USER, OTHER_USER)


def entry_of_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@posix
@pytest.mark.parametrize("part", ["programs", "kernels"])
@pytest.mark.parametrize("spoil", [entry_that_others_can_write, entry_behind_a_link, entry_of_another_user, entry_of_a_pipe])
def test_an_entry_that_is_not_our_own_file_is_ignored_and_overwritten(folder, warnings, spoil, part):
    (path,) = (folder / part).iterdir()
    spoil(path)
    assert not serves(folder)
    DiskCache(folder).put({"k": KEY(1)}, b"the binary")
    assert serves(folder) and warnings() == [] and stat.S_ISREG(path.lstat().st_mode)


def test_an_entry_serves_only_the_kernels_that_it_was_stored_for(folder):
    DiskCache(folder).put({"other": KEY(2)}, b"of another")
    (folder / "kernels" / KEY(1)).write_bytes((folder / "kernels" / KEY(2)).read_bytes())
    assert not serves(folder, 1)


def test_the_digest_covers_names_and_binary(folder):
    key, data = (folder / "key").read_bytes(), the_program(folder).read_bytes()
    magic, digest, payload = data.split(b"\n", 2)
    assert digest.decode() == hmac.new(key, payload, "sha256").hexdigest()
    assert json.loads(payload.split(b"\n")[0]) == {"k": KEY(1)}


@pytest.mark.skipif(os.name == "nt", reason="the home folder comes from other variables")
def test_without_a_home_there_is_no_cache(monkeypatch, warnings):
    def no_entry(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "KERAS_OCL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    assert cache_folder() is None
    disk = DiskCache()
    disk.put({"k": KEY(1)}, b"binary")
    assert disk.get(KEY(1)) is None and disk.entries() == [] and disk.clear() == 0
    disk.remove(KEY(1))
    (warning,) = warnings()
    assert "no home folder" in warning and "KERAS_OCL_CACHE_DIR" in warning


@posix
@pytest.mark.parametrize("below", ["", "cache", "more/cache"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path, warnings, below):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        disk = DiskCache(tmp_path / "file" / below)
        disk.put({"k": KEY(1)}, b"binary")
        assert disk.get(KEY(1)) is None
    (warning,) = warnings()
    assert f"{tmp_path / 'file'}" in warning and "is no folder, or below a file" in warning and "KERAS_OCL_CACHE_DIR" in warning
    assert "is no folder" in disk.problem()


def test_a_home_folder_is_understood(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("KERAS_OCL_CACHE_DIR", os.path.join("~", "here"))
    assert cache_folder() == tmp_path / "here"


@posix
def test_a_folder_that_cannot_be_written_is_read_and_named_once(folder, warnings, monkeypatch):
    def full(*arguments, **names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    for _ in range(2):
        disk = DiskCache(folder)
        disk.put({"k": KEY(2)}, b"binary")
        assert serves(folder) and not serves(folder, 2)
    (warning,) = warnings()
    assert f"{folder} cannot be written (No space left on device); make room, or name another folder in KERAS_OCL_CACHE_DIR" in warning
    assert disk.unwritable() == "No space left on device" and disk.problem() == ""


def test_looking_whether_it_can_be_written_leaves_nothing(folder):
    before = sorted(folder.rglob("*"))
    assert DiskCache(folder).unwritable() == "" == DiskCache(folder / "new" / "deep").unwritable()
    assert sorted(folder.rglob("*")) == before


def test_steps_are_trusted_as_programs_are(folder):
    disk, key, other = DiskCache(folder), KEY(7), KEY(8)
    assert disk.get_step(key) is None
    disk.put_step(key, b"a step\nof two lines")
    assert DiskCache(folder).get_step(key) == b"a step\nof two lines" and serves(folder)
    path = folder / "steps" / key
    data = path.read_bytes()
    for wrong in (b"", data[:-1], data[:40], data.replace(b"two", b"six"), the_program(folder).read_bytes()):
        path.write_bytes(wrong)
        assert DiskCache(folder).get_step(key) is None
    (folder / "steps" / other).write_bytes(data)
    os.chmod(folder / "steps" / other, 0o600)
    assert DiskCache(folder).get_step(other) is None  # another key's


@posix
def test_steps_that_others_can_write_are_not_read(folder):
    DiskCache(folder).put_step(KEY(7), b"a step")
    os.chmod(folder / "steps" / KEY(7), 0o666)
    assert DiskCache(folder).get_step(KEY(7)) is None
    os.chmod(folder / "steps" / KEY(7), 0o600)
    assert DiskCache(folder).get_step(KEY(7)) == b"a step"
    os.chmod(folder / "steps", 0o777)
    assert DiskCache(folder).get_step(KEY(7)) is None


def test_steps_count_and_go_as_programs_do(folder):
    disk = DiskCache(folder, limit=3500)
    for k in range(2):
        disk.put_step(KEY(k), bytes(1000))
        os.utime(folder / "steps" / KEY(k), (k, k))
    assert disk.size() > 2000 and len(disk.entries()) == 3
    disk.put_step(KEY(2), bytes(1000))
    assert [disk.get_step(KEY(k)) is None for k in range(3)] == [True, False, False] and serves(folder)
    assert disk.clear() == 1 and disk.entries() == [] and disk.get_step(KEY(2)) is None  # the number of programs


def test_who_reads_a_step_while_others_write_it_gets_a_whole_one(folder):
    written = [bytes([k]) * 50_000 for k in range(4)]
    DiskCache(folder).put_step(KEY(7), written[0])

    def write(data):
        for _ in range(25):
            DiskCache(folder).put_step(KEY(7), data)

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(write, data) for data in written]
        read = {DiskCache(folder).get_step(KEY(7))}
        while not all(future.done() for future in running):
            read.add(DiskCache(folder).get_step(KEY(7)))
    assert all(future.exception() is None for future in running) and read <= set(written)


def test_a_cache_may_go_without_warnings(tmp_path, warnings):
    (tmp_path / "file").write_text("")
    disk = DiskCache(tmp_path / "file" / "cache", warns=False)
    disk.put_step(KEY(1), b"a step")
    assert disk.get_step(KEY(1)) is None and disk.problem() and warnings() == []
