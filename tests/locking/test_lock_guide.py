"""docs/choose-lock.md is complete and up to date, and its samples run."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import locking
from lab.site.choice import lock_guide as guide
from lab.site.choice.lock_entries import ENTRIES, GuideEntry
from lab.site.choice.silence import silence_of
from locking import Lock, RedisLock, ReentrantLock
from servers import Servers
from servers.valkey import Valkey
from tests import lock_servers
from tests.locking.postgres_support import conninfo_of
from tests.locking.support import Patch


def shipped() -> set[type[Lock]]:
    """Return every non-abstract lock class of the package."""
    found = set()
    for module in pkgutil.walk_packages(locking.__path__, "locking."):
        if not module.name.startswith("locking.contrib"):
            members = vars(importlib.import_module(module.name)).values()
            found |= {one for one in members if inspect.isclass(one) and issubclass(one, Lock)}
    return {lock for lock in found if not inspect.isabstract(lock)}


def test_the_document_is_what_the_locks_declare() -> None:
    written = (Path(__file__).parents[2] / "docs" / "choose-lock.md").read_text(encoding="utf-8")
    assert written == guide.markdown(), "make it again: python -m lab.site.choice.lock_guide > docs/choose-lock.md"


def test_every_lock_is_in_it() -> None:
    assert {entry.lock for entry in ENTRIES} == shipped()


def test_every_name_of_a_lock_is_in_it() -> None:
    exported = {name for name in locking.__all__ if getattr(locking, name) in shipped()}
    assert "FairRedisLock" in exported
    text = guide.markdown()
    assert [name for name in exported if name not in text] == []


def test_what_a_lock_declares_shows(monkeypatch: Patch) -> None:
    before = guide.markdown()
    monkeypatch.setattr(RedisLock, "capabilities", locking.Capabilities())
    assert guide.markdown() != before


def test_it_says_how_long_a_dead_holder_keeps_each_lock() -> None:
    _heading, _line, *rows = guide.deaths().splitlines()
    lines = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1:4] for row in rows}
    assert set(lines) == {entry.lock.__name__ for entry in ENTRIES}
    assert lines["RedisLock"][:2] == ["At most its TTL."] * 2
    # The settings of locking/postgres/settings.py give 40 s: 20 s idle, then two probes of 10 s.
    assert lines["AdvisoryLock"][:2] == ["At once: its kernel closes the connection.", "40 s, by TCP keepalives."]
    assert not any("{" in text for texts in lines.values() for text in texts)
    assert all(
        silence_of(entry.lock).source in guide.markdown() for entry in ENTRIES if entry.lock is not ReentrantLock
    )


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.lock.__name__)
def test_the_lines_that_make_a_lock_make_one(
    entry: GuideEntry, servers: Servers, valkey: Valkey, tmp_path: Path
) -> None:
    running: dict[str, AbstractContextManager[str]] = {
        "/var/lib/shop/locks": nullcontext(str(tmp_path)),
        "redis://localhost:6379/0": nullcontext(valkey.url),
        **{f"redis://redis-{db}:6379/0": nullcontext(f"{valkey.url}?db={db}") for db in (1, 2, 3)},
        "zookeeper-1:2181,zookeeper-2:2181,zookeeper-3:2181": lock_servers.zookeeper(),
        '"localhost", 2379': lock_servers.etcd(),
        "postgresql://shop@localhost/shop": nullcontext(conninfo_of(servers.postgres)),
    }
    made: dict[str, Any] = {}
    lines = entry.example
    with ExitStack() as stack:
        for written, address in running.items():
            if written in lines:
                url = stack.enter_context(address)
                lines = lines.replace(written, re.sub(r"http://(.*):(\d+)", r'"\1", \2', url))
        exec(lines, made)  # noqa: S102
        if isinstance(made.get("client"), KazooClient):
            stack.callback(made["client"].close)
            stack.callback(made["client"].stop)
        assert type(made["lock"]) is entry.lock
        with made["lock"].hold(timeout=10) as lease:
            lease.check()
