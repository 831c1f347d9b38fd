"""Keep the threads of a schedule on one processor. They take turns, so a second processor would not help."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def on_one_processor() -> Iterator[None]:
    """Inside the `with` block, keep the calling thread on its present processor, with the threads that it starts.

    At each step of a schedule, one thread wakes another and sleeps. On two processors, each step waits until the other
    processor has woken up and its thread has got the interpreter lock. Outside Linux this does nothing.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
