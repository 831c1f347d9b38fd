"""Sales before they open and after they close, and what a process remembers of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone
from redis import Redis, RedisError

from inventory import stock
from inventory.errors import StockNotLoaded
from inventory.models import StockItem
from inventory.strategies import registry
from inventory.strategies.registry import NAMES
from shop.models import Product, Sale, SaleItem
from shop.orders.errors import SaleNotOpen
from shop.orders.place import place_order
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.reconcile import reconcile
from shop.sales import lifecycle, offers
from tests.factories import at_once, begin, interleaved, new_customer, on_sale, tally
from tests.shop.conftest import Gone
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def sale(number: int) -> Sale:
    return Sale.objects.get(pk=number)


# Windows


def test_a_sale_closes_after_it_opens(db: None) -> None:
    now = timezone.now()
    with pytest.raises(IntegrityError, match="sale_closes_after_it_opens"), transaction.atomic():
        Sale.objects.create(name="never", opens_at=now, closes_at=now)
    with pytest.raises(ValidationError, match="closes after it opens"):
        Sale(name="never", opens_at=now, closes_at=now).full_clean()


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
    first = on_sale({"a": 1, "b": 1})
    window = sale(first.sale)
    middle = window.opens_at + timedelta(hours=1)
    new = Sale.objects.create(
        name="New", opens_at=middle + timedelta(hours=opens), closes_at=middle + timedelta(hours=closes)
    )
    problems = list(lifecycle.overlaps(new, Product.objects.filter(sku="a")))
    assert problems == (["A is in “Sale by guarded-update” at the same time."] if overlaps else [])
    assert list(lifecycle.overlaps(window, Product.objects.all())) == []


# Strategies


def test_the_strategies_of_a_sale_are_the_ones_that_ship() -> None:
    now = timezone.now()
    window = {"name": "x", "opens_at": now, "closes_at": now + timedelta(hours=1)}
    for name in NAMES:
        Sale(**window, strategy=name).full_clean()
    with pytest.raises(ValidationError, match="compute-and-overwrite"):
        Sale(**window, strategy="compute-and-overwrite").full_clean()


def test_the_strategy_is_fixed_once_stock_may_have_been_taken() -> None:
    fresh = Sale.objects.create(name="x", opens_at=timezone.now(), closes_at=timezone.now() + timedelta(hours=1))
    assert not fresh.strategy_is_fixed
    offer = on_sale({"a": 1})
    assert sale(offer.sale).strategy_is_fixed
    Sale.objects.update(preheated_at=None)
    assert not sale(offer.sale).strategy_is_fixed
    Sale.objects.update(preheated_at=timezone.now())
    place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="mine")
    Sale.objects.update(preheated_at=None)
    assert sale(offer.sale).strategy_is_fixed


def test_saving_a_sale_changes_no_strategy_that_is_fixed_and_undoes_no_preheating() -> None:
    """Also by who has read the row before it was preheated."""
    offer = on_sale({"a": 1}, preheat=False)
    stale = sale(offer.sale)
    lifecycle.preheat(offer.sale)

    stale.name = "Another"
    stale.save()
    assert (sale(offer.sale).name, sale(offer.sale).is_loaded) == ("Another", True)
    stale.strategy = "unit-rows"
    stale.preheated_at = None
    with pytest.raises(ValidationError, match="sells by guarded-update already"):
        stale.save()
    assert (sale(offer.sale).strategy, sale(offer.sale).is_loaded) == ("guarded-update", True)


def test_saving_a_sale_that_is_not_preheated_may_change_its_strategy() -> None:
    fresh = sale(on_sale({"a": 1}, preheat=False).sale)
    fresh.strategy = "unit-rows"
    fresh.save()
    assert sale(fresh.pk).strategy == "unit-rows"


# Preheating and closing


def test_preheating_twice_is_preheating_once(redis: Redis) -> None:
    offer = on_sale({"a": 2, "b": 3}, strategy="lua")
    place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="mine")
    lifecycle.preheat(offer.sale)
    assert registry.counters().left(["a", "b"]) == {"a": 1, "b": 3}


def test_only_what_takes_from_redis_makes_copies_there(redis: Redis) -> None:
    for name in NAMES:
        on_sale({name: 1}, strategy=name)
    assert registry.counters().left(NAMES) == {name: 1 if name.startswith("lua") else None for name in NAMES}


@pytest.mark.parametrize("call", [lifecycle.preheat, lifecycle.close])
def test_without_redis_it_says_so(redis_gone: Gone, call: Callable[[int], None]) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    with redis_gone(), pytest.raises(RedisError):
        call(offer.sale)
    assert sale(offer.sale).preheated_at is None
    assert (sale(offer.sale).closes_at <= timezone.now()) is (call is lifecycle.close)


def test_closing_ends_the_window_and_removes_the_copies() -> None:
    offer, another = on_sale({"a": 1}, strategy="lua"), on_sale({"b": 1}, strategy="lua")
    assert offers.get(offer.sale).closes_at > timezone.now()  # type: ignore[union-attr]  # and that is remembered
    lifecycle.close(offer.sale)
    assert offers.get(offer.sale).closes_at <= timezone.now()  # type: ignore[union-attr]
    ended = sale(offer.sale).closes_at
    assert ended <= timezone.now()
    assert registry.counters().left(["a", "b"]) == {"a": None, "b": 1}
    with pytest.raises(SaleNotOpen):
        place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="mine")
    lifecycle.close(offer.sale)
    assert sale(offer.sale).closes_at == ended
    assert sale(another.sale).closes_at > timezone.now()


# What a process remembers


def test_an_offer_has_what_an_order_needs() -> None:
    made = on_sale({"a": 1, "b": 1}, strategy="lua", price="1.50", limit=3)
    offer, row = offers.get(made.sale), sale(made.sale)
    assert offer == offers.Offer(
        made.sale,
        row.name,
        row.opens_at,
        row.closes_at,
        "lua",
        True,
        {made.products[sku]: offers.Offered(made.products[sku], sku, sku.title(), Decimal("1.50"), 3) for sku in "ab"},
    )


def test_an_offer_is_read_once_and_a_sale_that_is_not_there_is_asked_for_again() -> None:
    made = on_sale({"a": 1})
    offer = offers.read(made.sale)
    offers._remembered[made.sale] = (math.inf, offer)
    SaleItem.objects.all().delete()
    assert offers.get(made.sale) == offer
    offers._remembered.clear()
    assert offers.get(made.sale) != offer
    assert offers.get(2**62) is None
    assert 2**62 not in offers._remembered


@pytest.mark.parametrize(
    ("left", "read", "known_to_others"),
    [
        pytest.param(0.9, "the old", "the old", id="young: nobody reads it"),
        pytest.param(0.4, "the new", "the old", id="ageing: one reads it, and the others go on"),
        pytest.param(-0.1, "the new", "the new", id="too old: all read it"),
    ],
)
def test_one_reads_an_offer_anew_before_it_is_too_old_for_all(
    monkeypatch: pytest.MonkeyPatch, settings: Any, left: float, read: str, known_to_others: str
) -> None:
    settings.OFFER_TTL = 1.0
    made = on_sale({"a": 1})
    old = offers.read(made.sale)
    assert old is not None
    Sale.objects.update(name="the new")
    monkeypatch.setattr(offers, "time", SimpleNamespace(monotonic=lambda: 100.0))
    offers._remembered[made.sale] = (100.0 + left, replace(old, name="the old"))
    others: list[str] = []

    def meanwhile() -> None:
        others.append(offers.get(made.sale).name)  # type: ignore[union-attr]

    if read == "the new":
        with interleaved(meanwhile, before="shop_sale"):
            offer = offers.get(made.sale)
    else:
        offer = offers.get(made.sale)
        meanwhile()

    assert offer is not None
    assert (offer.name, others) == (read, [known_to_others])
    assert offers.get(made.sale).name == read  # type: ignore[union-attr]


@pytest.mark.parametrize("left", [0.4, -0.1])
def test_an_offer_that_is_still_good_needs_no_postgres(
    monkeypatch: pytest.MonkeyPatch, settings: Any, left: float
) -> None:
    settings.OFFER_TTL = 1.0
    made = on_sale({"a": 1})
    known = offers.read(made.sale)
    assert known is not None
    offers._remembered[made.sale] = (time.monotonic() + left, known)
    monkeypatch.setattr(offers, "read", lambda sale: (_ for _ in ()).throw(OperationalError("gone")))
    if left > 0:
        assert offers.get(made.sale) is known, "the one who looks ahead"
        assert offers.get(made.sale) is known, "the others"
    else:
        with pytest.raises(OperationalError):
            offers.get(made.sale)


def test_what_is_to_be_forgotten_while_it_is_read_is_not_remembered() -> None:
    made = on_sale({"a": 1})
    offers._remembered.clear()

    def close() -> None:
        Sale.objects.update(name="closed")
        offers.forget(made.sale)

    with interleaved(close, after="shop_product"):  # the last thing that is read
        assert offers.get(made.sale).name != "closed"  # type: ignore[union-attr]
    assert offers.get(made.sale).name == "closed"  # type: ignore[union-attr]


def test_preheating_locks_the_stock_in_the_order_of_all_others(redis: Redis) -> None:
    """The sale before has pieces of the second sku to be put back: it would be locked before the first."""
    earlier = on_sale({"b": 5}, strategy="unit-rows")
    Sale.objects.filter(pk=earlier.sale).update(closes_at=timezone.now())
    later = on_sale({"a": 5, "b": 0}, strategy="lua", preheat=False)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            stock.lock(["a"])  # an order of both ends, say
            preheating = begin(pool, partial(lifecycle.preheat, later.sale))
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
            stock.lock(["b"])
        preheating.result(PATIENCE)
    assert registry.counters().left(["a", "b"]) == {"a": 5, "b": 5}


@pytest.mark.parametrize("who", ["preheats", "ends"])
def test_who_gathers_segments_in_the_middle_of_a_cart_and_who_has_all_of_the_stock_get_on(
    redis: Redis, who: str
) -> None:
    """The cart has a segment of the first sku when it wants all of the second, which the other has with the first."""
    offer = on_sale({"a": 50, "b": 5}, strategy="segmented-lock")
    action = (
        partial(lifecycle.preheat, offer.sale) if who == "preheats" else partial(lifecycle._unload, sale(offer.sale))
    )
    customer = new_customer()
    with ThreadPoolExecutor(1) as pool:
        begun: list[Any] = []

        def meanwhile(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            if not begun and sql.startswith("SELECT") and "FOR UPDATE" in sql and "inventory_stockitem" in sql:
                begun.append(begin(pool, action))
            return execute(sql, *rest)

        with connection.execute_wrapper(meanwhile):
            placed = place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1, b=2), key="k")
        begun[0].result(PATIENCE)
    assert not placed.replayed
    assert (stock.on_hand("a"), stock.on_hand("b")) == (49, 3)


@pytest.mark.parametrize("lately", [True, False])
def test_without_redis_a_sale_that_needs_none_begins_unless_something_may_be_queued(
    redis_gone: Gone, lately: bool
) -> None:
    before = on_sale({"a": 1}, strategy="lua-queue")
    lifecycle.close(before.sale)
    closed = timezone.now() - timedelta(hours=0 if lately else 25)
    Sale.objects.update(opens_at=closed - timedelta(hours=1), closes_at=closed)
    after = on_sale({"a": 0}, preheat=False)
    with redis_gone():
        if lately:
            with pytest.raises(RedisError):
                lifecycle.preheat(after.sale)
        else:
            lifecycle.preheat(after.sale)
    assert sale(after.sale).is_loaded is not lately


def test_the_first_preheat_removes_what_an_earlier_sale_of_the_sku_has_left(redis: Redis) -> None:
    earlier = on_sale({"a": 5}, strategy="lua")
    Sale.objects.filter(pk=earlier.sale).update(closes_at=timezone.now())
    StockItem.objects.filter(sku="a").update(on_hand=3)
    assert registry.counters().left(["a"]) == {"a": 5}
    now = timezone.now()
    later = Sale.objects.create(name="x", opens_at=now, closes_at=now + timedelta(hours=1), strategy="lua")
    SaleItem.objects.create(sale=later, product=Product.objects.get(sku="a"), price=Decimal(1))

    lifecycle.preheat(later.pk)

    assert registry.counters().left(["a"]) == {"a": 3}


def test_a_second_preheat_makes_the_counter_of_a_running_sale_agree_with_postgres_again(redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua")
    place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")
    registry.counters().load("a", 9, (), make=True)

    lifecycle.preheat(offer.sale)

    assert registry.counters().left(["a"]) == {"a": 4}


def test_a_second_preheat_forgets_nobody_who_has_bought_since_the_first(redis: Redis) -> None:
    """Also while what the sale before has left is not cleared away."""
    on_sale({"a": 5}, strategy="lua-queue")
    Sale.objects.update(closes_at=timezone.now())
    offer = on_sale({"a": 0}, strategy="lua-queue")
    customer = new_customer()
    place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="k")

    lifecycle.preheat(offer.sale)

    assert registry.queue().bought("a") == {(offer.sale, customer): 1}


# What was not preheated, or was lost


NEED_REDIS_COPY = {"lua", "lua-queue", "segmented-redis"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", [True, False], ids=["redis lost its data", "never preheated"])
def test_stock_that_is_not_loaded_is_loaded_by_the_first_who_asks(redis: Redis, name: str, lost: bool) -> None:
    offer = on_sale({"a": 3}, strategy=name, preheat=lost)
    redis.flushall()

    def buy() -> Placed:
        return place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")

    if not lost or name in NEED_REDIS_COPY:
        with pytest.raises(StockNotLoaded):
            buy()
    assert not buy().replayed
    save_queued()
    assert stock.on_hand("a") == 2
    assert sale(offer.sale).preheated_at is not None


def test_of_16_who_find_no_stock_one_loads_it(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = on_sale({"a": 50}, strategy="lua")
    redis.flushall()
    customers = [new_customer() for _ in range(16)]
    loading: list[int] = []
    told: list[int] = []
    lua = registry.get("lua")
    preheat = lua.preheat

    def slow(*stock: Any) -> None:
        loading.append(offer.sale)
        wait_for(lambda: len(told) == 15, "the others to be told to come again")
        preheat(*stock)

    monkeypatch.setattr(lua, "preheat", slow)

    def buy(customer: int) -> None:
        try:
            place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="k")
        finally:
            told.append(customer)

    answers = at_once(*[partial(buy, customer) for customer in customers])
    assert tally(answers) == {"StockNotLoaded": 16}
    assert loading == [offer.sale]
    assert registry.counters().left(["a"]) == {"a": 50}


def test_who_has_missed_what_was_loaded_since_does_not_load_it_again(redis: Redis) -> None:
    """Many miss it in the same moment: they ask again, and find it."""
    offer = on_sale({"a": 3}, strategy="lua")
    missed_at = timezone.now()
    for missed, loaded in [(missed_at, True), (missed_at, False), (None, True)]:
        redis.flushall()
        lifecycle.preheat(offer.sale, wait=False, missed_at=missed or timezone.now())
        assert registry.counters().left(["a"]) == {"a": 3 if loaded else None}


def test_what_a_clock_that_is_ahead_says_was_loaded_is_loaded_again(redis: Redis) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(preheated_at=timezone.now() + timedelta(minutes=1))
    redis.flushall()
    with pytest.raises(StockNotLoaded):
        place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")
    assert registry.counters().left(["a"]) == {"a": 3}


def test_a_sale_that_needs_no_redis_is_loaded_without_it(redis_gone: Gone) -> None:
    offer = on_sale({"a": 3}, preheat=False)
    with redis_gone(), pytest.raises(StockNotLoaded):
        place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")
    assert sale(offer.sale).preheated_at is not None


def test_who_has_not_heard_that_a_sale_is_over_is_told_so_and_loads_it_no_more(redis: Redis) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    remembered = offers.get(offer.sale)
    lifecycle.close(offer.sale)
    offers._remembered[offer.sale] = (math.inf, remembered)
    with pytest.raises(SaleNotOpen, match="Sale by lua is over"):
        place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")
    assert registry.counters().left(["a"]) == {"a": None}
    assert not offers.get(offer.sale).is_open(timezone.now())


# Tending


def test_a_sale_that_opens_soon_is_preheated_and_one_that_is_over_is_unloaded(redis: Redis) -> None:
    hour = timedelta(hours=1)
    soon = on_sale({"a": 3}, strategy="lua", opens=timedelta(seconds=30), preheat=False)
    later = on_sale({"b": 3}, strategy="lua", opens=timedelta(seconds=90), preheat=False)
    over = on_sale({"c": 3}, strategy="lua")
    Sale.objects.filter(pk=over.sale).update(opens_at=timezone.now() - hour, closes_at=timezone.now())

    lifecycle.tend()

    assert registry.counters().left(["a", "b", "c"]) == {"a": 3, "b": None, "c": None}
    assert [sale(each.sale).preheated_at is not None for each in (soon, later, over)] == [True, False, True]
    assert [sale(each.sale).unloaded_at is not None for each in (soon, later, over)] == [False, False, True]


def test_the_next_sale_of_a_sku_is_preheated_when_the_one_before_is_over_and_keeps_its_copy(redis: Redis) -> None:
    first = on_sale({"a": 3}, strategy="lua")
    second = on_sale({"a": 0}, strategy="lua", opens=timedelta(seconds=1), preheat=False)
    with pytest.raises(lifecycle.NotNow, match="selling the same"):
        lifecycle.preheat(second.sale)
    lifecycle.tend()
    assert sale(second.sale).preheated_at is None
    Sale.objects.filter(pk=first.sale).update(closes_at=timezone.now())
    lifecycle.preheat(second.sale)
    lifecycle.tend()
    assert sale(first.sale).unloaded_at is not None
    assert registry.counters().left(["a"]) == {"a": 3}


def test_a_sale_by_a_strategy_that_is_not_known_here_keeps_no_other_from_it(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The web processes know where etcd is, and nobody has told this worker."""
    unknown, lua = on_sale({"a": 1}, preheat=False), on_sale({"b": 1}, strategy="lua", preheat=False)
    Sale.objects.filter(pk=unknown.sale).update(strategy="etcd-lock")
    lifecycle.tend()
    assert f"Sale {unknown.sale} could not be tended" in caplog.text
    assert "ETCD_URL" in caplog.text
    assert sale(unknown.sale).preheated_at is None
    assert sale(lua.sale).preheated_at is not None


