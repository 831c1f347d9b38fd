"""Find out whether the thread of an actor waits for another thread of this process.

No server knows of such a wait. So it is recognised by the function in which the thread sleeps: the wait for a batch in
`inventory`, the queue of `ThreadLock`, or the pause of `ProcessLock` between two attempts to lock its file.
"""

from __future__ import annotations

import sys
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from inventory.batching import Pending
from lab.explorer.actor import Actor
from locking.local import ProcessLock, QueuePlace


def waits_for_a_thread(actor: Actor) -> bool:
    """Return whether an actor sleeps until another thread releases a lock or finishes a batch."""
    frame = sys._current_frames().get(actor.thread.ident or 0)
    if frame is None:
        return False
    code = frame.f_code
    if code is Pending.wait_to_be_woken.__code__:
        return not frame.f_locals["self"].woken
    if code is QueuePlace.wait_for_turn.__code__:
        place = frame.f_locals["self"]
        return frame.f_locals.get("first") is False and place._wake.locked()
    if code is ProcessLock.acquire.__code__:
        return "pause" in frame.f_locals and _is_locked(frame.f_locals["self"]._path)
    return False


def _is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
    return False
