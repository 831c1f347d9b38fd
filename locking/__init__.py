"""Locks that hand out leases.

A lock names what is locked. `acquire` and `hold` return a lease: one grant of the lock, valid for a limited time.

    lock = RedisLock(client, "stock:sku-42", ttl=10.0)
    with lock.hold(timeout=2.0) as lease:
        lease.check()            # raises LeaseLost unless the lock is still held
        write(..., lease.fence)  # the store refuses a fence lower than the highest it has seen

Locks on ZooKeeper, etcd and Postgres need that server's client library, so import them from `locking.zookeeper`,
`locking.etcd` and `locking.postgres`. `docs/choose-lock.md` compares all locks.
"""

from locking.errors import LeaseLost, LockError, LockTimeout, LockUnavailable, NotOwner
from locking.lease import Lease
from locking.local import ProcessLock, ThreadLock
from locking.lock import Capabilities, Lock
from locking.redis import FairRedisLock, RedisLock, Redlock
from locking.reentrant import ReentrantLock
from locking.registry import HeldLock, force_release, held

__all__ = [
    "Capabilities",
    "FairRedisLock",
    "HeldLock",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "LockTimeout",
    "LockUnavailable",
    "NotOwner",
    "ProcessLock",
    "RedisLock",
    "Redlock",
    "ReentrantLock",
    "ThreadLock",
    "force_release",
    "held",
]
