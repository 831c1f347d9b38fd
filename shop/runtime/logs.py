"""Format log records as JSON, one line per record."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from celery import current_task

from shop import log_context


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message and process; trace, order, task and exception if known."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        known = {
            "trace": getattr(record, "trace", "") or log_context.trace.get(),
            "order": _order_of(record),
            "task": getattr(current_task, "name", None),
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        line |= {name: value for name, value in known.items() if value}
        # Do not use msgspec: it refuses half of a surrogate pair, which a client may send.
        return json.dumps(line)


def _order_of(record: logging.LogRecord) -> str:
    """Return the order id in the arguments of a record, or else the order that its thread works on."""
    named = [value for value in record.args if isinstance(value, UUID)] if isinstance(record.args, tuple) else []
    return str(named[0] if named else log_context.order.get() or "")
