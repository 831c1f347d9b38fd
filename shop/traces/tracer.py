"""Makes the spans of one process, and sends them to a collector in the background."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing.util import Finalize
from typing import Any, Protocol, cast
from uuid import UUID

from django.db.backends.signals import connection_created
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inventory.observing import Observer
from shop import log_context
from shop.sales import offers

LAST_SPANS_MS = 2000
"""Milliseconds that a process which ends waits until the collector has its last spans."""
SLUG = re.compile("(?<=^/sales/)[^/]+")
"""The part of a path that is different for each sale."""
NAME = "last-unit"
HEADER = "traceparent"

_propagator = TraceContextTextMapPropagator()


class Request(Protocol):
    """A request that a web process answers.

    Args:
        scope: RSGI's description of it.
        at: when it had arrived, on the monotonic clock.
        status: status of the answer; 0 before there is one.
    """

    scope: Any
    at: float
    status: int


class Tracer(Observer):
    """What the shop and its strategies tell, as spans. Any thread may call it.

    A span that has ended is put into a queue of limited length, from which a thread sends them. While the collector
    does not answer, the queue is full and further spans are dropped: no order waits for it.

    The standard variables say where the collector is, how this service is named, and which requests are traced:
    `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`.

    Args:
        role: what this process is: `web` or `worker`.
        slug_of: returns the type of the problem with which an error is answered.
    """

    def __init__(self, role: str, slug_of: Callable[[Exception], str]) -> None:
        self._slug_of = slug_of
        os.environ.setdefault("OTEL_SERVICE_NAME", NAME)
        resource = Resource.create({"shop.role": role, "process.pid": os.getpid()})
        provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
        processor = BatchSpanProcessor(OTLPSpanExporter())
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(NAME)
        self._held = threading.local()
        connection_created.connect(self._trace_statements)
        # Not `atexit`, which is not called in processes that multiprocessing has started, such as the web processes.
        # `provider.shutdown` waits for 30 s. What waits less is not public: requirements-trace.in pins the version.
        Finalize(None, processor._batch_processor.shutdown, (LAST_SPANS_MS,), exitpriority=0)

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Trace the answer to a request, as a part of the trace that its client has begun, or as a trace of its own."""
        scope = request.scope
        span = self._tracer.start_span(
            f"{scope.method} {SLUG.sub('{slug}', scope.path)}",
            _context(scope.headers.get(HEADER, "")),
            SpanKind.SERVER,
            {"http.request.method": scope.method, "url.path": scope.path},
            start_time=_wall_clock(request.at),
        )
        with trace.use_span(span, end_on_exit=True):
            span.add_event("thread")  # What comes before is the wait for a thread.
            yield
            span.set_attribute("http.response.status_code", request.status)
            if request.status >= 500:
                span.set_status(Status(StatusCode.ERROR))

    @contextmanager
    def placing(self, sale: int) -> Iterator[None]:
        """Trace the placing of an order."""
        with self._span("place order") as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", self._slug_of(error))
                raise
            finally:
                offer = offers.cache.get(sale).value
                about = {"sale": str(sale), "strategy": offer and offer.strategy, "order": log_context.order.get()}
                span.set_attributes({f"shop.{name}": str(value) for name, value in about.items() if value})

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        about: dict[str, Any] = {"shop.strategy": strategy, "shop.granted": granted}
        self._ended_now("wait for lock", seconds, about)
        if granted:
            span = self._tracer.start_span("hold lock", attributes=about) if _is_traced() else trace.INVALID_SPAN
            scope = trace.use_span(span, end_on_exit=True) if span.is_recording() else nullcontext(span)
            scope.__enter__()
            self._locks().append((span, scope))

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        # Locks are released in reverse order, so this is the one that was granted last.
        span, scope = self._locks().pop()
        span.set_attribute("shop.lost", lost)
        scope.__exit__(None, None, None)

    def batch_waited(self, since: float, until: float) -> None:
        if _is_traced():
            self._tracer.start_span("wait for batch", start_time=_wall_clock(since)).end(_wall_clock(until))

    def committed(self, seconds: float) -> None:
        self._ended_now("COMMIT", seconds, {"db.system.name": "postgresql"})

    @contextmanager
    def queueing(self) -> Iterator[str]:
        with self._span("queue order", SpanKind.PRODUCER):
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            yield carrier.get(HEADER, "")

    @contextmanager
    def saving(self, traces: Mapping[UUID, str]) -> Iterator[None]:
        """Trace the save of each order as a part of its own trace.

        The statements, which are those of the whole batch, are in the trace of the first order. The others link to it.
        """
        spans: list[Span] = []
        for order, parent in traces.items():
            span = self._tracer.start_span(
                "save order",
                _context(parent),
                SpanKind.CONSUMER,
                {"shop.order": str(order), "shop.batch": len(traces)},
                links=[Link(each.get_span_context()) for each in spans[:1]],
            ) if parent else trace.INVALID_SPAN  # fmt: skip
            if span.is_recording():
                spans.append(span)
        try:
            with trace.use_span(spans[0]) if spans else nullcontext():
                yield
        except BaseException:
            for span in spans:
                span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            for span in spans:
                span.end()

    @contextmanager
    def _span(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Iterator[Span]:
        """Make a span, if it is a part of a trace."""
        if _is_traced():
            with self._tracer.start_as_current_span(name, kind=kind, record_exception=False) as span:
                yield span
        else:
            yield trace.INVALID_SPAN

    def _ended_now(self, name: str, seconds: float, about: Mapping[str, Any]) -> None:
        """Make the span of what has just ended, if it is a part of a trace."""
        if _is_traced():
            now = time.time_ns()
            self._tracer.start_span(name, attributes=about, start_time=now - int(seconds * 1e9)).end(now)

    def _locks(self) -> list[Any]:
        """Return the spans of the locks that this thread holds."""
        if not hasattr(self._held, "locks"):
            self._held.locks = []
        return cast(list[Any], self._held.locks)

    def _trace_statements(self, connection: Any, **_: Any) -> None:
        if self._trace_statement not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._trace_statement)

    def _trace_statement(self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:
        if not _is_traced():
            return execute(sql, params, many, context)
        # Values are sent apart from the statement, so nothing of a customer is in it.
        about = {"db.system.name": "postgresql", "db.query.text": " ".join(str(sql).split())}
        with self._tracer.start_as_current_span(str(sql).split()[0], kind=SpanKind.CLIENT, attributes=about):
            return execute(sql, params, many, context)


class Ids(RandomIdGenerator):
    """Gives a trace the id that the lines of the log have."""

    def generate_trace_id(self) -> int:
        return int(log_context.trace.get() or "0", 16) or super().generate_trace_id()


def _is_traced() -> bool:
    """Return whether this thread works on a request or queued order whose trace is recorded."""
    return trace.get_current_span().is_recording()


def _context(traceparent: str) -> Context:
    return _propagator.extract({HEADER: traceparent}, Context())


def _wall_clock(monotonic: float) -> int:
    """Return a moment of the monotonic clock in nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - monotonic) * 1e9)
