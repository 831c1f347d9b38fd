"""Locks that hand out leases. A lock names what is locked; a lease is what is held, and knows when it is over.

lock = RedisLock(client, "stock:sku-42", ttl=10.0)
with lock.hold(timeout=2.0) as lease:
    lease.check()           # raises LeaseLost when the lock is no longer surely ours
    write(..., lease.fence) # let the store refuse a fence lower than the last it has seen
"""

from locking.base import Capabilities, Lock
from locking.errors import LeaseLost, LockError, LockTimeout, LockUnavailable, NotOwner
from locking.lease import Lease
from locking.redis import RedisLock
from locking.registry import HeldLock, held

__all__ = [
    "Capabilities",
    "HeldLock",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "LockTimeout",
    "LockUnavailable",
    "NotOwner",
    "RedisLock",
    "held",
]
