"""ZooKeeperLock: a lock on a ZooKeeper ensemble. Needs the package `kazoo`."""

from locking.zookeeper.lock import ZooKeeperLock

__all__ = ["ZooKeeperLock"]
