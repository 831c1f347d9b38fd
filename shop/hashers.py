"""Hash passwords without holding a connection to Postgres."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection


class PasswordHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2 hasher, which returns the connection to the pool before it computes.

    Hashing takes a good part of a second, and the threads of a process share few connections. If hashing kept a
    connection, four logins at the same time would keep all orders waiting.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not connection.in_atomic_block:
            connection.close()
        return super().encode(password, salt, iterations)
