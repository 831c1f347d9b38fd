"""Preheat a sale: copy its stock to the place from which its strategy takes units, such as counters in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from redis import RedisError

from inventory import sold_out, stock
from inventory.strategies import registry
from shop import clock
from shop.models import Sale, SaleItem
from shop.sales import offers
from shop.sold import saved


class CannotPreheat(Exception):
    """The sale cannot be preheated now."""


class SaleOver(CannotPreheat):
    """The sale is over, so it cannot be preheated any more."""


class SaleOnHold(CannotPreheat):
    """The sale is paused, so it cannot be preheated before it is resumed."""


def preheat_sale(sale: int, *, wait: bool = True, missed_at: datetime | None = None) -> None:
    """Load the stock of a sale, or correct the loaded stock.

    When two sales offer the same sku, the sale that opens first sells it. The other sale is preheated when the first
    sale is over.

    Args:
        wait: whether to wait while another process preheats the sale.
        missed_at: when the caller found the stock not loaded. If it was loaded after that, do nothing.

    Raises:
        SaleOver: the sale is over.
        SaleOnHold: the sale is paused.
        CannotPreheat: the sale was deleted, or another process is preheating it. Or an earlier sale of the same skus
            is not over. Or another sale still has queued orders for these skus. Or Redis may lose the orders that this
            sale queues.
        RedisError: Redis does not answer, and this sale or another sale of its skus needs it.
        UnknownStrategy: this process does not have the strategy of the sale.
    """
    with transaction.atomic():
        # Let only one process at a time preheat a sale. The first preheating removes the copies that an earlier sale
        # has loaded. A second preheating must not remove them again, because they may be those of this sale by then.
        # `no_key` does not block new orders, which refer to the row.
        locked = Sale.objects.select_for_update(no_key=True, skip_locked=not wait).filter(pk=sale).first()
        now = clock.now()
        if locked is None:
            raise CannotPreheat(f"Sale {sale} is being preheated by another process, or was deleted.")
        if locked.closes_at <= now:
            raise SaleOver(f"{locked} is over.")
        if locked.paused_at is not None:
            raise SaleOnHold(f"{locked} is paused. Resume it first.")
        loaded_at = locked.preheated_at if locked.is_loaded else None
        # Ignore a `loaded_at` in the future: it was written before Postgres's clock went back, as it can in a failover.
        if loaded_at is not None and missed_at is not None and missed_at < loaded_at <= now:
            offers.forget(sale)
            return
        skus = locked.skus
        others = Sale.objects.filter(products__sku__in=skus).exclude(pk=sale)
        opens_sooner = Q(opens_at__lt=locked.opens_at) | Q(opens_at=locked.opens_at, pk__lt=sale)
        earlier = others.filter(opens_sooner, closes_at__gt=now).first()
        queued_in = None
        if earlier is None:
            _refuse_risk(locked)
            queued_in = _load(locked, skus, others, now)
        elif locked.opens_at > now:
            # This sale may be loaded already: the common sku may have been added to one of the two sales after the
            # loading. Mark this sale as not loaded, so that it is loaded again when the earlier sale is over.
            Sale.objects.filter(pk=sale, preheated_at__isnull=False, unloaded_at=None).update(unloaded_at=now)
    offers.forget(sale)
    sold_out.forget()
    if earlier is not None:
        raise CannotPreheat(f"“{earlier}” sells the same skus until {earlier.closes_at:%H:%M:%S}.")
    if queued_in is not None:
        raise CannotPreheat(f"Orders of sale {queued_in} for the same skus are queued. Their units are not free yet.")


def _refuse_risk(sale: Sale) -> None:
    """Refuse a sale that queues orders in a Redis that may lose them, unless `QUEUED_ORDERS_MAY_BE_LOST` is set.

    Raises:
        CannotPreheat: Redis may lose queued orders. The message says why, and what to do.
    """
    if not settings.QUEUED_ORDERS_MAY_BE_LOST and (risks := registry.risks(sale.strategy)):
        raise CannotPreheat(
            f"“{sale}” would queue orders in a Redis that may lose them: {'; '.join(risks)}. Set maxmemory-policy "
            "noeviction and appendonly yes there, choose another strategy, or accept the loss with "
            "QUEUED_ORDERS_MAY_BE_LOST=1."
        )


def _load(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> int | None:
    """Load the stock of a sale in the open transaction, and remove copies of it that other sales have loaded.

    Args:
        others: other sales that offer some of the skus.

    Returns:
        None if the stock was loaded. Otherwise the id of another sale, whose queued orders still need this stock.
    """
    if queued_in := _queued_in(sale, skus, others, now):
        return min(queued_in)
    # Lock all stock rows now in the order of their skus, to avoid deadlocks: they are written in another order below.
    stock.lock(skus)
    loaded = others.filter(preheated_at__isnull=False, unloaded_at=None)
    if sale.is_loaded:  # The first preheating has already removed the copies of earlier sales.
        loaded = loaded.filter(closes_at__gt=now)
    theirs = SaleItem.objects.filter(sale__in=loaded, product__sku__in=skus)
    sold = theirs.values_list("product__sku", "sale__strategy")
    registry.unload(sorted({sku for sku, _ in sold}), {strategy for _, strategy in sold})
    # Sales that open later are preheated again when this sale is over.
    loaded.filter(opens_at__gt=now).update(unloaded_at=now)
    # Check the queue again: now that the counters are removed, no further order for these skus can be queued.
    if queued_in := _queued_in(sale, skus, others, now):
        return min(queued_in)
    registry.preheat(sale.strategy, skus, saved)
    Sale.objects.filter(pk=sale.pk).update(preheated_at=Now(), unloaded_at=None)
    return None


def _queued_in(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> set[int]:
    """Return the ids of the other sales that have queued orders for these skus.

    If the stock of these skus were loaded now, most strategies would sell the units of the queued orders twice.

    Raises:
        RedisError: Redis does not answer, and one of the other sales may have queued orders: its strategy queues
            orders, and the sale has not been over for a day yet.
    """
    try:
        return registry.sales_with_queued_orders(skus) - {sale.pk}
    except RedisError:
        queueing = [name for name in registry.NAMES if registry.get(name).queues]
        if others.filter(strategy__in=queueing, closes_at__gt=now - timedelta(days=1)).exists():
            raise
        return set()
