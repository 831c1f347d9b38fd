"""Send a response piece by piece, only as fast as the client reads it.

granian's own stream has no limit: the part that a slow client has not read yet would wait in memory. So the pieces go
through a pipe, which granian reads like a file. While the pipe is full, the thread that fills it waits.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import copy_context
from typing import Any

from django.db import close_old_connections

from shop import limits
from shop.runtime.gateway import Headers

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 0.1
"""Maximum seconds between two checks whether granian has begun to read."""

_free = threading.BoundedSemaphore(limits.STREAMS)


class TooManyStreams(RuntimeError):
    """This process already sends `limits.STREAMS` responses in pieces."""


def send(proto: Any, status: int, headers: Headers, response: Any) -> None:
    """Begin to send a response, and return. This thread makes the first piece, and a new thread makes the others.

    The new thread also closes the response.

    Args:
        proto: RSGI's protocol object.
        response: an iterable of pieces, with a method `close`.

    Raises:
        TooManyStreams: too many responses are being sent. Nothing was sent, and the response is closed.
        Exception: the first piece could not be made, or there are too many threads or open files. Nothing was sent,
            and the response is closed.
    """
    with ExitStack() as after_failure:
        after_failure.callback(response.close)
        if not _free.acquire(blocking=False):
            raise TooManyStreams
        after_failure.callback(_free.release)
        pieces = iter(response)
        first = next(filter(None, pieces), b"")
        if not first:
            return proto.response_bytes(status, headers, b"")
        reader, writer = os.pipe()
        after_failure.callback(os.close, reader)
        after_failure.callback(os.close, writer)
        arguments = (_fill, reader, writer, first, pieces, response)
        threading.Thread(target=copy_context().run, args=arguments, name="stream", daemon=True).start()
        after_failure.pop_all()
    try:
        return proto.response_file(status, headers, f"/dev/fd/{reader}")
    finally:
        # Return the database connections of this thread, which the view has used, to the pool. Another thread closes
        # the response, and Django then returns only the connections of that thread.
        close_old_connections()


def _fill(reader: int, writer: int, first: bytes, pieces: Iterator[bytes], response: Any) -> None:
    """Write all pieces into the pipe, and close the pipe and the response."""
    try:
        # A write fails if the client has gone.
        with _released(), closing(response), suppress(BrokenPipeError), open(writer, "wb") as pipe:
            with open(reader, "rb"):
                # granian opens the pipe by its name, which exists only while `reader` is open. Close `reader` as soon
                # as granian has opened the pipe: otherwise a write would wait for ever after the client has gone.
                pipe.write(first[:1])
                pipe.flush()
                if not _was_read(reader):
                    logger.warning("No response was sent: the client has gone, or granian cannot open the pipe")
            pipe.write(first[1:])
            pipe.flush()
            for piece in pieces:
                # Return the connection to the pool, because the client may take minutes to read this piece.
                close_old_connections()
                pipe.write(piece)
                pipe.flush()
    except Exception:
        logger.exception("A response has ended early")


@contextmanager
def _released() -> Iterator[None]:
    """Context manager: at its end, this response no longer counts towards `limits.STREAMS`."""
    try:
        yield
    finally:
        _free.release()


def _was_read(reader: int) -> bool:
    """Wait until the pipe is empty, but at most `limits.REQUEST` seconds. Return whether it is empty."""
    unread = select.poll()
    unread.register(reader, select.POLLIN)
    deadline, pause = time.monotonic() + limits.REQUEST, 0.001
    while unread.poll(0) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return not unread.poll(0)
