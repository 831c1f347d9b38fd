"""A process that ends a child process when the child's parent dies. Used on systems whose kernel cannot do so."""

import signal
import subprocess
import sys

# The program of the watcher. Its standard input closes when the parent dies, because only the parent has the other end
# open.
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
    """Starts a process that ends a child when this process dies.

    Args:
        child: id of the process to end.
        stop_signal: the signal to send to it.
    """

    def __init__(self, child: int, stop_signal: signal.Signals) -> None:
        command = [sys.executable, "-I", "-S", "-c", WATCH, str(child), str(int(stop_signal))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def dismiss(self) -> None:
        """Stop watching a child that has ended, because its id may later belong to another process."""
        self._process.communicate(b".")
