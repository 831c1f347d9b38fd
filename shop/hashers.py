"""How passwords are hashed: as Django does it, but without a connection to Postgres in hand."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection


class Hasher(PBKDF2PasswordHasher):
    """Django's. It computes for a good part of a second; meanwhile the connection serves others.

    Who logs in has been looked up before. The threads of a process share few connections: four who log in would keep
    all orders waiting.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        """See `PBKDF2PasswordHasher.encode`."""
        if not connection.in_atomic_block:
            connection.close()
        return super().encode(password, salt, iterations)
