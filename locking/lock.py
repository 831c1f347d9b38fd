"""Lock: a name and a policy. What is held is the `Lease` that it hands out."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from locking.errors import LockTimeout, LockUnavailable, NotOwner
from locking.lease import Lease, validity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a lock promises, declared by its class, so that nobody has to infer it. The default is no promise.

    Attributes:
        across_processes: it excludes other processes of the same machine.
        across_machines: it excludes clients on other machines.
        fenced: every grant carries a number greater than the one before.
        fair: waiters are served in the order in which they came.
        reentrant: who holds it may enter again.
        expires: a grant that nobody extends is over after its TTL.
        renews: a watchdog extends the lease while its holder lives.
        quiet_wait: a waiter sends at most one command per TTL while nothing happens.
        forks: a forked child can use the same lock object.
        survives_holder_crash: when the holder dies, others get the lock in a bounded time.
        survives_node_loss: it grants, and excludes others, although a minority of its servers cannot be reached.
        survives_restart: a grant outlives a restart of the servers, as long as they keep on disk what they granted.
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
    """The contract of every lock.

    A lock holds no state of a holder: any thread, task or greenlet may use the same object at the same time. It is not
    re-entrant unless its capabilities say so: who holds it and asks again waits for himself.

    A subclass says how to acquire, to extend and to release; what a lease is, and when it is lost, is the same for all.

    Args:
        name: what is locked. Locks of one name exclude each other.
        ttl: seconds after which a grant that nobody extends is over; `math.inf` for a lock that does not expire.

    Raises:
        ValueError: the name is empty, or the TTL is not a usable time.
    """

    capabilities: Capabilities
    """What it promises: of the class, or of the object where it depends on what the lock is made of."""

    def __init__(self, name: str, *, ttl: float) -> None:
        if not name:
            raise ValueError("a lock needs a name")
        if not validity(ttl) > 0:
            raise ValueError(f"ttl must be longer than the drift allowance, not {ttl!r}")
        self.name = name
        self.ttl = ttl

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, ttl {self.ttl} s>"

    @abstractmethod
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002 - threading.Lock's own signature
        """Ask for the lock.

        Args:
            blocking: wait until it is granted; otherwise ask once.
            timeout: seconds to wait at most, in all, however often the waiter is woken in between; None: no limit.

        Returns:
            The lease, or None when the lock was not granted: held by somebody else for the whole of `timeout`.

        Raises:
            LockUnavailable: the server cannot be reached or did not answer.
            ValueError: `timeout` is negative, or given although `blocking` is False.
        """

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """Hold the lock for the body of a `with` statement.

        Leaving the body releases the lock. It raises nothing of its own: a lease that was lost has been reported by
        `on_lost` and a warning, and a server that cannot be reached frees the lock when the TTL is over, as renewal
        has stopped. So a body that ends well proves nothing: `lease.check()` and the fence do.

        Args:
            timeout: seconds to wait at most; None: no limit.

        Raises:
            LockTimeout: not granted in time.
            LockUnavailable: the server cannot be reached or did not answer. Raised on entry only.
            ValueError: `timeout` is negative.
        """
        lease = self.acquire(timeout=timeout)
        if lease is None:
            raise LockTimeout(
                f"Lock {self.name!r} was not granted within {timeout} s: somebody else holds it. Try again later."
            )
        try:
            yield lease
        finally:
            try:
                lease.release()
            except (LockUnavailable, NotOwner) as error:
                logger.warning("Lock %r was not released on leaving its block: %s", self.name, error)

    @abstractmethod
    def _extend(self, lease: Lease, ttl: float) -> bool:
        """Keep the grant for `ttl` seconds from now and return whether it is still there.

        Raises:
            LockUnavailable: no answer.
        """

    @abstractmethod
    def _release(self, lease: Lease) -> bool:
        """End the grant and return whether it was still there. From this call on the lease is not renewed.

        Raises:
            LockUnavailable: no answer. It may be called again.
        """


def wait_timeout(blocking: bool, timeout: float | None) -> float:  # noqa: FBT001 - threading.Lock's own arguments
    """Return for how many seconds `acquire(blocking, timeout)` may wait: 0 to ask once, `math.inf` without a limit.

    Raises:
        ValueError: `timeout` is negative or not a number, or given although `blocking` is False.
    """
    if timeout is None:
        return math.inf if blocking else 0.0
    if not blocking:
        raise ValueError("a timeout needs blocking=True: an attempt that does not block does not wait")
    if not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, or None, not {timeout!r}")
    return timeout
