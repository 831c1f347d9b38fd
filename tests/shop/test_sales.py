"""Sales: opening times, strategies, preheating, closing, and the cache of offers (products and prices on sale)."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from redis import Redis, RedisError

from inventory import stock
from inventory.errors import StockNotLoaded
from inventory.models import StockItem, StockMovement, StockSegment, StockUnit
from inventory.strategies import registry
from inventory.strategies.registry import NAMES
from shop.models import Product, Sale, SaleItem
from shop.orders.errors import SaleNotOpen
from shop.orders.queued import save_queued
from shop.reconcile import reconcile
from shop.sales import lifecycle, offers
from shop.sales.preheat import preheat_sale
from tests.factories import at_once, begin, count_by_kind, fast_and_slow, new_customer, on_sale, slow
from tests.shop.conftest import Gone, buy
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


HOUR = timedelta(hours=1)


def sale(number: int) -> Sale:
    return Sale.objects.get(pk=number)


def is_open_in_cache(number: int) -> bool:
    """Return whether the offer that this process has cached is open."""
    return offers.get(number).is_open(timezone.now())


def test_a_sale_must_close_after_it_opens(db: None) -> None:
    now = timezone.now()
    with pytest.raises(IntegrityError, match="sale_closes_after_it_opens"), transaction.atomic():
        Sale.objects.create(name="never", opens_at=now, closes_at=now)
    with pytest.raises(ValidationError, match="closes after it opens"):
        Sale(name="never", opens_at=now, closes_at=now).full_clean()


def all_rows(redis: Redis) -> list[Any]:
    """Return the rows of stock and sales, without ids, slugs and times, and the contents of Redis. Then delete them."""
    rows: list[Any] = []
    for model in (StockItem, StockMovement, StockSegment, StockUnit, Product, Sale, SaleItem):
        names = [field.attname for field in model._meta.concrete_fields if field.attname not in ("id", "slug", "at")]
        found = [dict(zip(names, row, strict=True)) for row in model.objects.order_by("pk").values_list(*names)]
        for row in found:
            row |= {name: type(value) for name, value in row.items() if name.endswith(("_at", "sale_id", "product_id"))}
        rows.append(found)
    rows.append({key: redis.dump(key) for key in redis.scan_iter()})
    for model in (SaleItem, Sale, Product, StockSegment, StockUnit, StockMovement, StockItem):
        model.objects.all().delete()
    redis.flushall()
    return rows


@pytest.mark.parametrize("strategy", fast_and_slow(NAMES))
@pytest.mark.parametrize("preheat", [True, False])
def test_a_sale_for_tests_is_like_one_that_is_preheated(redis: Redis, strategy: str, preheat: bool) -> None:
    """The tests' helper `on_sale` writes the same rows as the models, `deliver` and `preheat_sale`."""
    units = {"b": 7, "a": 3, "none": 0}
    on_sale(units, strategy=strategy, limit=2, price="12.50", preheat=preheat)
    quick = all_rows(redis)

    window = {"opens_at": timezone.now() - HOUR, "closes_at": timezone.now() + HOUR}
    made = Sale.objects.create(name=f"Sale by {strategy}", strategy=strategy, **window)
    for sku, received in units.items():
        if received:
            stock.deliver(sku, received)
        product = Product.objects.create(sku=sku, name=sku.title())
        SaleItem.objects.create(sale=made, product=product, price=Decimal("12.50"), limit=2)
    if preheat:
        preheat_sale(made.pk)
    assert quick == all_rows(redis)


@pytest.mark.parametrize(
    ("opens", "closes", "overlaps"),
    [
        pytest.param(-1, 1, True, id="the same window"),
        pytest.param(0, 2, True, id="it begins within"),
        pytest.param(-9, 9, True, id="around it"),
        pytest.param(-9, -1, False, id="it ends when the other begins"),
        pytest.param(1, 9, False, id="it begins when the other ends"),
    ],
)
def test_a_product_is_in_one_sale_at_a_time(opens: int, closes: int, overlaps: bool) -> None:
    first = sale(on_sale({"a": 1, "b": 1}).sale)
    middle = first.opens_at + HOUR
    new = Sale.objects.create(name="New", opens_at=middle + opens * HOUR, closes_at=middle + closes * HOUR)
    problems = list(lifecycle.overlaps(new, Product.objects.filter(sku="a")))
    assert problems == (["A is in “Sale by guarded-update” at the same time."] if overlaps else [])
    assert list(lifecycle.overlaps(first, Product.objects.all())) == []


def test_saving_an_old_copy_keeps_strategy_preheating_and_pause() -> None:
    offer = on_sale({"a": 1}, preheat=False)
    old = sale(offer.sale)
    preheat_sale(offer.sale)
    old.name = "Another"
    old.save()
    assert (sale(offer.sale).name, sale(offer.sale).is_loaded) == ("Another", True)
    Sale.objects.update(paused_at=timezone.now())
    old.save()
    assert sale(offer.sale).paused_at is not None
    old.strategy, old.preheated_at = "unit-rows", None
    with pytest.raises(ValidationError, match="already sells with guarded-update"):
        old.save()
    assert (sale(offer.sale).strategy, sale(offer.sale).is_loaded) == ("guarded-update", True)


