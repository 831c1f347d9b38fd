"""The shop and a model of it run the same random steps. After each step both agree, and the conservation law holds."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from django.conf import settings as django_settings
from django.db import transaction
from django.utils import timezone
from django_redis import get_redis_connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as given
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inventory import stock
from inventory.counters.segmented import segment_name
from inventory.counters.whole import counter_key
from inventory.errors import OverLimit, SoldOut, StockNotLoaded
from inventory.models import StockItem
from inventory.strategies import registry
from shop import conservation
from shop.models import Order, Payment
from shop.orders import payments
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.errors import KeyReused
from shop.orders.expiry import expire_unpaid
from shop.orders.lookup import find_order
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.overview.stock_report import read_counters
from shop.reconcile import reconcile
from shop.sales import lifecycle
from shop.sales.preheat import CannotPreheat, preheat_sale
from shop.sold import saved
from tests.factories import DISTINCT, OnSale, new_customer, on_sale
from tests.shop.conftest import buy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

LIMIT = 4
NEXT = ("guarded-update", "group-commit", "lua", "lua-queue", "segmented-lock", "segmented-redis", "unit-rows")
CARTS = given.dictionaries(given.sampled_from("ab"), given.integers(1, 3), min_size=1)


class Shop(RuleBasedStateMachine):
    """The model: dictionaries that say which units each customer should have."""

    strategy = ""

    @initialize(units=given.tuples(given.integers(0, 8), given.integers(0, 8)))
    def open(self, units: tuple[int, int]) -> None:
        run = uuid4().hex[:8]
        self.names = {"a": f"{run}-a", "b": f"{run}-b"}
        self.received = dict(zip(self.names.values(), units, strict=True))
        self.offer: OnSale = on_sale(self.received, strategy=self.strategy, limit=LIMIT)
        self.customers = [new_customer() for _ in range(3)]
        self.placed: dict[tuple[int, str], tuple[UUID, dict[str, int], int]] = {}
        self.ended: set[UUID] = set()
        self.paid: set[UUID] = set()
        # Keys that only Postgres knows. Queuing an order does not read them.
        self.forgotten: set[tuple[int, str]] = set()

    def teardown(self) -> None:
        if hasattr(self, "offer"):
            save_queued()
            lifecycle.close(self.offer.sale)

    def taken(self, customer: int | None = None, sale: int | None = None) -> Counter[str]:
        """Return the units in pending and paid orders: those of one customer in one sale, or all."""
        units: Counter[str] = Counter()
        for (who, _), (order, cart, where) in self.placed.items():
            if order not in self.ended and customer in (None, who) and sale in (None, where):
                units.update(cart)
        return units

    def left(self, sku: str) -> int:
        return self.received[sku] - self.taken()[sku]

    def buy(self, customer: int, cart: dict[str, int], key: str) -> Placed:
        """Buy. Try again while the stock is not loaded. After the second attempt, save queued orders first."""
        for attempt in range(4):
            try:
                return buy(self.offer, customer, key, **cart)
            except StockNotLoaded:
                if attempt == 1:
                    save_queued()
        raise AssertionError("the stock is not loaded")

    @rule(who=given.integers(0, 2), wanted=CARTS, key=given.sampled_from("xyz"), fresh=given.booleans())
    def place(self, who: int, wanted: dict[str, int], key: str, fresh: bool) -> None:
        customer, cart = self.customers[who], {self.names[name]: units for name, units in wanted.items()}
        key = uuid4().hex if fresh else key
        known = self.placed.get((customer, key))
        if known is None:
            self.place_new(customer, cart, key)
            return
        order, *before = known
        same = before == [cart, self.offer.sale]
        try:
            replay = self.buy(customer, cart, key)
        except KeyReused:
            assert not same
            return
        if (customer, key) in self.forgotten and not replay.replayed:
            self.accepted_again(customer, replay.order.pk, order if same else None)
        else:
            assert same
            assert (replay.order.pk, replay.replayed) == (order, True)

    def accepted_again(self, customer: int, order: UUID, before: UUID | None) -> None:
        """Check a second order under a key. It was queued, because Redis had lost the key of the first order.

        Args:
            before: the first order, which is the only one to stay, if both have the same content. None if their content
                differs: the second order is then rejected.
        """
        save_queued()
        stands = find_order(order, customer=customer).order
        if before is not None:
            assert stands.pk == before
        else:
            assert (stands.pk, stands.state) == (order, Order.State.REJECTED)

    def place_new(self, customer: int, cart: dict[str, int], key: str) -> None:
        """Place an order under a new key."""
        short = any(self.left(sku) < units for sku, units in cart.items())
        mine = self.taken(customer, self.offer.sale)
        over = any(mine[sku] + units > LIMIT for sku, units in cart.items())
        try:
            order = self.buy(customer, cart, key).order.pk
        except SoldOut:
            assert short
            return
        except OverLimit:
            assert over
            return
        self.placed[customer, key] = order, cart, self.offer.sale
        if not registry.get(self.strategy).queues:
            self.forgotten.add((customer, key))
        if short or over:
            # A counter or a count per customer in Redis was wrong. Postgres rejects the order when it is saved.
            save_queued()
            assert Order.objects.get(pk=order).state == Order.State.REJECTED
            self.ended.add(order)

    def standing(self) -> list[UUID]:
        return sorted(order for order, *_ in self.placed.values() if order not in self.ended)

    @rule()
    def work(self) -> None:
        save_queued()

    @precondition(lambda self: self.standing())
    @rule(data=given.data())
    def pay(self, data: Any) -> None:
        save_queued()
        order = Order.objects.get(pk=data.draw(given.sampled_from(self.standing())))
        assert pay_order(order.pk, customer=order.customer_id).order.state == Order.State.PAID
        self.paid.add(order.pk)

    def unpaid(self) -> list[UUID]:
        return sorted(set(self.standing()) - self.paid)

    @precondition(unpaid)
    @rule(data=given.data())
    def expire(self, data: Any) -> None:
        save_queued()
        order = data.draw(given.sampled_from(self.unpaid()))
        long_ago = timezone.now() - timedelta(seconds=django_settings.ORDER_TTL + 1)
        Order.objects.filter(pk=order).update(payable_from=long_ago)
        assert expire_unpaid() == 1
        self.ended.add(order)

    @precondition(unpaid)
    @rule(data=given.data())
    def cancel(self, data: Any) -> None:
        save_queued()
        order = Order.objects.get(pk=data.draw(given.sampled_from(self.unpaid())))
        for _ in range(2):
            assert cancel_order(order.pk, customer=order.customer_id).order.state == Order.State.CANCELLED
        self.ended.add(order.pk)

    @precondition(lambda self: self.ended)
    @rule(data=given.data())
    def pay_late(self, data: Any) -> None:
        """Pay an ended order. It gets its units back if stock and limit allow this; otherwise a refund is due."""
        save_queued()
        order = data.draw(given.sampled_from(sorted(self.ended)))
        (customer, _), (_, cart, sale) = next(item for item in self.placed.items() if item[1][0] == order)
        was_one = Order.objects.get(pk=order).state != Order.State.REJECTED
        mine = self.taken(customer, sale)
        fits = all(self.left(sku) >= units and mine[sku] + units <= LIMIT for sku, units in cart.items())
        total = Order.objects.get(pk=order).total
        payment = payments.receive_payment(uuid4().hex, order=order, amount=total).payment
        taken = payment.outcome == Payment.Outcome.PAID
        assert taken == (was_one and fits)
        if taken:
            self.ended.remove(order)
            self.paid.add(order)

    @rule(name=given.sampled_from("ab"), units=given.integers(1, 3))
    def deliver(self, name: str, units: int) -> None:
        sku = self.names[name]
        with transaction.atomic():
            stock.deliver(sku, units)
        registry.refresh([sku], saved)
        self.received[sku] += units

    @rule()
    def lose_redis(self) -> None:
        """Save the queued orders, then delete all data in Redis."""
        save_queued()
        get_redis_connection("default").flushall()
        self.forgotten = set(self.placed)

    @rule(name=given.sampled_from("ab"), wrong=given.integers(-2, 2), who=given.integers(0, 2), wanted=CARTS)
    def redis_is_wrong(self, name: str, wrong: int, who: int, wanted: dict[str, int]) -> None:
        """Make a counter wrong, and place an order before reconciling."""
        self.meddle(name, wrong)
        cart = {self.names[name]: units for name, units in wanted.items()}
        self.place_new(self.customers[who], cart, uuid4().hex)
        reconcile(grace=0)

    def meddle(self, name: str, wrong: int) -> None:
        """Make a sku's first counter wrong, if it has one."""
        redis, sku = get_redis_connection("default"), self.names[name]
        for key in (counter_key(sku), counter_key(segment_name(sku, 0))):
            if redis.exists(key):
                redis.incrby(key, wrong)

    @rule()
    def preheat(self) -> None:
        with suppress(CannotPreheat):  # The earlier sale still has queued orders.
            preheat_sale(self.offer.sale)

    @rule(strategy=given.sampled_from(NEXT))
    def next_sale(self, strategy: str) -> None:
        """Close the sale, even with queued orders, and open the next sale of the same products."""
        lifecycle.close(self.offer.sale)
        self.strategy = strategy
        self.offer = on_sale(dict.fromkeys(self.received, 0), strategy=strategy, limit=LIMIT, preheat=False)
        lifecycle.advance()

    @rule()
    def reconcile(self) -> None:
        reconcile(grace=0)

    @invariant()
    def the_law_holds(self) -> None:
        if not hasattr(self, "offer"):
            return
        skus = list(self.received)
        figures = conservation.figures(skus)
        assert all(row.conserved for row in figures), figures
        on_hand = {row.sku: row.on_hand for row in figures}
        counters = read_counters(on_hand)
        assert not any(counter.drift for counter in counters.values()), counters
        if not len(registry.queue()):
            assert {row.sku: row.sold for row in figures if row.sold} == dict(self.taken())
        assert not StockItem.objects.filter(sku__in=skus, on_hand__lt=0).exists()


