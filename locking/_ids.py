"""Tokens that tell grants apart, and labels that tell people who holds a lock."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from functools import cache


def new_token() -> str:
    """Return 128 random bits as hexadecimal text: the token of one grant."""
    return secrets.token_hex(16)


def owner_label() -> str:
    """Return a label of the calling thread for people to read: host, process id and thread name.

    It is not unique, since host names, process ids and thread names repeat: never compare owners by it.
    """
    label = f"{_host()}:{os.getpid()}:{threading.current_thread().name}"
    return label.encode("ascii", "backslashreplace")[:100].decode()


@cache
def _host() -> str:
    return socket.gethostname()
