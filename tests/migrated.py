"""The data folder of a Postgres with the migrated test database, made once in a run and copied by every worker."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from django.db import connection
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from servers import RunFolder, Servers
from servers.postgres import DATABASE, connect

NAME = f"{TEST_DATABASE_PREFIX}{DATABASE}"
COPY = "copy"
"""A second migrated database for tests to copy. It has no sessions: Postgres copies no database that has sessions."""


def provide(folder: RunFolder) -> None:
    """Put the Postgres data into a run folder. The first worker makes the data while the other workers wait."""
    shared = Path(os.environ["FIRST_RUN_FOLDER"]) / "migrated"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shared.exists():
            folder.create()
            folder.postgres.mkdir(mode=0o700)
            shutil.copytree(shared, folder.postgres / "data")
        else:
            with Servers(folder, runs=["postgres"]):
                connection.creation.create_test_db(verbosity=0, serialize=False)
                connection.close()
                with connect(folder.postgres) as admin:
                    admin.execute(f"CREATE DATABASE {COPY} TEMPLATE {NAME}")
            unfinished = shared.with_suffix(".unfinished")
            shutil.copytree(folder.postgres / "data", unfinished)
            unfinished.rename(shared)
