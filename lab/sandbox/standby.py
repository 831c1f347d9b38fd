"""A sandbox with two Postgres servers: a primary, and a standby that can replace it."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
from django.db import connection

from lab.explorer.actor import Actor
from lab.explorer.terms import Fault
from lab.models import RungOrder, RungStock
from lab.sandbox.connections import backends_of
from lab.sandbox.quorums import RunningServer
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.server_groups import ServerGroup
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.standby import Standby

STANDBY = "S"
"""The name, in schedules, of the actor whose step lets the standby receive the primary's writes."""
QUICK = {"fsync": "off", "wal_retrieve_retry_interval": "10ms"}
"""Settings of both servers. Schedules kill processes, not the machine, so data is safe without fsync."""
PRIMARY = QUICK | {"synchronous_commit": "local", "synchronous_standby_names": "*"}
"""Additional settings of the primary. A commit waits for the standby only if its transaction demands it."""
WAITS_FOR_STANDBY = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event = 'SyncRep'"


class Pair:
    """A primary and its standby. After a failover, they change places: the lost server becomes the next standby.

    Args:
        run_folder: run folder of both servers.

    Attributes:
        behind: whether the standby receives no writes.
        lost: whether the primary was lost and the standby has replaced it.
    """

    def __init__(self, run_folder: Path) -> None:
        self.folders = [run_folder / "one", run_folder / "two"]
        self.behind = self.lost = False
        # In a stress run, the standby may begin to receive writes while another thread kills the primary.
        self._mutex = threading.Lock()
        self._make(*self.folders)

    def start(self) -> None:
        """Start both servers."""
        self.primary.start()
        self.standby.start()

    def stop(self) -> None:
        """Stop both servers."""
        self.standby.stop()
        self.primary.stop()

    def restore(self) -> None:
        """Begin again with a primary, and a standby that has received all writes."""
        if self.lost:
            self.stop()
            shutil.rmtree(self.primary.data)
            self._make(self.standby.folder, self.primary.folder)
            self.start()
            self.lost = False
        self.catch_up()

    def fall_behind(self) -> None:
        """Stop replication to the standby."""
        self.standby.detach()
        self.behind = True

    def catch_up(self) -> None:
        """Let the standby receive all past and future writes of the primary. Do nothing if the primary was lost."""
        with self._mutex:
            if not self.lost:
                self.standby.attach()
                self.behind = False

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby with the writes that it has received."""
        with self._mutex:
            if not self.behind:
                self.standby.attach()
            self.primary.kill()
            self.standby.promote()
            self.lost, self.behind = True, False

    def _make(self, primary: Path, standby: Path) -> None:
        self.primary = Postgres(primary, extra=PRIMARY)
        self.standby = Standby(standby, primary=primary, extra=QUICK)


class StandbySandbox(Sandbox):
    """A sandbox with its own two Postgres servers. Clients connect to the server that accepts writes.

    Args:
        outer: the sandbox whose Redis and clock are used. Closing `outer` also closes this sandbox.
    """

    def __init__(self, outer: Sandbox) -> None:
        super().__init__(outer.redis_url, outer.database)
        self._outer = outer

    @property
    def pair(self) -> Pair:
        """The two servers. They start on first use, which must be in the main thread."""
        pair: Pair = self.resource("pair", lambda: RunningServer(Pair)).server
        return pair

    def empty(self) -> None:
        """Empty the outer sandbox's Redis database. Also use the outer sandbox's clock, which may be a new clock."""
        self._outer.empty()
        self.clock = self._outer.clock

    def restore_pair(self) -> None:
        """Begin with a standby that has received all writes, and create the lab's tables if they are missing."""
        if self.pair.lost:
            self._disconnect(*self._connections)
        self.pair.restore()
        hosts = ",".join(map(str, self.pair.folders))
        server = {"NAME": DATABASE, "HOST": hosts, "PORT": PORT, "USER": USER, "PASSWORD": ""}
        self.database |= server | {"OPTIONS": {"target_session_attrs": "read-write", "connect_timeout": 5}}
        with self.as_default():
            if RungStock._meta.db_table not in connection.introspection.table_names():
                with connection.schema_editor() as editor:
                    editor.create_model(RungStock)
                    editor.create_model(RungOrder)

    def fail_over(self) -> None:
        """Let the standby replace the primary. Every connection to the primary is cut."""
        self.pair.fail_over()
        self._disconnect("stage")

    def is_blocked(self, actor: Actor) -> bool:
        """Return whether an actor waits for another actor.

        This includes an actor whose commit waits for a standby that receives no writes.
        """
        if super().is_blocked(actor):
            return True
        pids = backends_of(self._connections.get(actor.name), actor) if self.pair.behind else []
        return bool(pids and self.observer.execute(WAITS_FOR_STANDBY, [pids]).rowcount)

    def disconnect(self, actor: Actor) -> None:
        """Drop the connections of a crashed actor.

        If the actor is the one that lets the standby receive writes, let the standby receive all writes now.
        """
        super().disconnect(actor)
        if actor.name == STANDBY:
            self.pair.catch_up()

    def _disconnect(self, *names: str) -> None:
        for name in names:
            if (held := self._connections.pop(name, None)) is not None:
                held.close()
        if self._observer is not None:
            with suppress(psycopg.Error):
                self._observer.close()


class StandbyGroup(ServerGroup):
    """The two Postgres servers of a sandbox. A fault makes them lose the primary.

    Args:
        sandbox: the sandbox.
    """

    sandbox: StandbySandbox

    def __init__(self, sandbox: StandbySandbox) -> None:
        super().__init__(sandbox)

    def set_up(self) -> None:
        self.sandbox.restore_pair()

    def strike(self, fault: Fault) -> None:
        self.sandbox.fail_over()

    def fall_behind(self) -> None:
        """Let the standby receive all writes so far. Then stop replication."""
        self.sandbox.pair.catch_up()
        self.sandbox.pair.fall_behind()

    def catch_up(self) -> None:
        """Let the standby receive all past and future writes of the primary."""
        self.sandbox.pair.catch_up()
