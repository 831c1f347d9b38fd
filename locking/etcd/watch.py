"""DeletionWatch: wait until etcd reports the deletion of a key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from locking.arguments import LONGEST_SECONDS
from locking.errors import LockUnavailable


class DeletionWatch:
    """Reads the answers of etcd to a watch, and reports only whether there was a deletion.

    Args:
        sock: socket of the stream, positioned at the head of the HTTP response.
        unavailable: returns the exception to raise when the stream ends.
    """

    def __init__(self, sock: socket.socket, unavailable: Callable[[object], LockUnavailable]) -> None:
        self._sock = sock
        self._unavailable = unavailable
        self._received = b""

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`, and return whether the key was deleted, or may have been.

        Raises:
            LockUnavailable: the stream was cut, or contains an error.
        """
        until = time.monotonic() + seconds
        # "compact_revision": etcd no longer knows the events of the revision, so there may have been a deletion.
        while b'"events"' not in self._received and b'"compact_revision"' not in self._received:
            try:
                self._sock.settimeout(min(max(until - time.monotonic(), 0.001), LONGEST_SECONDS))
                data = self._sock.recv(65536)
            except TimeoutError:
                return False
            except OSError as error:
                raise self._unavailable(error) from error
            self._received += data
            if not data or b'"error"' in self._received:
                raise self._unavailable(f"the wait was cut: {self._received[-200:]!r}")
        return True
