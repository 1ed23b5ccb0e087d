"""Whatever ends or stops one rank ends the job on all of them in bounded time, with one message; what is no fault does not."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from keras_ocl.distribution import launcher
from tests.distribution.conftest import ROOT

HEAD = """
    import os, signal, sys, threading, time
    import numpy as np
    from keras_ocl.distribution import mpi
    mpi.initialize()
    world = mpi.world()
    rank, size = world.rank, world.size
"""
SCRIPT = (
    HEAD
    + """
    x = np.ones(3, np.float32)
    for _ in range(3): world.all_reduce([x], "sum")
    last = rank == size - 1
    if last:
        {fault}
    world.all_reduce([x], "sum")
    {after}
    world.all_reduce([x], "sum")
    world.barrier()
"""
)
KILLED = {
    "between": """
    for _ in range(3): world.all_reduce([np.ones(3)], "sum")
    if rank == size - 1: os.kill(os.getpid(), signal.SIGKILL)
    world.all_reduce([np.ones(3)], "sum")
    """,
    "within": """
    x = np.ones(5_000_000, np.float32)
    world.all_reduce([x], "sum")
    world.barrier()
    if rank == size - 1: threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True: world.all_reduce([x], "sum")
    """,
}
QUICK = {"KERAS_OCL_HEARTBEAT": "2", "KERAS_OCL_STALL": "2"}
SOME = r"\d+ s"
WHO = r"rank {} \(process \d+ on \S+\)"


def indented(text):
    return text.replace("\n", "\n        ")


def fault(mpiexec, text, *options, ranks=2, after="pass", **environment):
    """(status, what our messages say, all output, seconds) of a job whose last rank does something."""
    begun = time.monotonic()
    job = mpiexec(ranks, SCRIPT.format(fault=indented(text), after=after), *options, **environment)
    lines = [line for line in job.output.splitlines() if line.startswith("keras_ocl: ")]
    return job.status, lines, job.output, time.monotonic() - begun


def check(found, message, status=1, limit=10):
    """The job ended in time, with the status and the one message."""
    ended, lines, output, seconds = found
    assert ended == status and seconds < limit, output
    assert len(lines) == 1 and re.fullmatch(f"keras_ocl: {message}; the job ends on all ranks.", lines[0]), output


@pytest.mark.parametrize(
    "text, cause, status",
    [
        ('raise ValueError("no rows")', "ended by ValueError: no rows", 1),
        ("from keras_ocl import DeviceLost\nraise DeviceLost('cpu:0 is lost')", "ended by DeviceLost: cpu:0 is lost", 1),
        (
            "threading.Thread(target=lambda: 1 / 0, name='T').start()\ntime.sleep(9)",
            "ended by ZeroDivisionError: division by zero in thread T",
            1,
        ),
        ("sys.exit(5)", r"called sys.exit\(5\)", 5),
        ("sys.exit('no data')", r"called sys.exit\(1\)", 1),
        ("threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\ntime.sleep(60)", "ended by KeyboardInterrupt", 130),
        ("sys.excepthook = lambda *a: print('mine')\nraise ValueError('no rows')", "ended by ValueError: no rows", 1),
    ],
)
def test_a_rank_that_raises_or_exits(mpiexec, text, cause, status):
    check(fault(mpiexec, text), f"{WHO.format(1)} {cause}", status)


def test_interrupt_in_a_collective(mpiexec):
    """The rank that waits is not deaf to signals."""
    text = "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()"
    check(fault(mpiexec, text, after="if not last: time.sleep(60)"), f"{WHO.format(1)} ended by KeyboardInterrupt", 130)


@pytest.mark.parametrize("text", ["sys.exit()", "raise SystemExit(3)"])
def test_a_rank_that_ends_early(mpiexec, text):
    waits = f"{WHO.format(0)} waits in collective 4 of the world, all_reduce\\(sum\\) of float32\\[3\\]"
    check(fault(mpiexec, text), f"{WHO.format(1)} has ended while {waits}")


def killed(rank):
    return rf"{WHO.format(rank)} was killed \(SIGKILL\), or ended by os._exit"


@pytest.mark.parametrize("when", KILLED)
def test_killed(mpiexec, when):
    """MPICH's launcher ends the job at once, and names any of the ranks, since it kills the others itself. Who looks on names the first."""
    for _ in range(5):  # where the machine is too busy to look in time, several are named
        job = mpiexec(3, HEAD + KILLED[when])
        named = re.findall("^keras_ocl: (.*); the job ends on all ranks.$", job.output, re.MULTILINE)
        assert job.status == 9 and len(named) == 1 and re.search(WHO.format(2), named[0]), job.output
        if re.fullmatch(killed(2), named[0]):
            return
    raise AssertionError(named)


@pytest.mark.parametrize(
    "text, cause",
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
        ("import ctypes\nctypes.string_at(0)", "Segmentation fault"),
        ("os.abort()", "Aborted"),
    ],
)
def test_a_signal_that_the_interpreter_tells(mpiexec, text, cause):
    found = fault(mpiexec, text, ranks=3)
    check(found, f"{WHO.format(2)} ended by {cause}", found[0])  # the status is all ranks' together, the killed ones' too
    assert found[0] and "most recent call first" in found[2]


