"""Wait in the main thread until the process is told to stop."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Receives SIGINT and SIGTERM from now on. Create it in the main thread.

    The kernel may give a signal to any thread of a process. Python then notes it, but does not wake a main thread that
    waits for a lock, such as that of an Event. So the thread that gets the signal writes to a pipe.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # Without a handler in Python, nothing writes to the pipe.

    def wait(self) -> None:
        """Return when one of the signals has come."""
        os.read(self._read, 1)
