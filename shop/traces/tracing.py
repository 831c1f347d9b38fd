"""Access to the tracer of this process, for the code that is traced.

This module does not import OpenTelemetry, which need not be installed if TRACES is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from inventory import observing

if TYPE_CHECKING:
    from shop.traces.tracer import Request, Tracer

ORDER_PATH = re.compile("/api/orders/|/sales/[^/]+/buy/")
"""URL paths at which orders are placed: of the API, and of the order form."""

_tracer: Tracer | None = None
Placed = TypeVar("Placed")


def start(role: str, slug_of: Callable[[Exception], str]) -> None:
    """Start the tracer of this process.

    Args:
        role: role of this process: `web` or `worker`.
        slug_of: returns the problem type of an error.
    """
    global _tracer
    # Import this here, because OpenTelemetry need not be installed if TRACES is off.
    from shop.traces.tracer import Tracer

    _tracer = Tracer(role, slug_of)
    observing.listen(_tracer)


def places_order(scope: Any) -> bool:
    """Return whether a request places an order. Such requests are measured and traced.

    Other requests are not traced, because their paths may contain secrets.

    Args:
        scope: RSGI's description of the request.
    """
    return scope.method == "POST" and ORDER_PATH.fullmatch(scope.path) is not None


def answering(request: Request) -> AbstractContextManager[None]:
    """Trace the handling of a request that places an order; do nothing for other requests."""
    if _tracer is None or not places_order(request.scope):
        return nullcontext()
    return _tracer.answering(request)


def traced(place: Callable[..., Placed]) -> Callable[..., Placed]:
    """Decorate a function that places an order, so that its call is traced."""

    @wraps(place)
    def tracing(*, sale: int, **wanted: object) -> Placed:
        if _tracer is None:
            return place(sale=sale, **wanted)
        with _tracer.placing(sale):
            return place(sale=sale, **wanted)

    return tracing
