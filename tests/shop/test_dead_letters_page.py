"""The admin page of dead letters: an operator reads them and settles those that the page has shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client
from redis import Redis

from inventory.queue.dead_letters import DEAD_LETTERS, DeadLetters
from tests.shop.conftest import Gone

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/shop/order/dead-letters/"


def letter(redis: Redis, name: str, at: str = "*") -> None:
    redis.xadd(DEAD_LETTERS, {"id": name, "request": "<b>2 of a</b>", "reason": f"no {name}"}, id=at)


def named(redis: Redis) -> list[str]:
    return [name for _, name, _, _ in DeadLetters(redis).newest()]


def test_an_operator_settles_what_the_page_has_shown(redis: Redis, staff: Callable[..., Client]) -> None:
    letter(redis, "first", "1000-0")
    letter(redis, "second", "2000-1")
    client = staff("view_order", "change_order")
    page = client.get(PAGE).content.decode()
    assert ("no first" in page, "no second" in page, "&lt;b&gt;2 of a" in page) == (True, True, True)
    letter(redis, "third", "2000-2")
    until = re.search(r'name="until" value="([\d-]+)"', page)
    assert client.post(PAGE, {"until": until and until[1]}).url == "/admin/"  # type: ignore[attr-defined]
    assert named(redis) == ["third"]
    assert "2 dead letters are settled." in client.get("/admin/", follow=True).content.decode()


@pytest.mark.parametrize("until", [None, "", "soon", "-1", "9999999999999"])
def test_a_form_without_a_time_settles_nothing(redis: Redis, staff: Callable[..., Client], until: str | None) -> None:
    letter(redis, "first")
    answer = staff("view_order", "change_order").post(PAGE, {} if until is None else {"until": until})
    assert (answer.status_code, named(redis)) == (200, ["first"])


def test_only_who_may_change_orders_may_settle(redis: Redis, staff: Callable[..., Client]) -> None:
    letter(redis, "first")
    client = staff("view_order")
    assert [client.get(PAGE).status_code, client.post(PAGE, {"until": "9999999999999-0"}).status_code] == [403, 403]
    assert named(redis) == ["first"]
    assert "Settle them" not in str(client.get("/admin/live/").json())
    assert "Settle them" in str(staff("view_order", "change_order").get("/admin/live/").json())


def test_the_page_says_when_there_is_none(redis: Redis, staff: Callable[..., Client]) -> None:
    assert "There are no dead letters" in staff("view_order", "change_order").get(PAGE).content.decode()


def test_while_redis_is_away_the_page_does_not_say_that_there_is_none(
    staff: Callable[..., Client], redis_gone: Gone
) -> None:
    client = staff("view_order", "change_order")
    with redis_gone():
        assert client.get(PAGE).url == "/admin/"  # type: ignore[attr-defined]
