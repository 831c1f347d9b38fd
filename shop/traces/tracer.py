"""The tracer of a process, which makes spans and sends them to a collector in the background."""

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
"""Maximum milliseconds for which an ending process waits until the collector has its last spans."""
SLUG = re.compile("(?<=^/sales/)[^/]+")
"""Pattern of the slug of the sale in a path. Names of spans contain a placeholder instead of the slug."""
NAME = "last-unit"
HEADER = "traceparent"
NO_MESSAGES: Mapping[str, Any] = {"record_exception": False, "set_status_on_exception": False}
"""Arguments that keep messages of errors out of spans, because a message of Postgres may quote the values of a row."""
LONGEST = 200
"""Maximum characters of a path in a span. Anybody can send a request with a longer path, without a log-in."""

_propagator = TraceContextTextMapPropagator()


class Request(Protocol):
    """A request that a web process handles.

    Args:
        scope: RSGI's description of the request.
        at: monotonic time of the arrival, in seconds.
        status: status of the response; 0 before there is one.
    """

    scope: Any
    at: float
    status: int


class Tracer(Observer):
    """Makes spans from the events of the shop and its strategies. Any thread may call it.

    Ended spans go into a queue of limited length, and a background thread sends them. If the collector does not answer,
    the queue fills up and further spans are dropped, so that no order waits for the collector.

    OpenTelemetry's variables set the collector, the name of the service and the share of traced requests:
    `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`.

    Args:
        role: role of this process: `web` or `worker`.
        slug_of: returns the problem type of an error.
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
        # Do not use `atexit`: it does not run in processes of multiprocessing, such as the web processes.
        # `provider.shutdown` waits for 30 s, so call a private method. requirements-trace.in pins the version.
        Finalize(None, processor._batch_processor.shutdown, (LAST_SPANS_MS,), exitpriority=0)

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Trace the handling of a request, in the trace that the client has begun or in a new trace."""
        scope = request.scope
        span = self._tracer.start_span(
            f"{scope.method} {SLUG.sub('{slug}', scope.path)}",
            _context(scope.headers.get(HEADER, "")),
            SpanKind.SERVER,
            {"http.request.method": scope.method, "url.path": scope.path[:LONGEST]},
            start_time=_wall_clock(request.at),
        )
        with trace.use_span(span, end_on_exit=True, **NO_MESSAGES):
            span.add_event("thread")  # Until this event, the request has waited for a thread.
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
                span.set_status(Status(StatusCode.ERROR))
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
        # Locks are released in reverse order, so this lock is the one that was granted last.
        span, scope = self._locks().pop()
        span.set_attribute("shop.lost", lost)
        scope.__exit__(None, None, None)

    def batch_waited(self, since: float, until: float) -> None:
        if _is_traced():
            self._tracer.start_span("wait for batch", start_time=_wall_clock(since)).end(_wall_clock(until))

    def committed(self, seconds: float) -> None:
        # The commit took `seconds`. If a statement began in this time, it ran in autocommit. The span of the statement
        # then covers the commit, so make no span of its own for the commit.
        if time.monotonic() - seconds > getattr(self._held, "statement_began", 0.0):
            self._ended_now("COMMIT", seconds, {"db.system.name": "postgresql"})

    @contextmanager
    def queueing(self) -> Iterator[str]:
        with self._span("queue order", SpanKind.PRODUCER):
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            yield carrier.get(HEADER, "")

    @contextmanager
    def saving(self, traces: Mapping[UUID, str]) -> Iterator[None]:
        """Trace the saving of a batch, with a span in the trace of each order.

        The statements of the whole batch are in the trace of the first order. The spans of the other orders link to it.
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
        """Make a span if this thread has a recorded trace; otherwise do nothing."""
        if _is_traced():
            with self._tracer.start_as_current_span(name, kind=kind, **NO_MESSAGES) as span:
                yield span
        else:
            yield trace.INVALID_SPAN

    def _ended_now(self, name: str, seconds: float, about: Mapping[str, Any]) -> None:
        """Make a span of the last `seconds` if this thread has a recorded trace."""
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
        self._held.statement_began = time.monotonic()
        # The statement contains no data of customers, because its values are sent separately.
        about = {"db.system.name": "postgresql", "db.query.text": " ".join(str(sql).split())}
        with self._tracer.start_as_current_span(
            str(sql).split()[0], kind=SpanKind.CLIENT, attributes=about, **NO_MESSAGES
        ) as span:
            try:
                return execute(sql, params, many, context)
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise


class Ids(RandomIdGenerator):
    """Gives a trace the same id as the log lines of the request."""

    def generate_trace_id(self) -> int:
        return int(log_context.trace.get() or "0", 16) or super().generate_trace_id()


def _is_traced() -> bool:
    """Return whether this thread works on a request or a queued order with a recorded trace."""
    return trace.get_current_span().is_recording()


def _context(traceparent: str) -> Context:
    # Ignore an invalid header, as the log does. The trace then gets the id that the log has made.
    if not log_context.TRACEPARENT.fullmatch(traceparent):
        return Context()
    return _propagator.extract({HEADER: traceparent}, Context())


def _wall_clock(monotonic: float) -> int:
    """Convert a monotonic time in seconds to nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - monotonic) * 1e9)