def test_children_of_a_rank_do_not_count(mpiexec):
    """Their end, by whatever signal, is not the rank's, and they may be left when that ends."""
    text = """
for number in signal.SIGTERM, signal.SIGSEGV, None:
    child = os.fork()
    if not child:
        os.kill(os.getpid(), number) if number else (os.setsid(), time.sleep(2), os._exit(0))
    if number:
        os.waitpid(child, 0)
"""
    status, lines, output, _ = fault(mpiexec, text + "os.kill(os.getpid(), signal.SIGKILL)", ranks=3)
    assert status == 9 and len(lines) == 1 and re.search(killed(2), lines[0]), output
    status, lines, output, _ = fault(mpiexec, text.replace("(2)", "(0.1)"), ranks=3)
    assert status == 0 and not lines, output


def test_gone_where_the_launcher_says_nothing(mpiexec):
    """As with srun without --kill-on-bad-exit: who looks on says it at once, and the ranks that wait end the job."""
    ended, lines, output, seconds = fault(mpiexec, "os._exit(0)", "-disable-auto-cleanup", ranks=3, **QUICK)
    assert ended == 1 and seconds < 10 and len(lines) == 2, output
    silent = f"{WHO.format(2)} has been silent for {SOME}: stopped, killed, or its host cannot be reached"
    for line, message in zip(lines, (killed(2), silent), strict=True):
        assert re.fullmatch(f"keras_ocl: {message}; the job ends on all ranks.", line), output


@pytest.mark.parametrize("ranks", [2, 3])
def test_stopped(mpiexec, ranks):
    found = fault(mpiexec, "os.kill(os.getpid(), signal.SIGSTOP)", ranks=ranks, KERAS_OCL_HEARTBEAT="2")
    check(found, f"{WHO.format(ranks - 1)} has been silent for {SOME}: stopped, killed, or its host cannot be reached")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_does_not_arrive(mpiexec, ranks):
    found = fault(mpiexec, "time.sleep(60)", ranks=ranks, **QUICK)
    last = r"what it began last is all_reduce\(sum\) of float32\[3\], collective 3"
    waits = rf"waits in collective 4 of the world, all_reduce\(sum\) of float32\[3\]; {last}"
    check(found, f"{WHO.format(ranks - 1)} has not arrived for {SOME} while {WHO.format(0)} {waits}")


@pytest.mark.parametrize(
    "text, call",
    [
        ("x = np.ones((3, 1), np.float32)", r"all_reduce\(sum\) of float32\[3, 1\]"),
        ("x = np.ones(100_000, np.float32)", r"all_reduce\(sum\) of float32\[100000\]"),
        ("x = np.ones(3, np.int32)", r"all_reduce\(sum\) of int32\[3\]"),
        ("world.barrier()", "barrier"),
        ("world.all_reduce([x], 'max')", r"all_reduce\(max\) of float32\[3\]"),
        ("world.split(0)", "split"),
    ],
)
def test_ranks_that_disagree(mpiexec, text, call):
    """Of shapes, dtypes, kinds, or the order of collectives; what MPI itself says to it, or computes from it, does not matter."""
    calls = rf"{WHO.format(0)} calls all_reduce\(sum\) of float32\[3\], {WHO.format(1)} calls {call}"
    found = fault(mpiexec, text, after="if not last: world.barrier()")
    check(found, f"ranks disagree at collective 4 of the world: {calls}. All ranks must run the same script on the same shapes")


def test_disagreement_in_a_part(mpiexec):
    """Heartbeats go round in every communicator."""
    script = """
    part = world.split(int(rank > 0))
    part.all_reduce([np.ones(3 + last)], "sum")
    world.barrier()
    """
    job = mpiexec(3, HEAD + "    last = rank == size - 1\n" + script)
    where = "at collective 1 of the world, part 1 of split 1: rank 1 "
    assert job.status == 1 and job.output.count("keras_ocl: ranks disagree " + where) == 1, job.output


def test_ranks_that_end_at_different_times(mpiexec):
    """Goodbye ends the heartbeats: the end is silent, though one rank ends later than the limits."""
    job = mpiexec(3, HEAD + "    if rank == 2: time.sleep(3)\n", **QUICK)
    assert job.status == 0 and [line[:22] for line in job.output.splitlines()] == ["keras_ocl runs on 3 ra"], job.output


def test_what_is_no_fault(mpiexec):
    """`sys.exit` that is caught, `exit` of threads and of forked children, a rank that is late, a process that was stopped and goes on."""
    text = """
try: sys.exit(3)
except SystemExit as error: assert error.code == 3 and type(error).__name__ == "SystemExit"
thread = threading.Thread(target=sys.exit, args=(1,))
thread.start()
thread.join()
child = os.fork()
if not child: sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
child = os.fork()
if not child: raise ValueError("of a child")
os.waitpid(child, 0)
time.sleep(1)
"""
    status, lines, output, _ = fault(mpiexec, text, **QUICK)
    assert status == 0 and not lines and "of a child" in output, output


