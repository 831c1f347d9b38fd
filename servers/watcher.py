"""A process that ends a child when its parent dies, on systems whose kernel does not."""

import signal
import subprocess
import sys

# Its standard input ends when the parent dies, since nobody else has the other end of the pipe.
WATCH = """
import os, sys
child, number = map(int, sys.argv[1:])
if not sys.stdin.buffer.read(1):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass
"""


class Watcher:
    """Watches this process for a child.

    Args:
        child: id of the process to end when this one dies.
        stop_signal: what it is sent then.
    """

    def __init__(self, child: int, stop_signal: signal.Signals) -> None:
        command = [sys.executable, "-I", "-S", "-c", WATCH, str(child), str(int(stop_signal))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def dismiss(self) -> None:
        """Stop watching, since the child has ended. Its id may be another process's from now on."""
        self._process.communicate(b".")
