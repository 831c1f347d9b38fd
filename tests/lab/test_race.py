"""The race: real bursts in a separate shop, one race at a time, and no process or file is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
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
from lab.site.race import child, form, quota, standings, state
from lab.site.race.start import race_lock, start_race
from lab.site.race.state import Race, Racer
from servers import ServerError
from servers.folder import RunFolder
from shop.models import Order, Product, Sale
from tests.servers.support import processes_in
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

RACE = "/lab/race/"
UNKNOWN = f"{RACE}00000000-0000-4000-8000-000000000000/"
CHOICE = {"racers": ["compute-and-overwrite", "guarded-update"], "clients": "20", "stock": "20"}
NOTHING = [sys.executable, "-c", ""]
"""The command of a child process that ends at once."""


@pytest.fixture
def visitor(redis: Redis) -> Iterator[Client]:
    """A visitor without an account. After the test, the fixture waits until no race runs."""
    yield Client()
    wait_until_no_race_runs()


def wait_until_no_race_runs() -> None:
    wait_for(lambda: race_lock().acquire(blocking=False), "the race to end", timeout=60).release()


def processes() -> list[psutil.Process]:
    """Return every process that belongs to a race."""
    return processes_in(isolation.folder(child.FOLDER).path)


def assert_nothing_is_left() -> None:
    wait_for(lambda: processes() == [], "the race's processes to end")
    assert not isolation.folder(child.FOLDER).path.exists()


def bars(visitor: Client, address: str) -> str:
    response = visitor.get(f"{address}bars/")
    assert response.status_code == 200
    return response.content.decode()


def final_bars(visitor: Client, address: str) -> str:
    return wait_for(lambda: page if "data-over" in (page := bars(visitor, address)) else "", timeout=120)


def start(name: str, *, clients: int = 10, stock: int = 10) -> Race:
    return start_race([name], clients=clients, stock=stock, visitor="visitor")


def end_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "START_SECONDS", 0)
    monkeypatch.setattr(state, "RACER_SECONDS", 0)


def test_everything_that_needs_no_other_servers_may_race(visitor: Client) -> None:
    page = visitor.get(RACE)
    assert page.status_code == 200
    offered = re.findall(r'name="racers" value="([^"]+)"', page.content.decode())
    assert offered == [*RUNGS, *form.STRATEGIES]
    assert not form.NEEDS_OTHER_SERVERS & set(offered)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"clients": clients} for clients in ("9", "201", "many")),
        *({"stock": stock} for stock in ("0", "501")),
        *({"racers": racers} for racers in ([], ["redlock"], ["lua; reboot"], [*form.STRATEGIES[:7]])),
    ],
    ids=str,
)
def test_a_choice_out_of_bounds_starts_nothing(visitor: Client, wrong: dict[str, Any]) -> None:
    response = visitor.post(RACE, {**CHOICE, **wrong})
    assert response.status_code == 400
    assert 'class="trouble"' in response.content.decode()
    assert processes() == []
    assert get_redis_connection("default").keys("lab:race:*") == []


def test_another_site_cannot_start_a_race_and_an_unknown_one_is_not_found(visitor: Client) -> None:
    assert Client(enforce_csrf_checks=True).post(RACE, CHOICE).status_code == 403
    assert processes() == []
    for address in (UNKNOWN, f"{UNKNOWN}bars/"):
        response = visitor.get(address)
        assert response.status_code == 404
        assert RACE in response.content.decode()


def test_a_race_ends_with_verdicts_and_leaves_the_shop_unchanged(visitor: Client) -> None:
    started = visitor.post(RACE, CHOICE)
    assert started.status_code == 302
    address = started["Location"]
    assert "data-address" in visitor.get(address).content.decode()

    second = Client().post(RACE, CHOICE)
    assert (second.status_code, second["Retry-After"]) == (503, "60")
    assert "Another race is running" in second.content.decode()

    sections = re.findall(r'<section class="racer".*?</section>', final_bars(visitor, address), re.DOTALL)
    flawed, sound = sections
    assert "<b>20</b> sold of 20" in sound
    assert "conserved: every unit sold at most once" in sound
    assert "broken: " in flawed
    assert int(re.findall(r"<b>(\d+)</b> sold of 20", flawed)[0]) > 20
    assert ['class="over"' in section for section in sections] == [True, False]

    page = visitor.get(address).content.decode()
    assert "data-address" not in page
    assert "The race is over: 1 held, 1 did not." in page
    assert_nothing_is_left()
    assert not any(model.objects.exists() for model in (Order, Product, Sale))


def test_at_its_time_limit_a_race_is_stopped(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # Use so many racers that the race still runs when its shop has started.
    started = visitor.post(RACE, {**CHOICE, "racers": form.STRATEGIES[: form.MOST_RACERS], "stock": "500"})
    wait_for(lambda: len(processes()) > 3, "the race's shop to start")
    end_its_time(monkeypatch)
    assert "no verdict: the time was up" in final_bars(visitor, started["Location"])
    assert_nothing_is_left()


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


def test_a_child_that_does_not_stop_is_killed_with_its_group(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "command", lambda race: [sys.executable, "-c", STUBBORN])
    monkeypatch.setattr(child, "STOP_SECONDS", 0.5)
    race = start("lua")
    wait_for(lambda: len(processes()) == 2, "the child and its own child")
    end_its_time(monkeypatch)
    assert "no verdict: the time was up" in final_bars(visitor, f"{RACE}{race.id}/")
    wait_for(lambda: processes() == [], "both to end")


def test_a_killed_child_leaves_nothing(visitor: Client, caplog: pytest.LogCaptureFixture) -> None:
    race = start("row-lock", clients=200, stock=500)
    wait_for(lambda: race.racers[0].answered, "the burst, so that Postgres has data to write when it stops")
    (running,) = (process for process in processes() if process.ppid() == os.getpid())
    running.send_signal(signal.SIGKILL)
    assert "no verdict: the race ended early" in final_bars(visitor, f"{RACE}{race.id}/")
    assert [record.getMessage().split(". ")[0] for record in caplog.records] == [
        f"The race {race.id} ended with status -9"
    ]
    assert_nothing_is_left()


def test_a_folder_is_removed_only_after_its_servers_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(isolation, "STOP_TIMEOUT", 0.0)
    with pytest.raises(ServerError, match="its servers run"):
        isolation.remove(own)
    servers.ownership.release()
    own.delete()


WEB_PROCESS = """
import time
import django
django.setup()
from lab.site.race.start import start_race
print(start_race(["lua"], clients=10, stock=10, visitor="visitor").id, flush=True)
time.sleep(600)
"""


def test_a_race_ends_with_the_web_process_that_started_it(visitor: Client) -> None:
    folder = str(settings.RUN_FOLDER.path)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "RUN_FOLDER": folder}
    with subprocess.Popen(
        [sys.executable, "-c", WEB_PROCESS], cwd=settings.BASE_DIR, env=environment, stdout=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        race = web.stdout.readline().strip()
        wait_for(lambda: len(processes()) > 3, "the race's shop to start")
        web.send_signal(signal.SIGKILL)
    wait_for(lambda: processes() == [], "the race's processes to end")
    assert "data-over" not in bars(visitor, f"{RACE}{race}/")


def test_a_race_without_signs_of_life_is_over(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(str(uuid4()), 10, 10, [Racer("lua", wanted=20, answered=3)])
    race.save()
    assert "data-over" not in bars(visitor, f"{RACE}{race.id}/")
    monkeypatch.setattr(state, "DEAD_SECONDS", -1.0)
    assert "no verdict: the race ended early" in final_bars(visitor, f"{RACE}{race.id}/")


def test_a_visitor_who_has_raced_enough_waits(redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy identifies the visitor, whatever else the header X-Forwarded-For claims."""
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": 1}
    # Allow one race's maximum time and a little more. The first race uses some of it, so a second is refused.
    racers = [Racer(name) for name in CHOICE["racers"]]
    monkeypatch.setattr(quota, "SECONDS_PER_VISITOR", Race("", 1, 1, racers).limit + 0.001)
    monkeypatch.setattr(child, "command", lambda race: NOTHING)

    def post(address: str, claims: str = "10.9.9.9") -> Any:
        forwarded = {"X-Forwarded-For": f"{claims}, {address}"}
        return Client().post(RACE, CHOICE, REMOTE_ADDR="10.0.0.1", headers=forwarded)

    assert post("10.0.0.2").status_code == 302
    wait_until_no_race_runs()
    for claims in ("10.9.9.9", "10.9.9.8"):
        refused = post("10.0.0.2", claims)
        assert refused.status_code == 429
        assert 0 < int(refused["Retry-After"]) <= quota.HOUR
        assert "Your races have used half an hour" in refused.content.decode()
        assert refused.content.decode().count(" checked") == len(CHOICE["racers"])
    assert post("10.0.0.3").status_code == 302
    wait_until_no_race_runs()
    assert processes() == []


