"""Format log records as text, or as JSON with one line per record. Both name the request and the order."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from celery import current_task

from shop import log_context


class TextFormatter(logging.Formatter):
    """Formats a record as text. Its first line ends with the order and the trace if they are known.

    Args:
        inner: formats the rest of the record; None means the message alone.
    """

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, with the traceback of its exception."""
        line, newline, rest = self._inner.format(record).partition("\n")
        known = {"order": _order_of(record), "trace": _trace_of(record)}
        # Do not repeat what the message says: many messages name their order.
        more = [f" {name}={value}" for name, value in known.items() if value and value not in line]
        return "".join([line, *more, newline, rest])


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message and process; trace, order, task and exception if known."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        known = {
            "trace": _trace_of(record),
            "order": _order_of(record),
            "task": getattr(current_task, "name", None),
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        line |= {name: value for name, value in known.items() if value}
        # Do not use msgspec: it refuses a lone surrogate (half of a surrogate pair), which a client may send.
        return json.dumps(line)


def _trace_of(record: logging.LogRecord) -> str:
    """Return the trace of a record if it has one, otherwise the trace of the request that the thread handles."""
    return getattr(record, "trace", "") or log_context.trace.get()


def _order_of(record: logging.LogRecord) -> str:
    """Return the order id in the arguments of a record, otherwise the order that the thread works on."""
    named = [value for value in record.args if isinstance(value, UUID)] if isinstance(record.args, tuple) else []
    return str(named[0] if named else log_context.order.get() or "")
