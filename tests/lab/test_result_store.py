"""The store of results: readers see whole files, writers keep each other's changes, damaged files are ignored."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from lab.claims import comparisons, result_store, witness
from lab.claims.stress import FEW, WITH_STANDBY
from lab.explorer import source_line
from lab.ladder.catalogue import LADDER
from lab.workloads.registry import WITH_A_STANDBY
from tests.waiting import wait_for

LINE = {"broken": 1, "tries": 2}


@pytest.fixture(autouse=True)
def _nothing_is_logged_yet(monkeypatch: pytest.MonkeyPatch, unhashed: None) -> None:
    monkeypatch.setattr(result_store, "_logged", set())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that replaces the store of verdicts, witnesses, stress runs and comparisons."""
    for name in ("FOLDER", "TRACES", "VERDICTS", "STRESS"):
        monkeypatch.setattr(witness, name, tmp_path / getattr(witness, name).name)
    monkeypatch.setattr(comparisons, "FILE", tmp_path / comparisons.FILE.name)
    return tmp_path


def test_a_reader_reads_the_old_file_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    result_store.write(path, ["old"] * 10_000)
    with path.open() as reader:
        begun = reader.read(10)
        result_store.write(path, ["new"])
        assert json.loads(begun + reader.read()) == ["old"] * 10_000
    assert json.loads(path.read_text()) == ["new"]


def test_a_file_is_parsed_again_only_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    for value in ("old", "new"):  # of the same size
        result_store.write(path, value)
        before = result_store._parsed.cache_info().misses
        assert [result_store.read(path, str, "lab refresh") for _ in range(3)] == [value] * 3
        assert result_store._parsed.cache_info().misses == before + 1


def test_a_reader_leaves_the_result_to_the_next() -> None:
    """A reader does not change the parsed file, because all readers share it."""
    result_store._parsed.cache_clear()
    of_a_rung = [(read, "no-lock") for read in (witness.load, witness.verdict, witness.stress)]
    for read, name in (*of_a_rung, (witness.trace, "redlock"), (comparisons.load, "locks")):
        first = read(name)  # type: ignore[operator]
        assert first is not None
        assert read(name) == first  # type: ignore[operator]


def test_two_writers_do_not_undo_each_other(folder: Path) -> None:
    second = threading.Thread(target=witness.store_stress, args=(LADDER["renewal"], LINE))

    def edit(kept: dict[str, Any]) -> dict[str, Any]:
        second.start()
        # Wait long enough for a writer without a lock to finish.
        second.join(0.3)
        assert second.is_alive()
        return {**kept, "no-lock": {**LINE, "source": ""}}

    result_store.change(witness.STRESS, edit)
    wait_for(lambda: not second.is_alive(), "the second writer")
    assert {*json.loads(witness.STRESS.read_text())} == {"no-lock", "renewal"}


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    result_store.write(path, "old")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular"):
        result_store.write(path, endless)
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == "old"


def test_storing_one_part_keeps_the_other(folder: Path) -> None:
    comparisons.store("locks", {"made": "first"})
    comparisons.store("strategies", {"made": "second"})
    comparisons.store("locks", {"made": "third"})
    assert json.loads(comparisons.FILE.read_text()) == {"locks": {"made": "third"}, "strategies": {"made": "second"}}


DAMAGED = ["", "{", "[]", "null", '"text"', '{"no-lock": {"broken": 1', '{"no-lock": []}', '{"no-lock": {"tries": 2}}']


def damage(text: str) -> None:
    """Write a text into each stored file."""
    witness.FOLDER.mkdir()
    witness.TRACES.mkdir()
    for path in (
        witness.VERDICTS,
        witness.STRESS,
        comparisons.FILE,
        witness.FOLDER / "no-lock.json",
        witness.TRACES / "redlock.json",
    ):
        path.write_text(text)


@pytest.mark.parametrize("text", DAMAGED)
def test_an_unreadable_or_damaged_file_counts_as_none(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    witness.STRESS.mkdir()
    assert witness.stress("no-lock") is None, "not readable"
    witness.STRESS.rmdir()
    damage(text)
    assert comparisons.load("locks") is None
    assert witness.load("no-lock") is witness.stress("no-lock") is witness.trace("redlock") is None
    monkeypatch.setattr(witness, "behaviour_of_stress", lambda slug: "this")
    witness.store_stress(LADDER["no-lock"], LINE)
    stored = witness.stress("no-lock")
    assert stored.items() >= {**LINE, "source": "this", "outdated": False}.items()
    assert {"made", "machine"} <= {*stored}
    monkeypatch.setattr(witness, "behaviour_of_stress", lambda slug: "another")
    assert (witness.stress("no-lock") or {})["outdated"]


@pytest.mark.django_db
@pytest.mark.usefixtures("sandboxes")
def test_pages_are_shown_without_damaged_results(folder: Path) -> None:
    damage("{")
    for address in ("/lab/", "/lab/rungs/redlock/", "/lab/comparison/"):
        assert Client().get(address).status_code == 200


def test_damage_is_logged_once_with_the_command_that_repairs_it(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    witness.STRESS.write_text("{")
    comparisons.FILE.write_text("{")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            witness.stress("no-lock")
            comparisons.load("locks")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "manage.py lab refresh",
        "manage.py lab refresh",
    ]
    caplog.clear()
    assert witness.verdict("renewal") is None
    assert not caplog.records, "a missing file is not damaged"


def test_an_edited_docstring_moves_a_stored_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an edit, the nearest equal line is found. A removed line is not found."""
    monkeypatch.setattr(source_line, "ROOT", tmp_path)
    (tmp_path / "lock.py").write_text(
        "def a():\n    '''Longer\n\n    than before.'''\n    send()\n    wait()\n    send()\n"
    )
    assert source_line.find_line("lock.py", 3, "send()") == 5
    assert source_line.find_line("lock.py", 7, "send()") == 7
    assert source_line.find_line("lock.py", 3, "removed()") == 0
    assert source_line.find_line("gone.py", 3, "send()") == source_line.find_line("", 0, "") == 0
    assert source_line.code_at("lock.py", 6) == "wait()"


def test_every_rung_has_a_stored_stress_run_that_fits_its_claim() -> None:
    lines = json.loads(witness.STRESS.read_text(encoding="utf-8"))
    assert {*lines} == {*LADDER}
    assert all((line["broken"] > 0) == (LADDER[slug].claim == "flawed") for slug, line in lines.items())
    least = {slug: WITH_STANDBY if slug in WITH_A_STANDBY else FEW for slug in lines}
    assert [slug for slug, line in lines.items() if line["tries"] < least[slug]] == []
