"""Signals that end what we do: not before its processes are started, and not lost wherever they come."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 0.01
"""Seconds after which a signal comes again whose exception was lost."""


def insist(number: signal.Signals, error: type[BaseException]) -> None:
    """See to it, for the rest of this process, that what a signal's handler raises ends what is being done.

    Python prints what is raised while an object is deleted, and goes on: `__del__` and a weak reference's callback have
    nobody to raise it to. Then the signal comes again, until it interrupts something else, or the process ends anyway.

    In the main thread only. It takes SIGALRM.

    Args:
        error: what the handler raises, exactly.
    """
    report = sys.unraisablehook

    def lost(what: sys.UnraisableHookArgs) -> None:
        try:
            if what.exc_type is not error:
                report(what)
                return
        except error:  # it comes in the middle of this, where it would be lost too
            pass
        # No thread is started for it: whatever is being deleted may be so within any lock of this process.
        signal.setitimer(signal.ITIMER_REAL, AGAIN)

    signal.signal(signal.SIGALRM, lambda *came: signal.raise_signal(number))
    # An interpreter that ends takes its handlers away, and then the alarm would kill it.
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)
    sys.unraisablehook = lost


@contextmanager
def not_interrupted() -> Iterator[None]:
    """For the block, Ctrl-C waits. It never reaches a process that is started there: we end it, and in good order.

    In the main thread only.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    # What is started inherits the mask. For us it is not enough: any other thread takes the signal on our behalf.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
