"""Hash one password at a time in each process, without holding a connection to Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection

from shop.accounts.errors import HashingBusy

WAIT = 5.0
"""Seconds that a thread waits for its turn to hash."""

# One password at a time: more would take the processors from the orders. The threads that wait for their turn cannot
# take orders either, so at most a quarter of the threads may hash or wait.
_turn = BoundedSemaphore(1)
_waiting = BoundedSemaphore(max(1, settings.WEB_THREADS // 4))


class PasswordHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2 hasher, one call at a time, which returns the connection to the pool before it computes.

    Hashing takes a good part of a second, and the threads of a process share few connections. If hashing kept a
    connection, four logins at the same time would keep all orders waiting.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not connection.in_atomic_block:
            connection.close()
        with turn():
            return super().encode(password, salt, iterations)


@contextmanager
def turn() -> Iterator[None]:
    """Wait for the turn of this thread to hash.

    Raises:
        HashingBusy: enough threads of this process wait already, or the turn did not come within `WAIT` seconds.
    """
    if not _waiting.acquire(blocking=False):
        raise HashingBusy
    try:
        if not _turn.acquire(timeout=WAIT):
            raise HashingBusy
        try:
            yield
        finally:
            _turn.release()
    finally:
        _waiting.release()
