"""A process that ends when we end."""

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servers.errors import ServerError

PR_SET_PDEATHSIG = 1
LOG_LINES_SHOWN = 12


class Child:
    """A command run as the leader of a session of its own.

    A terminal's Ctrl-C therefore reaches us alone, and we stop our children in order. When we are killed instead, Linux
    sends the child its stop signal (``PR_SET_PDEATHSIG``, see prctl(2)); elsewhere it stays until the next start.

    Args:
        name: what messages call it.
        args: the command and its arguments.
        log: the file that its output is appended to.
        env: its whole environment; ours when None.
        cwd: where it runs; our own folder when None.
        user: the name of the user that it runs as; needs root. Ourselves when None.
        stop_signal: asks it to end in good order.
    """

    def __init__(
        self,
        name: str,
        args: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
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
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The number of the process, also after it ended; ServerError before the first start."""
        if self._process is None:
            raise ServerError(f"{self.name} was not started.")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs. Seeing that it ended also ends what it left of its process group."""
        return self._process is not None and self.returncode is None

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs and before the first start."""
        if self._process is None:
            return None
        if self._process.returncode is None and self._process.poll() is not None:
            # At once and only once: when its last member is gone, a group's number may be given to somebody else.
            self._kill_group(self._process.pid)
        return self._process.returncode

    def start(self) -> None:
        """Start it, or start it again.

        Raises:
            ServerError: it runs already, the command cannot be run, or this is not the main thread.
        """
        if sys.platform == "linux" and threading.get_native_id() != os.getpid():
            raise ServerError(f"Start {self.name} from the main thread: Linux ends it with the thread that started it.")
        if self.alive:
            raise ServerError(f"{self.name} runs already, as process {self.pid}.")
        try:
            account = pwd.getpwnam(self.user) if self.user else None
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
                    user=account.pw_uid if account else None,
                    group=account.pw_gid if account else None,
                    extra_groups=[] if account else None,
                    # After the change of user, which would clear the request.
                    preexec_fn=_end_with_parent(self.stop_signal),
                )
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            raise ServerError(f"{self.name} cannot be run ({self.args[0]}): {error}") from error

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Return once `ready` says so, asking it every 10 ms.

        Raises:
            ServerError: it ended, or was not ready within `timeout` seconds; with the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.alive and not ready():  # asked again: to have ended may be what is waited for
                raise ServerError(f"{self.name} ended with status {self.returncode}.{self.last_lines()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} was not ready within {timeout:.0f} s.{self.last_lines()}")
            time.sleep(0.01)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end, and after `timeout` seconds end it and what is left of its process group."""
        if self._process is not None and self.alive:
            self._process.send_signal(self.stop_signal)
            deadline = time.monotonic() + timeout
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.01)
            self.kill()

    def kill(self) -> None:
        """End its whole process group at once (SIGKILL), as a crash would."""
        if self._process is not None and self.alive:
            self._kill_group(self._process.pid)
            self._process.wait()

    def last_lines(self) -> str:
        """What it wrote last since its start, each line on a new one; empty when it wrote nothing."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()[-LOG_LINES_SHOWN:]
        return "".join(f"\n  {line}" for line in lines)

    @staticmethod
    def _kill_group(leader: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _private(path: str, flags: int) -> int:
    """Open a file that only we may read, and never one that a link points to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _end_with_parent(stop_signal: signal.Signals) -> Callable[[], None] | None:
    """What the child runs before its command, so that the kernel sends it `stop_signal` when we end."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, stop_signal)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return ask
