"""An error that ends one rank ends the job: an uncaught exception in any thread, or `sys.exit` with a status other than 0."""

import atexit
import os
import sys
import textwrap
import threading
import time


class Exits:
    """Detects how a rank ends, by hooks of the interpreter, and ends the job.

    Args:
        mpi: the module mpi4py.MPI.
        member: this rank, as named in messages.
    """

    def __init__(self, mpi, member):
        self._mpi, self._member = mpi, member
        self._pid = os.getpid()  # forked children inherit the hooks, but end only themselves
        self._status = 0
        self._leave = self._witness = None
        self._ending = threading.Lock()
        self._hook, self._thread_hook = sys.excepthook, threading.excepthook

    def install(self):
        """Install the hooks."""
        sys.excepthook, threading.excepthook = self._raised, self._raised_in_thread
        sys.exit = self._exit_function(sys.exit)
        atexit.register(self._at_exit)

    def joined(self, leave, witness):
        """Call when the ranks have met: `leave` says goodbye to the others at a normal end; `witness`, a Witness or None, is told of it."""
        self._leave, self._witness = leave, witness

    def abort(self, message, status=1):
        """End the job on all ranks with a message and an exit status."""
        self._ending.acquire()  # never released, so that only the first message appears
        if self._witness is not None:
            self._witness.told()
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is sys.stderr:
                    stream.write(f"keras_ocl: {message}; the job ends on all ranks.\n")
                stream.flush()
            except (AttributeError, OSError, ValueError):  # no stream, closed, or its reader has gone
                pass
        time.sleep(0.1)  # launchers forward output with delay, and drop it when they kill
        self._mpi.COMM_WORLD.Abort(status)
        os._exit(status)

    def _raised(self, kind, error, trace):
        self._hook(kind, error, trace)
        self._end(error, "")

    def _raised_in_thread(self, arguments):
        self._thread_hook(arguments)
        if arguments.exc_type is not SystemExit:  # SystemExit ends the thread only
            self._end(arguments.exc_value, f" in thread {arguments.thread.name}" if arguments.thread else "")

    def _end(self, error, where):
        if os.getpid() != self._pid:
            return
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        cause = textwrap.shorten(cause, 1000, placeholder=" ...")  # all lines, since MPI's errors give the cause in the last one
        self.abort(f"{self._member} ended by {cause}{where}", 130 if isinstance(error, KeyboardInterrupt) else 1)

    def _exit_function(self, original):
        """A `sys.exit` that notes its status unless the exception is caught; it is then freed while Python code is running."""
        exits = self

        class Exit(SystemExit):
            def __del__(self):
                if sys._getframe().f_back is None and self.code not in (None, 0):
                    exits._status = self.code if isinstance(self.code, int) else 1

        Exit.__name__ = Exit.__qualname__ = "SystemExit"

        def exit(status=None, /):
            if threading.current_thread() is threading.main_thread() and os.getpid() == exits._pid:
                raise Exit(status)
            original(status)

        exit.__doc__ = original.__doc__
        return exit

    def _at_exit(self):
        if os.getpid() != self._pid:
            return
        if self._status:
            self.abort(f"{self._member} called sys.exit({self._status})", self._status)
        if getattr(sys, "last_value", None) is not None:  # printed by a hook that has replaced ours
            self._end(sys.last_value, "")
        if self._leave is None:  # others may wait for this rank in `initialize`, and MPI's finalisation would wait for them
            self.abort(f"{self._member} ended before the ranks had met")
        try:
            self._leave()
            if self._witness is not None:
                self._witness.leave()
        except KeyboardInterrupt as error:
            self._end(error, " while it waited for the other ranks to end")
