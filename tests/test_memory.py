"""Where the tests write: in memory where they may, and what a killed run has left there goes with the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import memory


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if this run were not in memory yet, and another folder were."""
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "ROOM", 1)
    monkeypatch.setenv("TMPDIR", "")  # so that afterwards it is what it was, unset too
    monkeypatch.delenv("TMPDIR")


def test_what_a_run_and_its_children_write_is_in_memory() -> None:
    folder = memory.use()

    assert folder is not None
    child = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
    theirs = subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip()
    assert {Path(tempfile.mkdtemp()).parent, Path(theirs).parent} == {folder}


def test_who_says_where_gets_it_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert memory.use() is None
    assert list(tmp_path.iterdir()) == []


def test_without_room_it_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "ROOM", 1 << 60)
    assert memory.use() is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_goes_and_what_a_running_one_has_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getppid()):
        (tmp_path / f"{memory.PREFIX}{pid}" / "data").mkdir(parents=True)

    folder = memory.use()

    assert set(tmp_path.iterdir()) == {folder, tmp_path / f"{memory.PREFIX}{os.getppid()}"}
