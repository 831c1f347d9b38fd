"""CPU time of a whole shop, from the kernel. Unlike elapsed time, it does not grow with the load of other programs."""

from __future__ import annotations

from contextlib import suppress

import psutil

from loadtest.local_shop import LocalShop


def seconds(shop: LocalShop) -> float:
    """Return the CPU seconds that web, worker, beat, Postgres and Valkey have used so far.

    Servers on other machines are not counted.
    """
    servers = [status.pid for status in shop.statuses if status.pid is not None]
    return sum(_of_tree(pid) for pid in [*servers, *(child.pid for child in shop.children)])


class HostSteal:
    """The CPU time that the host of a virtual machine gives to other machines while this one wants to run."""

    def __init__(self) -> None:
        self._begin = psutil.cpu_times()

    def share(self) -> float:
        """Return this CPU time as a share of all CPU time since this object was made: 0 to 1, and 0 except on Linux."""
        now = psutil.cpu_times()
        spent = sum(now) - sum(self._begin)
        return (getattr(now, "steal", 0.0) - getattr(self._begin, "steal", 0.0)) / spent if spent else 0.0


def _of_tree(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants. A parent's times include children that have ended."""
    used = 0.0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
    return used
