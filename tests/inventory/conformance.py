"""What every strategy promises, one named property each. The tests of strategies subclass `StrategyConformance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, transaction

from inventory import stock
from inventory.errors import Duplicate, OverLimit, Refusal, SoldOut, StockNotLoaded
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, Returned
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.group_commit import GroupCommit
from tests.factories import at_once, elsewhere, meeting_before_the_write, new_request, nobody, tally, to_the_end
from tests.inventory.conftest import Ledger

BUYERS = 32
NEED_PREHEAT = {"lock-table", "lua", "lua-queue", "segmented-redis"}
"""The strategies that cannot tell what there is before the sale is preheated."""


def in_line(strategy: Strategy) -> int:
    """How many wait inside of this process for the strategy to come to them."""
    return strategy.batcher.pending() if isinstance(strategy, GroupCommit) else 0


class StrategyConformance(ABC):
    """The properties. `strategy` is a fixture of the subclass."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @abstractmethod
    def strategy(self) -> Strategy:
        """The strategy that is held against the properties."""

    @staticmethod
    def put_on_sale(strategy: Strategy, **units: int) -> None:
        for sku, received in units.items():
            stock.deliver(sku, received)
        strategy.preheat(list(units), nobody)

    @staticmethod
    def sell(strategy: Strategy, ledger: Ledger, *carts: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Buyers with one cart each, all at once; how many got which final answer."""
        requests = [new_request(*cart) for cart in carts]
        return tally(at_once(*[partial(to_the_end, strategy, request, ledger.save) for request in requests]))

    # The last unit

    def test_one_unit_and_32_buyers_one_is_sold_and_31_are_refused(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, last=1)
        assert self.sell(strategy, ledger, *[[("last", 1)]] * BUYERS) == {"COMMITTED": 1, "SoldOut": BUYERS - 1}
        assert len(ledger.orders()) == 1
        ledger.assert_law(last=(0, 1))

    def test_ten_units_and_32_buyers_ten_are_sold_and_22_are_refused(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, ten=10)
        assert self.sell(strategy, ledger, *[[("ten", 1)]] * BUYERS) == {"COMMITTED": 10, "SoldOut": BUYERS - 10}
        assert len(ledger.orders()) == 10
        ledger.assert_law(ten=(0, 10))

    def test_more_units_than_buyers_nobody_is_refused(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, many=BUYERS + 3)
        assert self.sell(strategy, ledger, *[[("many", 1)]] * BUYERS) == {"COMMITTED": BUYERS}
        ledger.assert_law(many=(3, BUYERS))

    def test_five_units_and_eight_buyers_of_two_one_unit_stays(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, pair=5)
        assert self.sell(strategy, ledger, *[[("pair", 2)]] * 8) == {"COMMITTED": 2, "SoldOut": 6}
        ledger.assert_law(pair=(1, 4))

    def test_when_every_buyer_has_read_before_any_writes_still_only_one_is_sold(
        self, strategy: Strategy, ledger: Ledger
    ) -> None:
        """The schedule under which the flawed rungs oversell, see tests/lab: it is their negative control."""
        self.put_on_sale(strategy, last=1)
        buyers = [partial(to_the_end, strategy, new_request(("last", 1)), ledger.save) for _ in range(4)]
        answers = meeting_before_the_write(*buyers, waiting=partial(in_line, strategy))
        assert tally(answers) == {"COMMITTED": 1, "SoldOut": 3}
        ledger.assert_law(last=(0, 1))

    # Answers

    def test_the_order_is_durable_when_it_answers(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=3)
        request = new_request(("a", 2))
        assert strategy.place(request, ledger.save) is Placement.COMMITTED
        assert elsewhere(ledger.orders) == [request.id]
        ledger.assert_law(a=(1, 2))

    def test_a_refusal_says_what_was_wanted_and_what_is_left(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=3)
        with pytest.raises(SoldOut) as refused:
            strategy.place(new_request(("a", 4)), ledger.save)
        assert (refused.value.sku, refused.value.wanted, refused.value.left) == ("a", 4, 3)
        ledger.assert_law(a=(3, 0))

    def test_the_whole_stock_can_be_bought_in_one_order(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=3)
        assert strategy.place(new_request(("a", 3)), ledger.save) is Placement.COMMITTED
        ledger.assert_law(a=(0, 3))

    def test_a_sku_that_nobody_received_is_not_sold(self, strategy: Strategy, ledger: Ledger) -> None:
        with pytest.raises(StockNotLoaded if strategy.name in NEED_PREHEAT else SoldOut) as refused:
            strategy.place(new_request(("nothing", 1)), ledger.save)
        if isinstance(refused.value, SoldOut):
            assert refused.value.left == 0
        ledger.assert_law()

    @pytest.mark.parametrize("sku", ["café ☕", "a{b}c", "%7B", "a:b/c", "a" * 64])
    def test_whatever_a_sku_is_called_it_can_be_sold(self, strategy: Strategy, ledger: Ledger, sku: str) -> None:
        self.put_on_sale(strategy, **{sku: 1})
        assert self.sell(strategy, ledger, *[[(sku, 1)]] * 2) == {"COMMITTED": 1, "SoldOut": 1}
        ledger.assert_law(**{sku: (0, 1)})

    # Carts

    def test_a_cart_is_taken_whole_or_not_at_all(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=5, b=2, c=4)
        with pytest.raises(SoldOut, match="b: 3 wanted, 2 left"):
            strategy.place(new_request(("a", 1), ("b", 3), ("c", 1)), ledger.save)
        ledger.assert_law(a=(5, 0), b=(2, 0), c=(4, 0))

    def test_carts_in_contention_leave_no_half_cart(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=5, b=2)
        assert self.sell(strategy, ledger, *[[("a", 1), ("b", 1)]] * 12) == {"COMMITTED": 2, "SoldOut": 10}
        ledger.assert_law(a=(3, 2), b=(0, 2))

    def test_opposite_carts_do_not_deadlock(self, strategy: Strategy, ledger: Ledger) -> None:
        """A cart is a request, and a request is in the order of its skus; without that order see test_deadlock."""
        self.put_on_sale(strategy, a=8, b=8, c=8)
        carts = [[(first, 1), (second, 1)] for first, second in combinations("abc", 2)]
        opposite = [cart[::-1] for cart in carts]
        assert self.sell(strategy, ledger, *(carts + opposite) * 2) == {"COMMITTED": 12}
        ledger.assert_law(a=(0, 8), b=(0, 8), c=(0, 8))

    # Transactions

    def test_it_refuses_to_run_inside_a_transaction(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=1)
        with transaction.atomic(), pytest.raises(RuntimeError, match=strategy.name):
            strategy.place(new_request(("a", 1)), ledger.save)
        ledger.assert_law(a=(1, 0))

    def test_save_runs_in_the_transaction_that_takes_the_stock(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=1)
        seen: list[Any] = []

        def look(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            seen.append((transaction.get_connection().in_atomic_block, elsewhere(ledger.orders)))
            return ledger.save(requests)

        strategy.place(new_request(("a", 1)), look)
        assert seen == [(True, [])]
        assert len(elsewhere(ledger.orders)) == 1

    @pytest.mark.parametrize(
        "refusal", [Duplicate(uuid4()), OverLimit("a", limit=1, taken=1)], ids=lambda refusal: type(refusal).__name__
    )
    def test_what_save_refuses_is_not_taken(self, strategy: Strategy, ledger: Ledger, refusal: Refusal) -> None:
        self.put_on_sale(strategy, a=2, b=2)
        request = new_request(("a", 1), ("b", 1))

        def refuse(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            return {request.id: refusal}

        with pytest.raises(type(refusal)) as raised:
            strategy.place(request, refuse)
        assert raised.value is refusal
        assert ledger.orders() == []
        ledger.assert_law(a=(2, 0), b=(2, 0))

    def test_when_save_fails_nothing_is_taken(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=2)

        def fail(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            ledger.save(requests)
            raise KeyError("a mistake of ours")

        with pytest.raises(KeyError, match="a mistake of ours"):
            strategy.place(new_request(("a", 1)), fail)
        ledger.assert_law(a=(2, 0))
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
        ledger.assert_law(a=(1, 1))

    def test_when_the_connection_dies_in_save_nothing_is_taken(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=2)

        def die(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            ledger.save(requests)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return {}

        with pytest.raises(OperationalError):
            strategy.place(new_request(("a", 1)), die)
        connection.close()
        ledger.assert_law(a=(2, 0))
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
        ledger.assert_law(a=(1, 1))

    # Stock that changes meanwhile

    def test_what_is_delivered_while_it_sells_is_not_lost(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=8)
        requests = [new_request(("a", 1)) for _ in range(8)]
        answers = at_once(
            *[partial(to_the_end, strategy, request, ledger.save) for request in requests],
            *[lambda: stock.deliver("a", 5)] * 4,
        )
        strategy.refresh(["a"], ledger.saved)
        assert tally(answers) == {"COMMITTED": 8, "None": 4}
        assert StockItem.objects.get(sku="a").received == 28
        ledger.assert_law(a=(20, 8))

    def test_what_is_given_back_can_be_sold_again(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=1)
        strategy.place(new_request(("a", 1)), ledger.save)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM tests_sold")
        stock.give_back([("a", 1)])
        strategy.given_back([Returned(1, 1, "a", 1)], ledger.saved)
        ledger.assert_law(a=(1, 0))
        assert self.sell(strategy, ledger, *[[("a", 1)]] * 4) == {"COMMITTED": 1, "SoldOut": 3}
        ledger.assert_law(a=(0, 1))

    def test_preheating_twice_and_unloading_move_nothing(self, strategy: Strategy, ledger: Ledger) -> None:
        self.put_on_sale(strategy, a=2)
        strategy.place(new_request(("a", 1)), ledger.save)
        strategy.preheat(["a"], ledger.saved)
        ledger.assert_law(a=(1, 1))
        strategy.unload(["a"])
        assert registry.counters().left(["a"]) == {"a": None}
        ledger.assert_law(a=(1, 1))
