"""A whole shop as its parts: which can be killed, started again, and cut off from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
from django.conf import settings
from django.db import connection, connections
from django_redis import get_redis_connection

from loadtest.stack import Stack, answers
from servers import Child
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.valkey import Valkey
from shop.runtime.tasks import advance_sales
from tests.faults import flawed
from tests.faults.proxy import Line
from tests.waiting import PATIENCE, wait_for


class Parts:
    """The parts of a running shop. Web, worker and beat reach the servers over lines; we go past them."""

    def __init__(self, stack: Stack, *, to_postgres: Line, to_redis: Line) -> None:
        self.stack = stack
        self.to_postgres = to_postgres
        self.to_redis = to_redis
        self.ended: list[str] = []
        """Parts that ended by themselves, in this round."""

    @property
    def postgres(self) -> Postgres:
        assert self.stack.servers is not None
        assert self.stack.servers.postgres is not None
        return self.stack.servers.postgres

    @property
    def valkey(self) -> Valkey:
        assert self.stack.servers is not None
        assert self.stack.servers.valkey is not None
        return self.stack.servers.valkey

    @property
    def worker(self) -> Child:
        return next(child for child in self.stack.children if child.name == "worker")

    def kill_a_web_process(self) -> None:
        """Granian starts another one. Killing one that it has just started would look like a loop, which ends it.

        Of those that were started together, the one with most buyers: one of them may have all.
        """
        workers = psutil.Process(self.stack.web.pid).children()
        first = min(worker.create_time() for worker in workers)
        max((worker for worker in workers if worker.create_time() < first + 1), key=self._buyers).kill()

    def _buyers(self, worker: psutil.Process) -> int:
        """How many connections it has with buyers."""
        sockets = worker.net_connections("tcp")
        return sum(at.status == psutil.CONN_ESTABLISHED and at.laddr.port == self.stack.port for at in sockets)

    def kill_postgres(self) -> None:
        """End it with all its processes, as losing the machine would: each leads a group of its own."""
        postmaster = psutil.Process(self.postgres.child.pid)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.postgres.child.kill()

    def supervise(self, until: Callable[[], bool], what: str) -> None:
        """Return once something is so, and start again meanwhile whatever ends by itself, as who runs a shop does."""

        def seen() -> bool:
            for child in self.stack.children:
                if not child.alive:
                    self.ended.append(child.name)
                    child.start()
            return until()

        wait_for(seen, what, timeout=2 * PATIENCE)

    def recover(self) -> None:
        """Return when every part works and nobody is in the middle of something."""
        connections.close_all()
        self.supervise(lambda: answers(self.stack.url), "web to answer")
        advance_sales.delay()
        broker = get_redis_connection("default")
        self.supervise(lambda: not broker.llen("celery") + broker.llen("saving"), "the worker to take its tasks")
        rest()


def rest() -> None:
    """Return when nobody but us is in the middle of a transaction."""
    others = """
        SELECT FROM pg_stat_activity
         WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
    """

    def at_rest() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(others)
            return cursor.rowcount == 0

    wait_for(at_rest, "the last transaction to end")


@contextmanager
def running() -> Iterator[Parts]:
    """A shop with two web processes, a worker and beat, every one on lines that can be cut."""
    flawed.register()
    folder = settings.RUN_FOLDER
    to_postgres = Line(folder.postgres / f".s.PGSQL.{PORT}")
    to_redis = Line(folder.valkey / "valkey.sock")
    environment = {
        "DATABASE_URL": f"postgresql://{USER}@127.0.0.1:{to_postgres.port}/{DATABASE}?sslmode=disable",
        "REDIS_URL": f"redis://127.0.0.1:{to_redis.port}/0",
        "SECRET_KEY": settings.SECRET_KEY,
        "LOCK_FOLDER": str(settings.LOCK_FOLDER),
    }
    ours = {"application": "tests.faults.wsgi:application", "tasks": "tests.faults.tasks"}
    with Stack(background=True, environment=environment, **ours) as stack:
        yield Parts(stack, to_postgres=to_postgres, to_redis=to_redis)
