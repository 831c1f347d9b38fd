"""The door: the part of the web server that reads the body of a request before the request gets a thread.

Anyone can connect and then send slowly, or send nothing. Without using a thread, the door limits the length of a body,
the time to receive the body, and the time until the response. Before that, granian limits the connection and the head
of the request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from django.conf import settings
from django.http import HttpResponse

from shop import limits, log_context
from shop.api import problems
from shop.metrics import recording, report
from shop.runtime import csp, streaming
from shop.runtime.gateway import Application, File, Headers, StartResponse, client_address, environ
from shop.traces import tracing

logger = logging.getLogger(__name__)

ALIVE = "/health/live/"
"""URL path of the liveness check."""

TICK = 0.25
"""Seconds between two checks of the deadlines."""

TICKS_TO_REPORT = 4
"""Number of checks after which the metrics get the number of busy threads and of waiting requests."""

REFUSALS = {int(file.stem): file.read_bytes() for file in (Path(__file__).parent / "refusals").glob("*.html")}
"""Pages for browsers whose request the door refuses, by status. They are files, so that refusing costs no rendering.

nginx.conf serves the same files.
"""

REFUSALS_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the pages in `REFUSALS`. They load nothing, and contain their style.

nginx.conf sends the same policy.
"""


@dataclass(eq=False, slots=True)
class Arrived:
    """A request that has arrived completely.

    Args:
        scope: RSGI's description of the request.
        proto: RSGI's protocol object, which sends the response.
        body: the whole body.
        at: monotonic time of the arrival, in seconds.
        begun: monotonic time at which the request got a thread; 0 before that.
        status: status of the response; 0 before there is one.
    """

    scope: Any
    proto: Any
    body: bytes
    at: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    trace: str = ""
    status: int = 0

    def __post_init__(self) -> None:
        self.trace = log_context.trace_of(self.scope.headers.get("traceparent", ""))

    def note_answer(self, status: int) -> None:
        """Store the status. For an order request, also record the status and the duration in the metrics."""
        self.status = status
        recorder = recording.recorder()
        if recorder is not None and tracing.places_order(self.scope):
            now = time.monotonic()
            recorder.order_request(status, now - self.at, waited=(self.begun or now) - self.at)


