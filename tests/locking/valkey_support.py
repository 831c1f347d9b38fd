"""Servers that can reach each other: primaries, replicas, cluster nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from servers import ServerError
from servers.folder import RunFolder
from servers.valkey import Valkey
from tests.locking.support import run_folder
from tests.waiting import wait_for

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a free port whose cluster bus port, 10,000 above it, is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            if port < 55_000:
                try:
                    bus.bind((HOST, port + 10_000))
                except OSError:
                    continue
                return port


@contextmanager
def valkeys(count: int, *extra: str) -> Iterator[list[tuple[Valkey, int]]]:
    """Yield `count` servers, with their ports on the loopback interface."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(_started(stack.enter_context(run_folder()), *extra))
            stack.callback(made[-1][0].stop)
        yield made


def _started(folder: RunFolder, *extra: str) -> tuple[Valkey, int]:
    """Start a server on a free port. If another program takes the port first, try another one."""
    for attempt in range(5):
        port = free_port()
        valkey = Valkey(folder.valkey, extra=("--port", str(port), "--bind", HOST, *extra))
        try:
            valkey.start()
        except ServerError:
            if attempt == 4:
                raise
        else:
            break
    return valkey, port


def client_of(port: int) -> redis.Redis:
    return redis.Redis(HOST, port, socket_timeout=2.0, retry=Retry(NoBackoff(), 0))


@contextmanager
def replicated() -> Iterator[list[tuple[Valkey, int]]]:
    """Yield a primary and its replica, with their ports."""
    with valkeys(2, "--repl-diskless-sync-delay", "0") as pair:
        (_, primary), (_, replica) = pair
        client_of(replica).replicaof(HOST, primary)
        wait_for_replica(primary)
        yield pair


def wait_for_replica(primary: int) -> None:
    wait_for(lambda: synced(client_of(primary)), "the replica")


def synced(primary: redis.Redis) -> bool:
    """Return whether a replica confirms the latest writes."""
    return int(primary.wait(1, 100)) == 1
