"""Handle signals that end a command: delay them while processes start, and keep them if they arrive in `__del__`."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

REPEAT_DELAY = 0.01
"""Seconds after which a signal is raised again if its exception was lost."""


def insist(number: signal.Signals, error: type[BaseException]) -> None:
    """For the rest of this process, ensure that the exception of a signal's handler is not lost.

    Python only prints an exception that is raised in `__del__` or in the callback of a weak reference. In that case, a
    hook of this function raises the signal again, until the exception interrupts other code or the process ends.

    Call this in the main thread. It uses SIGALRM.

    Args:
        number: the signal.
        error: the exact type that its handler raises.
    """
    report = sys.unraisablehook

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        try:
            if unraisable.exc_type is not error:
                report(unraisable)
                return
        except error:  # the signal came while this hook ran: here its exception would be lost, too
            pass
        # Use a timer, not a thread: `__del__` may run while this thread holds a lock that a new thread needs to start.
        signal.setitimer(signal.ITIMER_REAL, REPEAT_DELAY)

    signal.signal(signal.SIGALRM, lambda *arguments: signal.raise_signal(number))
    # Ignore the alarm at exit: the interpreter removes its handlers, and an alarm would then kill the process.
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)
    sys.unraisablehook = lost


@contextmanager
def not_interrupted() -> Iterator[None]:
    """Inside the `with` block, delay Ctrl-C. Processes started there never receive Ctrl-C: their parent ends them.

    Call this in the main thread.
    """
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    # Child processes inherit the mask. The mask alone is not enough here, because another thread may receive the
    # signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)
