"""The door of the shop: a request gets a thread when all of it has arrived, and an answer before its time is over.

Anyone can connect and then send slowly, or nothing. What such a client controls is bounded here, without a thread for
it: the time and the length of a body, and the time until the answer. granian bounds what comes before: the connection
and the head of the request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

from django.conf import settings
from django.http import HttpResponse

from shop import limits, log_context
from shop.api import problems
from shop.metrics import recording, report
from shop.runtime.gateway import Application, File, Headers, StartResponse, client_address, environ
from shop.traces import tracing

logger = logging.getLogger(__name__)

ALIVE = "/health/live/"
"""Where this process is asked whether it is alive."""

ORDERS = "/api/orders/"
"""Where orders are placed. How long that takes is measured."""

TICK = 0.25
"""Seconds between two looks at the deadlines."""

TICKS_TO_REPORT = 4
"""Looks between two reports of how busy this process is."""


@dataclass(eq=False, slots=True)
class Arrived:
    """A request that has arrived completely.

    Args:
        scope: RSGI's description of it.
        proto: RSGI's protocol, which sends the answer.
        body: the whole body.
        at: when it had arrived, on the monotonic clock.
        begun: when it got a thread; 0 before.
        status: status of the answer; 0 before there is one.
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
        """Note the answer. If this is an order request, count it, and how long it took."""
        self.status = status
        recorder = recording.recorder()
        if recorder is not None and self.scope.path == ORDERS and self.scope.method == "POST":
            now = time.monotonic()
            recorder.order_request(status, now - self.at, waited=(self.begun or now) - self.at)