def test_a_race_is_charged_in_advance_and_refunded_at_its_end_or_if_it_cannot_start(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race("", 1, 1, [Racer("lua")])
    monkeypatch.setattr(quota, "SECONDS_PER_VISITOR", 2 * race.limit)
    quota.charge(race, "visitor")
    quota.charge(race, "visitor")
    with pytest.raises(quota.QuotaUsed):
        quota.charge(race, "visitor")
    quota.refund(race, "visitor", 1.0)
    with pytest.raises(quota.QuotaUsed):
        quota.charge(race, "visitor")
    quota.refund(race, "visitor", race.limit - 1.0)
    quota.refund(race, "visitor", 0.0)
    quota.charge(race, "visitor")
    assert 0 < redis.ttl(quota.quota_key("visitor")) <= quota.HOUR

    def delete(_: RunFolder) -> None:
        raise ServerError("Another process uses the folder.")

    monkeypatch.setattr(RunFolder, "delete", delete)
    with pytest.raises(ServerError):
        start_race(["lua"], clients=1, stock=1, visitor="10.0.0.2")
    assert redis.get(quota.quota_key("10.0.0.2")) is None


def test_a_child_has_no_settings_of_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "PAYMENT_SECRET", "REDLOCK_URLS", "ETCD_URL", "PGPASSWORD"):
        monkeypatch.setenv(name, "the shop's")
    passed_on = isolation.environment(isolation.folder("race"))
    assert "the shop's" not in passed_on.values()
    assert passed_on["RUN_FOLDER"] != str(settings.RUN_FOLDER.path)


