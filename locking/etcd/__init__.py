"""EtcdLock: a lock on an etcd server or cluster. Needs the package `etcd3gw`."""

from locking.etcd.lock import EtcdLock

__all__ = ["EtcdLock"]