class Door:
    """Admit requests, each to the next free thread.

    Args:
        application: the WSGI application that answers them.
        threads: how many requests it answers at a time.
    """

    def __init__(self, application: Application, threads: int) -> None:
        self._application = application
        self._whole: SimpleQueue[Arrived] = SimpleQueue()
        # By request that has no answer yet: its deadline, and what to do then.
        self._deadlines: dict[Any, tuple[float, Callable[[], object]]] = {}
        self._answering: set[Any] = set()
        self._last_kept_alive = 0.0
        self._closing = False
        for _ in range(threads):
            threading.Thread(target=self._work, name="web", daemon=True).start()
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def admit(self, scope: Any, proto: Any) -> None:
        """Take a request whose head has arrived. This does not block.

        Args:
            scope: RSGI's description of the request.
            proto: RSGI's protocol, which reads the body and sends the answer.
        """
        headers = scope.headers
        if "transfer-encoding" in headers:
            return self._refuse_after_body(scope, proto, problems.LENGTH_REQUIRED, limits.DISCARDED_BYTES)
        # granian has checked it, but also accepts a list, such as "5, 5".
        length = int(headers.get("content-length", "0").partition(",")[0])
        if not length:
            # Without a thread: a process whose threads all wait for Postgres is alive, and to restart it does not help.
            if scope.path == ALIVE:
                return self._send(proto, HttpResponse(content_type="text/plain"))
            if scope.path == report.PATH and scope.method == "GET" and _may_read_metrics(scope):
                # A thread of its own: the metrics are needed most when all others are busy.
                return threading.Thread(target=self._report, args=(proto,), name="metrics", daemon=True).start()
            return self._enter(scope, proto, b"")
        if length > limits.BODY_BYTES:
            most = f"A body may have at most {limits.BODY_BYTES} bytes."
            return self._refuse_after_body(scope, proto, problems.TOO_LARGE, length, most)
        body = proto()
        self._deadlines[proto] = (time.monotonic() + limits.BODY, body.cancel)
        body.add_done_callback(partial(self._received, scope, proto))
        return None

    def close(self) -> None:
        """Announce the end to clients: answer for `limits.DRAIN` seconds more, and say `Connection: close` each time.

        A client that finds its idle connection closed while it sends a request cannot know whether it was read.
        """
        self._closing = True
        time.sleep(max(0.0, self._last_kept_alive + limits.DRAIN - time.monotonic()))

    def _received(self, scope: Any, proto: Any, body: Any) -> None:
        if body.cancelled():
            self._refuse(proto, problems.TOO_SLOW)
        elif body.exception():
            # The client is gone.
            self._refuse(proto, problems.INVALID, "The body did not arrive completely.")
        else:
            self._enter(scope, proto, body.result())

    def _enter(self, scope: Any, proto: Any, body: bytes) -> None:
        request = Arrived(scope, proto, body)
        self._limit(request, problems.BUSY)
        self._whole.put(request)

    def _limit(self, request: Arrived, problem: problems.Problem) -> None:
        """Answer a request with this problem when its time is over, unless it has another answer by then."""
        self._deadlines[request.proto] = request.at + limits.REQUEST, partial(self._give_up, request, problem)

    def _work(self) -> None:
        while True:
            request = self._whole.get()
            # The thread that takes the entry answers. If it is gone, the request was answered meanwhile.
            if self._deadlines.pop(request.proto, None) is not None:
                self._limit(request, problems.UNAVAILABLE)
                self._answering.add(request)
                request.begun = time.monotonic()
                log_context.begin_request(request.trace)
                try:
                    with tracing.answering(request):
                        self._answer(request)
                except Exception:
                    # Nobody above this thread would answer the client.
                    logger.exception("%s %s failed", request.scope.method, request.scope.path)
                    if self._deadlines.pop(request.proto, None) is not None:
                        request.note_answer(problems.INTERNAL.status)
                    _survive(partial(self._send, request.proto, problems.response(problems.INTERNAL)))
                self._answering.discard(request)
            # Do not keep the request alive while this thread waits for the next one.
            del request

    def _answer(self, request: Arrived) -> None:
        start = StartResponse()
        response: Any = self._application(environ(request.scope, request.body), start)
        try:
            if self._deadlines.pop(request.proto, None) is not None:
                request.note_answer(start.status)
            headers = self._with_connection(start.headers)
            name = getattr(response.file, "name", None) if isinstance(response, File) else None
            if isinstance(name, str):
                # granian reads it piece by piece, as fast as the client takes it.
                request.proto.response_file(start.status, headers, name)
            elif getattr(response, "streaming", False):
                _stream(request.proto.response_stream(start.status, headers), response)
            else:
                request.proto.response_bytes(start.status, headers, b"".join(response))
        finally:
            response.close()

    def _give_up(self, request: Arrived, problem: problems.Problem) -> None:
        request.note_answer(problem.status)
        logger.warning(
            "Answered after %s s, %s: %s %s",
            *(limits.REQUEST, problem.slug, request.scope.method, request.scope.path),
            extra={"trace": request.trace},
        )
        self._send(request.proto, problems.response(problem))

    def _refuse(self, proto: Any, problem: problems.Problem, detail: str = "") -> None:
        """Answer a request whose body was not read to its end. The connection cannot be used again."""
        self._send(proto, problems.response(problem, detail, headers={"Connection": "close"}))

    def _refuse_after_body(
        self, scope: Any, proto: Any, problem: problems.Problem, length: int, detail: str = ""
    ) -> None:
        """Read a body that is not wanted, then refuse it.

        Otherwise a client that sends the whole body first would find the connection closed and not see the answer.
        """
        if length > limits.DISCARDED_BYTES or "expect" in scope.headers:
            return self._refuse(proto, problem, detail)
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
                self._refuse(proto, problem, detail)

        return next_chunk()

    def _report(self, proto: Any) -> None:
        try:
            response = HttpResponse(report.report(), content_type=report.CONTENT_TYPE)
        except Exception:
            logger.exception("The metrics cannot be read")
            response = problems.response(problems.INTERNAL)
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
                # Another thread may have removed or replaced the action since the list was copied: read it again.
                if deadline <= now and (due := self._deadlines.pop(proto, None)) is not None:
                    _survive(due[1])


def _may_read_metrics(scope: Any) -> bool:
    return bool(settings.METRICS) and report.may_read(client_address(scope), scope.headers)


def _stream(transport: Any, pieces: Iterable[bytes]) -> None:
    """Send an answer piece by piece, so that no process has to make all of it first.

    granian keeps what the client has not read yet, and does not let this thread wait for it.
    """
    for piece in pieces:
        transport.send_bytes(piece)


def _survive(act: Callable[[], object]) -> None:
    """Do something for one client. If it fails, log it: the thread has to go on for all others."""
    try:
        act()
    except Exception:
        logger.exception("A client could not be answered")
