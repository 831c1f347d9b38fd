"""Check the name of a lock in Postgres, and compute the number of its advisory lock."""

from __future__ import annotations

import hashlib

from locking.arguments import require_name


def advisory_key(name: str, size: int = 8) -> int:
    """Return a hash of `name` as a signed number of `size` bytes, the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size], "big", signed=True)


def require_storable_name(name: str) -> str:
    """Check that Postgres can store `name` unchanged, and return its text.

    Raises:
        TypeError: the name is not a `str`.
        ValueError: the name is empty, contains a zero byte, or cannot be encoded as UTF-8.
    """
    text = require_name(name)
    if "\0" in text:
        raise ValueError(f"the name of a lock in Postgres may not contain a zero byte: {text!r}")
    text.encode()  # raises UnicodeEncodeError, a ValueError, for an unpaired surrogate
    return text