def test_an_interrupted_communicator_says_so(mpiexec):
    """Where a script catches Ctrl-C and goes on, the buffers of the collective are kept, and the next one is refused."""
    text = """
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: world.all_reduce([x], "sum")
except KeyboardInterrupt: pass
"""
    script = SCRIPT.format(fault=indented(text), after="pass").replace("if last:", "if not last: time.sleep(60)\n    if last:")
    job = mpiexec(2, script)
    assert job.status == 1 and "A collective of the world was interrupted, so its ranks have come apart" in job.output, job.output


def test_a_rank_that_catches_an_interrupt_and_ends(mpiexec):
    """It has begun the collective in which the other waits, and never finishes it."""
    text = """
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: world.all_reduce([np.ones(3_000_000, np.float32)], "sum")
except KeyboardInterrupt: sys.exit()
"""
    late = "if not last:\n        time.sleep(1.5)\n        world.all_reduce([np.ones(3_000_000, np.float32)], 'sum')\n    if last:"
    job = mpiexec(2, SCRIPT.format(fault=indented(text), after="pass").replace("if last:", late))
    waits = rf"{WHO.format(0)} waits in collective 4 of the world, all_reduce\(sum\) of float32\[3000000\]"
    assert job.status == 1 and re.search(f"{WHO.format(1)} has ended while {waits}", job.output), job.output


def test_all_ranks_catch_an_interrupt_and_end(mpiexec):
    """One of them within a large collective: MPI ends nevertheless, silently."""
    text = """
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: world.all_reduce([np.ones(3_000_000, np.float32)], "sum")
except KeyboardInterrupt: pass
"""
    script = HEAD + "    if rank:\n        " + indented(text) + "\n    time.sleep(1)\n"
    job = mpiexec(2, script, **QUICK)
    assert job.status == 0 and len(job.output.splitlines()) == 1, job.output


def test_a_collective_that_fails_breaks_the_communicator(mpiexec):
    """The other ranks are in it already, so the next one would be summed with what they have sent for this one."""
    text = """
world._comm = None
try: world.all_reduce([x], "sum")
except AttributeError: pass
"""
    _, _, output, seconds = fault(mpiexec, text)
    assert seconds < 10 and "RuntimeError: A collective of the world was interrupted" in output, output


def running(number):
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_interrupt_of_the_launcher(mpiexec, tmp_path):
    """Ctrl-C in a terminal: every rank is interrupted, and nothing is left."""
    (tmp_path / "script.py").write_text(textwrap.dedent(HEAD + "    while True: world.all_reduce([np.ones(3)], 'sum')\n"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [launcher.mpiexec(), "-n", "2", sys.executable, "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as job:
        try:
            ranks = [int(number) for number in re.findall(r"process (\d+) on", job.stderr.readline())]
            job.send_signal(signal.SIGINT)
            output = job.communicate(timeout=20)[1]
        finally:
            job.kill()
    assert "ended by KeyboardInterrupt" in output and len(ranks) == 2
    limit = time.monotonic() + 10
    while any(map(running, ranks)):
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_a_rank_that_fails_before_it_joins(mpiexec):
    """The others wait in MPI_Init, where no Python code runs; the launcher does not know the rank yet."""
    script = "import os\n    if os.environ['PMI_RANK'] == '1': raise ValueError('no data')\n" + HEAD
    job = mpiexec(2, "    " + script, KERAS_OCL_STALL="2")
    assert job.status and "ValueError: no data" in job.output and "_meeting_others_in_mpi_init" in job.output, job.output


@pytest.mark.parametrize(
    "given, cause",
    [
        ("os.environ['KERAS_OCL_HEARTBEAT'] = 'soon'", "ended by ValueError: KERAS_OCL_HEARTBEAT=soon is not a number of seconds above 0"),
        ("mpi.initialize(process_id=0)", r"ended by ValueError: keras.distribution.initialize\(job_addresses=None, .* differs from MPI"),
    ],
)
def test_a_rank_that_fails_while_it_joins(mpiexec, given, cause):
    """The others wait for it already, within MPI."""
    script = f"""
    import os
    from keras_ocl.distribution import mpi
    if os.environ["PMI_RANK"] == "1": {given}
    mpi.initialize()
    mpi.world().barrier()
    """
    job = mpiexec(2, script)
    assert job.status and re.search(f"{WHO.format(1)} {cause}", job.output), job.output


def test_limits_that_are_no_numbers(mpiexec):
    job = mpiexec(2, HEAD, KERAS_OCL_STALL="soon")
    assert job.status and "KERAS_OCL_STALL=soon is not a number of seconds above 0, such as 600" in job.output


def test_messages_tell_all_lines_of_an_error(mpiexec):
    """MPI's first line is "Other MPI error, error stack:"."""
    found = fault(mpiexec, "raise ValueError('one\\n  two\\nthree')")
    check(found, f"{WHO.format(1)} ended by ValueError: one two three")
