"""Ranks that watch one another, so that a job with a failing rank ends on all of them, with one message, instead of waiting for ever.

A thread of each rank sends a heartbeat to the next rank of every communicator each second: which collectives it has begun. The next rank
compares that with its own. Ranks form a ring, so whatever is wrong somewhere is seen by somebody: where two ranks disagree, some rank
disagrees with the one before it.
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
_SENT = 16  # collectives that a heartbeat names
_KEPT = 4096  # collectives that a rank can still compare with a heartbeat
_LOOKS = 50  # at what has arrived: MPI takes in a message or two each time, and where this rank makes no other calls, old ones come first
_GOODBYE_TICK = 0.02  # seconds between looks at the others while this rank waits for their end
_TURN = 0.4  # seconds by which a higher rank reports later what a lower one may have seen too


def seconds(variable, default):
    """The positive number of seconds in an environment variable.

    Raises:
        ValueError: it holds something else.
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
    """A rank as messages name it."""

    rank: int
    host: str
    pid: int

    def __str__(self):
        return f"rank {self.rank} (process {self.pid} on {self.host})"


class State(NamedTuple):
    """How far a rank has come in a communicator."""

    begun: int  # collectives
    finished: int  # the number of the last one that returned a result
    recent: tuple  # (number, chain, text) of the last of them


class Progress:
    """The collectives of one communicator: which one this rank is in, and a chain of digests, equal on ranks that have done the same.

    Attributes:
        before, after: the ranks of the world whose heartbeats arrive here, and to which ours go.
    """

    def __init__(self, name, ranks, rank):
        place = ranks.index(rank)
        self.name, self.before, self.after = name, ranks[place - 1], ranks[(place + 1) % len(ranks)]
        self._begun = self._finished = self._chain = 0
        self._since = None
        self._recent = collections.deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def begin(self, text):
        """This rank calls the collective that `text` describes in full; returns its digest, and that of all up to it."""
        digest, short = _digest(text)
        with self._lock:
            self._begun += 1
            self._chain = (self._chain * 0x9E3779B97F4A7C15 + digest) % 2**64
            self._recent.append((self._begun, self._chain, short))
            self._since = time.monotonic()
            return digest, self._chain

    def end(self, finished):
        """It has returned, or ended by an exception."""
        with self._lock:
            self._since = None
            if finished:
                self._finished = self._begun

    def state(self):
        with self._lock:
            return State(self._begun, self._finished, tuple(self._recent[n] for n in range(-min(_SENT, len(self._recent)), 0)))

    def waiting(self):
        """(number of the collective that this rank is in, its text, seconds since it began), or None."""
        with self._lock:
            if self._since is None:
                return None
            return self._begun, self._recent[-1][2], time.monotonic() - self._since

    def difference(self, other):
        """(number, text here, text there) of the first known collective where another rank's State differs, or None."""
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
    """(digest, text cut short) of a collective's text."""
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return digest, text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"


class _Heard:
    """What came from one rank."""

    def __init__(self):
        self.time = time.monotonic()
        self.states = {}  # the name of a communicator -> State
        self.goodbye = False


class Watchdog:
    """This rank's part of the ring.

    Args:
        mpi: the module mpi4py.MPI.
        comm: a communicator of all ranks that nothing else uses.
        members: the Members, by rank.
        abort: a function that ends the job with a message.

    Raises:
        ValueError: an environment variable of its holds no number of seconds.
    """

    def __init__(self, mpi, comm, members, abort):
        self._mpi, self._comm, self._members, self._abort = mpi, comm, members, abort
        self._member = members[comm.rank]
        # With what is added until a message is out (a heartbeat's time, a look's, ranks' turns) a job ends within 30 s.
        self._limit, self._stall = seconds(HEARTBEAT, 25), seconds(STALL, STALL_DEFAULT)
        self._tick = min(1.0, self._limit / 4)
        self._followed = []
        self._heard = [_Heard() for _ in members]
        self._pending = {}  # rank -> the request of the last heartbeat to it
        self._told = set()  # ranks that have our goodbye
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="keras_ocl heartbeat", daemon=True)

    def follow(self, name, ranks):
        """The Progress of a communicator of the ranks; `name` is equal on all of them. Heartbeats of it are sent from now on."""
        progress = Progress(name, ranks, self._comm.rank)
        if progress.before not in self._befores():
            self._heard[progress.before].time = time.monotonic()  # it was not expected to be heard until now
        self._followed.append(progress)
        return progress

    def start(self):
        self._thread.start()

    def leave(self):
        """Say goodbye, and return when all ranks whose heartbeats arrive here have said it too."""
        self._leaving.set()
        self._thread.join()

    def explained(self):
        """Wait long enough for the watching thread to end the job, if what just failed here is what it looks for."""
        time.sleep(3 * self._tick + _TURN * 5)

    def _befores(self):
        """The ranks whose heartbeats are expected here."""
        return {progress.before for progress in list(self._followed)}

    def _watch(self):
        last = time.monotonic()
        while not self._parted():
            if self._leaving.wait(self._tick):
                time.sleep(_GOODBYE_TICK)
            now = time.monotonic()
            if now - last > 2 * self._tick + 1:  # this process was stopped itself: the others' silence proves nothing
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
        """Whether this rank and those before it have said goodbye."""
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
                continue  # it takes nothing in; whether it is alive is for the next rank after it to say
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
        """What is wrong with a rank before this one, as a message; None if nothing is."""
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
