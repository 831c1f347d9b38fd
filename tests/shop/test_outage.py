"""While Postgres does not respond: how old a cached offer may be, and which caller queries Postgres again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from inventory import caching
from inventory.outages import Breaker
from shop import limits
from shop.sales import offers
from tests.factories import on_sale

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


class Clock:
    """A monotonic clock that the test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (caching, offers):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(offers, "cache", caching.Cache())
    monkeypatch.setattr(offers, "outage", Breaker(limits.REQUEST, clock=clock.monotonic))
    return clock


def test_an_offer_is_used_for_a_minute_and_not_longer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    sale = on_sale({"a": 1}).sale
    known = offers.get(sale)
    monkeypatch.setattr(offers, "read", away)
    clock.now += 1 + offers.OUTAGE - 0.1
    assert offers.get(sale) is known
    clock.now += 0.1
    with pytest.raises(OperationalError):
        offers.get(sale)


def test_one_caller_asks_again_after_a_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    sale = on_sale({"a": 1}).sale
    offers.get(sale)
    asked: list[int] = []

    def away_while_others_ask(sale: int) -> None:
        asked.append(sale)
        if len(asked) == 2:
            assert offers.get(sale) is not None, "another caller does not ask while this one waits"
        away(sale)

    monkeypatch.setattr(offers, "read", away_while_others_ask)
    clock.now += 2
    for _ in range(5):
        assert offers.get(sale) is not None
    assert len(asked) == 1
    clock.now += offers.outage.retry
    for _ in range(5):
        assert offers.get(sale) is not None
    assert len(asked) == 2


def test_with_an_answer_offers_are_as_young_as_before(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    sale = on_sale({"a": 1}).sale
    known = offers.get(sale)
    with monkeypatch.context() as silenced:
        silenced.setattr(offers, "read", away)
        clock.now += 2
        assert offers.get(sale) is known
    clock.now += offers.outage.retry
    newer = offers.get(sale)
    assert newer is not known
    clock.now += 1
    assert offers.get(sale) is not newer


def test_any_answer_ends_the_outage(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any response of Postgres ends the outage, also to a request that rereads the price."""
    sale = on_sale({"a": 1}).sale
    offers.get(sale)
    with monkeypatch.context() as silenced:
        silenced.setattr(offers, "read", away)
        clock.now += 2
        offers.get(sale)
    clock.now += offers.outage.retry
    newest = offers.get_newest(sale)
    assert offers.get(sale) is newest
    clock.now += 1
    assert offers.get(sale) is not newest


def test_a_caller_with_a_young_offer_takes_no_turn_to_ask(clock: Clock, settings: Any) -> None:
    settings.OFFER_TTL = 10
    sale = on_sale({"a": 1}).sale
    young = offers.get(sale)
    offers.outage.begin()
    clock.now += offers.outage.retry
    assert offers.get(sale) is young
    assert not offers.outage.is_another_callers(), "the turn is still to be taken"


def away(sale: int) -> None:
    raise OperationalError("no answer")
