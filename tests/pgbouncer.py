"""A PgBouncer for tests, in front of the Postgres of the tests."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from django.conf import settings

from servers.folder import private_subfolder, unprivileged_user
from servers.process import Child
from tests.waiting import WAIT_TIMEOUT

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(
    PGBOUNCER is None and not os.environ.get("CI"),
    reason="PgBouncer is not installed; on Debian: apt-get install pgbouncer",
)

PORT = 6432

# Round robin gives each transaction another session, so that no test passes by luck.
CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_port = {listen}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
server_round_robin = 1
{more}
"""


@dataclass(frozen=True)
class PgBouncer:
    """A running PgBouncer that listens on a socket in `folder`."""

    folder: Path
    database: str

    @property
    def url(self) -> str:
        return f"postgres://{settings.DATABASES['default']['USER']}@/{self.database}?{self.address}"

    @property
    def address(self) -> str:
        return f"host={quote(str(self.folder))}&port={PORT}"


@contextmanager
def running_pgbouncer(
    mode: str, more: str = "", *, size: int = 20, server: tuple[str, int] | None = None
) -> Iterator[PgBouncer]:
    """Run PgBouncer in front of the Postgres of the tests.

    Args:
        mode: its `pool_mode`.
        more: further lines of its configuration.
        size: maximum number of connections to Postgres.
        server: host and port to use instead of those of Postgres.
    """
    database = settings.DATABASES["default"]
    host, port = server or (database["HOST"], database["PORT"])
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o711)
    folder = outer / "pgbouncer"
    private_subfolder(folder)  # PgBouncer, like Postgres, refuses to run as root.
    file = outer / "pgbouncer.ini"
    file.write_text(
        CONFIGURATION.format(
            host=host, port=port, user=database["USER"], listen=PORT, folder=folder, mode=mode, size=size, more=more
        )
    )
    file.chmod(0o644)
    assert PGBOUNCER is not None
    child = Child("pgbouncer", [PGBOUNCER, str(file)], log=outer / "log", user=unprivileged_user())
    try:
        child.start()
        child.wait_until(lambda: _listens(folder / f".s.PGSQL.{PORT}"), WAIT_TIMEOUT)
        yield PgBouncer(folder, database["NAME"])
    finally:
        child.stop()
        shutil.rmtree(outer)


def _listens(file: Path) -> bool:
    """Return whether a server accepts connections. The file of its socket may exist before that."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(file))
        except OSError:
            return False
        return True
