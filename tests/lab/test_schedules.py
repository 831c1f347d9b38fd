"""The controller, the search and the witnesses: on every rung that one Redis and one Postgres are enough for."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha1
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from inventory import counters
from inventory.draft import Draft, Placement, Save, save_one
from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.strategies import Strategy, stock_lock
from lab.ladder.catalogue import LADDER
from lab.ladder.locks.rung import Event, Invariant
from lab.schedule import verify, witness
from lab.schedule.controller import Controller
from lab.schedule.key import Key
from lab.schedule.runs import Impossible, rehearse, replay
from lab.schedule.sample import sample
from lab.schedule.search import Bounds, Found, explore
from lab.schedule.stage import Stage
from lab.schedule.trials import stock
from lab.schedule.trials.base import TTL, Broken, Trial
from lab.schedule.trials.lock import LockTrial
from lab.schedule.trials.which import can_play, events_of, new_trial
from locking import Lock, RedisLock, wire
from tests.lab.schedule_support import manage, stage

__all__ = ["stage"]

PLAYED = [slug for slug, entry in LADDER.items() if can_play(entry)]
FLAWED = [slug for slug in PLAYED if LADDER[slug].claim == "flawed"]
QUICK = ["renewal", "re-entrant", "fence", "lock-table-for-update", "redis-lock", "guarded-update", "lua", "lua-queue"]
"""Sound rungs that are searched in a second or few; `manage.py ladder --verify` searches them all."""


def searched(slug: str, stage: Stage, *, clients: int | None = None, bounds: Bounds = verify.SOUND) -> Found:
    entry = LADDER[slug]
    return explore(new_trial(entry, stage, clients), bounds, events_of(entry), entry.breaks)


# Witnesses


@pytest.mark.parametrize("slug", FLAWED)
def test_the_stored_witness_breaks_the_invariant_of_its_rung(stage: Stage, slug: str) -> None:
    stored = witness.load(slug)
    assert stored is not None
    assert stored.invariant == LADDER[slug].breaks
    assert [rehearse(stored, stage).broken for _ in range(3)] == [stored.invariant] * 3


@pytest.mark.parametrize("slug", FLAWED)
def test_the_search_finds_a_witness_without_knowing_the_stored_one(
    stage: Stage, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "load", lambda slug: pytest.fail("it looks at what is stored"))
    entry = LADDER[slug]
    found = searched(slug, stage, bounds=verify.bounds_of(entry))
    assert found.run is not None
    assert found.run.broken == entry.breaks
    assert found.run.why


def test_no_witness_is_stored_for_what_is_no_flawed_rung() -> None:
    stored = {path.stem for path in witness.FOLDER.glob("*.json")}
    assert stored <= {slug for slug, entry in LADDER.items() if entry.claim == "flawed"}


# Sound rungs


@pytest.mark.parametrize("slug", QUICK)
def test_a_sound_rung_holds_in_every_schedule(stage: Stage, slug: str) -> None:
    found = searched(slug, stage)
    assert (found.run, found.exhausted) == (None, True)
    assert found.schedules > 5


@pytest.mark.parametrize("slug", ["renewal", "lua-queue"])
def test_schedules_are_as_many_each_time(stage: Stage, slug: str) -> None:
    assert searched(slug, stage).schedules == searched(slug, stage).schedules


def test_three_clients_share_a_sound_lock(stage: Stage) -> None:
    found = searched("woken", stage, clients=3, bounds=Bounds(preemptions=1, events=1))
    assert (found.run, found.exhausted, found.clients) == (None, True, 3)


# New flaws


def mutant(name: str, old: str, new: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a script of `locking`, and let the server know it, as it knows the others."""
    plain = wire.script

    def changed(asked: str) -> tuple[str, str]:
        text, digest = plain(asked)
        if asked != name:
            return text, digest
        assert old in text
        text = text.replace(old, new)
        stage.redis.script_load(text)
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    monkeypatch.setattr(wire, "script", changed)


