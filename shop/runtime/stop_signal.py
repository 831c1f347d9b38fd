"""Wait in the main thread until the process is told to stop."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Receives SIGINT and SIGTERM once it is created. Create it in the main thread.

    The kernel may give a signal to any thread of a process. Python runs the handler in the main thread, but does not
    wake that thread if it waits for a lock, such as the lock of an Event. So the main thread waits for a pipe instead.
    Python writes to this pipe when any thread gets the signal.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # Python writes to the pipe only for signals with a Python handler.

    def wait(self) -> None:
        """Return when one of the signals has come."""
        os.read(self._read, 1)
