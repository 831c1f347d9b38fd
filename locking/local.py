"""Locks without a server: ThreadLock for the threads of one process, ProcessLock for the processes of one machine.

Neither lock expires: a holder that hangs keeps the lock until its process ends. When the last reference to a lease is
gone, the lease ends and the lock is free, just as Python closes a file. So an acquire that is interrupted before it
returns leaves no lock behind. If a program drops a lease without `release()`, a warning is logged.
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
from collections.abc import Hashable
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self, cast
from urllib.parse import quote

from locking._once import Once
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.001
"""Shortest average pause between two attempts to lock a file, in seconds. A pause is a random 50 to 150 % of the
average."""

LONGEST_PAUSE = 0.05
"""Longest average pause between two attempts to lock a file, in seconds."""

PAUSE_PER_WAIT = 0.1
"""Average pause between two attempts to lock a file, as a fraction of the time waited so far. A long wait polls less
often."""

_mutex = Once(lambda: threading.RLock())
"""Guards `_queues` and `_files`. Re-entrant: a thread that holds it may run the garbage collector, which may end a
lease."""

_queues: defaultdict[Hashable, deque[QueuePlace]] = defaultdict(deque)
"""For each name in use, the places in its queue: that of the holder, then those of the waiters in order of arrival."""

_files: set[FileIO] = set()
"""The lock files that leases and waiters of this process have open. A forked child closes its copies of them."""


class LocalLease(Lease):
    """A lease that frees the lock when the last reference to the lease is dropped."""

    __slots__ = ()

    def __init__(self, lock: Lock) -> None:
        super().__init__(
            lock, secrets.token_hex(16), started=time.monotonic(), ttl=math.inf, clock=time.monotonic, fence=None
        )
        self._hand_out()

    def __del__(self) -> None:
        try:
            super().__del__()
        finally:  # free the lock even if the program turns warnings into errors
            if self._lock._release(self) and not sys.is_finalizing():
                logger.warning("A lease of lock %r was dropped without release(); the lock is free again.", self.name)


class ThreadLock(Lock):
    """Lock between the threads of one process, which get the lock in order of arrival.

    Locks with the same name are the same lock. A name uses memory only while it is in use. A release hands the lock to
    the thread that has waited longest, so a newcomer cannot overtake it. A forked child starts with all names free,
    because the leases of its parent stay with the parent.

    The lease does not expire, cannot be lost, and has no fence. Under gevent, if `threading` is patched before the
    first lock of the process is acquired, the lock also excludes greenlets.

    Args:
        name: name of the lock, such as `stock:sku-42`.

    Raises:
        TypeError: `name` is not a `str`.
        ValueError: the name is empty.
    """

    capabilities = Capabilities(fair=True, quiet_wait=True, forks=True)

    def __init__(self, name: str) -> None:
        super().__init__(name, ttl=math.inf)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`. Never raises `LockUnavailable`."""
        deadline = time.monotonic() + wait_timeout(blocking, timeout)
        place = QueuePlace(self.name)
        try:
            return ThreadLease(self, place) if place.wait_for_turn(deadline) else None
        except BaseException:
            place.leave()
            raise

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        return cast(ThreadLease, lease).place.leave()


class ThreadLease(LocalLease):
    """Lease of a `ThreadLock`. It stores the holder's place, which is the first in the lock's queue."""

    __slots__ = ("place",)

    def __init__(self, lock: Lock, place: QueuePlace) -> None:
        self.place = place
        super().__init__(lock)


class QueuePlace:
    """The place of a thread in a queue of this process. At the end of a `with` block, the thread leaves the queue.

    A thread is woken when its place becomes the first. If the queue's name is a `str`, the thread in the first place
    holds the `ThreadLock` of that name. Names of other types are used by locks on a server: the thread in the first
    place waits at the server, and the other threads of the process wait behind it.

    Args:
        name: identifies the queue in this process.
    """

    __slots__ = ("_name", "_wake")

    def __init__(self, name: Hashable) -> None:
        self._name = name
        self._wake = threading.Lock()
        self._wake.acquire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def wait_for_turn(self, deadline: float) -> bool:
        """Join the queue, and return whether this place became the first by `deadline`, on the monotonic clock.

        If this place did not become the first, it is removed from the queue.
        """
        with _mutex():
            # Look up the queue and append to it in one statement. Between two statements, a signal handler could remove
            # the last place from the queue, and thus delete the queue.
            _queues[self._name].append(self)
            first = _queues[self._name][0] is self
        if not first and (left := deadline - time.monotonic()) > 0:
            self._wake.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        with _mutex():
            first = _queues[self._name][0] is self
            if not first:
                self.leave()
            return first

    def leave(self) -> bool:
        """Remove this place from the queue, and return whether it was still there. A repeated call does no harm."""
        with _mutex():
            queue = _queues[self._name]
            was_queued = self in queue
            try:
                if was_queued:
                    queue.remove(self)
            finally:
                # Wake the first waiter even after an exception here or earlier: otherwise it might sleep for ever.
                if queue:
                    queue[0]._wake_up()
                else:
                    _queues.pop(self._name, None)
            return was_queued

    def _wake_up(self) -> None:
        if self._wake.locked():
            self._wake.release()


