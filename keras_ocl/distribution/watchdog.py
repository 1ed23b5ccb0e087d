"""Ranks that watch one another, so that a job with a failing rank ends on all ranks, with one message, instead of waiting forever.

Each second a thread of each rank sends a heartbeat to the next rank of every communicator: the collectives that it has begun. The next
rank compares them with its own. Ranks form a ring, so some rank sees any fault: where two ranks disagree, some rank disagrees with the
one before it.
"""

import collections
import functools
import hashlib
import os
import threading
import time
from typing import NamedTuple

HEARTBEAT, STALL = "KERAS_OCL_HEARTBEAT", "KERAS_OCL_STALL"
STALL_DEFAULT = 600
_SENT = 16  # most recent collectives that a heartbeat lists
_KEPT = 4096  # most recent collectives that a rank keeps for comparison with heartbeats
_LOOKS = 50  # tries to receive per tick: each takes a message or two from MPI, the oldest first where this rank makes no other calls
_GOODBYE_TICK = 0.02  # seconds between polls of the other ranks while this rank waits for their end
_TURN = 0.4  # seconds per rank by which a higher rank reports later, in case a lower one has seen the same


def seconds(variable, default):
    """The positive number of seconds in an environment variable.

    Raises:
        ValueError: it holds another value.
    """
    text = os.environ.get(variable) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise ValueError(f"{variable}={text} is not a number of seconds above 0, such as {default}.")
    return number


class Member(NamedTuple):
    """A rank, as named in messages."""

    rank: int
    host: str
    pid: int

    def __str__(self):
        return f"rank {self.rank} (process {self.pid} on {self.host})"


class State(NamedTuple):
    """A rank's progress in a communicator."""

    begun: int  # number of collectives begun
    finished: int  # the number of the last one that returned a result
    recent: tuple  # (number, chained digest, text) of the last collectives


class Progress:
    """The collectives of one communicator: the present one, and a chained digest, equal on ranks that have made the same calls.

    Attributes:
        before, after: the world's ranks from which heartbeats arrive here, and to which ours go.
    """

    def __init__(self, name, ranks, rank):
        place = ranks.index(rank)
        self.name, self.before, self.after = name, ranks[place - 1], ranks[(place + 1) % len(ranks)]
        self._begun = self._finished = self._chain = 0
        self._since = None
        self._recent = collections.deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def begin(self, text):
        """Note a call of the collective that `text` describes in full; returns its digest, and the chained digest of all up to it."""
        digest, short = _digest(text)
        with self._lock:
            self._begun += 1
            self._chain = (self._chain * 0x9E3779B97F4A7C15 + digest) % 2**64
            self._recent.append((self._begun, self._chain, short))
            self._since = time.monotonic()
            return digest, self._chain

    def end(self, finished):
        """Note that the collective has returned, or (without `finished`) raised an exception."""
        with self._lock:
            self._since = None
            if finished:
                self._finished = self._begun

    def state(self):
        """This rank's State, for a heartbeat."""
        with self._lock:
            return State(self._begun, self._finished, tuple(self._recent[n] for n in range(-min(_SENT, len(self._recent)), 0)))

    def waiting(self):
        """(number of the collective that this rank is in, its text, seconds since it began), or None."""
        with self._lock:
            if self._since is None:
                return None
            return self._begun, self._recent[-1][2], time.monotonic() - self._since

    def difference(self, other):
        """(number, text here, text there) of the first known collective at which another rank's State differs, or None."""
        with self._lock:
            if not self._recent:
                return None
            first = self._recent[0][0]
            for number, chain, text in other.recent:
                if first <= number <= self._begun and self._recent[number - first][1] != chain:
                    return number, self._recent[number - first][2], text
        return None


@functools.lru_cache(maxsize=4096)
def _digest(text):
    """(digest, shortened text) of a collective's text."""
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return digest, text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"


class _Heard:
    """The last messages from one rank."""

    def __init__(self):
        self.time = time.monotonic()
        self.states = {}  # name of a communicator -> State
        self.goodbye = False


