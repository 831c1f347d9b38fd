"""Helpers of the tests of locks: recipes (factories of locks), other processes, threads, and faults of servers."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self
from urllib.parse import unquote

import pytest
import redis
from redis._parsers import _RESP2Parser
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.retry import Retry

from locking import Lease, Lock, RedisLock, ReentrantLock
from locking.local import _queues
from locking.redis.waiting import Waiter
from tests.waiting import WAIT_TIMEOUT, wait_for

if TYPE_CHECKING:
    from servers import RunFolder

Address = str | tuple[str, int]
"""Where a server listens: the path of a Unix socket, or a host and a port."""

Proxies = Callable[[Address], tuple[str, int]]
"""Starts a proxy of a server, and returns the host and the port of the proxy."""

MakeLock = Callable[..., Any]
Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
Flawed = Callable[[str, str, str], None]
Pool = ThreadPoolExecutor


@contextmanager
def run_folder() -> Iterator[RunFolder]:
    """Yield a run folder, and remove it afterwards. Other users may enter it: root runs servers as another user."""
    from servers import RunFolder  # Import late, because over a hundred short-lived processes import this file.

    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    folder = RunFolder(outer / "run")
    folder.create()
    try:
        yield folder
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextmanager
def started(server: Any) -> Iterator[Any]:
    """Run a server during the `with` block."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def renew(*leases: Lease, seconds: float = 0.5) -> None:
    """Wait until the watchdog has extended each lease by more than `seconds`."""
    ends = [end_of(lease) for lease in leases]
    wait_for(
        lambda: all(end_of(lease) > end + seconds for lease, end in zip(leases, ends, strict=True)),
        "the leases to be renewed",
    )


def collect() -> None:
    """Collect the objects that the test has dropped.

    A full collection would scan everything that the run has loaded, which takes 0.2 s.
    """
    gc.collect(1)


def acquired(lock: Lock, **how: Any) -> Any:
    """Acquire the lock, and fail if it is not granted."""
    lease = lock.acquire(**how)
    assert lease is not None
    return lease


def end_of(lease: Lease) -> float:
    """Return the monotonic time at which the lease ends. Each renewal moves it."""
    lease.check()
    return time.monotonic() + lease.remaining()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Recipe(Protocol):
    """Makes locks. Locks of the same name exclude each other. A recipe can be pickled for another process."""

    def __call__(self, name: str, **options: Any) -> Lock: ...

    def cell(self, name: str) -> Any:
        """Return a number that is read and written in separate steps, so only a lock makes updates safe."""


class RemoteRecipe(Recipe, Protocol):
    """Makes locks on servers that a test can hide behind proxies, and names the bytes of a release request."""

    RELEASE: ClassVar[bytes]
    """Bytes in the last request of a release. Before it, a holder sends them only to extend its lease."""

    def through(self, proxy: Proxies) -> Self:
        """Return the same recipe with a proxy in front of each server."""

    def close(self) -> None:
        """Close the clients."""


@dataclass(frozen=True)
class RedisCell:
    client: redis.Redis
    key: str

    def read(self) -> int:
        return int(self.client.get(self.key) or 0)

    def write(self, value: int) -> None:
        self.client.set(self.key, value)


@dataclass(frozen=True)
class FileCell:
    """A number in a file, for locks that are not on Redis."""

    path: Path

    def read(self) -> int:
        return int(self.path.read_text() or 0) if self.path.exists() else 0

    def write(self, value: int) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, f"{value:020d}".encode(), 0)  # With one write, readers never see half of a number.
        os.close(file)


@functools.cache
def client_of(url: str, pid: int, own: int = 0) -> redis.Redis:
    return redis.Redis.from_url(url, max_connections=1000)


