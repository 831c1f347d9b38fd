"""A Postgres standby: it replicates a primary by streaming, and can replace the primary."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.conninfo import make_conninfo

from servers.errors import ServerError
from servers.folder import unprivileged_user
from servers.postgres import DATABASE, LOCAL, Postgres, connect

FOLLOW = sql.SQL("ALTER SYSTEM SET primary_conninfo = {}")
HAS_APPLIED = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
TIMEOUT = 30
"""Time limit in seconds to attach, detach or promote a standby. Each usually takes milliseconds."""


class Standby(Postgres):
    """A hot standby with a copy of the primary's data, until it is promoted. It starts attached to the primary.

    Args:
        folder: the folder of this server, directly inside the run folder.
        primary: the folder of the primary. The primary must be running when the standby first starts.
        database: name of the database; the primary has it.
        extra: settings that are added to those of every server, or replace some of them.
    """

    def __init__(
        self, folder: Path, *, primary: Path, database: str = DATABASE, extra: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, database=database, extra=extra)
        self.primary = primary

    def attach(self) -> None:
        """Start replication to the standby. Return once the standby has all writes so far.

        Raises:
            ServerError: the standby does not receive these writes within `TIMEOUT`.
        """
        self._follow(make_conninfo(**LOCAL, host=str(self.primary)))
        with connect(self.primary) as primary, connect(self.folder) as standby:
            written = _first(primary, "SELECT pg_current_wal_flush_lsn()")
            _wait_until(lambda: _first(standby, HAS_APPLIED, written), "has not received what its primary has written")

    def detach(self) -> None:
        """Stop replication to the standby, so that it falls behind. Return once the primary has noticed.

        Raises:
            ServerError: the standby is still attached after `TIMEOUT`.
        """
        self._follow("")
        with connect(self.primary) as primary:
            _wait_until(lambda: not _first(primary, "SELECT count(*) FROM pg_stat_replication"), "is still attached")

    def promote(self) -> None:
        """Make the standby a primary, with the data that it has received. Return once it accepts writes.

        Raises:
            ServerError: the standby was not promoted within `TIMEOUT`; the message has the last lines of its log.
        """
        with connect(self.folder) as standby:
            if not _first(standby, "SELECT pg_promote(wait_seconds => %s)", TIMEOUT):
                raise ServerError(f"The standby was not promoted within {TIMEOUT} s.{self.child.last_lines()}")

    def _create_data(self) -> None:
        """Copy the primary's data, completely or not at all."""
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        source = make_conninfo(**LOCAL, host=str(self.primary))
        options = ("-D", str(unfinished), "-d", source, "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
        self._run("pg_basebackup", *options, cwd=self.folder, user=unprivileged_user())
        unfinished.rename(self.data)

    def _follow(self, conninfo: str) -> None:
        with connect(self.folder) as standby:
            standby.execute(FOLLOW.format(sql.Literal(conninfo)))
            standby.execute("SELECT pg_reload_conf()")


def _first(connection: Any, query: str, *values: object) -> Any:
    return connection.execute(query, values).fetchone()[0]


def _wait_until(condition: Callable[[], object], problem: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"The standby {problem}, after {TIMEOUT} s.")
        time.sleep(0.002)