class Watchdog:
    """This rank's part of the ring.

    Args:
        mpi: the module mpi4py.MPI.
        comm: a communicator of all ranks that nothing else uses.
        members: the Members of all ranks, by rank.
        abort: a function that ends the job with a message.

    Raises:
        ValueError: an environment variable holds no number of seconds.
    """

    def __init__(self, mpi, comm, members, abort):
        self._mpi, self._comm, self._members, self._abort = mpi, comm, members, abort
        self._member = members[comm.rank]
        # With the delays until a message is out (heartbeat, tick, ranks' turns) a job ends within 30 s.
        self._limit, self._stall = seconds(HEARTBEAT, 25), seconds(STALL, STALL_DEFAULT)
        self._tick = min(1.0, self._limit / 4)
        self._followed = []
        self._heard = [_Heard() for _ in members]
        self._pending = {}  # rank -> request of the last heartbeat sent to it
        self._told = set()  # ranks to which our goodbye was sent
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="keras_ocl heartbeat", daemon=True)

    def follow(self, name, ranks):
        """The Progress of a communicator of these ranks, for which heartbeats are sent from now on; `name` is equal on all ranks."""
        progress = Progress(name, ranks, self._comm.rank)
        if progress.before not in self._befores():
            self._heard[progress.before].time = time.monotonic()  # no heartbeat was expected until now
        self._followed.append(progress)
        return progress

    def start(self):
        self._thread.start()

    def leave(self):
        """Say goodbye, and return when all ranks that send heartbeats here have said it too."""
        self._leaving.set()
        self._thread.join()

    def explained(self):
        """Wait long enough for the watching thread to end the job, in case it knows the cause of a failure here."""
        time.sleep(3 * self._tick + _TURN * 5)

    def _befores(self):
        """The ranks from which heartbeats are expected."""
        return {progress.before for progress in list(self._followed)}

    def _watch(self):
        last = time.monotonic()
        while not self._parted():
            if self._leaving.wait(self._tick):
                time.sleep(_GOODBYE_TICK)
            now = time.monotonic()
            if now - last > 2 * self._tick + 1:  # this process itself was stopped: the others' silence proves nothing
                for heard in self._heard:
                    heard.time += now - last
            last = now
            self._send()
            self._receive()
            problem = self._problem()
            if problem:
                time.sleep(_TURN * min(self._comm.rank, 5))
                self._abort(problem)

    def _parted(self):
        """Whether this rank and those before it have said goodbye, and all messages are sent."""
        return (
            self._leaving.is_set()
            and self._told >= {progress.after for progress in self._followed}
            and all(request.Test() for request in self._pending.values())
            and all(self._heard[rank].goodbye for rank in self._befores())
        )

    def _send(self):
        leaving, followed = self._leaving.is_set(), list(self._followed)
        for rank in {progress.after for progress in followed} - self._told:
            if rank in self._pending and not self._pending[rank].Test():
                continue  # it receives nothing; whether it is alive is for the next rank after it to judge
            states = {progress.name: progress.state() for progress in followed if progress.after == rank}
            self._pending[rank] = self._comm.isend((states, leaving), rank)
            if leaving:
                self._told.add(rank)

    def _receive(self):
        status = self._mpi.Status()
        for _ in range(_LOOKS):
            message = self._comm.improbe(status=status)
            if message:
                states, goodbye = message.recv()
                heard = self._heard[status.Get_source()]
                heard.states.update(states)
                heard.time, heard.goodbye = time.monotonic(), goodbye

    def _problem(self):
        """A message about a fault of a rank before this one, or None."""
        for progress in list(self._followed):
            heard, other = self._heard[progress.before], self._members[progress.before]
            state = heard.states.get(progress.name, State(0, 0, ()))
            problem = self._disagreement(progress, other, state) or self._waiting(progress, other, state, heard.goodbye)
            silent = time.monotonic() - heard.time
            if not problem and not heard.goodbye and silent > self._limit - self._tick:
                problem = f"{other} has been silent for {silent:.0f} s: stopped, killed, or its host cannot be reached"
            if problem:
                return problem
        return None

    def _disagreement(self, progress, other, state):
        found = progress.difference(state)
        if found is None:
            return None
        number, here, there = found
        if here == there:
            differ = f"before collective {number} of {progress.name}, {here}"
        else:
            calls = sorted([(self._member.rank, f"{self._member} calls {here}"), (other.rank, f"{other} calls {there}")])
            differ = f"at collective {number} of {progress.name}: {', '.join(text for _, text in calls)}"
        return f"ranks disagree {differ}. All ranks must run the same script on the same shapes"

    def _waiting(self, progress, other, state, ended):
        waiting = progress.waiting()
        if waiting is None:
            return None
        number, text, waited = waiting
        here = f"while {self._member} waits in collective {number} of {progress.name}, {text}"
        if ended and state.finished < number:
            return f"{other} has ended {here}"
        if waited > self._stall and state.begun < number:
            last = f"; what it began last is {state.recent[-1][2]}, collective {state.begun}" if state.recent else ""
            return f"{other} has not arrived for {waited:.0f} s {here}{last}"
        if waited > 2 * self._stall:
            return f"a collective does not finish for {waited:.0f} s {here}"
        return None