def test_closing_ends_the_window_and_unloads_the_stock() -> None:
    offer, another = on_sale({"a": 1}, strategy="lua"), on_sale({"b": 1}, strategy="lua")
    assert is_open_in_cache(offer.sale)
    lifecycle.close(offer.sale)
    assert not is_open_in_cache(offer.sale)
    ended = sale(offer.sale).closes_at
    assert ended <= timezone.now() < sale(another.sale).closes_at
    assert registry.counters().left(["a", "b"]) == {"a": None, "b": 1}
    with pytest.raises(SaleNotOpen):
        buy(offer, a=1)
    lifecycle.close(offer.sale)
    assert sale(offer.sale).closes_at == ended


def test_preheating_locks_stock_in_the_order_of_skus() -> None:
    """Preheating locks all stock, even if it first has to join split stock of b. So nobody returns units meanwhile."""
    earlier = on_sale({"b": 5}, strategy="unit-rows")
    Sale.objects.filter(pk=earlier.sale).update(closes_at=timezone.now())
    later = on_sale({"a": 5, "b": 0}, strategy="lua", preheat=False)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            stock.lock(["a"])  # like an order of both skus
            preheating = begin(pool, partial(preheat_sale, later.sale))
            assert not preheating.done()
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
            stock.lock(["b"])
        preheating.result(WAIT_TIMEOUT)
    assert registry.counters().left(["a", "b"]) == {"a": 5, "b": 5}


