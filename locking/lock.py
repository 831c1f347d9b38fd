"""Lock: the contract of every lock. A lock is a name and a policy; each grant of it is a `Lease`."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from locking.arguments import require_callable, require_flag, require_name, require_seconds
from locking.errors import LockTimeout, LockUnavailable, NotOwner
from locking.lease import Lease, validity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The guarantees of a lock. Each lock class declares its guarantees; by default there are none.

    Attributes:
        across_processes: the lock excludes other processes on the same machine.
        across_machines: the lock excludes clients on other machines.
        fenced: every grant carries a number greater than that of any earlier grant.
        fair: waiters are served in order of arrival.
        reentrant: the holder can acquire the lock again without waiting.
        expires: a grant that is not extended ends after its TTL.
        renews: a watchdog extends the lease while its holder lives.
        quiet_wait: a waiter sends at most one command per TTL while nothing happens.
        forks: a forked child can use the same lock object.
        survives_holder_crash: when the holder dies, others get the lock in a bounded time.
        survives_node_loss: the lock is granted, and excludes others, while a minority of its servers is unreachable.
        survives_restart: a grant outlives a restart of the servers, provided that they keep their data on disk.
    """

    across_processes: bool = False
    across_machines: bool = False
    fenced: bool = False
    fair: bool = False
    reentrant: bool = False
    expires: bool = False
    renews: bool = False
    quiet_wait: bool = False
    forks: bool = False
    survives_holder_crash: bool = False
    survives_node_loss: bool = False
    survives_restart: bool = False


class Lock(ABC):
    """Base class of every lock.

    Any number of threads, tasks or greenlets may share a lock object. A lock is re-entrant only if its capabilities say
    so: otherwise a holder that acquires the lock again waits for itself.

    Subclasses define how to acquire, extend and release. The lease decides when a grant is lost.

    Args:
        name: name of the lock, such as `stock:sku-42`. Locks with the same name exclude each other.
        ttl: lifetime of a grant in seconds, unless it is extended; `math.inf` for a lock that does not expire.
        on_lost: called once with a lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: `name` is not a `str`, `ttl` is neither an `int` nor a `float`, or `on_lost` or `clock` cannot be
            called.
        ValueError: the name is empty; or `ttl` is not longer than the drift allowance, longer than a million seconds,
            or infinite although the lock expires.
    """

    capabilities: Capabilities
    """The guarantees of the lock. Set on the class, or on the object if they depend on the object's arguments."""

    def __init__(
        self,
        name: str,
        *,
        ttl: float,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = require_name(name)
        require_seconds("ttl", ttl)
        if on_lost is not None:
            require_callable("on_lost", on_lost)
        require_callable("clock", clock)
        if not validity(ttl) > 0:
            raise ValueError(f"ttl must be longer than the drift allowance, not {ttl!r}")
        if ttl == math.inf and self.capabilities.expires:
            raise ValueError("ttl must be finite: a crashed holder would keep the lock for ever")
        self.ttl = ttl
        self._on_lost = on_lost
        self._clock = clock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, ttl {self.ttl} s>"

    @abstractmethod
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002 - the signature of threading.Lock
        """Acquire the lock.

        Args:
            blocking: whether to wait until the lock is granted; if False, ask once.
            timeout: total seconds to wait at most, up to a million; None for no limit.

        Returns:
            The lease, or None if another holder had the lock until `timeout` was over.

        Raises:
            LockUnavailable: the server could not be reached, did not answer in time, or refused the request.
            ValueError: `timeout` is out of range, or was given although `blocking` is False.
        """

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """Hold the lock for the body of a `with` statement, and release it at the end.

        Leaving the body raises no lock error. A lost lease is reported by a warning and by `on_lost`. A server that
        cannot be reached frees the lock after the TTL, because renewal has stopped. A body that ends without an
        exception is therefore no proof that the lock was held throughout: use `lease.check()` and the fence.

        Args:
            timeout: total seconds to wait at most, up to a million; None for no limit.

        Yields:
            The lease.

        Raises:
            LockTimeout: the lock was not granted in time.
            LockUnavailable: as for `acquire`; raised on entry only.
            ValueError: `timeout` is out of range.
        """
        lease = self.acquire(timeout=timeout)
        if lease is None:
            limit = "" if timeout is None else f" within {timeout} s"  # a Redlock gives up after its retries, too
            raise LockTimeout(
                f"Lock {self.name!r} was not granted{limit} because another holder has it. Try again later."
            )
        try:
            yield lease
        finally:
            try:
                lease.release()
            except (LockUnavailable, NotOwner) as error:
                logger.warning("Lock %r was not released at the end of its block: %r", self.name, str(error))

    def _require_time_left(self, lease: Lease) -> None:
        """Check that a new lease has not ended before it is used.

        Raises:
            LockUnavailable: asking took longer than the TTL. The caller gives the grant back.
        """
        if lease._ended():
            raise LockUnavailable(
                f"Lock {self.name!r} was granted too late: connecting and asking took longer than its TTL of "
                f"{lease.ttl} s. Try again. If that does not help, check the load of the server, or use a longer TTL."
            )

    @abstractmethod
    def _extend(self, lease: Lease, ttl: float) -> bool:
        """Keep the grant of a lease for `ttl` seconds from now, and return whether the server still had it.

        Raises:
            LockUnavailable: the server did not answer, or refused the request.
        """

    @abstractmethod
    def _release(self, lease: Lease) -> bool:
        """Stop renewing the lease, end its grant, and return whether the server still had the grant.

        Raises:
            LockUnavailable: the server did not answer, or refused the request. The call may be repeated.
        """


def wait_timeout(blocking: bool, timeout: float | None) -> float:  # noqa: FBT001 - the arguments of threading.Lock
    """Return for how many seconds `acquire(blocking, timeout)` may wait: 0 to ask once, `math.inf` for no limit.

    Raises:
        TypeError: `blocking` is not a `bool`, or `timeout` is neither an `int` nor a `float`.
        ValueError: `timeout` is negative or NaN, is finite and longer than a million seconds, or was given although
            `blocking` is False.
    """
    require_flag("blocking", blocking)
    if timeout is None:
        return math.inf if blocking else 0.0
    if not blocking:
        raise ValueError("timeout needs blocking=True: a non-blocking acquire does not wait")
    require_seconds("timeout", timeout)
    if not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, or None, not {timeout!r}")
    return timeout
