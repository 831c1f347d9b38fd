"""The race: real bursts in a shop of its own, one at a time, and nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import psutil
import pytest
from django.conf import settings
from django.test import Client
from django_redis import get_redis_connection
from redis import Redis

from lab.ladder.stock import RUNGS
from lab.sandbox import isolation
from lab.site.race import pages, run
from lab.site.race.run import Race, Racer, RaceRunning
from locking import RedisLock
from servers import ServerError
from shop.models import Order, Product, Sale
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

RACE = "/lab/race/"
NOWHERE = f"{RACE}00000000-0000-4000-8000-000000000000/"
CHOICE = {"racers": ["compute-and-overwrite", "guarded-update"], "clients": "20", "stock": "20"}


@pytest.fixture
def visitor(redis: Redis) -> Iterator[Client]:
    """Somebody without an account. Whatever raced is over before the next test."""
    yield Client()
    wait_for_its_end()


def wait_for_its_end() -> None:
    """Whatever races has ended, and somebody else may race."""
    lock = RedisLock(get_redis_connection("default"), "lab-race", ttl=10.0)
    wait_for(lambda: lock.acquire(blocking=False), "the race to end", timeout=60).release()


def processes() -> list[psutil.Process]:
    """Whatever runs for a race of ours."""
    ours = str(isolation.folder(run.FOLDER).path)
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get("RUN_FOLDER") == ours or ours in " ".join(process.cmdline())
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def bars(visitor: Client, address: str) -> str:
    answer = visitor.get(f"{address}bars/")
    assert answer.status_code == 200
    return answer.content.decode()


def over(visitor: Client, address: str) -> str:
    """The bars once the race is over."""
    return wait_for(lambda: said if "data-over" in (said := bars(visitor, address)) else "", timeout=120)


def let_its_time_be_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "START_SECONDS", 0)
    monkeypatch.setattr(run, "RACER_SECONDS", 0)


# Choosing


def test_everything_that_sells_on_servers_of_its_own_may_race(visitor: Client) -> None:
    page = visitor.get(RACE)
    assert page.status_code == 200
    offered = re.findall(r'name="racers" value="([^"]+)"', page.content.decode())
    assert offered == [*RUNGS, *run.STRATEGIES]
    assert not run.ELSEWHERE & set(offered)
    assert "It touches nothing of this shop, so anybody may start one" in " ".join(page.content.decode().split())


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": "9"},
        {"clients": "201"},
        {"clients": "many"},
        {"stock": "0"},
        {"stock": "501"},
        {"racers": []},
        {"racers": ["redlock"]},
        {"racers": ["lua; reboot"]},
        {"racers": [*run.STRATEGIES[: run.MOST_RACERS + 1]]},
    ],
    ids=str,
)
def test_what_is_out_of_bounds_starts_nothing(visitor: Client, wrong: dict[str, Any]) -> None:
    answer = visitor.post(RACE, {**CHOICE, **wrong})
    assert answer.status_code == 400
    assert 'class="trouble"' in answer.content.decode()
    assert processes() == []
    assert get_redis_connection("default").keys("lab:race:*") == []


def test_a_page_of_another_site_cannot_start_a_race(redis: Redis) -> None:
    assert Client(enforce_csrf_checks=True).post(RACE, CHOICE).status_code == 403
    assert processes() == []


def test_there_is_no_race_that_nobody_has_started(visitor: Client) -> None:
    for address in (NOWHERE, f"{NOWHERE}bars/"):
        answer = visitor.get(address)
        assert answer.status_code == 404
        assert RACE in answer.content.decode()


@pytest.mark.parametrize("address", [RACE, NOWHERE, f"{NOWHERE}bars/"])
def test_without_the_lab_there_is_no_race(lab_disabled: None, visitor: Client, address: str) -> None:
    assert visitor.get(address).status_code == 404


# Racing


def test_a_race_ends_with_verdicts_and_leaves_the_shop_as_it_was(visitor: Client) -> None:
    started = visitor.post(RACE, CHOICE)
    assert started.status_code == 302
    address = started["Location"]
    assert "data-address" in visitor.get(address).content.decode()

    second = Client().post(RACE, CHOICE)
    assert (second.status_code, second["Retry-After"]) == (503, "60")
    assert "Another race is running" in second.content.decode()

    said = over(visitor, address)
    flawed, sound = re.findall(r'<section class="racer".*?</section>', said, re.DOTALL)
    assert "<b>20</b> sold of 20" in sound
    assert "conserved: every unit sold at most once" in sound
    assert "broken: " in flawed
    assert int(re.findall(r"<b>(\d+)</b> sold of 20", flawed)[0]) > 20
    assert 'class="over"' in flawed
    assert 'class="over"' not in sound

    page = visitor.get(address).content.decode()
    assert "data-address" not in page
    assert "The race is over: 1 held, 1 did not." in page
    wait_for(lambda: processes() == [], "the race's processes to end")
    assert not isolation.folder(run.FOLDER).path.exists()
    assert not Order.objects.exists()
    assert not Product.objects.exists()
    assert not Sale.objects.exists()


def test_when_its_time_is_up_a_race_is_stopped_with_all_that_it_started(
    visitor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many racers that they have no verdict yet when the shop has started.
    started = visitor.post(RACE, {**CHOICE, "racers": run.STRATEGIES[: run.MOST_RACERS], "stock": "500"})
    wait_for(lambda: len(processes()) > 3, "the race's shop to start")
    let_its_time_be_up(monkeypatch)
    assert "no verdict: the time was up" in over(visitor, started["Location"])
    wait_for(lambda: processes() == [], "all that it started to end")
    assert not isolation.folder(run.FOLDER).path.exists()


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


def test_a_child_that_does_not_stop_is_killed_with_its_process_group(
    visitor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "command", lambda race: [sys.executable, "-c", STUBBORN])
    monkeypatch.setattr(run, "STOP_SECONDS", 0.5)
    race = run.start(["lua"], clients=10, stock=10, visitor="somebody")
    wait_for(lambda: len(processes()) == 2, "the child and its own")
    let_its_time_be_up(monkeypatch)
    said = over(visitor, f"{RACE}{race.id}/")
    assert "no verdict: the time was up" in said
    wait_for(lambda: processes() == [], "both to be gone")


def test_a_child_that_is_killed_leaves_nothing_once_its_servers_have_ended(
    visitor: Client, caplog: pytest.LogCaptureFixture
) -> None:
    race = run.start(["row-lock"], clients=200, stock=500, visitor="somebody")
    wait_for(lambda: race.racers[0].answered, "the burst, of which Postgres has something to write when it ends")
    (child,) = (process for process in processes() if process.ppid() == os.getpid())
    child.send_signal(signal.SIGKILL)
    assert "no verdict: the race ended early" in over(visitor, f"{RACE}{race.id}/")
    assert not isolation.folder(run.FOLDER).path.exists()
    assert [record.getMessage().split(". ")[0] for record in caplog.records] == [
        f"The race {race.id} ended with status -9"
    ]
    wait_for(lambda: processes() == [], "the race's processes to end")


def test_a_folder_is_removed_when_its_servers_have_ended_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    own, servers = isolation.folder("removed"), isolation.folder("removed")
    own.create()
    assert servers.ownership.take()
    removal = threading.Thread(target=isolation.remove, args=(own,))
    removal.start()
    removal.join(0.3)
    assert removal.is_alive()
    servers.ownership.release()
    wait_for(lambda: not own.path.exists(), "its removal")
    removal.join()
    own.create()
    assert servers.ownership.take()
    monkeypatch.setattr(isolation, "PATIENCE", 0.0)
    with pytest.raises(ServerError, match="its servers run"):
        isolation.remove(own)
    servers.ownership.release()
    own.delete()


LONELY = """
import os, sys, time
import django
django.setup()
from lab.race import pages, run
race = run.start(["lua"], clients=10, stock=10, visitor="somebody")
print(race.id, flush=True)
time.sleep(600)
"""


def test_a_race_ends_with_the_web_process_that_started_it(visitor: Client) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.runtime.settings",
        "RUN_FOLDER": str(settings.RUN_FOLDER.path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", LONELY], cwd=settings.BASE_DIR, env=environment, stdout=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        race = web.stdout.readline().strip()
        wait_for(lambda: len(processes()) > 3, "the race's shop to start")
        web.send_signal(signal.SIGKILL)
    wait_for(lambda: processes() == [], "the race's processes to end")
    assert "data-over" not in bars(visitor, f"{RACE}{race}/")


def test_a_race_of_which_nothing_is_heard_any_more_has_ended(visitor: Client) -> None:
    race = Race(str(uuid4()), 10, 10, [Racer("lua", wanted=20, answered=3)])
    race.keep()
    assert "data-over" not in bars(visitor, f"{RACE}{race.id}/")
    race.told = 0.0
    values = {**vars(race), "racers": [vars(racer) for racer in race.racers]}
    store(race.id, values)
    assert "no verdict: the race ended early" in over(visitor, f"{RACE}{race.id}/")


def store(race: str, values: dict[str, Any]) -> None:
    get_redis_connection("default").set(f"lab:race:{race}", json.dumps(values))


def test_one_race_at_a_time_whoever_asks(visitor: Client) -> None:
    with RedisLock(get_redis_connection("default"), "lab-race", ttl=10.0).hold(), pytest.raises(RaceRunning):
        run.start(["lua"], clients=10, stock=10, visitor="somebody")
    assert processes() == []


@pytest.mark.parametrize("proxies", [0, 1])
def test_who_has_raced_enough_waits_and_others_race(
    redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, proxies: int
) -> None:
    """Behind a proxy a visitor is whoever the proxy says that he is, and nowhere whoever he says himself."""
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": proxies}
    # One race may take that long. It takes less, but something.
    racers = [run.Racer(name) for name in CHOICE["racers"]]
    monkeypatch.setattr(run, "OF_ONE_VISITOR", run.Race("", 1, 1, racers).limit + 0.001)
    monkeypatch.setattr(run, "command", lambda race: [sys.executable, "-c", ""])

    def start(address: str, claims: str = "10.9.9.9") -> Any:
        by, forwarded = ("10.0.0.1", f"{claims}, {address}") if proxies else (address, claims)
        return Client().post(RACE, CHOICE, REMOTE_ADDR=by, headers={"X-Forwarded-For": forwarded})

    assert start("10.0.0.2").status_code == 302
    wait_for_its_end()
    for claims in ("10.9.9.9", "10.9.9.8"):
        refused = start("10.0.0.2", claims)
        assert refused.status_code == 429
        assert 0 < int(refused["Retry-After"]) <= run.HOUR
        assert "others may want to race" in refused.content.decode()
        assert refused.content.decode().count(" checked") == len(CHOICE["racers"])
    assert start("10.0.0.3").status_code == 302
    wait_for_its_end()
    assert processes() == []


def test_a_race_of_a_process_that_dies_counts_for_as_long_as_it_might_have_taken(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = run.Race("", 1, 1, [run.Racer("lua")])
    monkeypatch.setattr(run, "OF_ONE_VISITOR", 2 * race.limit)
    run._charge(race, "somebody")
    run._charge(race, "somebody")
    with pytest.raises(run.EnoughRaced):
        run._charge(race, "somebody")
    run._give_change(race, "somebody", 1.0)
    with pytest.raises(run.EnoughRaced):
        run._charge(race, "somebody")
    run._give_change(race, "somebody", race.limit - 1.0)
    run._give_change(race, "somebody", 0.0)
    run._charge(race, "somebody")
    assert 0 < redis.ttl(run._key_of("somebody")) <= run.HOUR


def test_a_visitor_who_has_not_raced_for_long_races_again(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "command", lambda race: [sys.executable, "-c", ""])
    for _ in range(2):
        started = visitor.post(RACE, CHOICE)
        assert started.status_code == 302
        over(visitor, started["Location"])
        wait_for_its_end()


def test_a_child_knows_nothing_that_leads_to_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "PAYMENT_SECRET", "REDLOCK_URLS", "ETCD_URL", "PGPASSWORD")
    for name in secrets:
        monkeypatch.setenv(name, "the shop's")
    passed_on = isolation.environment(isolation.folder("race"))
    assert "the shop's" not in passed_on.values()
    assert passed_on["RUN_FOLDER"] != str(settings.RUN_FOLDER.path)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"oversold": 3, "sold": 13, "on_hand": 2}, ["3 sold that never existed"]),
        ({"on_hand": -3, "sold": 13, "oversold": 3}, ["3 sold that never existed", "-3 on hand"]),
        ({"missing": 2}, ["2 promised orders missing"]),
        ({"unserved": 1, "on_hand": 1, "sold": 9}, ["1 refused with units left for them"]),
        ({"sold": 8}, ["2 units unaccounted for"]),
    ],
)
def test_the_verdict_says_what_is_broken(result: dict[str, int], words: Sequence[str]) -> None:
    sound = {"stock": 10, "sold": 10, "on_hand": 0, "oversold": 0, "missing": 0, "unserved": 0, "errors": 0}
    assert list(pages.reasons({**sound, **result})) == words


def test_bars_show_what_was_answered_last_until_there_is_a_verdict() -> None:
    race = Race(str(uuid4()), 10, 100, [Racer("lua")], told=time.time())
    race.take({"name": "lua", "wanted": 200})
    race.take({"name": "lua", "answered": 40, "refused": 0, "busy": 1, "p50_ms": 12.0, "p99_ms": 30.0})
    race.take({"name": "lua", "answered": 40, "refused": 0, "busy": 1, "p50_ms": 0.0, "p99_ms": 0.0})
    (racer,) = race.racers
    assert (racer.answered, racer.p50_ms, racer.p99_ms, racer.ended) == (40, 12.0, 30.0, False)