@dataclass(frozen=True)
class RedisRecipe:
    """Makes locks of one kind on the server at `url`, with client object number `own` of this process."""

    RELEASE: ClassVar[bytes] = b"EVALSHA"

    url: str
    own: int = 0
    kind: type[Lock] = RedisLock

    @property
    def client(self) -> redis.Redis:
        return client_of(self.url, os.getpid(), self.own)

    def __call__(self, name: str, **options: Any) -> Any:
        return self.kind(self.client, name, **options)

    def cell(self, name: str) -> RedisCell:
        return RedisCell(self.client, f"cell:{name}")

    def through(self, proxy: Proxies) -> Self:
        return replace(self, url="redis://{}:{}".format(*proxy(socket_of(self.url))))

    def close(self) -> None:
        self.client.close()


def socket_of(url: str) -> str:
    """Return the path of the Unix socket in a Valkey URL."""
    return unquote(url.removeprefix("unix://"))


@dataclass(frozen=True)
class ReentrantRecipe:
    """Makes re-entrant locks around those of another recipe."""

    inner: Any

    def __call__(self, name: str, **options: Any) -> ReentrantLock:
        return ReentrantLock(self.inner(name, **options))

    def cell(self, name: str) -> Any:
        return self.inner.cell(name)

    @property
    def RELEASE(self) -> bytes:  # noqa: N802 - that of the lock within
        return bytes(self.inner.RELEASE)

    def through(self, proxy: Proxies) -> Self:
        return replace(self, inner=self.inner.through(proxy))

    def close(self) -> None:
        self.inner.close()


@contextmanager
def separate_clients(recipe: Any, count: int) -> Iterator[list[Any]]:
    """Yield `count` recipes of the same lock, each with separate client objects."""
    separate = [replace(recipe, own=place) for place in range(1, count + 1)]
    try:
        yield separate
    finally:
        for one in separate:
            one.close()


RECIPES = [f"tests.locking.{server}_support" for server in ("etcd", "postgres", "redlock", "zookeeper")]
"""The other modules with recipes of locks on servers."""


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Pipe]]:
    """Run `target(*args, pipe)` in another process. Yield the process and our end of the pipe."""
    context = multiprocessing.get_context("forkserver")
    # Import modules once, in the fork server, because otherwise 50 short-lived children import them.
    context.set_forkserver_preload(["pytest", "tests.locking.actors", *RECIPES])
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(*args, theirs))
    child.start()
    theirs.close()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join()
        ours.close()


def fork_sleeper() -> int:
    """Fork a child that sleeps until it is killed, and return its process id."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2 * round(WAIT_TIMEOUT))  # End the child after a failed test.
        while True:
            signal.pause()
    return child


def in_fork(body: Callable[[], str]) -> str:
    """Run `body` in a forked child. Return its result, or the name of its exception."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2 * round(WAIT_TIMEOUT))  # End a hanging child after its test.
        try:
            try:
                said = body()
            except BaseException as error:
                said = type(error).__name__
            os.write(write, said.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def run_threads(*bodies: Callable[[], Any]) -> list[Any]:
    """Run each body in its own thread, and return the results. Raise the exception of any body."""
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], Any]) -> Any:
        start.wait(WAIT_TIMEOUT)
        return body()

    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(run, bodies, timeout=3 * WAIT_TIMEOUT))


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process during the `with` block. Its sockets stay open, but it does not respond."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # Wait for each thread, because threads stop one by one.
        wait_for(lambda: all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except FileNotFoundError:  # the process has ended
        return True


def renewing() -> bool:
    """Return whether this process has a watchdog thread."""
    return any(thread.name == "lock-renewal" for thread in threading.enumerate())


CLIENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "resp2": {"protocol": 2},
    "no timeout": {"socket_timeout": None},
    "many retries": {"retry": Retry(NoBackoff(), 10), "socket_timeout": 0.1},
    "python parser": {"parser_class": _RESP2Parser, "protocol": 2},
    "health checks": {"health_check_interval": 1},
    "other encoding": {"encoding": "latin-1", "decode_responses": True},
}
"""Options of redis-py's client that change how it connects, asks or reads an answer."""


