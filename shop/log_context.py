"""The request and the order that a thread works on. Each log line shows them."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from uuid import UUID

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

trace: ContextVar[str] = ContextVar("trace", default="")
"""The trace id of the request: 32 hexadecimal digits; empty outside a request."""

order: ContextVar[UUID | None] = ContextVar("order", default=None)
"""The id of the order that this thread is placing; None if it places none."""


def begin_request(trace_id: str) -> None:
    """Set the trace id for the log lines of this thread, and clear the order of the previous request."""
    trace.set(trace_id)
    order.set(None)


def trace_of(traceparent: str) -> str:
    """Return the trace id in a `traceparent` header, or a new trace id if the header has no valid one.

    Args:
        traceparent: the header of that name (https://www.w3.org/TR/trace-context/); empty if there is none.
    """
    match = TRACEPARENT.fullmatch(traceparent)
    return match[1] if match and match[1].strip("0") else secrets.token_hex(16)
