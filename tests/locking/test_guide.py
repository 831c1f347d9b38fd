"""docs/locks.md says what the locks declare, of every lock that there is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import locking
from locking import Lock, RedisLock, guide


def shipped() -> set[type[Lock]]:
    """Every lock of the package that can be made."""
    found = set()
    for module in pkgutil.iter_modules(locking.__path__, "locking."):
        if module.name != "locking.admin":
            members = vars(importlib.import_module(module.name)).values()
            found |= {one for one in members if inspect.isclass(one) and issubclass(one, Lock)}
    return {lock for lock in found if not inspect.isabstract(lock)}


def test_the_document_is_what_the_locks_declare() -> None:
    written = (Path(__file__).parents[2] / "docs" / "locks.md").read_text(encoding="utf-8")
    assert written == guide.markdown(), "make it again: python -m locking.guide > docs/locks.md"


def test_every_lock_is_in_it() -> None:
    assert {entry.lock for entry in guide.ENTRIES} == shipped()


def test_every_name_of_a_lock_is_in_it() -> None:
    exported = {name for name in locking.__all__ if getattr(locking, name) in shipped()}
    assert "FairRedisLock" in exported
    text = guide.markdown()
    assert [name for name in exported if name not in text] == []


def test_what_a_lock_declares_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = guide.markdown()
    monkeypatch.setattr(RedisLock, "capabilities", locking.Capabilities())
    assert guide.markdown() != before
