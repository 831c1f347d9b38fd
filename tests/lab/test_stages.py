"""Stages: nothing of the shop's is theirs, one user each, and a clear word when there is none."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from pytest_django import DjangoDbBlocker
from redis.connection import parse_url

from lab.apps import there_can_be_so_many_stages
from lab.schedule import stages
from lab.schedule.runs import replay
from lab.schedule.stages import open_stage, redis_url_of
from servers import ServerError

NUMBER = 4
"""The first stage that these tests use: visitors and commands take those before it."""


@pytest.fixture(autouse=True)
def _databases(servers: object, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Any:
    with django_db_blocker.unblock():
        yield


# The Redis of a stage


SHOPS = {
    "unix:///run/valkey.sock": 0,
    "unix:///run/valkey.sock?db=3": 3,
    "unix://user:secret@/run/valkey.sock?db=15&socket_timeout=2": 15,
    "unix:///run/valkey.sock?socket_timeout=2&%64b=14": 14,
    "redis://host": 0,
    "redis://host/": 0,
    "redis://host:6380/3": 3,
    "redis://host/3/": 3,
    "redis://host/?db=15": 15,
    "redis://host?db=14": 14,
    "redis://host/3?db=13&db=2": 13,
    "redis://user:pass%2Fword@host:6380/15?socket_timeout=2": 15,
    "redis://[::1]:6380/1#shop": 1,
    "rediss://host/12?ssl_cert_reqs=none": 12,
    "redis://host/77": 77,
    "redis://host/no-number": 0,
}


@pytest.mark.parametrize("shop", SHOPS)
def test_every_stage_has_a_redis_database_of_its_own_that_is_not_the_shops(shop: str) -> None:
    own = parse_url(shop)
    assert own.pop("db", 0) == SHOPS[shop]
    numbers = []
    for number in range(stages.MOST):
        found = parse_url(redis_url_of(number, shop))
        numbers.append(found.pop("db"))
        assert found == own
    assert len(set(numbers)) == stages.MOST
    assert set(numbers) <= {*range(16)} - {SHOPS[shop]}


@pytest.mark.parametrize("number", [-1, stages.MOST])
def test_a_stage_that_redis_has_no_database_for_is_refused(number: int) -> None:
    with pytest.raises(ServerError, match=r"no stage .*LAB_STAGES to 15 or less"):
        open_stage(number)


@pytest.mark.parametrize("query", ["", "?db=0", "?db=3", f"?db={15 - NUMBER}", "?socket_timeout=9&db=15"])
def test_a_trial_leaves_the_shops_redis_alone(settings: Any, query: str) -> None:
    settings.REDIS_LOCATION += query
    shop = redis.Redis.from_url(settings.REDIS_LOCATION)
    shop.set("the shop's", "kept")
    try:
        stage = open_stage(NUMBER)
        try:
            assert replay("setnx", [], stage, to_the_end=True).steps
        finally:
            stage.close()
        assert shop.get("the shop's") == b"kept"
    finally:
        shop.flushdb()


def test_a_redis_with_fewer_databases_is_refused_with_what_to_do() -> None:
    with pytest.raises(ServerError, match=r"out of range.*`databases 16`"):
        open_stage(NUMBER, f"{django_settings.REDIS_LOCATION}?db=16")


@pytest.mark.parametrize(("number", "errors"), [(0, 1), (1, 0), (stages.MOST, 0), (stages.MOST + 1, 1)])
def test_a_number_of_stages_that_there_cannot_be_is_refused_at_the_start(
    settings: Any, number: int, errors: int
) -> None:
    settings.LAB_STAGES = number
    assert len(there_can_be_so_many_stages()) == errors


@pytest.mark.parametrize("processes", [0, stages.MOST + 1])
def test_so_many_processes_as_there_cannot_be_stages_are_refused(processes: int) -> None:
    with pytest.raises(CommandError, match="from 1 to 15"):
        call_command("ladder", "no-lock", "--verify", "--processes", str(processes))
