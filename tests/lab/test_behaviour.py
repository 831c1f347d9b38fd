"""A stored result is out of date if the behaviour of its rung's code has changed, and only then."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.test import Client

from lab.claims import definitions, staleness
from lab.claims.behaviour import hash_of_files, reach
from lab.claims.definitions import ROOT, Module
from lab.claims.finding import find
from lab.claims.normaliser import ROOMS, script_text
from lab.claims.verify import bounds_of
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from loadtest.tokens import access_token
from tests.factories import new_customer, on_sale, slow
from tests.lab.comparison_support import calls, left_out
from tests.shop.conftest import order_body

BEFORE = """
from time import monotonic as clock

LIMIT = 3

def take(left: int, *, wanted: int = 1) -> bool:
    '''Take units.'''
    # Never below zero.
    enough = left >= wanted
    logger.info("%d left", left)
    return enough and clock() < LIMIT
"""


def normalised(source: str, tmp_path: Path) -> str:
    (tmp_path / "module.py").write_text(source)
    return "\n".join(
        unit.text
        for name in ("take", "LIMIT")
        for _, unit in Module("module", tmp_path / "module.py").units(name, "", frozenset())
    )


PROSE = {
    "docstring": ("'''Take units.'''", "'''Something else.'''"),
    "no docstring": ("    '''Take units.'''\n", ""),
    "comment": ("# Never below zero.", "# Another reason."),
    "annotation": ("left: int", "left: float"),
    "annotation of a constant": ("LIMIT = 3", "LIMIT: int = 3\n"),
    "name of a local": ("enough", "is_enough"),
    "what is written to a log": ('"%d left", left', '"%r are left", str(left)'),
    "formatting": ("left >= wanted", "(left\n        >= wanted)"),
    "unused import": ("monotonic as clock", "monotonic as clock\nimport os"),
}
BEHAVIOUR = {
    "operator": (">=", ">"),
    "literal": ("LIMIT = 3", "LIMIT = 4"),
    "statement": ("    return", "    left += 1\n    return"),
    "callee": ("clock() <", "id() <"),
    "callee that is no logger": ("logger.info", "print"),
    "what an import leads to": ("from time import monotonic", "from time import perf_counter"),
    "name of an argument": ("wanted", "units"),
    "default": ("= 1)", "= 2)"),
    "kind of an argument": ("*, wanted", "wanted"),
}
"""Changes of the source: the old text and the new one."""


@pytest.mark.parametrize("change", [*PROSE, *BEHAVIOUR])
def test_a_change_is_noticed_only_if_it_changes_behaviour(change: str, tmp_path: Path) -> None:
    after = BEFORE.replace(*(PROSE | BEHAVIOUR)[change])
    assert after != BEFORE
    assert (normalised(after, tmp_path) == normalised(BEFORE, tmp_path)) is (change in PROSE)


def test_lua_and_sql_count_without_comments_and_blank_lines(tmp_path: Path) -> None:
    before = "-- Takes 'one', if it's there.\n--[[ A \"block\"\n]]if left >= 1 then\n    return 1 -- taken\nend\n"
    assert script_text(before) == script_text("if left >= 1 then\n\n  return 1\nend")
    assert script_text(before) != script_text(before.replace(">=", ">"))
    for kept in ('return "a--b"', "return 'a--b'", r'return "\"--"', "return [[a--b]]", "return [=[--]] --]=]"):
        assert script_text(f"{kept} -- a comment") == kept.strip()
    name, before = "hot_row.sql", (ROOT / "loadtest/bench/hot_row.sql").read_text()
    hashes = []
    for text in (before, f"-- Another comment.\n{before}", before.replace(">= 1", ">= 0")):
        (tmp_path / name).write_text(text)
        hashes.append(hash_of_files(tmp_path))
    assert hashes[0] == hashes[1] != hashes[2]


RUNGS = (
    *("no-lock", "setnx", "renewal", "fair", "etcd", "lock-table-insert", "commit-after-return", "guarded-update"),
    *("group-commit", "lua", "redis-loses-its-last-second", "lua-queue", "redis-lock", "segmented-redis"),
)
"""Rungs of each kind. Hashing all rungs takes five times as long and runs the same code."""


def hashes() -> dict[str, tuple[str, str]]:
    """Return two hashes per rung: of the code behind its verdict, and of the code of its stress run."""
    return {slug: (staleness.behaviour_of_verdict(slug), staleness.behaviour_of_stress(slug)) for slug in RUNGS}


@pytest.fixture(scope="module")
def before() -> dict[str, tuple[str, str]]:
    return hashes()


Edit = tuple[str, str, str]
"""A file, a part of its text, and the replacement."""


@pytest.fixture
def edit(
    before: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., set[str]]:
    """Return a function that edits a copy of the project. It returns the results that become out of date."""

    def change(*edits: Edit) -> set[str]:
        for room in ROOMS:
            shutil.copytree(
                ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("*.md", "*.json", "*.po", "*.mo")
            )
        for name, old, new in edits:
            source = (tmp_path / name).read_text()
            assert source.count(old) == 1
            (tmp_path / name).write_text(source.replace(old, new))
        scripts = {name: tmp_path / path.relative_to(ROOT) for name, path in definitions.SCRIPTS.items()}
        monkeypatch.setattr(definitions, "ROOT", tmp_path)
        monkeypatch.setattr(definitions, "SCRIPTS", scripts)
        caches = (
            *(definitions.load, definitions._definition_at),
            *(staleness.behaviour_of_verdict, staleness.behaviour_of_stress),
        )
        try:
            for each in caches:
                each.cache_clear()
            after = hashes()
            return {
                f"{slug}{kind}"
                for slug in RUNGS
                for kind, old, new in zip(("", " stress"), before[slug], after[slug], strict=True)
                if old != new
            }
        finally:
            for each in caches:
                each.cache_clear()

    return change


def test_a_change_outdates_the_rungs_that_run_it_and_prose_none(edit: Callable[..., set[str]]) -> None:
    """All edits share one copy of the project, because reading it is slow."""
    docstring = ("inventory/strategies/group_commit.py", '"""One thread of a process', '"""A thread of a process')
    docstring_of_a_lock = ("locking/redis/lock.py", '"""A lock on one Redis', '"""The lock on one Redis')
    comment = (
        "inventory/queue/lua/enqueue.lua",
        "-- Take the units of every item of an order, or none, reserve them, and append the order to the queue.",
        "-- Another comment.",
    )
    help_text = ("inventory/models.py", "Units that came;", "Units that arrived;")
    script_of_a_strategy = ("inventory/counters/lua/take.lua", "tonumber(left) < item[2]", "tonumber(left) <= item[2]")
    strategy = ("inventory/strategies/guarded_update.py", "quantity)", "quantity + 1)")
    rung = ("lab/ladder/locks/setnx.py", '"locked"', '"held"')
    script_of_a_lock = ("locking/redis/scripts/release.lua", "~= ARGV[1]", "== ARGV[1]")
    row_of_a_table = ("lab/workloads/registry.py", '        "etcd",\n', "")
    outdated = {
        *("lua", "segmented-redis", "redis-loses-its-last-second", "guarded-update", "setnx"),
        *("renewal", "fair", "commit-after-return", "redis-lock"),
    }
    # Only the verdict depends on the table of rungs with servers of their own, so "etcd stress" is missing.
    expected = outdated | {f"{slug} stress" for slug in outdated} | {"etcd"}
    changes = (script_of_a_strategy, strategy, rung, script_of_a_lock, row_of_a_table)
    assert edit(docstring, docstring_of_a_lock, comment, help_text, *changes) == expected


LEFT_OUT = (
    # The repair also calls strategies that sell nothing in this search. They do nothing.
    *("inventory.strategies.", "inventory.queue.", "inventory.counters.segmented."),
    "inventory.counters.whole.Counters.counted",
    # Django calls these functions to find the connection, and to filter and format the log.
    *("lab.sandbox.connections._Cache.", "lab.sandbox.pool.is_no_visitors", "shop.runtime.logs."),
)


SEARCHES = ("setnx", "group-commit", "renewal", "fair", "lock-table-insert", "segmented-keys", "lua")


@pytest.mark.slow
@pytest.mark.parametrize("slug", SEARCHES)
def test_all_that_runs_in_a_search_is_hashed(sandbox: Sandbox, slug: str) -> None:
    """The hash of a rung covers every function that a search calls: this test runs the code and records the calls."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            name = frame.f_code.co_qualname.partition(".<")[0]
            if "<" not in name and "__" not in name:
                called.add((frame.f_globals["__name__"], name))

    bounds = bounds_of(LADDER[slug])
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        find(LADDER[slug], sandbox, bounds, lambda done: None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    hashed = reach([staleness.BUILDERS, LADDER[slug].code, *staleness.CHECKING], slug=slug, slugs=LADDER)
    names = {f"{module}.{name}" for module, name in called if module.partition(".")[0] in ROOMS}
    missing = {name for name in names - set(hashed) if not name.startswith(LEFT_OUT)}
    assert len(called) > 50
    assert missing == set(), sorted(missing)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("strategy", ["lua-queue", *slow("group-commit", "redis-lock")])
def test_all_that_runs_for_an_order_is_hashed(client: Client, strategy: str) -> None:
    offer = on_sale({"a": 1}, strategy=strategy)
    headers = {"Authorization": f"Bearer {access_token(new_customer())}", "Idempotency-Key": "one"}
    body = order_body(offer, a=1)
    client.get("/api/sales/")  # Import all views first, because imports count as calls.
    with calls(sys) as called:
        answer = client.post("/api/orders/", body, content_type="application/json", headers=headers)
    assert answer.status_code in (201, 202)
    assert left_out("strategies", called, least=21) == []
