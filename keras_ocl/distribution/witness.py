"""Which rank ended first: a process beside the ranks of a host names the rank that was killed.

MPICH's launcher kills all other ranks within a millisecond, before one of them could print anything, and then names any of them. This
file is also the watching program, `python witness.py FOLDER MEMBERS`: it imports the standard library only, so that it starts fast.
"""

import contextlib
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

_HERE, _BYE, _SILENT = b"here\n", b"bye\n", b"told\n"  # messages: a rank is watched; ends normally; has printed itself why the job ends
_FATAL = "Fatal Python error: "  # beginning of faulthandler's output, except for a signal that it was registered for
_AT_ONCE = 65536  # bytes, the capacity of a pipe


class Witness:
    """Sends a rank's messages to the watching process, through the rank's own pipe.

    Args:
        path: the pipe's path.
    """

    def __init__(self, path):
        # Opened for reading too, it can be written to whether or not somebody reads.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._tell(_HERE)
        if not faulthandler.is_enabled():
            faulthandler.enable(self._pipe, all_threads=False)
            os.register_at_fork(after_in_child=faulthandler.disable)  # a child's output would be taken for this rank's
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.register(signal.SIGTERM, self._pipe, all_threads=False, chain=True)
            os.register_at_fork(after_in_child=partial(faulthandler.unregister, signal.SIGTERM))

    def leave(self):
        """Report that this rank ends normally."""
        self._tell(_BYE)

    def told(self):
        """Report that this rank itself prints why the job ends."""
        self._tell(_SILENT)

    def _tell(self, word):
        with contextlib.suppress(OSError):
            os.write(self._pipe, word)


def begin(host, members):
    """This rank's Witness; None where the system does not allow one. Collective.

    Args:
        host: an MPI communicator of the ranks of this host.
        members: the ranks' Members, in their order.
    """
    folder = host.bcast(_started(members) if host.rank == 0 else None)
    if folder is None:
        return None
    with contextlib.suppress(OSError):  # another container on the same host, whose processes cannot be seen
        return Witness(_pipe(folder, host.rank))
    return None


def _started(members):
    """Start the watching process; returns the folder of its pipes to `members`, or None if the system lacks what it needs."""
    if not hasattr(os, "pidfd_open") or not sys.executable:
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
        folder = tempfile.mkdtemp(prefix="keras_ocl-")
        for place in range(len(members)):
            os.mkfifo(_pipe(folder, place), 0o600)
        command = [sys.executable, "-I", "-S", __file__, folder, json.dumps([(m.pid, str(m)) for m in members])]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return folder


def _pipe(folder, place):
    return str(Path(folder, str(place)))


# ---- the process that looks on


class _Rank:
    """A rank of this host, for the watching process.

    Attributes:
        process, pipe: file descriptors that show its end. The pipe is closed before the launcher learns that the process has ended,
            unless a child of the rank keeps it open.
        here, left: whether it has reported that it is watched, and that it ends normally.
        words: the interpreter's last output about a fatal signal.
    """

    def __init__(self, folder, place, pid, text):
        self.text, self.here, self.left, self._heard = text, False, False, b""
        self.process, self.pipe = os.pidfd_open(pid), os.open(_pipe(folder, place), os.O_RDONLY | os.O_NONBLOCK)

    def listen(self):
        """Read its messages; returns whether it prints itself why the job ends."""
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self.pipe, _AT_ONCE)
        self.here, self.left = _HERE in self._heard, _BYE in self._heard
        return _SILENT in self._heard

    @property
    def words(self):
        return self._heard.replace(_HERE, b"").decode(errors="replace").strip()

    def cause(self, memory):
        """How it ended, as a clause for a message."""
        if self.words.startswith(_FATAL):
            return "ended by " + self.words.partition("\n")[0].removeprefix(_FATAL)
        if self.words:
            return "ended by SIGTERM"
        return "was killed, as memory ran out" if memory else "was killed (SIGKILL), or ended by os._exit"


def _killed_for_memory():
    """Number of processes that the kernel has killed for lack of memory since it started."""
    with contextlib.suppress(OSError, StopIteration):
        return int(next(line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")).split()[1])
    return 0


def _watch(ranks, before):
    """The message about the first rank that ends without a report; "" if all end normally, or one prints itself why not."""
    poll, running = select.poll(), list(ranks)
    for rank in ranks:
        poll.register(rank.process, select.POLLIN)
        poll.register(rank.pipe, 0)
    while any(rank.here or rank is ranks[0] for rank in running):
        events = {descriptor for descriptor, _ in poll.poll()}
        ended = [rank for rank in running if events & {rank.process, rank.pipe}]
        for rank in ended:
            running.remove(rank)
            poll.unregister(rank.process)
            poll.unregister(rank.pipe)
        if any([rank.listen() for rank in ranks]):
            return ""
        ended = [rank for rank in ended if rank.here and not rank.left]
        if ended:
            # On a busy machine others may have been killed meanwhile: these left no output, or ended later.
            first = [rank for rank in ended if rank.words] or [rank for rank in ended if rank.process in events] or ended
            cause = first[0].cause(_killed_for_memory() > before)
            message = f"keras_ocl: {' or '.join(rank.text for rank in first)} {cause}; the job ends on all ranks."
            return "\n".join([message, *(rank.words for rank in first if rank.words), ""])
    return ""


def main(folder, members):
    """The watching process. `folder`: that of the pipes; `members`: JSON of [(process id, name of the rank), ...]."""
    if os.fork():  # so that the rank that started it has no child that it does not know
        os._exit(0)
    with contextlib.suppress(OSError):  # needs a privilege
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    before = _killed_for_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ranks = []
    for place, (pid, text) in enumerate(json.loads(members)):
        with contextlib.suppress(ProcessLookupError):
            ranks.append(_Rank(folder, place, pid, text))
    try:
        message = _watch(ranks, before)
    finally:
        for path in Path(folder).iterdir():
            path.unlink()
        Path(folder).rmdir()
    if message:
        with contextlib.suppress(OSError):  # nobody reads
            os.write(sys.stderr.fileno(), message.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
