"""Grant tokens, and human-readable labels of lock holders."""

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
    """Return the host, process id and thread name of the caller, for display only.

    Never compare owners by this label: host names, process ids and thread names are reused.
    """
    label = f"{_host()}:{os.getpid()}:{threading.current_thread().name}"
    return label.encode("ascii", "backslashreplace")[:100].decode()


@cache
def _host() -> str:
    return socket.gethostname()