class CountedConnection(UnixDomainSocketConnection):
    """Counts sends after the connection is set up, one per round trip. Subclass it for a separate count."""

    sent = 0
    greeting = False

    def on_connect_check_health(self, check_health: bool = True) -> None:
        self.greeting = True
        super().on_connect_check_health(check_health)
        self.greeting = False

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        type(self).sent += not self.greeting
        super().send_packed_command(command, check_health)


class CutConnection(UnixDomainSocketConnection):
    """Drops the server's response to the next script when a test says so."""

    cut_next = False
    cuts = 0

    def send_command(self, *args: Any, **options: Any) -> None:
        self.is_script = args[0] in ("EVAL", "EVALSHA")
        super().send_command(*args, **options)

    def read_response(self, *args: Any, **options: Any) -> Any:
        answer = super().read_response(*args, **options)
        if type(self).cut_next and self.is_script:
            type(self).cut_next = False
            type(self).cuts += 1
            self.disconnect()
            raise redis.ConnectionError("cut by the test")
        return answer


def stack_of(thread: int) -> list[str]:
    """Return the functions that a thread is in, innermost first."""
    return [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]


class RedisTraces:
    """A helper that counts what a Redis lock leaves behind, and wakes or delays its waiters."""

    client: redis.Redis

    def waiters(self, lock: Lock) -> int:
        """Count the waiters that are listed and blocked in Redis, and those behind them in this process."""
        key = f"lock:{{{lock.name}}}"
        local = [len(queue) - 1 for name, queue in list(_queues.items()) if isinstance(name, tuple) and name[1] == key]
        asleep = min(self.client.zcard(f"{key}:waiters"), self.client.info("clients")["blocked_clients"])
        return asleep + (sum(local) if asleep else 0)

    def is_asleep(self, thread: int) -> bool:
        """Return whether the thread is not sending a command. redis-py closes a connection that is interrupted then."""
        return "send_packed_command" not in stack_of(thread)

    clients = staticmethod(separate_clients)

    @contextmanager
    def woken_in_vain(self, lock: Lock) -> Iterator[Callable[[], object]]:
        """Yield a function that wakes waiters with a grant that has expired long ago."""
        wake = f"lock:{{{lock.name}}}:wake"
        with lock.hold():
            yield lambda: self.client.exists(wake) or self.client.rpush(wake, "1 1 over")

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        sleep = Waiter.wait

        def wait(self: Waiter, seconds: float, left: float) -> str | None:
            body()
            return sleep(self, seconds, left)

        monkeypatch.setattr(Waiter, "wait", wait)

    def traces(self, lock: Lock) -> dict[str, int]:
        fence = f"lock:{{{lock.name}}}:fence".encode()  # Leave out the fence, which expires by itself.
        keys = {key for key in self.client.scan_iter(f"lock:{{{lock.name}}}*") if key != fence}
        return {
            "keys": len(keys),
            "in line": self.client.zcard(f"lock:{{{lock.name}}}:waiters"),
            "in line here": len(_queues),
            "blocked": self.client.info("clients")["blocked_clients"],
            "connections in use": len(self.client.connection_pool._in_use_connections),
        }

    def written(self, lock: Lock) -> int:
        return int(self.client.info("persistence")["rdb_changes_since_last_save"])

    def forget(self, lock: Lock) -> None:
        self.client.flushall()

    def lose_the_scripts(self) -> None:
        self.client.script_flush()

    def asked(self, lock: Lock) -> int:
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha", "blpop"))


class CommandStats:
    """Counts the commands that a server has run since this object was created, including those in scripts."""

    IGNORED = ("info", "config|resetstat", "client|setinfo", "hello", "client|list")

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        client.config_resetstat()

    def __call__(self) -> Counter[str]:
        stats = self._client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats.items()}
        return Counter({name: count for name, count in calls.items() if name not in self.IGNORED})
