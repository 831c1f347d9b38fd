"""The parts of a running shop. Tests kill them, restart them and cut the connections between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
from django.conf import settings
from django.db import connection, connections
from django_redis import get_redis_connection

from loadtest.local_shop import LocalShop, is_healthy
from servers import Child
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.valkey import Valkey
from shop.runtime.tasks import advance_sales
from tests.faults import flawed
from tests.faults.proxy import CuttableProxy
from tests.waiting import WAIT_TIMEOUT, wait_for


@dataclass
class Parts:
    """The parts of a running shop. Web, worker and beat reach the servers through proxies; the tests do not."""

    shop: LocalShop
    to_postgres: CuttableProxy
    to_redis: CuttableProxy
    ended: list[str] = field(default_factory=list)
    """Names of parts that ended by themselves in this round."""

    @property
    def postgres(self) -> Postgres:
        assert self.shop.servers is not None
        assert self.shop.servers.postgres is not None
        return self.shop.servers.postgres

    @property
    def valkey(self) -> Valkey:
        assert self.shop.servers is not None
        assert self.shop.servers.valkey is not None
        return self.shop.servers.valkey

    @property
    def worker(self) -> Child:
        return next(child for child in self.shop.children if child.name == "worker")

    def kill_a_web_process(self) -> None:
        """Kill the web process that has the most connections; Granian starts another one.

        Choose only old processes: Granian ends if a process dies soon after its start.
        """
        workers = psutil.Process(self.shop.web.pid).children()
        first = min(worker.create_time() for worker in workers)
        max((worker for worker in workers if worker.create_time() < first + 1), key=self._connections).kill()

    def _connections(self, worker: psutil.Process) -> int:
        sockets = worker.net_connections("tcp")
        return sum(at.status == psutil.CONN_ESTABLISHED and at.laddr.port == self.shop.port for at in sockets)

    def kill_postgres(self) -> None:
        """Kill every process of Postgres at once, so that none shuts down cleanly.

        Each of them leads its own process group, so killing one group is not enough.
        """
        postmaster = psutil.Process(self.postgres.child.pid)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.postgres.child.kill()

    def restart_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when the condition is true. Until then, restart every part that ends by itself, as operators do."""

        def check() -> bool:
            for child in self.shop.children:
                if not child.alive:
                    self.ended.append(child.name)
                    child.start()
            return condition()

        wait_for(check, what, timeout=2 * WAIT_TIMEOUT)

    def recover(self) -> None:
        """Return when every part works and no transaction is open."""
        connections.close_all()
        self.restart_until(lambda: is_healthy(self.shop.url), "web to answer")
        advance_sales.delay()
        broker = get_redis_connection("default")
        self.restart_until(lambda: not broker.llen("celery") + broker.llen("saving"), "the worker to take its tasks")
        wait_until_idle()


def wait_until_idle() -> None:
    """Return when no other Postgres connection is in a transaction."""
    busy = """
        SELECT FROM pg_stat_activity
         WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
    """

    def idle() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(busy)
            return cursor.rowcount == 0

    wait_for(idle, "the last transaction to end")


@contextmanager
def running_parts() -> Iterator[Parts]:
    """Run a shop with two web processes, a worker and beat. Each reaches the servers through proxies."""
    flawed.register()
    folder = settings.RUN_FOLDER
    to_postgres = CuttableProxy(folder.postgres / f".s.PGSQL.{PORT}")
    to_redis = CuttableProxy(folder.valkey / "valkey.sock")
    environment = {
        "DATABASE_URL": f"postgresql://{USER}@127.0.0.1:{to_postgres.port}/{DATABASE}?sslmode=disable",
        "REDIS_URL": f"redis://127.0.0.1:{to_redis.port}/0",
        "SECRET_KEY": settings.SECRET_KEY,
        "LOCK_FOLDER": str(settings.LOCK_FOLDER),
    }
    applications = {"application": "tests.faults.wsgi:application", "tasks": "tests.faults.tasks"}
    with LocalShop(background=True, environment=environment, **applications) as shop:
        yield Parts(shop, to_postgres, to_redis)