class AroundTheTransaction(Strategy):
    """Lock, look, subtract, commit, unlock: the lock is all that protects it, and it is enough."""

    name = "around"

    def _place(self, order: Draft, save: Save) -> Placement:
        with stock_lock(order.skus[0]).hold(60), transaction.atomic(durable=True):
            self.sell(order, save)
        return Placement.COMMITTED

    def sell(self, order: Draft, save: Save) -> None:
        (line,) = order.lines
        left = StockItem.objects.get(sku=line.sku).on_hand
        if left < line.quantity:
            raise SoldOut(line.sku, wanted=line.quantity, left=left)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE inventory_stockitem SET on_hand = %s WHERE sku = %s", [left - 1, line.sku])
        save_one(order, save)


class InsideTheTransaction(AroundTheTransaction):
    """The same, but it unlocks before it commits."""

    def _place(self, order: Draft, save: Save) -> Placement:
        with transaction.atomic(durable=True), ExitStack() as leases:
            leases.enter_context(stock_lock(order.skus[0]).hold(60))
            self.sell(order, save)
        return Placement.COMMITTED


@pytest.mark.parametrize(("strategy", "broken"), [(AroundTheTransaction, None), (InsideTheTransaction, "conserved")])
def test_a_commit_after_the_unlock_is_found(
    stage: Stage, strategy: Callable[[], Strategy], broken: Invariant | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stock.NEW, "redis-lock", strategy)
    trial = new_trial(LADDER["redis-lock"], stage)
    found = explore(trial, Bounds(preemptions=2, events=0), (), None)
    assert (found.run and found.run.broken) == broken


AGAIN = """redis.call('SET', KEYS[1], ARGV[1])
if true then
    return 1
end"""
"""What takes the lock for its holder again, and for ever, whether or not it is still his."""


@pytest.mark.parametrize(
    ("events", "broken"), [(("tick",), "progress"), (("late release", "expiry", "crash"), None)], ids=["tick", "others"]
)
def test_a_renewal_that_comes_after_the_release_is_found(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: tuple[Event, ...], broken: Invariant | None
) -> None:
    """It takes a watchdog whose command is on the way while its holder goes on."""
    owner = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then\n    return 0\nend"
    mutant("extend", owner, AGAIN, stage, monkeypatch)
    found = explore(new_trial(LADDER["renewal"], stage), Bounds(preemptions=2, events=1), events, None)
    assert (found.run and found.run.broken) == broken
    assert found.run is None or "A's watchdog" in found.run.schedule


class Apart(LockTrial):
    """Everybody has a lock of his own, and says whether he still has it."""

    def enters(self, name: str) -> None:
        self.inside.append(name)

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        return []

    def work(self, name: str, client: Any, lock: Lock) -> str:
        lease = RedisLock(client, name, ttl=TTL, clock=self.stage.clock).acquire()
        assert lease is not None
        with self.at_work(name):
            client.get("stock")
        return "lost" if lease.lost else "held"


@pytest.mark.parametrize(
    ("event", "answers"),
    [("pause A", {"A": "lost", "B": "held"}), ("expiry", {"A": "held", "B": "held"})],
)
def test_the_watchdogs_of_those_who_are_not_paused_get_their_turns(
    stage: Stage, event: str, answers: Mapping[str, str]
) -> None:
    todo = ["A", "B", event]
    trial = Apart(LADDER["renewal"], stage, 2)
    run = Controller(trial, lambda point: todo.pop(0) if todo else point.enabled[0], events=("pause", "expiry")).play()
    assert run.answers == answers
    assert run.schedule[:3] == ["A", "B", event]


def test_while_a_watchdog_is_about_to_renew_no_other_time_passes(stage: Stage) -> None:
    trace = replay("renewal", ["A", "tick A"], stage)
    assert [choice.name for choice in trace.choices] == ["A", "A's watchdog", "B", "crash A", "crash B"]
    assert trace.choices[1].does == "extend.lua: lock:{stock} lock:{stock}:fence lock:{stock}:waiters"
    trace = replay("renewal", ["A", "tick A", "A's watchdog"], stage)
    assert [choice.name for choice in trace.choices] == ["A", "B", "crash A", "crash B", "expiry", "tick A"]
    assert (trace.steps[-1].actor, trace.steps[-1].choice) == ("A", "A's watchdog")


