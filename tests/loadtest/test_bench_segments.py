"""The measurement of segments: what it returns, and that a run which lost an order has no throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from redis import Redis

from inventory.errors import Refusal
from inventory.requests import OrderRequest
from loadtest import burst as bursts
from loadtest.bench import segments
from shop.models import Order, Sale

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_orders_per_second_by_one_segment_and_by_five(redis: Redis) -> None:
    figures = segments.measure(customers=bursts.make_customers(8), rounds=1, seconds=0.1)
    assert set(figures) == {"1", "5"}
    assert all(per_s > 0 for per_s in figures.values())
    # One of each to warm up and one that counts; each with orders of its own, which are really saved.
    assert set(Order.objects.values_list("sale", flat=True)) == set(Sale.objects.values_list("pk", flat=True))
    assert Sale.objects.count() == 4


def test_a_run_that_lost_an_order_has_no_throughput(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        return {}

    monkeypatch.setattr(segments, "save", lose)
    with pytest.raises(RuntimeError, match="placed, but the tables say"):
        segments.measure(customers=bursts.make_customers(2), rounds=1, seconds=0.1)
