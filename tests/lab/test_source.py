"""What is kept of a rung is out of date when any of the code has changed that runs where it is tried, and only then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lab.claims import witness
from lab.claims.behaviour import ASIDE
from lab.ladder.catalogue import LADDER, ROOT

BOTH = (
    "locking/scripts/release.lua",
    "locking/lease.py",
    "locking/renewal.py",
    "locking/redis/waiting.py",
    "locking/redis/connection.py",
    "lab/ladder/locks/rung.py",
    "lab/workloads/lock.py",
)
LOCKS = ("locking/etcd.py", "locking/redis/redlock.py", "locking/zookeeper.py")
STOCK = (
    "inventory/lua/take.lua",
    "inventory/bulk.py",
    "inventory/counters/whole.py",
    "inventory/strategies/locked.py",
    "lab/ledger.py",
    "lab/models.py",
    "shop/orders/saving.py",
    "shop/reconcile.py",
)
NEITHER = (
    "locking/contrib/django/admin.py",
    "inventory/migrations/0001_initial.py",
    "lab/site/pages/views.py",
    "lab/claims/interrupts.py",
    "lab/sandbox/pool.py",
    "lab/claims/witness.py",
    "lab/claims/worker.py",
    "shop/orders/payments.py",
)
LOCK, STRATEGY = LADDER["renewal"], LADDER["guarded-update"]


def project(root: Path, changed: str = "") -> Path:
    """A project of these files, of which one may be another than in all the others."""
    for name in (*BOTH, *LOCKS, *STOCK, *NEITHER):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("2" if name == changed else "1")
    return root


@pytest.mark.parametrize("changed", ["", *BOTH, *LOCKS, *STOCK, *NEITHER])
def test_what_is_kept_is_out_of_date_when_what_runs_has_changed(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(witness, "VERDICTS", tmp_path / "verdicts.json")
    monkeypatch.setattr(witness, "CONTROL", tmp_path / "control.json")
    settings.BASE_DIR = project(tmp_path / "before")
    for entry in (LOCK, STRATEGY):
        witness.store_verdict(entry, {"verdict": "held"})
        witness.store_control(entry, {"broken": 0})
    settings.BASE_DIR = project(tmp_path / "after", changed)
    for entry, runs in ((LOCK, (*BOTH, *LOCKS)), (STRATEGY, (*BOTH, *STOCK))):
        for kept in (witness.verdict(entry.slug), witness.control(entry.slug)):
            assert kept is not None
            assert kept["outdated"] == (changed in runs)


def test_all_that_a_trial_imports_is_code_whose_change_is_noticed() -> None:
    places = [ROOT / place for place in witness.SOURCES["stock"]]
    assert all(place.exists() for place in places)
    unnoticed = {
        file.relative_to(ROOT).as_posix()
        for file in imported_in("lab/ladder", "lab/schedule")
        if not any(file.is_relative_to(place) for place in places) or ASIDE.intersection(file.parts)
    }
    # Packages' own files, which only mark them; what hashes and what keeps results; what says how far is searched,
    # which is kept with what came of it, which databases a schedule has, and in which processes; and the servers,
    # which are no part of a rung.
    assert {file for file in unnoticed if not file.startswith("servers/")} == {
        "lab/__init__.py",
        "lab/claims/result_store.py",
        "lab/claims/interrupts.py",
        "lab/sandbox/pool.py",
        "lab/claims/verify.py",
        "lab/claims/witness.py",
        "lab/claims/worker.py",
        "lab/claims/behaviour.py",
        "shop/__init__.py",
    }


def test_no_rung_of_stock_takes_a_lock_that_is_not_in_its_hash() -> None:
    taken = {file.name for file in imported_in("lab/ladder/stock", "lab/workloads/stock.py")}
    assert not taken & witness.ELSEWHERE["stock"]
    assert {file.name for file in imported_in("lab/schedule/trials")} > witness.ELSEWHERE["stock"]


def imported_in(*places: str) -> set[Path]:
    """The project's files that are imported in files and in folders."""
    files = [file for place in places for file in (ROOT / place, *(ROOT / place).rglob("*.py")) if file.is_file()]
    return {module for file in files for module in imports(file)}


def imports(file: Path) -> Iterator[Path]:
    """The project's files that a file imports, or that what it imports comes from."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            there = import_module(node.module)
            made = [getattr(getattr(there, alias.name, None), "__module__", None) or "" for alias in node.names]
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names), *made]
        else:
            continue
        for name in names:
            path = ROOT.joinpath(*name.split("."))
            yield from (found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file())


def test_a_rung_of_somebody_elses_package_has_its_file_in_the_hash() -> None:
    assert witness.source_hash(LADDER["kazoo-recipe"]) != witness.source_hash(LADDER["zookeeper"])


def test_the_code_is_read_once_for_all_rungs_of_a_page() -> None:
    witness._hash_once.cache_clear()
    for entry in LADDER.values():
        witness.source_hash(entry)
    # One for each track, and that of the rung which is somebody else's.
    assert witness._hash_once.cache_info().misses == 3