def test_the_watchdog_of_who_dies_dies_with_him(stage: Stage) -> None:
    trace = replay("renewal", ["A", "tick A", "crash A"], stage)
    assert [choice.name for choice in trace.choices] == ["B", "crash B", "late release"]


def test_who_is_told_twice_to_try_again_does(stage: Stage) -> None:
    """Each of the two events that a deep search allows may make a grant come too late."""
    late = ("A", "expiry", "A", "A", "A", "B", "B", "late release", "B", "B")
    trace = replay("renewal", late, stage, clients=2, to_the_end=True)
    assert (trace.broken, trace.ledger) == (None, {"received": 10, "left": 8, "told yes": 2})


def test_where_no_third_client_may_come_a_deep_search_asks_none(stage: Stage) -> None:
    said = verify.deep("file-lock", stage, schedules=5)
    assert [search["clients"] for search in said["deep"]] == [2]


def test_a_deep_search_goes_further_and_says_where_it_ended(stage: Stage) -> None:
    said = verify.deep("lua-queue", stage, schedules=20)
    assert (said["verdict"], said["exhausted"]) == ("held", True), "the usual bounds"
    bounds = [(search["clients"], search["preemptions"], search["events"]) for search in said["deep"]]
    assert bounds == [(2, 3, 2), (3, 2, 2)]
    extent = [(search["schedules"], search["sampled"], search["exhausted"]) for search in said["deep"]]
    assert extent == 2 * [(25, 5, False)]
    assert [search["completed"] for search in said["deep"]] == [0, 0]


def test_where_a_search_in_order_gives_up_a_random_one_goes_on(stage: Stage) -> None:
    """What breaks it is beyond the first twenty schedules in order, and one of a few hundred draws meets it."""
    entry = LADDER["set-nx-ex"]
    found = verify.find(entry, stage, Bounds(preemptions=2, events=1, schedules=20), lambda done: None, 3)
    assert found.run is None
    assert (found.schedules, found.sampled, found.completed) == (25, 5, 1)
    beyond = sample(new_trial(entry, stage, 3), Bounds(preemptions=2, events=1), events_of(entry), entry.breaks, 1000)
    assert beyond.run is not None
    assert beyond.run.broken == entry.breaks


def test_a_deep_search_that_breaks_a_rung_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stock.NEW, "redis-lock", InsideTheTransaction)
    said = verify.deep("redis-lock", stage, schedules=300)
    assert said["verdict"] == "broken"
    assert "A" in said["why"]
    assert not verify.reproduced(said)


def test_a_wrong_comparison_in_the_stock_script_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = counters.SCRIPTS["take"]
    wrong = plain.replace("< line[2]", "<= line[2]")
    assert wrong != plain
    stage.redis.script_load(wrong)
    monkeypatch.setitem(counters.SCRIPTS, "take", wrong)
    found = searched("lua", stage)
    assert found.run is not None
    assert found.run.broken == "no false refusal"


# The search itself


@contextmanager
def without_pruning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    numbers = count()
    with monkeypatch.context() as patch:
        patch.setattr(Key, "value", lambda self, *rest: next(numbers))
        yield


