"""The tests that every strategy must pass. The tests of a strategy subclass `StrategyConformance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection, transaction

from inventory import stock
from inventory.errors import Duplicate, OverLimit, SoldOut, StockNotLoaded
from inventory.models import StockItem
from inventory.requests import Placement, ReturnedUnits
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from tests.factories import at_once, count_by_kind, elsewhere, new_request, to_the_end
from tests.inventory.conftest import Ledger, after, execute, fails, put_on_sale

NEED_PREHEAT = {"lock-table", "lua", "lua-queue", "segmented-redis"}
"""The strategies that can sell only after the sale was preheated."""


class StrategyConformance(ABC):
    """Tests that every strategy must pass. A subclass provides the fixture `strategy`."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @abstractmethod
    def strategy(self) -> Strategy:
        """The strategy under test."""

    @staticmethod
    def sell(strategy: Strategy, ledger: Ledger, *carts: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Place one order per cart, all at the same time. Count the final answers by kind."""
        orders = [new_request(*cart) for cart in carts]
        return count_by_kind(at_once(*[partial(to_the_end, strategy, order, ledger.save) for order in orders]))

    def test_the_last_unit_is_sold_once(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=1)
        assert self.sell(strategy, ledger, *[[("a", 1)]] * 6) == {"COMMITTED": 1, "SoldOut": 5}
        assert len(ledger.orders()) == 1
        ledger.assert_law(a=(0, 1))

    def test_the_order_is_durable_when_it_answers(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=1)
        order = new_request(("a", 1))
        assert strategy.place(order, ledger.save) is Placement.COMMITTED
        assert elsewhere(ledger.orders) == [order.id]

    def test_an_unknown_sku_is_not_sold(self, strategy: Strategy, ledger: Ledger) -> None:
        with pytest.raises(StockNotLoaded if strategy.name in NEED_PREHEAT else SoldOut) as refused:
            strategy.place(new_request(("nothing", 1)), ledger.save)
        if isinstance(refused.value, SoldOut):
            assert refused.value.left == 0
        ledger.assert_law()

    def test_any_sku_can_be_sold(self, strategy: Strategy, ledger: Ledger) -> None:
        skus = ["café ☕", "a{b}c", "%7B", "a:b/c", "a" * 64]
        put_on_sale(strategy, **dict.fromkeys(skus, 1))
        for sku in skus:
            assert strategy.place(new_request((sku, 1)), ledger.save) is Placement.COMMITTED
            with pytest.raises(SoldOut):
                strategy.place(new_request((sku, 1)), ledger.save)
        ledger.assert_law(**dict.fromkeys(skus, (0, 1)))

    def test_an_order_is_all_or_nothing(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=5, b=2, c=4)
        with pytest.raises(SoldOut, match="b: 3 wanted, 2 left"):
            strategy.place(new_request(("a", 1), ("b", 3), ("c", 1)), ledger.save)
        ledger.assert_law(a=(5, 0), b=(2, 0), c=(4, 0))
        assert strategy.place(new_request(("a", 5), ("b", 2)), ledger.save) is Placement.COMMITTED
        ledger.assert_law(a=(0, 5), b=(0, 2), c=(4, 0))

    def test_contention_leaves_no_half_order(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=5, b=5)
        assert self.sell(strategy, ledger, *[[("a", 2), ("b", 1)]] * 5) == {"COMMITTED": 2, "SoldOut": 3}
        ledger.assert_law(a=(1, 4), b=(3, 2))

    def test_opposite_carts_do_not_deadlock(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=4, b=4, c=4)
        carts = [[(first, 1), (second, 1)] for first, second in combinations("abc", 2)]
        opposite = [cart[::-1] for cart in carts]
        assert self.sell(strategy, ledger, *carts, *opposite) == {"COMMITTED": 6}
        ledger.assert_law(a=(0, 4), b=(0, 4), c=(0, 4))

    def test_save_runs_in_the_transaction(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=1)
        seen: list[Any] = []

        def look() -> None:
            seen.append((transaction.get_connection().in_atomic_block, elsewhere(ledger.orders)))

        strategy.place(new_request(("a", 1)), after(look, ledger.save))
        assert seen == [(True, [])]
        assert len(elsewhere(ledger.orders)) == 1

    def test_a_refusal_of_save_takes_nothing(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=2, b=2)
        for refusal in (Duplicate(uuid4()), OverLimit("a", limit=1, taken=1)):
            order = new_request(("a", 1), ("b", 1))
            with pytest.raises(type(refusal)) as raised:
                strategy.place(order, ledger.refuse({order.id: refusal}))
            assert raised.value is refusal
        assert ledger.orders() == []
        ledger.assert_law(a=(2, 0), b=(2, 0))

    @pytest.mark.parametrize("lost", [False, True], ids=["an error", "a lost connection"])
    def test_a_failed_save_takes_nothing(self, strategy: Strategy, ledger: Ledger, lost: bool) -> None:
        put_on_sale(strategy, a=2)
        with pytest.raises(OperationalError if lost else KeyError):
            strategy.place(new_request(("a", 1)), ledger.lose_connection if lost else fails(KeyError()))
        if lost:
            connection.close()
        ledger.assert_law(a=(2, 0))
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
        ledger.assert_law(a=(1, 1))

    def test_a_delivery_while_selling_is_kept(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=4)
        orders = [new_request(("a", 1)) for _ in range(4)]
        answers = at_once(
            *[partial(to_the_end, strategy, order, ledger.save) for order in orders],
            *[lambda: stock.deliver("a", 5)] * 2,
        )
        strategy.refresh(["a"], ledger.saved)
        assert count_by_kind(answers) == {"COMMITTED": 4, "None": 2}
        assert StockItem.objects.get(sku="a").received == 14
        ledger.assert_law(a=(10, 4))

    def test_returned_units_are_sold_again(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=1)
        strategy.place(new_request(("a", 1)), ledger.save)
        execute("DELETE FROM tests_sold")
        stock.give_back([("a", 1)])
        strategy.units_returned([ReturnedUnits(1, 1, "a", 1)], ledger.saved)
        ledger.assert_law(a=(1, 0))
        assert self.sell(strategy, ledger, *[[("a", 1)]] * 3) == {"COMMITTED": 1, "SoldOut": 2}
        ledger.assert_law(a=(0, 1))

    def test_preheat_twice_and_unload_move_nothing(self, strategy: Strategy, ledger: Ledger) -> None:
        put_on_sale(strategy, a=2)
        strategy.place(new_request(("a", 1)), ledger.save)
        strategy.preheat(["a"], ledger.saved)
        ledger.assert_law(a=(1, 1))
        strategy.unload(["a"])
        assert registry.counters().left(["a"]) == {"a": None}
        ledger.assert_law(a=(1, 1))
