"""A sandbox whose Postgres is two servers: a primary, and a standby that may take its place."""

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
from lab.sandbox.clusters import Cluster
from lab.sandbox.connections import backends_of
from lab.sandbox.quorums import RunningServer
from lab.sandbox.sandbox import Sandbox
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.standby import Standby

STANDBY = "S"
"""The name, in a schedule, of the actor that lets the standby receive what the primary has written."""
QUICK = {"fsync": "off", "wal_retrieve_retry_interval": "10ms"}
"""Settings of both servers. Only processes are killed, not the machine, so nothing that they have written is lost."""
PRIMARY = QUICK | {"synchronous_commit": "local", "synchronous_standby_names": "*"}
"""A commit does not wait for the standby unless its transaction asks for that."""
WAITS_FOR_STANDBY = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event = 'SyncRep'"


class Pair:
    """A primary and its standby. The promoted standby is the next primary, and the lost server the next standby.

    Args:
        run_folder: the run folder of both.

    Attributes:
        behind: whether the standby receives nothing.
        lost: whether the primary was lost, and the standby has taken its place.
    """

    def __init__(self, run_folder: Path) -> None:
        self.folders = [run_folder / "one", run_folder / "two"]
        self.behind = self.lost = False
        # In a stress run, the standby may be about to receive something when the primary is lost.
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
        """Begin again with a primary, and a standby that has received everything."""
        if self.lost:
            self.stop()
            shutil.rmtree(self.primary.data)
            self._make(self.standby.folder, self.primary.folder)
            self.start()
            self.lost = False
        self.catch_up()

    def fall_behind(self) -> None:
        """Let the standby receive nothing more."""
        self.standby.detach()
        self.behind = True

    def catch_up(self) -> None:
        """Let the standby receive what the primary has written and will write, unless the primary was lost."""
        with self._mutex:
            if not self.lost:
                self.standby.attach()
                self.behind = False

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby with what it has received."""
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
    """A sandbox with two Postgres servers of its own. Clients find the one that accepts writes.

    Args:
        outer: the sandbox whose Redis and clock it uses, and with which it is closed.
    """

    def __init__(self, outer: Sandbox) -> None:
        super().__init__(outer.redis_url, outer.database)
        self._outer = outer

    @property
    def pair(self) -> Pair:
        """The servers. They start on first use, which must be in the main thread."""
        pair: Pair = self.resource("pair", lambda: RunningServer(Pair)).server
        return pair

    def empty(self) -> None:
        """See `Sandbox.empty`. The outer sandbox may have got another clock since the last run."""
        self._outer.empty()
        self.clock = self._outer.clock

    def restore_pair(self) -> None:
        """Begin with a standby that has received everything, and with the lab's tables."""
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
        """Let the standby take the place of the primary. Every connection to the primary is cut."""
        self.pair.fail_over()
        self._disconnect("stage")

    def is_blocked(self, actor: Actor) -> bool:
        """See `Sandbox.is_blocked`. A commit may wait for the standby. If that receives, the wait ends by itself."""
        if super().is_blocked(actor):
            return True
        pids = backends_of(self._connections.get(actor.name), actor) if self.pair.behind else []
        return bool(pids and self.observer.execute(WAITS_FOR_STANDBY, [pids]).rowcount)

    def disconnect(self, actor: Actor) -> None:
        """See `Sandbox.disconnect`. A standby that has crashed starts again, and receives what it has missed."""
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


class StandbyCluster(Cluster):
    """The two Postgres servers of a sandbox, of which the primary may be lost.

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
        """Let the standby receive all that is written so far, and nothing more."""
        self.sandbox.pair.catch_up()
        self.sandbox.pair.fall_behind()

    def catch_up(self) -> None:
        """Let the standby receive what the primary has written, and will write."""
        self.sandbox.pair.catch_up()