def test_a_sale_that_cannot_be_tended_keeps_no_other_from_it(
    redis_gone: Gone, caplog: pytest.LogCaptureFixture
) -> None:
    lua = on_sale({"a": 1}, strategy="lua", preheat=False)
    with redis_gone():
        lifecycle.tend()
    assert f"Sale {lua.sale} could not be tended" in caplog.text
    assert sale(lua.sale).preheated_at is None
    lifecycle.tend()
    assert sale(lua.sale).preheated_at is not None


@pytest.mark.parametrize("name", ["lua", "lua-queue", "segmented-redis", "segmented-lock", "unit-rows"])
@pytest.mark.parametrize("clearing", ["the end of the sale before", "reconciling"])
def test_a_copy_that_is_being_made_is_not_removed(redis: Redis, name: str, clearing: str) -> None:
    over = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(closes_at=timezone.now())
    hours = 0 if clearing == "the end of the sale before" else 1
    window = {"opens": timedelta(hours=hours), "closes": timedelta(hours=hours + 1)}
    coming = on_sale({"a": 0}, strategy=name, preheat=False, **window)
    if clearing == "reconciling":
        lifecycle.close(over.sale)
    clear = partial(lifecycle.close, over.sale) if clearing == "the end of the sale before" else reconcile
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            lifecycle.preheat(coming.sale)
            clearing_away = begin(pool, clear)
            wait_for(lambda: clearing_away.done() or somebody_waits_for_a_row(), "somebody to find the copy")
        clearing_away.result(PATIENCE)

    copies = {
        "lua": lambda: registry.counters().left(["a"]) == {"a": 3},
        "lua-queue": lambda: registry.counters().left(["a"]) == {"a": 3},
        "segmented-redis": lambda: registry.segment_counters().segments("a") is not None,
        "segmented-lock": lambda: StockItem.objects.get().split_by == name,
        "unit-rows": lambda: StockItem.objects.get().split_by == name,
    }
    assert copies[name]()
    assert sale(coming.sale).is_loaded


def somebody_waits_for_a_row() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None