@pytest.mark.parametrize("strategy", ["lua", "lua-queue", "segmented-redis"])
def test_a_wrong_counter_breaks_the_law_until_it_is_reconciled(strategy: str) -> None:
    """Negative control: a wrong counter breaks the checked law until it is reconciled."""
    shop = type(f"Shop by {strategy}", (Shop,), {"strategy": strategy})()
    shop.open((3, 3))
    shop.the_law_holds()
    shop.meddle("a", 1)
    with pytest.raises(AssertionError):
        shop.the_law_holds()
    reconcile(grace=0)
    shop.the_law_holds()


def test_the_law_holds_after_any_steps() -> None:
    """The law holds after the same random steps in each run. The first example is the shortest possible one."""
    take_steps("lua-queue", examples=3, steps=15, again=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.NAMES)
def test_the_law_holds_after_many_steps(name: str) -> None:
    """The law holds after other random steps in each run. Strategies like `redis-lock` take fewer."""
    take_steps(name, examples=20 if name in DISTINCT else 4, steps=25, again=False)


def take_steps(name: str, *, examples: int, steps: int, again: bool) -> None:
    machine = type(f"Shop by {name}", (Shop,), {"strategy": name})
    # Hypothesis would parse all files that this process has imported, and draw numbers that they contain: the steps
    # would depend on the other tests, and parsing takes seconds.
    with patch.object(providers, "_get_local_constants", lambda: providers._local_constants):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                # No shrinking, which would take minutes, because each step runs the real shop.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
                derandomize=again,
            ),
        )
