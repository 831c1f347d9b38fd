"""The measured comparison: stored figures are shown and sorted, and are marked when the code has changed since."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from lab.claims import comparisons, measuring, staleness
from lab.claims.comparisons import PARTS, TABLES, Measurement, Part
from lab.ladder.catalogue import LADDER
from lab.management.commands.compare import Command
from lab.site.comparison.advice import ARGUMENTS
from lab.site.comparison.links import links_to_comparison
from loadtest.bench import contenders
from tests.lab import comparison_support
from tests.lab.comparison_support import lock, store, stored
from tests.lock_servers import needs_zookeeper

pytestmark = pytest.mark.usefixtures("unhashed")

PAGE = "/lab/comparison/"
MISSING = "This has not been measured yet."
STALE = "Out of date: the code has changed since."
SHORT = "This was a short run"


def page(query: str = "") -> str:
    return " ".join(comparison_support.page(PAGE + query).split())


def rows(part: Part, query: str = "") -> list[list[str]]:
    section = re.findall(rf'<section id="{part}">.*?</section>', page(query))[0]
    lines = re.findall(r"<tr.*?</tr>", section)[1:]
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)] for line in lines]


def advice() -> list[str]:
    section = "".join(re.findall(r'<section id="choose".*?</section>', page()))
    return [re.sub("<.*?>", "", item) for item in re.findall("<li>(.*?)</li>", section)]


def test_every_figure_is_shown_and_the_fastest_comes_first(file: Path) -> None:
    store(file)
    assert rows("strategies") == [
        ["guarded-update", "1,250", "0.8", "2.4", "0.75", "0.02"],
        ["redis-lock", "250", "4.0", "12.0", "0.75", "3.01"],
        ["redis-py-lock third-party", "100", "10.0", "30.0", "0.75", "–"],
    ]
    assert rows("locks") == [
        ["thread", "50,000", "0.1", "0.2", "1.00", "–"],
        ["redis renewal woken", "4,000", "0.6", "1.2", "0.94", "9.90"],
        ["redis-py third-party", "2,000", "51.0", "102.0", "0.00", "10.00"],
    ]
    assert "An endpoint that does nothing answers 2000 requests per second." in page()
    assert page().count("Measured on 2026-01-31 with 2 CPUs (x86_64) and Python 3.11.7.") == 1
    assert not any(note in page() for note in (MISSING, STALE, SHORT))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?locks=name", "redis redis-py thread"),
        ("?locks=recovery_s", "redis redis-py thread"),
        ("?locks=-recovery_s", "redis-py redis thread"),
        ("?locks=__class__", "thread redis redis-py"),
        ("?locks=%3Cscript%3E&strategies=''", "thread redis redis-py"),
    ],
)
def test_the_address_sorts_a_table(file: Path, query: str, names: str) -> None:
    """A row without a figure is last in both directions."""
    store(file)
    assert [row[0].split()[0] for row in rows("locks", query)] == names.split()
    assert rows("strategies", query)[0][0] == "guarded-update"


def test_a_heading_sorts_its_own_table_and_its_chart_only(file: Path) -> None:
    store(file)
    shown = page("?strategies=name&locks=-p95_ms")
    assert 'aria-sort="descending"><a href="?strategies=name&locks=p95_ms#locks">Wait p95</a>' in shown
    assert '<a href="?strategies=p50_ms&locks=-p95_ms#strategies">Wait p50</a>' in shown
    assert '<a href="?strategies=-per_s&locks=-p95_ms#strategies">Orders per second</a>' in shown
    (chart,) = re.findall(r'<section id="locks">.*?(<figure.*?</figure>)', page("?locks=-recovery_s"))
    assert "Crash recovery" in chart
    assert re.findall(r"<span>(.*?)</span>", chart) == ["redis-py", "redis", "thread"]
    assert [round(float(width)) for width in re.findall(r'class="sold" width="([\d.]+)%"', chart)] == [100, 99, 0]


@pytest.mark.parametrize(("field", "value", "note"), [("source", "0" * 64, STALE), ("short", True, SHORT)])
def test_a_stale_or_short_result_says_so(file: Path, field: str, value: Any, note: str) -> None:
    for part in PARTS:
        store(file, part, field, value=value)
        assert page().count(note) == 1, part
        assert f"manage.py compare {part}" in page()


def test_the_hash_depends_on_the_measured_code_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, ignored = ("locking/redis/lock.py", "locking/scripts/a.lua"), ("lab/a.py", "shop/migrations/1.py")
    files = {place for places in staleness.MEASURED.values() for place in places if place.endswith(".py")}
    for name in (*measured, *ignored, *files, "inventory/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1")
    monkeypatch.setattr(staleness, "ROOT", tmp_path)
    source_hash = staleness.behaviour_of_comparison.__wrapped__

    def changed_by(name: str) -> set[Part]:
        before = {part: source_hash(part) for part in PARTS}
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\nb = 2")
        return {part for part in PARTS if source_hash(part) != before[part]}

    assert [changed_by(name) for name in ignored] == [set(), set()]
    with_locks = {"strategies", "locks", "segments", "retry-delay"}
    assert [changed_by(name) for name in measured] == [with_locks, with_locks]
    assert changed_by("inventory/a.py") == {"strategies", "segments", "contention"}
    assert changed_by("loadtest/bench/growth.py") == {"strategies"}
    assert changed_by("loadtest/bench/locks.py") == {"locks"}
    assert changed_by("loadtest/bench/contenders.py") == {"locks", "retry-delay"}
    assert changed_by("loadtest/bench/clients.py") == {"strategies", "segments", "contention"}
    assert changed_by("shop/models.py") == {"strategies"}


RATE = ("strategies", "report", "strategies", "guarded-update", "orders_per_s")


@pytest.mark.parametrize(("per_s", "times"), [(1250.0, "5.0"), (25_000.0, "100")])
def test_advice_follows_from_the_stored_figures(file: Path, per_s: float, times: str) -> None:
    store(file, *RATE, value=per_s)
    strategy, library = advice()
    assert "guarded-update, is one statement" in strategy
    assert f"sells {times} times as many orders per second as redis-lock" in strategy
    assert "85 times sooner than with redis-py" in library


@pytest.mark.parametrize("per_s", [270.0, 0.0, None])
def test_unsupported_advice_is_not_given(file: Path, per_s: float | None) -> None:
    store(file, *RATE, value=per_s)
    assert not [text for text in advice() if "guarded-update" in text]


@pytest.mark.parametrize(("part", "left"), [("strategies", ["redis-py"]), ("locks", ["guarded-update"])])
def test_no_argument_rests_on_figures_that_are_out_of_date(file: Path, part: Part, left: list[str]) -> None:
    store(file, part, "source", value="0" * 64)
    assert [name for text in advice() for name in ("guarded-update", "redis-py") if name in text] == left
    assert "No argument that rests on them is shown." in page()
    store(file)
    assert len(advice()) == 2
    assert "No argument that rests on them is shown." not in page()
    # A figure beside a rung says that it is out of date.
    assert [link.figure for link in links_to_comparison("guarded-update")] == ["Orders per second: 1,250"]
    store(file, "strategies", "source", value="0" * 64)
    assert [link.figure for link in links_to_comparison("guarded-update")] == ["Orders per second: out of date"]


def test_an_argument_names_what_was_measured_and_what_was_not(file: Path) -> None:
    locks = {
        "advisory": lock(2500.0, 0.9, (9, 10), 0.003),
        "redis": lock(250.0, 0.6, (31, 33), 9.9),
        "redlock": lock(1600.0, 51.0, (1, 4), 10.0),
        "zookeeper": lock(2500.0, 3.4, (9, 10), 10.0),
    }
    store(file, "locks", "report", "locks", value=locks)
    texts = advice()
    (killed,) = [text for text in texts if "process of its holder was killed" in text]
    assert "3,300 times sooner" in killed
    # The settings of locking/postgres/settings.py give 40 s: 20 s idle, then two probes of 10 s.
    assert "TCP keepalives end the session, which takes 40 s with the settings of this package" in killed
    (polling,) = [text for text in texts if "default retry delay" in text]
    assert "15 times sooner than redlock with its default retry delay of 0.1 s" in polling
    assert '<a href="#retry-delay">The curve' in page()
    (library,) = [text for text in texts if "redis-py" in text]
    assert "which polls every 0.1 s by default" in library


def test_a_protocol_in_python_is_not_called_third_party(file: Path) -> None:
    peers = {"redisson": lock(500.0, 1.2, (1, 9), 9.9), "redis-py": lock(500.0, 51.0, (0, 99), 10.0)}
    store(file, "locks", "report", "peers", value=peers)
    names = [row[0] for row in rows("locks", "?locks=name")]
    assert names == [
        "redis renewal woken",
        "redis-py third-party",
        "redisson protocol of Redisson, in Python",
        "thread",
    ]
    (woken,) = [text for text in advice() if "To be woken is not yet to hold the lock." in text]
    assert "holds it 2.0 times sooner" in woken


def test_the_names_and_defaults_in_the_advice_are_those_that_were_measured() -> None:
    assert "retry_delay" not in inspect.getsource(contenders.redlock)
    assert "sleep" not in inspect.getsource(contenders.redis_py)
    strategies = comparisons.load("strategies")
    names = {"strategies": {row.name for row in strategies.rows}, "locks": set(contenders.ALL)}
    for argument in ARGUMENTS:
        assert {argument.better, argument.worse} <= names[argument.part]


@pytest.mark.slow
def test_rungs_and_their_rows_link_to_each_other() -> None:
    shown = page()
    assert [link for link in re.findall(r'href="#([^"]*)"', shown) if f' id="{link}"' not in shown] == []
    linked = {slug: list(links_to_comparison(slug)) for slug in LADDER}
    sound = {entry.slug for entry in LADDER.values() if entry.claim == "sound"}
    not_measured = {"zookeeper-quorum", "etcd-quorum", "sync-standby-failover"}
    locks = comparisons.load("locks")
    # These locks were added after the stored measurement.
    new = set(contenders.ALL) - {row.name for row in (locks.rows if locks else ())}
    not_measured |= {slug for name in new for slug in comparisons.RUNGS["locks"].get(name, (name,))}
    assert {slug for slug, found in linked.items() if found} == sound - not_measured | {"thread-lock", "process-lock"}
    for slug, found in linked.items():
        for link in found:
            address, _, anchor = link.address.partition("#")
            assert address == PAGE
            (row,) = re.findall(rf'<tr id="{anchor}".*?</tr>', shown)
            assert f'href="/lab/rungs/{slug}/"' in row
    assert all(slug in LADDER for part in TABLES for slugs in comparisons.RUNGS[part].values() for slug in slugs)


@pytest.mark.slow
@needs_zookeeper
def test_the_command_stores_what_it_measures_and_keeps_the_rest(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({"strategies": stored()["strategies"], "locks": {"made": "long ago"}}))
    tiny = ("--only", "thread", "redis-py", "--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1")
    monkeypatch.setitem(measuring.SHORT, "locks", (*tiny, "--idle", "0.1"))
    call_command(Command(), "locks", short=True)

    assert capsys.readouterr().out == "locks: stored.\n"
    assert json.loads(file.read_text())["strategies"] == stored()["strategies"]
    measured = comparisons.load("locks")
    assert (measured.short, measured.stale) == (True, False)
    ours, theirs = measured.rows
    assert (ours.name, ours.rungs, ours.peer, ours.recovery_s) == ("thread", ("thread-lock",), False, None)
    assert (theirs.name, theirs.peer) == ("redis-py", True)
    # redis-py's lock has no renewal, so a dead holder keeps it for the whole TTL.
    assert theirs.recovery_s > 9
    fields = [field for field in Measurement.__annotations__ if field[0] == "p"]
    assert all(getattr(row, field) is not None for row in measured.rows for field in fields)


def test_the_command_refuses_an_unknown_part(file: Path) -> None:
    with pytest.raises(CommandError, match="strategies, locks, segments, contention, retry-delay"):
        call_command(Command(), "lock")
    assert not file.exists()


@pytest.mark.parametrize("text", [None, "{", "null", '{"locks": {}}', '{"locks": {"report": []}}'])
def test_a_missing_or_damaged_file_counts_as_not_measured(file: Path, text: str | None) -> None:
    if text is not None:
        file.write_text(text)
    assert page().count(MISSING) == len(PARTS)
    assert all(f"manage.py compare {part}" in page() for part in PARTS)
    assert "#choose" not in page()


def test_a_lock_too_fast_to_measure_has_no_rate(file: Path) -> None:
    store(file, "locks", "report", "locks", "thread", "pair_us", value=0)
    assert rows("locks")[-1] == ["thread", "–", "0.1", "0.2", "1.00", "–"]
    for figure in ("much", []):
        store(file, "locks", "report", "locks", "redis", "handoff_p50_ms", value=figure)
        assert page().count(MISSING) == 1, "a part with an invalid figure is not shown"
