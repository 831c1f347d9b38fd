"""Locks without a server: ThreadLock for the threads of this process, ProcessLock for the processes of this machine.

Neither expires: a holder that hangs keeps the lock until it ends. Instead, a lease ends with the last reference to it,
as an open file does. So whoever drops a lease without releasing it, or is interrupted before he could take it in hand,
locks nobody out for ever, and the log says that it happened.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import random
import secrets
import sys
import threading
import time
from collections import defaultdict, deque
from io import FileIO
from pathlib import Path
from typing import cast
from urllib.parse import quote

from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
"""Seconds between two looks at a file that somebody else has locked."""

OVERTIME = 0.1
"""A look is due when the wait has become longer by this part, so that it lasts about a tenth longer than it must."""

_mutex = threading.RLock()
"""Guards what is below, a moment at a time. Re-entrant: the garbage collector may end a lease while we are in here."""

_lines: defaultdict[str, deque[Turn]] = defaultdict(deque)
"""Who holds each name that is held at all, and behind him, in order of arrival, who waits for it."""

_files: set[FileIO] = set()
"""The files that are open for a lease or a waiter."""


class LocalLease(Lease):
    """A lease that ends with the last reference to it."""

    __slots__ = ()

    def __init__(self, lock: Lock) -> None:
        super().__init__(
            lock, secrets.token_hex(16), started=time.monotonic(), ttl=math.inf, clock=time.monotonic, fence=None
        )

    def __del__(self) -> None:
        if self._lock._release(self) and not sys.is_finalizing():
            logger.warning("A lease of lock %r was dropped, not released: the lock is free again.", self._lock.name)


class ThreadLock(Lock):
    """Excludes the threads of this process from each other, first come, first served.

    All locks of one name are one lock, and a name takes memory only while it is held. A release hands the lock to
    whoever has waited for longest, so a quick newcomer cannot overtake. A forked child starts with all names free:
    its parent's leases are the parent's.

    The lease never ends by itself, gives no fence and cannot be lost. Under gevent, with `threading` patched before
    this module is imported, it excludes greenlets too.

    Args:
        name: what is locked.

    Raises:
        ValueError: the name is empty.
    """

    capabilities = Capabilities(fair=True, quiet_wait=True, forks=True)

    def __init__(self, name: str) -> None:
        super().__init__(name, ttl=math.inf)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. It raises no `LockUnavailable`."""
        deadline = time.monotonic() + wait_timeout(blocking, timeout)
        turn = Turn(self.name)
        try:
            return ThreadLease(self, turn) if turn.comes(deadline) else None
        except BaseException:
            turn.leave()
            raise

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        return cast(ThreadLease, lease).turn.leave()


class ThreadLease(LocalLease):
    """A lease that also knows its place in the line: the first."""

    __slots__ = ("turn",)

    def __init__(self, lock: Lock, turn: Turn) -> None:
        self.turn = turn
        super().__init__(lock)


class Turn:
    """A place in the line for a name. Who is first holds the lock; who comes to be first is woken."""

    __slots__ = ("_bell", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._bell = threading.Lock()
        self._bell.acquire()

    def comes(self, deadline: float) -> bool:
        """Join the line and return whether it is our turn by the deadline. Who was not served has left again."""
        with _mutex:
            # In one expression: a signal handler or finalizer that leaves a line in between would remove it.
            _lines[self._name].append(self)
            first = _lines[self._name][0] is self
        if not first and (left := deadline - time.monotonic()) > 0:
            self._bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        with _mutex:
            first = _lines[self._name][0] is self
            if not first:
                self.leave()
            return first

    def leave(self) -> bool:
        """Leave the line, wherever we stand, and return whether we stood in it. It may be called again."""
        with _mutex:
            line = _lines[self._name]
            stood = self in line
            try:
                if stood:
                    line.remove(self)
            finally:
                # Whatever has interrupted us, and even if it was an earlier call: the next must not sleep on for ever.
                if line:
                    line[0]._ring()
                else:
                    _lines.pop(self._name, None)
            return stood

    def _ring(self) -> None:
        if self._bell.locked():
            self._bell.release()


class ProcessLock(Lock):
    """Excludes the processes of this machine from each other, and the threads of each, by `flock` on a file.

    The kernel frees the lock when its holder dies, however it dies. A forked child does not hold what its parent
    holds, neither while the parent lives nor after it. (A process that is forked without running Python's fork hooks,
    by a C library, does keep it when its parent crashes, until it ends or runs another program.)

    The file is `<folder>/<quoted name>.lock`. It is empty and it stays: removing or replacing it while the lock is in
    use makes two locks of one. So keep it out of folders that are tidied, such as /tmp. Do not rely on it over NFS.

    There is no `flock` with a time limit, and a thread that is blocked in one cannot be called back. So a waiter looks
    again and again, every millisecond at first and every 50 milliseconds in the end. Nobody is served in order.

    Args:
        folder: where the files are. It must exist, and everybody who locks must be allowed to write there.
        name: what is locked. Locks of one name in one folder exclude each other.

    Raises:
        ValueError: the name is empty, or longer, when quoted, than a file system takes.
    """

    capabilities = Capabilities(across_processes=True, forks=True, survives_holder_crash=True)

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        super().__init__(name, ttl=math.inf)
        file = f"{quote(name, safe='')}.lock"
        if len(file) > 255:
            raise ValueError(f"the name of a process lock must fit into a file's name of 255 bytes: {name!r}")
        self._path = Path(folder) / file

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`."""
        began = time.monotonic()
        deadline = began + wait_timeout(blocking, timeout)
        file = self._open()
        try:
            while not self._locked(file):
                now = time.monotonic()
                if now >= deadline:
                    _close(file)
                    return None
                pause = min(max(SHORTEST_PAUSE, OVERTIME * (now - began)), LONGEST_PAUSE)
                # Not all at the same moment.
                time.sleep(min(pause * random.uniform(0.5, 1.5), deadline - now))  # noqa: S311
            return ProcessLease(self, file)
        except BaseException:
            _close(file)
            raise

    def _open(self) -> FileIO:
        """Open the file anew: what `flock` excludes is not processes but openings of the file."""
        try:
            # No fork in between, so that a child knows of every file that it has to close.
            with _mutex:
                file = FileIO(self._path, "a")
                _files.add(file)
                return file
        except OSError as error:
            raise self._unavailable(error) from error

    def _locked(self, file: FileIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unavailable(error) from error
        return True

    def _unavailable(self, error: OSError) -> LockUnavailable:
        return LockUnavailable(
            f"The file of lock {self.name!r} cannot be locked ({error}). See whether its folder exists and may be "
            "written, and whether this process has too many files open."
        )

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        return _close(cast(ProcessLease, lease).file)


class ProcessLease(LocalLease):
    """A lease that also knows the file whose opening holds the lock."""

    __slots__ = ("file",)

    def __init__(self, lock: Lock, file: FileIO) -> None:
        self.file = file
        super().__init__(lock)


def _close(file: FileIO) -> bool:
    """Unlock and close the file, and return whether it was open."""
    with _mutex:
        if file.closed:
            return False
        try:
            _unlock(file)
        finally:
            _files.discard(file)
            file.close()
        return True


def _unlock(file: FileIO) -> None:
    """Unlock the file itself: closing it alone would leave it locked for as long as a child has it open too."""
    fcntl.flock(file, fcntl.LOCK_UN)


def _let_go_in_child() -> None:
    """Hold nothing of the parent's. Closing a file does not unlock it while the parent has it open."""
    _lines.clear()
    for file in _files:
        file.close()
    _files.clear()
    _mutex.release()


os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_let_go_in_child)
