"""Where the shop tells what belongs to a trace: the tracer of this process, if it has one.

This file imports nothing of OpenTelemetry, which need not be installed while TRACES is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from inventory import observing

if TYPE_CHECKING:
    from shop.traces.tracer import Request, Tracer

PURCHASE = re.compile("/api/orders/|/sales/[^/]+/buy/")
"""Paths of the requests that are traced. In no other one is an order placed, and some paths have secrets in them."""

_tracer: Tracer | None = None
Placed = TypeVar("Placed")


def start(role: str, slug_of: Callable[[Exception], str]) -> None:
    """Begin to trace what this process does.

    Args:
        role: what this process is: `web` or `worker`.
        slug_of: returns the type of the problem with which an error is answered.
    """
    global _tracer
    # Only here: OpenTelemetry need not be installed while traces are off.
    from shop.traces.tracer import Tracer

    _tracer = Tracer(role, slug_of)
    observing.listen(_tracer)


def answering(request: Request) -> AbstractContextManager[None]:
    """Trace the answer to a request, if it is one that places an order."""
    if _tracer is None or request.scope.method != "POST" or not PURCHASE.fullmatch(request.scope.path):
        return nullcontext()
    return _tracer.answering(request)


def traced(place: Callable[..., Placed]) -> Callable[..., Placed]:
    """Decorate a function that places an order for a `sale`: trace it."""

    @wraps(place)
    def tracing(*, sale: int, **wanted: object) -> Placed:
        if _tracer is None:
            return place(sale=sale, **wanted)
        with _tracer.placing(sale):
            return place(sale=sale, **wanted)

    return tracing
