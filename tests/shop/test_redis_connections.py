"""While Redis hangs, one request at a time waits for it. Stand-in: a server that accepts and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ConnectionError, RedisError, TimeoutError  # noqa: A004 - redis-py's

from inventory.outages import Breaker
from shop.runtime import redis_connections

THREADS = 8


class SilentServer:
    """Accepts connections, and counts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._listener.getsockname()[1]
        self._accepted: list[socket.socket] = []
        self._sentinel = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            if peer == self._last:
                self._sentinel.set()
            else:
                self._accepted.append(connection)

    def count(self) -> int:
        """Return how many connections there were. They are accepted in order, so one more shows that all were."""
        self._sentinel.clear()
        with socket.socket() as last:
            last.bind(("127.0.0.1", 0))
            self._last = last.getsockname()
            last.connect(("127.0.0.1", self.port))
            assert self._sentinel.wait(30)
        return len(self._accepted)

    def close(self) -> None:
        self._listener.close()
        for connection in self._accepted:
            connection.close()

    _last: tuple[str, int] | None = None


@pytest.fixture
def server() -> Iterator[SilentServer]:
    silent = SilentServer()
    yield silent
    silent.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which the breaker counts."""
    time = [0.0]
    monkeypatch.setattr(redis_connections, "breaker", Breaker(60, clock=lambda: time[0]))
    return time


def ask(server: SilentServer, pool: type[redis.ConnectionPool]) -> set[type[Exception]]:
    """Let some threads ask at once, and return the errors."""
    options = {"retry": None, "socket_timeout": 0.3, "socket_connect_timeout": 30.0}
    client = redis.Redis.from_pool(pool(port=server.port, **options))
    start = threading.Barrier(THREADS)

    def one(_: int) -> type[Exception]:
        start.wait()
        with pytest.raises(RedisError) as error:
            client.ping()
        return error.type

    with ThreadPoolExecutor(THREADS) as threads:
        return set(threads.map(one, range(THREADS)))


def test_while_redis_hangs_one_thread_at_a_time_asks(server: SilentServer, now: list[float]) -> None:
    ask(server, redis_connections.ConnectionPool)
    first = server.count()
    assert 1 <= first <= THREADS, "those that asked before the first one gave up"
    assert ask(server, redis_connections.ConnectionPool) == {ConnectionError}
    assert server.count() == first
    now[0] += Breaker.RETRY
    assert ask(server, redis_connections.ConnectionPool) == {ConnectionError, TimeoutError}
    assert server.count() == first + 1


def test_redis_pys_own_connections_all_wait(server: SilentServer, now: list[float]) -> None:
    """The negative control."""
    for each in (1, 2):
        assert ask(server, redis.ConnectionPool) == {TimeoutError}
        assert server.count() == each * THREADS


def test_a_server_that_answers_again_is_asked_by_all(redis: redis.Redis, now: list[float]) -> None:
    redis_connections.breaker.begin()
    redis.connection_pool.disconnect()
    with pytest.raises(ConnectionError):
        redis.ping()
    now[0] += Breaker.RETRY
    assert redis.ping()
    redis.connection_pool.disconnect()
    assert redis.ping()


@pytest.mark.parametrize("url", ["redis://there:6379/0", "rediss://there:6379/0", "unix:///run/valkey.sock"])
def test_each_kind_of_address_has_such_connections(url: str) -> None:
    made = redis_connections.ConnectionPool.from_url(url).make_connection()
    assert isinstance(made, redis_connections._Sparing)
    assert isinstance(made, type(redis.ConnectionPool.from_url(url).make_connection()))
