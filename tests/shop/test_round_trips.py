"""Exact counts of statements and Redis commands per request, so that they cannot grow unnoticed.

tests/inventory/test_strategies.py counts those of an order per strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis.connection import AbstractConnection

from inventory import bulk
from shop.orders.place import make_request
from shop.orders.saving import save
from shop.sales import offers
from tests.factories import new_customer, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@contextmanager
def counted() -> Iterator[tuple[CaptureQueriesContext, list[Any]]]:
    """Count the statements and Redis commands of the `with` block."""
    sent: list[Any] = []
    send = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *args: Any, **options: Any) -> Any:
        sent.append(args)
        return send(self, *args, **options)

    with mock.patch.object(AbstractConnection, "send_packed_command", count), CaptureQueriesContext(connection) as sql:
        yield sql, sent


def test_a_batch_takes_any_number_of_skus_in_one_statement() -> None:
    sale = on_sale(dict.fromkeys("abcdef", 5))
    offer = offers.get(sale.sale)
    requests = [
        make_request(offer, customer=new_customer(), quantities={product: 1}, key="one", expected_prices=sale.prices)
        for product in sale.products.values()
    ]
    with counted() as (sql, _):
        assert bulk.commit(requests, save) == {}
    assert len(sql) == 1


def test_a_refusal_from_memory_costs_one_query_and_no_redis_command(buyer: Buyer, settings: Any) -> None:
    settings.SOLD_OUT_TTL = settings.OFFER_TTL = 600.0
    offer = on_sale({"a": 1})
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sold-out")
    late = Buyer(new_customer())
    offers.get(offer.sale)
    with counted() as (sql, sent):
        assert_problem(late.order(order_body(offer, a=1)), 409, "sold-out")
    assert (len(sql), sent) == (1, [])
