"""A child process that ends with its parent."""

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servers.errors import ServerError
from servers.watcher import Watcher

ON_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
LOG_LINES_SHOWN = 12


class Child:
    """A command that runs as the leader of its own session.

    So Ctrl-C in the terminal reaches only the parent, which stops its children in order. When the parent is killed, the
    child gets its stop signal from Linux (``PR_SET_PDEATHSIG``, see prctl(2)), or from a `Watcher` on other systems.

    Args:
        name: name in messages.
        args: the command and its arguments.
        log: file that the output is appended to.
        env: the complete environment; the parent's when None.
        cwd: working directory; the parent's when None.
        user: user and group id to run as, which needs root; the current user when None.
        stop_signal: signal that asks the command to shut down cleanly.
    """

    def __init__(
        self,
        name: str,
        args: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.args = list(args)
        self.log = log
        self.env = env
        self.cwd = cwd
        self.user = user
        self.stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id, even after the process has ended. Raises ServerError before the first start."""
        if self._process is None:
            raise ServerError(f"{self.name} was not started.")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs. The first check after its end also kills the rest of its process group."""
        return self._process is not None and self.returncode is None

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs and before the first start."""
        if self._process is None:
            return None
        if self._process.returncode is None and self._process.poll() is not None:
            # Kill the group now, and only once: after its last member has ended, the kernel may reuse the group's id.
            self._kill_group(self._process.pid)
            if self._watcher is not None:
                self._watcher.dismiss()
                self._watcher = None
        return self._process.returncode

    def start(self) -> None:
        """Start the command, for the first time or again.

        Raises:
            ServerError: the command runs already or cannot be run, or this is not the main thread.
        """
        if ON_LINUX and threading.get_native_id() != os.getpid():
            raise ServerError(
                f"Start {self.name} from the main thread: Linux ends a child with the thread that started it."
            )
        if self.alive:
            raise ServerError(f"{self.name} runs already, as process {self.pid}.")
        try:
            with open(self.log, "ab", opener=_private) as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    self.args,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.env,
                    cwd=self.cwd,
                    start_new_session=True,
                    user=self.user,
                    group=self.user,
                    extra_groups=None if self.user is None else [],
                    # A change of user clears the death signal. `preexec_fn` runs after the change, so request it there.
                    preexec_fn=_request_death_signal(self.stop_signal),
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerError(f"{self.name} cannot be run ({self.args[0]}): {error}") from error
        if not ON_LINUX:
            self._watcher = Watcher(self._process.pid, self.stop_signal)

    def wait_until(self, ready: Callable[[], bool], timeout: float = math.inf) -> None:
        """Return once `ready()` is true; check every 10 ms.

        Args:
            timeout: seconds after which the process counts as failed. There is no limit by default: a database that is
                killed during its recovery would start the recovery again.

        Raises:
            ServerError: the process ended, or was not ready in time; the message has the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            # check `ready` again: it may have turned true just before the process ended
            if not self.alive and not ready():
                raise ServerError(f"{self.name} ended with status {self.returncode}.{self.last_lines()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} was not ready within {timeout:.0f} s.{self.last_lines()}")
            time.sleep(0.01)

    def stop(self, timeout: float = 10.0) -> None:
        """Send the stop signal; kill the process group after `timeout` seconds."""
        if self._process is not None and self.alive:
            self._process.send_signal(self.stop_signal)
            deadline = time.monotonic() + timeout
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.01)
            self.kill()

    def kill(self) -> None:
        """Kill the whole process group (SIGKILL), as a crash would."""
        if self._process is not None and self.alive:
            self._kill_group(self._process.pid)
            self._process.wait()

    def last_lines(self) -> str:
        """Return the last lines that the process wrote since its start, each after a line break."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()[-LOG_LINES_SHOWN:]
        return "".join(f"\n  {line}" for line in lines)

    @staticmethod
    def _kill_group(leader: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read; do not follow a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _request_death_signal(stop_signal: signal.Signals) -> Callable[[], None] | None:
    """Return a function that the child runs before its command, to get a signal from Linux when this process ends.

    On other systems, return None.
    """
    if not ON_LINUX:
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def request() -> None:
        libc.prctl(PR_SET_PDEATHSIG, stop_signal)
        if os.getppid() != parent:  # the parent ended before the request
            os._exit(1)

    return request
