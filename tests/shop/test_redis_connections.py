"""While Redis hangs, one request at a time waits for it. The tests use a server that never responds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError  # noqa: A004 - redis-py's

from inventory.outages import Breaker
from inventory.strategies import registry
from shop import redis_connections
from tests.factories import on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body
from tests.waiting import WAIT_TIMEOUT

THREADS = 8


class SilentServer:
    """A server that never responds, and counts its clients. The kernel connects them. Only `count` accepts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._listener.getsockname()[1]
        self._accepted: list[socket.socket] = []

    def count(self) -> int:
        """Return how many clients have connected so far."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            while True:
                connection, peer = self._listener.accept()
                if peer == last.getsockname():
                    connection.close()
                    return len(self._accepted)
                self._accepted.append(connection)

    def close(self) -> None:
        self._listener.close()
        for connection in self._accepted:
            connection.close()


@pytest.fixture
def server() -> Iterator[SilentServer]:
    silent = SilentServer()
    yield silent
    silent.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The circuit breaker's clock."""
    at = [0.0]
    monkeypatch.setattr(redis_connections, "SLOW", 0.2)
    monkeypatch.setattr(redis_connections, "breaker", Breaker(60, retry=1, clock=lambda: at[0]))
    return at


def ask(server: SilentServer, pool: type[redis.ConnectionPool]) -> set[type[Exception]]:
    """Send a command in several threads at once, and return the types of their errors."""
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
    now[0] += redis_connections.breaker.retry
    assert ask(server, redis_connections.ConnectionPool) == {ConnectionError, TimeoutError}
    assert server.count() == first + 1


def test_redis_pys_own_connections_all_wait(server: SilentServer, now: list[float]) -> None:
    """Negative control: with the connection class of redis-py, all threads wait."""
    for each in (1, 2):
        assert ask(server, redis.ConnectionPool) == {TimeoutError}
        assert server.count() == each * THREADS


def test_a_server_that_answers_again_is_asked_by_all(redis: redis.Redis, now: list[float]) -> None:
    redis_connections.breaker.begin()
    redis.connection_pool.disconnect()
    with pytest.raises(ConnectionError):
        redis.ping()
    now[0] += redis_connections.breaker.retry
    assert redis.ping()
    redis.connection_pool.disconnect()
    assert redis.ping()


@pytest.mark.parametrize("url", ["redis://there:6379/0", "rediss://there:6379/0", "unix:///run/valkey.sock"])
def test_each_kind_of_address_has_the_breaker(url: str) -> None:
    made = redis_connections.ConnectionPool.from_url(url).make_connection()
    assert isinstance(made, redis_connections._Sparing)
    assert isinstance(made, type(redis.ConnectionPool.from_url(url).make_connection()))


def test_a_short_timeout_says_nothing_about_the_server(
    server: SilentServer, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short timeout does not open the circuit breaker. A lock shortens its timeout near the end of its lease."""
    monkeypatch.setattr(redis_connections, "SLOW", WAIT_TIMEOUT)  # A busy machine may delay the short timeout.
    hasty = redis_connections.ConnectionPool(port=server.port, retry=None, socket_timeout=0.01)
    with pytest.raises(TimeoutError):
        redis.Redis.from_pool(hasty).ping()
    assert not redis_connections.breaker.is_open


def test_a_slow_failure_of_any_kind_counts(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """Any slow failure opens the breaker: for example, a name lookup that fails after seconds."""

    def look_up(*_: object, **__: object) -> None:
        time.sleep(0.3)  # The slow failure is the subject of this test.
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    nowhere = redis_connections.ConnectionPool(host="nowhere.example", retry=None, socket_timeout=30)
    with pytest.raises(ConnectionError):
        redis.Redis.from_pool(nowhere).ping()
    assert redis_connections.breaker.is_open


def test_an_error_is_an_answer(redis: redis.Redis, now: list[float]) -> None:
    """An error response closes the breaker. Here, Redis reports that the database number does not exist."""
    redis_connections.breaker.begin()
    now[0] += redis_connections.breaker.retry
    options = {**redis.connection_pool.connection_kwargs, "db": 99}
    with pytest.raises(ResponseError):
        redis_connections.UnixDomainSocketConnection(**options).connect()
    assert not redis_connections.breaker.is_open
    assert not redis_connections.breaker.is_another_callers()


@pytest.mark.parametrize("strategy", ["lua", "lua-queue"])  # segmented-redis fails at its lock, before it takes units.
@pytest.mark.django_db(transaction=True)
def test_an_order_is_refused_before_it_asks(buyer: Buyer, now: list[float], strategy: str) -> None:
    """The shop keeps no record of a refused order. Many such records would displace the records of other orders."""
    offer = on_sale({"a": 1}, strategy=strategy)
    redis_connections.breaker.begin()
    assert_problem(buyer.order(order_body(offer, a=1)), 503, "unavailable")
    assert not registry.counters().unended
    redis_connections.breaker.end()
    assert buyer.order(order_body(offer, a=1)).status_code in (201, 202)
