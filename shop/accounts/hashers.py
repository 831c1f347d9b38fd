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
"""Maximum seconds that a thread waits for its turn to hash a password."""

PLACES = max(1, settings.WEB_THREADS // 4)
"""Maximum number of threads of a process that hash a password or wait to hash one. They take no orders meanwhile."""

# Hash one password at a time: concurrent hashing would take CPU time from orders.
_turn = BoundedSemaphore(1)
_waiting = BoundedSemaphore(PLACES)


class PasswordHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2 hasher, which hashes one password at a time in a process.

    It returns the thread's connection to Postgres to the pool first. Hashing takes a large part of a second, and the
    threads of a process share few connections. If a thread kept its connection while it hashes or waits, as many
    log-ins as there are connections would make all orders wait.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not connection.in_atomic_block:
            connection.close()
        with turn():
            return super().encode(password, salt, iterations)


@contextmanager
def turn() -> Iterator[None]:
    """Context manager that lets one thread of this process at a time hash a password.

    Raises:
        HashingBusy: too many threads of this process wait already, or this thread has waited for `WAIT` seconds.
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
