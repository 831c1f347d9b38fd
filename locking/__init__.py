"""Locks that hand out leases. A lock names what is locked; a lease is what is held, and knows when it is over.

lock = RedisLock(client, "stock:sku-42", ttl=10.0)
with lock.hold(timeout=2.0) as lease:
    lease.check()           # raises LeaseLost when the lock is no longer surely ours
    write(..., lease.fence) # let the store refuse a fence lower than the last it has seen

Locks on other servers need the client of that server, and are imported from where they are: `locking.zookeeper`,
`locking.etcd` and `locking.postgres`. `docs/choose-lock.md` says which to choose.
"""

from locking.errors import LeaseLost, LockError, LockTimeout, LockUnavailable, NotOwner
from locking.lease import Lease
from locking.local import ProcessLock, ThreadLock
from locking.lock import Capabilities, Lock
from locking.redis.lock import FairRedisLock, RedisLock
from locking.redis.redlock import Redlock
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