class Door:
    """Reads requests, and hands each complete request to the next free thread.

    Args:
        application: the WSGI application that handles the requests.
        threads: number of requests that are handled at the same time.
    """

    def __init__(self, application: Application, threads: int) -> None:
        self._application = application
        self._whole: SimpleQueue[Arrived] = SimpleQueue()
        # For each request without a response, by its protocol object: the deadline, and the action to run then.
        self._deadlines: dict[Any, tuple[float, Callable[[], object]]] = {}
        self._answering: set[Any] = set()
        self._last_kept_alive = 0.0
        self._closing = False
        for _ in range(threads):
            threading.Thread(target=self._work, name="web", daemon=True).start()
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def admit(self, scope: Any, proto: Any) -> None:
        """Begin to handle a request whose head has arrived. This does not block.

        Args:
            scope: RSGI's description of the request.
            proto: RSGI's protocol object, which reads the body and sends the response.
        """
        headers = scope.headers
        if "transfer-encoding" in headers:
            return self._refuse_after_body(scope, proto, problems.LENGTH_REQUIRED, limits.DISCARDED_BYTES)
        # granian has checked the header, but it also accepts a list such as "5, 5".
        length = int(headers.get("content-length", "0").partition(",")[0])
        if not length:
            # Respond without a thread: a process whose threads all wait for Postgres must not be restarted as dead.
            if scope.path == ALIVE:
                return self._send(proto, HttpResponse(content_type="text/plain"))
            if scope.path == report.PATH and scope.method == "GET" and _may_read_metrics(scope):
                # Use a new thread, because metrics are needed most when all other threads are busy.
                return threading.Thread(target=self._report, args=(scope, proto), name="metrics", daemon=True).start()
            return self._enter(scope, proto, b"")
        if length > limits.BODY_BYTES:
            most = f"A body may have at most {limits.BODY_BYTES} bytes."
            return self._refuse_after_body(scope, proto, problems.TOO_LARGE, length, most)
        body = proto()
        self._deadlines[proto] = (time.monotonic() + limits.BODY, body.cancel)
        body.add_done_callback(partial(self._received, scope, proto))
        return None

    def close(self) -> None:
        """Answer all further requests with `Connection: close`, and wait for up to `limits.DRAIN` seconds.

        If the server closed idle connections at once, a client that is sending at this moment could not know whether
        the server has read the request.
        """
        self._closing = True
        time.sleep(max(0.0, self._last_kept_alive + limits.DRAIN - time.monotonic()))

    def _received(self, scope: Any, proto: Any, body: Any) -> None:
        if body.cancelled():
            self._refuse(scope, proto, problems.TOO_SLOW)
        elif body.exception():
            # The client has closed the connection.
            self._refuse(scope, proto, problems.INVALID, "The body did not arrive completely.")
        else:
            self._enter(scope, proto, body.result())

    def _enter(self, scope: Any, proto: Any, body: bytes) -> None:
        request = Arrived(scope, proto, body)
        self._limit(request, problems.BUSY)
        self._whole.put(request)

    def _limit(self, request: Arrived, problem: problems.Problem) -> None:
        """Set the deadline of a request. If there is no response by then, the client gets `problem`."""
        self._deadlines[request.proto] = request.at + limits.REQUEST, partial(self._give_up, request, problem)

    def _work(self) -> None:
        while True:
            request = self._whole.get()
            # Only the thread that removes the entry responds. If there is no entry, the client already has a response.
            if self._deadlines.pop(request.proto, None) is not None:
                self._limit(request, problems.UNAVAILABLE)
                self._answering.add(request)
                request.begun = time.monotonic()
                log_context.begin_request(request.trace)
                try:
                    with tracing.answering(request):
                        self._answer(request)
                except Exception:
                    # Send a response here, because no caller of this thread would.
                    logger.exception("%s %r failed", request.scope.method, request.scope.path)
                    if self._deadlines.pop(request.proto, None) is not None:
                        request.note_answer(problems.INTERNAL.status)
                    _survive(partial(self._send, request.proto, _refusal(request.scope, problems.INTERNAL)))
                self._answering.discard(request)
            # Do not keep the request alive while this thread waits for the next one.
            del request

    def _answer(self, request: Arrived) -> None:
        start = StartResponse()
        response: Any = self._application(environ(request.scope, request.body), start)
        if getattr(response, "streaming", False):
            return self._stream(request, start, response)
        try:
            if self._deadlines.pop(request.proto, None) is not None:
                request.note_answer(start.status)
            headers = self._with_connection(start.headers)
            name = getattr(response.file, "name", None) if isinstance(response, File) else None
            if isinstance(name, str):
                # granian reads the file in pieces, as fast as the client reads them.
                request.proto.response_file(start.status, headers, name)
            else:
                request.proto.response_bytes(start.status, headers, b"".join(response))
        finally:
            response.close()

    def _stream(self, request: Arrived, start: StartResponse, response: Any) -> None:
        if self._deadlines.pop(request.proto, None) is None:
            return response.close()  # The client has already got the response of `_give_up`.
        status = start.status
        try:
            return streaming.send(request.proto, status, self._with_connection(start.headers), response)
        except streaming.TooManyStreams:
            status = problems.BUSY.status
            return self._send(request.proto, _refusal(request.scope, problems.BUSY))
        except Exception:
            status = problems.INTERNAL.status
            raise
        finally:
            request.note_answer(status)

    def _give_up(self, request: Arrived, problem: problems.Problem) -> None:
        request.note_answer(problem.status)
        # Quote the path: a client may send a line break in it, and could otherwise write a false line into the log.
        logger.warning(
            "Answered after %s s, %s: %s %r",
            *(limits.REQUEST, problem.slug, request.scope.method, request.scope.path),
            extra={"trace": request.trace},
        )
        self._send(request.proto, _refusal(request.scope, problem))

    def _refuse(self, scope: Any, proto: Any, problem: problems.Problem, detail: str = "") -> None:
        """Refuse a request, and close its connection, which may have unread data."""
        self._send(proto, _refusal(scope, problem, detail, headers={"Connection": "close"}))

    def _refuse_after_body(
        self, scope: Any, proto: Any, problem: problems.Problem, length: int, detail: str = ""
    ) -> None:
        """Read and discard a body, and then refuse the request.

        Many clients send the whole body before they read. If the connection were closed earlier, they would not see the
        response. If the body is too long to discard, or the client has sent `Expect`, refuse the request at once.
        """
        if length > limits.DISCARDED_BYTES or "expect" in scope.headers:
            return self._refuse(scope, proto, problem, detail)
        chunks = proto.__aiter__()
        deadline = time.monotonic() + limits.BODY
        left = limits.DISCARDED_BYTES

        def next_chunk() -> None:
            chunk = chunks.__anext__()
            self._deadlines[proto] = (deadline, chunk.cancel)
            chunk.add_done_callback(discard)

        def discard(chunk: Any) -> None:
            nonlocal left
            size = 0 if chunk.cancelled() or chunk.exception() else len(chunk.result())
            left -= size
            if size and left >= 0:
                next_chunk()
            else:
                self._refuse(scope, proto, problem, detail)

        return next_chunk()

    def _report(self, scope: Any, proto: Any) -> None:
        try:
            response = HttpResponse(report.report(), content_type=report.CONTENT_TYPE)
        except Exception:
            logger.exception("The metrics cannot be read")
            response = _refusal(scope, problems.INTERNAL)
        _survive(partial(self._send, proto, response))

    def _send(self, proto: Any, response: Any) -> None:
        self._deadlines.pop(proto, None)
        proto.response_bytes(response.status_code, self._with_connection(list(response.items())), response.content)

    def _with_connection(self, headers: Headers) -> Headers:
        if any(name.lower() == "connection" for name, _ in headers):
            return headers
        if self._closing:
            return [*headers, ("Connection", "close")]
        self._last_kept_alive = time.monotonic()
        return [*headers, ("Keep-Alive", f"timeout={limits.ANNOUNCED_IDLE}")]

    def _watch(self) -> None:
        for tick in count():
            time.sleep(TICK)
            if tick % TICKS_TO_REPORT == 0 and (recorder := recording.recorder()) is not None:
                _survive(partial(recorder.web_process, busy=len(self._answering), waiting=self._whole.qsize()))
            now = time.monotonic()
            for proto, (deadline, _) in list(self._deadlines.items()):
                # Take the action from the dictionary once more: another thread may have removed or replaced it since
                # the loop began.
                if deadline <= now and (due := self._deadlines.pop(proto, None)) is not None:
                    _survive(due[1])


def _refusal(
    scope: Any, problem: problems.Problem, detail: str = "", *, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return the response for a problem: a page for a browser, a problem document for a program.

    Both have the same status. Only the headers that describe the body differ.
    """
    response = problems.response(problem, detail, headers=headers)
    if problem.status in REFUSALS and _wants_page(scope):
        response.content = REFUSALS[problem.status]
        response.headers["Content-Type"] = "text/html; charset=utf-8"
        response.headers[csp.HEADER] = REFUSALS_CSP
    return response


def _wants_page(scope: Any) -> bool:
    """Return whether a browser loads a page: Accept names HTML, and the path is neither of the API nor of a JSON file.

    nginx.conf has the same rule.
    """
    path = scope.path
    if path.startswith("/api/") or path == "/api" or path.endswith(".json"):
        return False
    return "text/html" in scope.headers.get("accept", "").lower()


def _may_read_metrics(scope: Any) -> bool:
    return bool(settings.METRICS) and report.may_read(client_address(scope), scope.headers)


def _survive(act: Callable[[], object]) -> None:
    """Run an action for one client, and log an error, so that the thread survives for the other clients."""
    try:
        act()
    except Exception:
        logger.exception("A client could not be answered")