@pytest.mark.parametrize(
    ("result", "reasons"),
    [
        ({"oversold": 3, "sold": 13, "on_hand": 2}, ["3 sold beyond the stock"]),
        ({"on_hand": -3, "sold": 13, "oversold": 3}, ["3 sold beyond the stock", "-3 on hand"]),
        ({"missing": 2}, ["2 promised orders missing"]),
        ({"unserved": 1, "on_hand": 1, "sold": 9}, ["1 told “sold out” with units left for them"]),
        ({"sold": 8}, ["2 units unaccounted for"]),
    ],
)
def test_a_verdict_says_what_is_broken(result: dict[str, int], reasons: Sequence[str]) -> None:
    sound = {"stock": 10, "sold": 10, "on_hand": 0, "oversold": 0, "missing": 0, "unserved": 0, "errors": 0}
    assert list(standings.reasons({**sound, **result})) == reasons


def test_the_last_waits_are_kept_until_there_is_a_verdict() -> None:
    race = Race(str(uuid4()), 10, 100, [Racer("lua")])
    race.update({"name": "lua", "wanted": 200})
    race.update({"name": "lua", "answered": 40, "refused": 0, "busy": 1, "p50_ms": 12.0, "p99_ms": 30.0})
    race.update({"name": "lua", "answered": 40, "refused": 0, "busy": 1, "p50_ms": 0.0, "p99_ms": 0.0})
    (racer,) = race.racers
    assert (racer.answered, racer.p50_ms, racer.p99_ms, racer.ended) == (40, 12.0, 30.0, False)
