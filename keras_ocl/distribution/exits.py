"""What ends one rank ends the job: exceptions that nobody catches, in any thread, and `sys.exit` with another status than 0."""

import atexit
import os
import sys
import threading


class Exits:
    """The hooks of the interpreter by which a rank's end becomes known.

    Args:
        watchdog: the Watchdog that ends the job, or says goodbye at a normal end.
    """

    def __init__(self, watchdog):
        self._watchdog = watchdog
        self._pid = os.getpid()  # forked children have the hooks too, and end for themselves
        self._status = 0
        self._hook, self._thread_hook = sys.excepthook, threading.excepthook

    def install(self):
        """From now on."""
        sys.excepthook, threading.excepthook = self._raised, self._raised_in_thread
        sys.exit = self._exit_function(sys.exit)
        atexit.register(self._at_exit)

    def _raised(self, kind, error, trace):
        self._hook(kind, error, trace)
        self._end(error, "")

    def _raised_in_thread(self, arguments):
        self._thread_hook(arguments)
        if arguments.exc_type is not SystemExit:  # which ends the thread only
            self._end(arguments.exc_value, f" in thread {arguments.thread.name}" if arguments.thread else "")

    def _end(self, error, where):
        if os.getpid() != self._pid:
            return
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        first, _, rest = cause.partition("\n")
        self._watchdog.abort(
            f"{self._watchdog.member} ended by {first}{' ...' if rest else ''}{where}", 130 if isinstance(error, KeyboardInterrupt) else 1
        )

    def _exit_function(self, original):
        """`sys.exit` that notes its status, unless somebody catches the exception: then that is freed with Python code running."""
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
            self._watchdog.abort(f"{self._watchdog.member} called sys.exit({self._status})", self._status)
        if getattr(sys, "last_value", None) is not None:  # printed by a hook that replaced ours
            self._end(sys.last_value, "")
        try:
            self._watchdog.leave()
        except KeyboardInterrupt as error:
            self._end(error, " while it waited for the other ranks to end")