@pytest.mark.parametrize("who", ["preheats", "ends"])
def test_a_cart_that_joins_segments_does_not_deadlock(who: str) -> None:
    """A cart locks a segment of a, and then the stock row of b. Another transaction locks b, and then a."""
    offer = on_sale({"a": 50, "b": 5}, strategy="segmented-lock")
    action = partial(preheat_sale, offer.sale) if who == "preheats" else partial(lifecycle._unload, sale(offer.sale))
    customer = new_customer()
    with ThreadPoolExecutor(1) as pool:
        begun: list[Any] = []

        def meanwhile(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            if not begun and sql.startswith("SELECT") and "FOR UPDATE" in sql and "inventory_stockitem" in sql:
                begun.append(begin(pool, action))
            return execute(sql, *rest)

        with connection.execute_wrapper(meanwhile):
            placed = buy(offer, customer, a=1, b=2)
        begun[0].result(WAIT_TIMEOUT)
    assert not placed.replayed
    assert (stock.on_hand("a"), stock.on_hand("b")) == (49, 3)


@pytest.mark.parametrize("lately", [True, False])
def test_without_redis_a_sale_is_preheated_if_nothing_can_be_queued(redis_gone: Gone, lately: bool) -> None:
    """The shop assumes that no order is queued any more one day after its sale has closed."""
    before = on_sale({"a": 1}, strategy="lua-queue")
    lifecycle.close(before.sale)
    closed = timezone.now() - (0 if lately else 25) * HOUR
    Sale.objects.update(opens_at=closed - HOUR, closes_at=closed)
    after = on_sale({"a": 0}, preheat=False)
    with redis_gone(), pytest.raises(RedisError) if lately else nullcontext():
        preheat_sale(after.sale)
    assert sale(after.sale).is_loaded is not lately


def test_preheating_again_corrects_the_counter() -> None:
    offer = on_sale({"a": 5, "b": 3}, strategy="lua")
    buy(offer, a=1)
    for _ in range(2):
        preheat_sale(offer.sale)
        assert registry.counters().left(["a", "b"]) == {"a": 4, "b": 3}
        registry.counters().load("a", 9, (), make=True)


def test_preheating_again_keeps_the_counts_of_customers() -> None:
    on_sale({"a": 5}, strategy="lua-queue")
    Sale.objects.update(closes_at=timezone.now())
    offer, customer = on_sale({"a": 0}, strategy="lua-queue"), new_customer()
    buy(offer, customer, a=1)
    preheat_sale(offer.sale)
    assert registry.queue().bought.of("a") == {(offer.sale, customer): 1}


NEED_REDIS_COPY = {"lua", "lua-queue", "segmented-redis"}


@pytest.mark.parametrize("name", fast_and_slow(NAMES))
@pytest.mark.parametrize("lost", [True, False], ids=["redis lost its data", "never preheated"])
def test_the_first_order_loads_missing_stock(redis: Redis, name: str, lost: bool) -> None:
    offer = on_sale({"a": 3}, strategy=name, preheat=lost)
    redis.flushall()
    if not lost or name in NEED_REDIS_COPY:
        with pytest.raises(StockNotLoaded):
            buy(offer, a=1)
    buy(offer, a=1)
    save_queued()
    assert stock.on_hand("a") == 2
    assert sale(offer.sale).preheated_at is not None


def test_one_of_16_requests_loads_missing_stock(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = on_sale({"a": 50}, strategy="lua")
    redis.flushall()
    customers = [new_customer() for _ in range(16)]
    loading: list[int] = []
    told: list[int] = []
    lua = registry.get("lua")
    preheat = lua.preheat

    def slow(*stock: Any) -> None:
        loading.append(offer.sale)
        wait_for(lambda: len(told) == 15, "the other requests to fail")
        preheat(*stock)

    monkeypatch.setattr(lua, "preheat", slow)

    def order(customer: int) -> None:
        try:
            buy(offer, customer, a=1)
        finally:
            told.append(customer)

    answers = at_once(*[partial(order, customer) for customer in customers])
    assert count_by_kind(answers) == {"StockNotLoaded": 16}
    assert loading == [offer.sale]
    assert registry.counters().left(["a"]) == {"a": 50}


def test_stock_that_was_loaded_meanwhile_is_not_loaded_again(redis: Redis) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    missed_at = timezone.now()
    for missed, loaded in [(missed_at, True), (missed_at, False), (None, True)]:
        redis.flushall()
        preheat_sale(offer.sale, wait=False, missed_at=missed or timezone.now())
        assert registry.counters().left(["a"]) == {"a": 3 if loaded else None}
    Sale.objects.update(preheated_at=timezone.now() + timedelta(minutes=1))
    redis.flushall()
    preheat_sale(offer.sale, wait=False, missed_at=missed_at)
    assert registry.counters().left(["a"]) == {"a": 3}, "a time in the future is ignored"


@pytest.mark.parametrize(("name", "opens"), [("group-commit", True), ("lua", False)])
def test_without_redis_the_next_sale_of_a_sku_opens_if_none_has_used_it(
    redis_gone: Gone, name: str, opens: bool
) -> None:
    """The next sale opens if no counter of an earlier sale must be deleted. The control has a counter."""
    before = on_sale({"a": 3}, strategy=name)
    after = on_sale({"a": 0}, preheat=False)
    with redis_gone():
        for call, offer in ((lifecycle.close, before), (preheat_sale, after)):
            with nullcontext() if opens else pytest.raises(RedisError):
                call(offer.sale)
    assert sale(after.sale).is_loaded is opens
    assert (sale(before.sale).unloaded_at is not None) is opens
    assert sale(before.sale).closes_at <= timezone.now(), "it is closed anyway"


def test_without_redis_a_sale_that_does_not_use_it_is_paused(redis_gone: Gone) -> None:
    """Control: `test_without_redis_a_pause_stops_saving_and_beat_does_the_rest`."""
    offer = on_sale({"a": 3}, strategy="group-commit")
    with redis_gone():
        lifecycle.pause(offer.sale)
    assert sale(offer.sale).unloaded_at is not None


def test_a_sale_that_was_extended_meanwhile_stays_loaded() -> None:
    """`advance` does not unload a sale that was extended after `advance` had read it."""
    offer = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(closes_at=timezone.now())
    over = sale(offer.sale)
    Sale.objects.update(closes_at=timezone.now() + HOUR)
    lifecycle._unload(over)
    assert sale(offer.sale).is_loaded
    assert registry.counters().left(["a"]) == {"a": 3}


def test_a_closed_sale_is_not_loaded_by_a_late_order() -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    remembered = offers.get(offer.sale)
    lifecycle.close(offer.sale)
    offers.cache.put(offer.sale, remembered, refresh_at=math.inf)
    with pytest.raises(SaleNotOpen, match="Sale by lua is over"):
        buy(offer, a=1)
    assert registry.counters().left(["a"]) == {"a": None}
    assert not is_open_in_cache(offer.sale)


def test_an_unknown_strategy_does_not_stop_other_sales(caplog: pytest.LogCaptureFixture) -> None:
    unknown, lua = on_sale({"a": 1}, preheat=False), on_sale({"b": 1}, strategy="lua", preheat=False)
    Sale.objects.filter(pk=unknown.sale).update(strategy="etcd-lock")
    lifecycle.advance()
    assert f"Preheating or unloading sale {unknown.sale} fails" in caplog.text
    assert "ETCD_URL" in caplog.text
    assert sale(unknown.sale).preheated_at is None
    assert sale(lua.sale).preheated_at is not None


@pytest.mark.parametrize("name", ["lua", "unit-rows", *slow("lua-queue", "segmented-redis", "segmented-lock")])
@pytest.mark.parametrize("remover", ["closing", "reconciling"])
def test_stock_that_is_being_loaded_is_not_removed(name: str, remover: str) -> None:
    over = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(closes_at=timezone.now())
    opens, remove = (0 * HOUR, partial(lifecycle.close, over.sale)) if remover == "closing" else (HOUR, reconcile)
    coming = on_sale({"a": 0}, strategy=name, preheat=False, opens=opens, closes=opens + HOUR)
    if remover == "reconciling":
        lifecycle.close(over.sale)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            preheat_sale(coming.sale)
            removing = begin(pool, remove)
        removing.result(WAIT_TIMEOUT)

    if name.startswith("lua"):
        assert registry.counters().left(["a"]) == {"a": 3}
    elif name == "segmented-redis":
        assert registry.segment_counters().segments("a") is not None
    else:
        assert StockItem.objects.get().split_by == name
    assert sale(coming.sale).is_loaded
