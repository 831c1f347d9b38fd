"""The web server: granian, whose worker processes hand each request to `shop.runtime.door`.

granian's own WSGI worker gives a request a thread before its body has arrived, and sets no time limit. So this module
builds a worker from the parts of granian's RSGI worker. These parts are not a public interface, so
requirements-image.in pins granian, and tests/shop/test_door.py checks each part. docs/adr/0008-whole-requests.md has
the reasons and figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from granian._granian import CallbackScheduler, RSGIWorker, WorkerSignal
from granian.constants import HTTPModes, Interfaces, RuntimeModes
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer, WorkerProcess

from shop import limits
from shop.runtime.stop_signal import STOP_SIGNALS, StopSignal


class CallAtOnce:
    """A stand-in for an event loop. It runs each callback at once, in the thread that calls it."""

    @staticmethod
    def call_soon(callback: Callable[..., object], *arguments: Any, context: Any = None) -> None:
        callback(*arguments)

    call_soon_threadsafe = call_soon


class RequestScheduler(CallbackScheduler):
    """Hands each request to the door. granian's own scheduler would start a coroutine for it."""

    def __new__(cls, admit: Callable[[Any, Any], None]) -> RequestScheduler:
        return super().__new__(cls, CallAtOnce, admit, None, None, None)

    def __init__(self, admit: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self._schedule_fn = lambda watcher: admit(watcher.scope, watcher.proto)


@WorkerProcess.wrap_target
def work(
    worker_id: int,
    application: Any,
    sockets: Any,
    ipc: Any,
    loop: Any,
    runtime_mode: Any,
    runtime_threads: int,
    runtime_blocking_threads: int,
    threads: int,
    idle_timeout: int,
    connections: int,
    task_impl: Any,
    http_mode: Any,
    http1: Any,
    *rest: Any,
) -> None:
    """Handle requests until the process gets a signal to stop."""
    # Import these modules here: they need Django, which the loading of the application has set up.
    from shop.runtime import measuring
    from shop.runtime.door import Door

    measuring.start("web")

    told_to_stop, stopped = StopSignal(), threading.Event()
    door = Door(application, threads)
    worker = RSGIWorker(
        worker_id,
        (None, _listener(*sockets)),
        ipc,
        threads=runtime_threads,
        blocking_threads=runtime_blocking_threads,
        py_threads=1,
        backpressure=connections,
        http_mode=http_mode,
        http1_opts=http1,
    )
    end = WorkerSignal()
    end.add_cb(stopped.set)
    worker.serve_mtr(RequestScheduler(door.admit), CallAtOnce, end)
    told_to_stop.wait()
    door.close()
    end.set()
    stopped.wait()


def _listener(specification: Any, shared: Any) -> Any:
    """Return the listening socket of this process, with a timeout for clients that do not read their response."""
    listener = shared or specification.build()
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Accepted connections inherit TCP_USER_TIMEOUT from the listening socket. macOS does not have this option.
        with socket.socket(fileno=os.dup(listener.get_fd())) as view:
            view.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.UNREAD * 1000)
    return listener


def _default_signals() -> None:
    """Restore the default signal handlers in a forked process, because the parent's handlers do nothing here."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def main() -> None:
    """Serve an application until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m shop.runtime.web", description=main.__doc__)
    parser.add_argument("application", help="WSGI application, as module:name")
    parser.add_argument("--host", required=True, help="address to listen on")
    for name, text in {
        "port": "port to listen on",
        "processes": "worker processes",
        "threads": "threads of a process",
        "connections": "open connections that a process accepts",
    }.items():
        parser.add_argument(f"--{name}", type=int, required=True, help=text)
    options = parser.parse_args()
    # Block signals during a fork, so that a worker does not miss a signal to stop while it imports the shop.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS),
        after_in_child=_default_signals,
    )
    MPServer(
        options.application,
        options.host,
        options.port,
        interface=Interfaces.WSGI,
        workers=options.processes,
        blocking_threads=options.threads,
        # This limits open connections, not requests. If the limit were the number of threads, idle connections of
        # browsers would soon reach it, and nobody else could connect.
        backpressure=options.connections,
        runtime_mode=RuntimeModes.mt,
        # Use HTTP/1, the only mode in which granian closes a connection that sends nothing.
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=limits.HEAD * 1000, max_buffer_size=limits.HEAD_BYTES),
        websockets=False,
        log_level=LogLevels.error,
        # Without these options, a worker that dies ends the whole server, and a worker that hangs is never killed.
        respawn_failed_workers=True,
        workers_kill_timeout=limits.STOP,
    ).serve(spawn_target=work)


if __name__ == "__main__":
    main()
