"""How long a dead holder keeps its lock, if its process is killed or its machine dies and answers no packet.

docs/locking-rules.md states the measured seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest
from psycopg.conninfo import make_conninfo

from locking.postgres import AdvisoryLock, InsertLock, RowLock
from servers.valkey import Valkey
from tests.locking.etcd_support import EtcdRecipe, running_etcd
from tests.locking.postgres_support import PostgresRecipe, conninfo_of, running_postgres
from tests.locking.support import Recipe, RedisRecipe, acquired, process
from tests.locking.zookeeper_support import ZooKeeperRecipe, running_zookeeper

pytestmark = pytest.mark.slow

ADDRESS = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
"""An address of this machine that no other test uses. Keepalives need TCP."""
TTL = 10.0
LONGER = 90.0
"""Seconds: longer than a dead holder keeps any of these locks."""
SO_ATTACH_FILTER = 26
DROP_EVERY_PACKET = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter with one instruction for the kernel: return 0, keep no byte of the packet."""


def drop_packets(descriptor: int) -> None:
    """Make the kernel drop all packets to a TCP socket, answer none, and send none by itself.

    A stopped process or a silent proxy does not simulate a dead machine: the kernel still answers keepalives. This
    side sends no keepalives either, because without answers they would end the connection.
    """
    program = ctypes.create_string_buffer(DROP_EVERY_PACKET, len(DROP_EVERY_PACKET))
    with socket.socket(fileno=os.dup(descriptor)) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def hold_until(death: str, recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Acquire the lock, report it, and die when a message arrives: the `process` alone, or its `machine`."""
    lease = acquired(recipe(name, **options))
    pipe.send(lease.fence)
    pipe.recv()
    if death == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    for connection in psutil.Process().net_connections("tcp"):
        drop_packets(connection.fd)
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with running_postgres(f"--listen_addresses={ADDRESS}") as postgres:
        yield make_conninfo(conninfo_of(postgres), host=ADDRESS, sslmode="disable")


def seconds_until_free(recipe: Any, name: str, death: str) -> float:
    """Return the seconds from the death of a holder until another client is granted the lock."""
    options = {} if name.startswith(("AdvisoryLock", "RowLock")) else {"ttl": TTL}
    lock = recipe(name, **options)
    with process(hold_until, death, recipe, name, options) as (_, pipe):
        pipe.recv()
        pipe.send("die")
        began = time.monotonic()
        lease = acquired(lock, timeout=LONGER)
        seconds = time.monotonic() - began
        lease.release()
    return seconds


def test_a_lease_ends_alike_in_both_cases_and_a_session_does_not(
    conninfo: str, valkey: Valkey, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A session lasts longer after the death of a machine than after that of a process. A lease does not.

    The exact seconds are only recorded. The bounds are wide, because a slow machine may take long.
    """
    with running_etcd() as etcd, running_zookeeper() as zookeeper, ThreadPoolExecutor(12) as pool:
        recipes = {
            **{kind.__name__: PostgresRecipe(kind, conninfo, tmp_path) for kind in (AdvisoryLock, RowLock, InsertLock)},
            "RedisLock": RedisRecipe(valkey.url),
            "EtcdLock": EtcdRecipe(etcd.host, etcd.port, tmp_path),
            "ZooKeeperLock": ZooKeeperRecipe(zookeeper.hosts, tmp_path),
        }
        asked = {
            (kind, death): pool.submit(seconds_until_free, recipe, f"{kind} {death}", death)
            for kind, recipe in recipes.items()
            for death in ("process", "machine")
        }
        found = {case: result.result() for case, result in asked.items()}
    for (kind, death), seconds in found.items():
        record_property(f"{kind}, {death}", round(seconds, 1))
    for kind in ("AdvisoryLock", "RowLock"):
        # The server gives up 20 + 2 * 10 s after the last packet: locking/postgres/settings.py.
        assert found[kind, "process"] < 38 < found[kind, "machine"]
    for kind in ("InsertLock", "RedisLock", "EtcdLock", "ZooKeeperLock"):
        assert all(found[kind, death] > TTL / 2 for death in ("process", "machine"))
        assert found[kind, "machine"] < found["AdvisoryLock", "machine"]
