"""Which request and which order this thread works on, for the lines of the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from uuid import UUID

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

trace: ContextVar[str] = ContextVar("trace", default="")
"""The trace id of the request, of 32 hexadecimal digits; empty outside any request."""

order: ContextVar[UUID | None] = ContextVar("order", default=None)
"""The id of the order that is placed; None if there is none."""


def begin_request(trace_id: str) -> None:
    """Let the lines of this thread belong to a request, which has no order yet."""
    trace.set(trace_id)
    order.set(None)


def trace_of(traceparent: str) -> str:
    """Return the trace id that a client or proxy sends, or a new one.

    Args:
        traceparent: the header of that name (https://www.w3.org/TR/trace-context/); empty if there is none.
    """
    match = TRACEPARENT.fullmatch(traceparent)
    return match[1] if match and match[1].strip("0") else secrets.token_hex(16)