def has_queue(name: Hashable) -> bool:
    """Return whether any thread of this process has a place in the queue of `name` at this moment."""
    return name in _queues


class ProcessLock(Lock):
    """Lock between the processes of one machine, and between the threads of each process, by `flock` on a file.

    The kernel frees the lock when its holder dies for any reason. A forked child never holds the locks of its parent,
    even after the parent has ended. (Exception: a C library may fork a process without running Python's fork hooks.
    Such a process keeps the lock after a crash of its parent, until it exits or executes another program.)

    The file is `<folder>/<quoted name>.lock`. It is empty and never removed: if it were removed or replaced during use,
    two holders could lock two different files. Do not use a folder that is cleaned up, such as /tmp, or a folder on
    NFS.

    `flock` has no time limit, and a thread that is blocked in it cannot be interrupted. A waiter therefore polls, about
    every millisecond at first and about every 50 milliseconds after a while. Waiters are not served in order.

    Args:
        folder: folder of the lock files. It must exist and be writable for every process that uses the lock.
        name: name of the lock. Locks with the same name in the same folder exclude each other.

    Raises:
        TypeError: `name` is not a `str`, or `folder` is not a path.
        ValueError: the name is empty, cannot be encoded as UTF-8, or is too long for a file name once it is quoted; or
            no folder can have this path.
    """

    capabilities = Capabilities(across_processes=True, forks=True, survives_holder_crash=True)

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        super().__init__(name, ttl=math.inf)
        file = f"{quote(self.name, safe='')}.lock"
        if len(file) > 255:
            raise ValueError(f"the name of a process lock must fit into a file name of 255 bytes: {name!r}")
        if not isinstance(folder, str | os.PathLike):
            raise TypeError(f"folder must be a path, a str or an os.PathLike, not {folder!r}")
        self._path = Path(folder) / file
        try:
            readable = b"\0" not in os.fsencode(self._path)
        except UnicodeEncodeError:
            readable = False
        if not readable:
            raise ValueError(f"folder must be a path that can exist, not {folder!r}")

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`.

        Raises:
            LockUnavailable: the lock file could not be opened or locked.
            ValueError: `timeout` is out of range, or was given although `blocking` is False.
        """
        began = time.monotonic()
        deadline = began + wait_timeout(blocking, timeout)
        file = self._open()
        try:
            while not self._locked(file):
                now = time.monotonic()
                if now >= deadline:
                    _close(file)
                    return None
                pause = min(max(SHORTEST_PAUSE, PAUSE_PER_WAIT * (now - began)), LONGEST_PAUSE)
                # The pause is random, so that waiters do not all try at the same moment.
                time.sleep(min(pause * random.uniform(0.5, 1.5), deadline - now))  # noqa: S311
            return ProcessLease(self, file)
        except BaseException:
            _close(file)
            raise

    def _open(self) -> FileIO:
        """Open the lock file. Each acquire needs an open file of its own, because `flock` locks an open file."""
        try:
            # A fork waits for the mutex, so no fork happens between the next two lines. A forked child closes only the
            # files that it finds in `_files`.
            with _mutex():
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
            f"The file of lock {self.name!r} could not be locked ({error}). Check that its folder exists and is "
            "writable, and that this process does not have too many open files."
        )

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        return _close(cast(ProcessLease, lease).file)


class ProcessLease(LocalLease):
    """Lease of a `ProcessLock`, with the open file whose `flock` is the lock."""

    __slots__ = ("file",)

    def __init__(self, lock: Lock, file: FileIO) -> None:
        self.file = file
        super().__init__(lock)


def _close(file: FileIO) -> bool:
    """Unlock and close the file, and return whether it was open."""
    with _mutex():
        if file.closed:
            return False
        try:
            _unlock(file)
        finally:
            _files.discard(file)
            file.close()
        return True


def _unlock(file: FileIO) -> None:
    """Unlock the file explicitly. Closing it would leave it locked while a forked child has it open."""
    fcntl.flock(file, fcntl.LOCK_UN)


def _drop_inherited() -> None:
    """Drop the parent's leases in a forked child.

    The child closes its copies of the lock files. They stay locked, because the parent still has them open.
    """
    _queues.clear()
    for file in _files:
        file.close()
    _files.clear()
    _mutex().release()


os.register_at_fork(
    before=lambda: _mutex().acquire(),
    after_in_parent=lambda: _mutex().release(),
    after_in_child=_drop_inherited,
)