def outcomes(slug: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Every end that the schedules of a rung come to, and how many schedules it took to see them."""
    trial: Trial = new_trial(LADDER[slug], stage)
    seen: set[str] = set()
    plain = trial.ledger

    def noted(answers: Any) -> Any:
        said = plain(answers)
        seen.add(json.dumps([answers, dict(said)], sort_keys=True))
        return said

    monkeypatch.setattr(trial, "ledger", noted)
    # No rung of these breaks it, so all are run.
    found = explore(trial, Bounds(preemptions=2, events=1), events_of(LADDER[slug]), "once")
    assert found.exhausted
    return seen, found.schedules


@pytest.mark.parametrize(
    "slug", ["no-lock", "fence-on-write-only", "set-nx-ex", "watch-release", "redis-lock", "subtract-in-sql", "lua"]
)
def test_pruning_leaves_out_no_outcome(stage: Stage, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned, few = outcomes(slug, stage, monkeypatch)
    with without_pruning(monkeypatch):
        everything, many = outcomes(slug, stage, monkeypatch)
    assert pruned == everything
    # In these two each step is in the way of every other.
    assert few == many if slug in ("no-lock", "subtract-in-sql") else few < many


def test_three_who_wait_for_each_other_are_cleared_away(stage: Stage) -> None:
    """Who waits in this process for one that is killed must not take what that one held, and keep it."""
    for _ in range(10):
        began = time.monotonic()
        assert replay("file-lock", [], stage, clients=3).broken is None
        assert time.monotonic() - began < 10


def test_no_other_thread_is_stopped(stage: Stage) -> None:
    """Whoever is no actor passes every hook."""
    began = time.monotonic()
    assert stage.new_redis().set("somebody", "else")
    with stage.ours(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert time.monotonic() - began < 5


# Replays


def test_a_schedule_that_is_not_over_says_what_may_come_next(stage: Stage) -> None:
    trace = replay("set-nx-ex", ["A", "A", "A"], stage)
    assert [choice.name for choice in trace.choices] == ["A", "B", "C", "late release"]
    assert [choice.event for choice in trace.choices] == [False, False, False, True]
    assert trace.choices[0].does == "DEL rung:stock"
    assert not trace.ended
    assert [step.does for step in trace.steps] == ["SET rung:stock locked NX PX 30000", "GET stock", "SET stock 9"]
    assert [step.holders for step in trace.steps] == [("A",), ("A",), ()]


@pytest.mark.parametrize("schedule", [["D"], ["A", "A", "A", "A", "A"], ["late release"], ["crash A"], ["nonsense"]])
def test_what_cannot_come_next_is_refused(stage: Stage, schedule: list[str]) -> None:
    with pytest.raises(Impossible, match="What can"):
        replay("set-nx-ex", schedule, stage)


def test_who_waits_in_a_server_is_shown_as_waiting(stage: Stage) -> None:
    trace = replay("renewal", ["A", "B", "B"], stage)
    assert trace.steps[-1].blocked == ("B",)
    trace = replay("row-lock", ["A", "A", "B", "B"], stage)
    assert trace.steps[-1].blocked == ("B",)


def test_who_crashes_leaves_nothing_open_and_is_told_nothing(stage: Stage) -> None:
    trace = replay("guarded-update", ["A", "A", "crash A"], stage, to_the_end=True)
    assert trace.steps[-1].answers == {"A": "crashed", "B": "sold"}
    assert trace.ledger == {"received": 1, "on hand": 0, "sold": 1}


@pytest.mark.django_db
def test_a_replay_leaves_nothing_in_the_shop(stage: Stage) -> None:
    replay("redis-lock", [], stage, to_the_end=True)
    assert not StockItem.objects.filter(sku=stock.SKU).exists()


@pytest.mark.parametrize(
    ("slug", "why"),
    [
        ("owner-as-text", "not before the TTL is over."),
        ("wrong-argument", "not before the TTL is over."),
        ("exception-leaves-the-lock", "not before the TTL is over."),
        ("lost-wake-up", "nothing that they wait for will ever come."),
        ("setnx", "not even time has helped."),
    ],
)
def test_who_cannot_enter_is_told_whether_time_will_help(stage: Stage, slug: str, why: str) -> None:
    stored = witness.load(slug)
    assert stored is not None
    trace = replay(slug, stored.schedule, stage, to_the_end=True)
    assert trace.why == f"Nobody is inside, and still B cannot enter: {why}"
    left = [row["ttl"] for row in trace.steps[-1].state if row["where"] == "redis" and row["ttl"]]
    assert bool(left) == (why == "not before the TTL is over.")


# Commands


def test_verify_reports_each_claim_as_json(stage: Stage) -> None:
    done = manage("ladder", "--verify", "--json", "get-then-set", "lua-queue")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    flawed, sound = said["rungs"]
    assert said["schedules_per_s"] > 0
    assert (flawed["rung"], flawed["claim"], flawed["verdict"]) == ("get-then-set", "flawed", "broken")
    assert (flawed["replays"], flawed["broken"]) == (20, 20)
    assert (sound["rung"], sound["claim"], sound["verdict"]) == ("lua-queue", "sound", "held")
    assert (sound["exhausted"], sound["clients"], sound["preemptions"], sound["events"]) == (True, 2, 2, 1)
    keys = "rung track claim verdict replays broken schedules exhausted clients preemptions events seconds"
    assert {*keys.split()} == {*flawed} == {*sound} - {"also", "completed", "sampled"}
    (crowd,) = sound["also"]
    assert (crowd["clients"], crowd["preemptions"], crowd["events"], crowd["exhausted"]) == (3, 2, 1, True)


@pytest.mark.parametrize(("broken", "replays"), [(None, 0), (3, verify.REPLAYS)])
def test_a_flawed_rung_that_is_not_reproduced_has_a_whole_line(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, broken: int | None, replays: int
) -> None:
    """Whether there is no witness, or one that breaks it now and then."""
    if broken is None:
        monkeypatch.setattr(verify, "load", lambda slug: None)
    monkeypatch.setattr(verify, "breaks", lambda *arguments: broken)
    line = verify.check("no-lock", stage)
    assert (line["verdict"], line["broken"], line["replays"], line["schedules"]) == (
        "held",
        broken or 0,
        replays,
        replays,
    )
    assert {"clients", "preemptions", "events"} < {*line}
    assert not verify.reproduced(line)


def test_a_rung_whose_server_is_not_installed_says_so_and_the_others_are_checked(stage: Stage, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}  # and so no Java
    verify_both = "ladder", "--verify", "zookeeper", "get-then-set"
    done = manage(*verify_both, "--json", **nothing)
    assert done.returncode == 1
    assert "Not reproduced: zookeeper (ZooKeeper is not installed: apt-get install zookeeper)." in done.stderr
    assert "Traceback" not in done.stderr
    checked, missing = json.loads(done.stdout.splitlines()[-1])["rungs"]
    assert (checked["rung"], checked["verdict"], checked["broken"]) == ("get-then-set", "broken", 20)
    assert (missing["rung"], missing["claim"], missing["verdict"]) == ("zookeeper", "sound", "missing")
    assert (missing["schedules"], missing["exhausted"]) == (0, False)
    assert "ZooKeeper is not installed" in missing["missing"]
    assert {*missing} == {*checked, "missing"}
    table = manage(*verify_both, **nothing)
    assert table.returncode == 1
    assert "missing" in table.stdout
    assert "apt-get install zookeeper" in table.stdout


def test_a_rung_whose_server_is_not_installed_is_not_left_to_chance(stage: Stage, tmp_path: Path) -> None:
    before = witness.CONTROL.read_bytes()
    done = manage("ladder", "--control", "zookeeper", "--tries", "1", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "Not left to chance: zookeeper (ZooKeeper is not installed: apt-get install zookeeper)." in done.stderr
    assert "Traceback" not in done.stderr
    assert witness.CONTROL.read_bytes() == before


@pytest.mark.parametrize("command", ["explore", "replay"])
def test_a_command_names_the_server_that_is_not_installed(stage: Stage, tmp_path: Path, command: str) -> None:
    done = manage(command, "zookeeper", *(["A,B"] if command == "replay" else []), PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("CommandError: ZooKeeper is not installed: apt-get install zookeeper\n")


def test_what_could_not_be_checked_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "VERDICTS", tmp_path / "verdicts.json")
    verify.keep(verify.unchecked("zookeeper", "ZooKeeper is not installed"))
    assert witness.verdict("zookeeper") is None


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("explore", "no-lock"), 0, "is broken (conserved)"),
        (("explore", "no-lock", "--preemptions", "0"), 1, "held. All"),
        (("explore", "nothing"), 2, "There is no rung nothing"),
        (("explore", "no-lock", "--clients", "9"), 2, "--clients: a number from 1 to 6, and not 9"),
        (("replay", "no-lock"), 0, "Broken: conserved"),
        (("replay", "no-lock", "A,Z"), 2, "'Z' cannot come next"),
        (("replay", "no-lock", " A, B ,B,A"), 0, "Broken: conserved"),
        (("replay", "no-lock", "A,B,C,C,B,A"), 2, "'C' cannot come next"),
        (("replay", "no-lock", "A,B,C,C,B,A", "--clients", "3"), 0, "Broken: conserved"),
        (("replay", "no-lock", "--on", "renewal"), 0, "Nothing is broken"),
        (("ladder", "renewal", "--verify", "--tries", "5"), 2, "goes with --control"),
        (("ladder",), 0, "get-compare-del"),
    ],
)
def test_a_command_says_what_it_found(stage: Stage, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = manage(*arguments)
    assert says in done.stdout + done.stderr
    assert done.returncode == status


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("explore", "no-lock", "--clients", "0"), "--clients: a number from 1 to 6, and not 0"),
        (("explore", "fence", "--schedules", "0"), "--schedules: a number from 1, and not 0"),
        (("explore", "fence", "--preemptions", "-1"), "--preemptions: a number from 0, and not -1"),
        (("explore", "fence", "--events", "one"), "--events: a number from 0, and not one"),
        (("replay", "no-lock", "--clients", "7"), "--clients: a number from 1 to 6, and not 7"),
        (("replay", "no-lock", "--on", "nothing"), "There is no rung nothing"),
        (("replay", "nothing"), "There is no rung nothing"),
        (("ladder", "nothing", "--verify"), "There is no rung nothing"),
        (("ladder", "renewal", "--verify", "--schedules", "5"), "goes with --deep"),
        (("ladder", "renewal", "--deep", "--schedules", "0"), "--schedules: a number from 1, and not 0"),
        (("ladder", "renewal", "--control", "--tries", "0"), "--tries: a number from 1, and not 0"),
    ],
)
def test_what_is_out_of_bounds_is_refused(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command(*arguments)


def test_what_the_search_tells_to_type_shows_what_it_found(stage: Stage) -> None:
    found = manage("explore", "setnx", "--clients", "3")
    assert found.returncode == 0, found.stderr
    hint = found.stdout.splitlines()[-1].partition("See it: manage.py ")[2]
    assert "C" in hint
    shown = manage(*shlex.split(hint))
    assert shown.returncode == 0, shown.stderr
    assert f"Broken: {LADDER['setnx'].breaks}" in shown.stdout


def test_a_kept_verdict_is_out_of_date_when_the_source_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "VERDICTS", tmp_path / "verdicts.json")
    assert witness.verdict("renewal") is None
    line = {"rung": "renewal", "claim": "sound", "verdict": "held", "schedules": 111, "exhausted": True, "clients": 2}
    verify.keep({**line, "preemptions": 2, "events": 1, "deep": [{"schedules": 5}]})
    verify.keep({**line, "preemptions": 2, "events": 1})
    kept = witness.verdict("renewal")
    assert kept is not None
    assert (kept["schedules"], kept["deep"], kept["outdated"]) == (111, [{"schedules": 5}], False)
    monkeypatch.setattr(witness, "source_hash", lambda entry: "another")
    kept = witness.verdict("renewal")
    assert kept is not None
    assert kept["outdated"]
    verify.keep({**line, "preemptions": 2, "events": 1})
    kept = witness.verdict("renewal")
    assert kept is not None
    assert "deep" not in kept, "it was of another source"
