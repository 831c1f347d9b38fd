"""Load the stock of a sale: copy it to where the sale's strategy takes it from."""

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
    """The sale is paused. It is preheated again when it goes on."""


def preheat_sale(sale: int, *, wait: bool = True, missed_at: datetime | None = None) -> None:
    """Load the stock of a sale, or correct what is loaded.

    When two sales offer the same sku, the one that opens first sells it; the other one is preheated when the first is
    over.

    Args:
        wait: whether to wait while another process preheats the sale.
        missed_at: when the stock was found not to be loaded. If it was loaded after that, nothing is done.

    Raises:
        SaleOver: the sale is over.
        SaleOnHold: the sale is paused.
        CannotPreheat: the sale was deleted, another process is preheating it, an earlier sale of the same skus is not
            over, orders of such a sale are still queued, or Redis may lose the orders that this one queues.
        RedisError: Redis does not answer.
    """
    with transaction.atomic():
        # One process at a time: the first one removes what an earlier sale has left, and no later one may do so.
        # Orders refer to the row meanwhile, so its key stays unlocked.
        locked = Sale.objects.select_for_update(no_key=True, skip_locked=not wait).filter(pk=sale).first()
        now = clock.now()
        if locked is None:
            raise CannotPreheat(f"Sale {sale} is being preheated by another process, or was deleted.")
        if locked.closes_at <= now:
            raise SaleOver(f"{locked} is over.")
        if locked.paused_at is not None:
            raise SaleOnHold(f"{locked} is paused. Resume it first.")
        loaded_at = locked.preheated_at if locked.is_loaded else None
        # A time in the future was written before Postgres's clock was set back, as by a failover: do not compare it.
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
            # If this sale was loaded, a sku of the earlier sale was added to it. Mark it as not loaded, so that it is
            # loaded again when the earlier sale is over.
            Sale.objects.filter(pk=sale, preheated_at__isnull=False, unloaded_at=None).update(unloaded_at=now)
    offers.forget(sale)
    sold_out.forget()
    if earlier is not None:
        raise CannotPreheat(f"“{earlier}” sells the same skus until {earlier.closes_at:%H:%M:%S}.")
    if queued_in is not None:
        raise CannotPreheat(f"Orders of sale {queued_in} for the same skus are queued. Their units are not free yet.")


def _refuse_risk(sale: Sale) -> None:
    """Refuse to queue orders in a Redis that may lose them, unless the operator has consented to that.

    Raises:
        CannotPreheat: the message names the risk, and what to do.
    """
    if not settings.QUEUED_ORDERS_MAY_BE_LOST and (risks := registry.risks(sale.strategy)):
        raise CannotPreheat(
            f"“{sale}” would queue orders in a Redis that may lose them: {'; '.join(risks)}. Set maxmemory-policy "
            "noeviction and appendonly yes there, choose another strategy, or accept the loss with "
            "QUEUED_ORDERS_MAY_BE_LOST=1."
        )


def _load(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> int | None:
    """Load the stock of a sale in the open transaction, and remove what other sales have loaded of it.

    Args:
        others: sales that offer some of the skus.

    Returns:
        The earlier sale whose queued orders still claim this stock; then nothing was loaded. Otherwise None.
    """
    if queued_in := _queued_in(sale, skus, others, now):
        return min(queued_in)
    # Lock all rows at once, in the order of the skus: below, some are written before the others.
    stock.lock(skus)
    loaded = others.filter(preheated_at__isnull=False, unloaded_at=None)
    if sale.is_loaded:  # The first preheat has already removed what earlier sales left.
        loaded = loaded.filter(closes_at__gt=now)
    theirs = SaleItem.objects.filter(sale__in=loaded, product__sku__in=skus)
    sold = theirs.values_list("product__sku", "sale__strategy")
    registry.unload(sorted({sku for sku, _ in sold}), {strategy for _, strategy in sold})
    # Sales that open later are preheated again when this one is over.
    loaded.filter(opens_at__gt=now).update(unloaded_at=now)
    # Look again: the counters are gone, so from here on no order for these skus can be queued.
    if queued_in := _queued_in(sale, skus, others, now):
        return min(queued_in)
    registry.preheat(sale.strategy, skus, saved)
    Sale.objects.filter(pk=sale.pk).update(preheated_at=Now(), unloaded_at=None)
    return None


def _queued_in(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> set[int]:
    """Return the other sales whose orders for these skus are queued. Most strategies would sell those units twice.

    Raises:
        RedisError: Redis does not answer, and one of the other sales queues orders and closed less than a day ago.
    """
    try:
        return registry.sales_with_queued_orders(skus) - {sale.pk}
    except RedisError:
        queueing = [name for name in registry.NAMES if registry.get(name).queues]
        if others.filter(strategy__in=queueing, closes_at__gt=now - timedelta(days=1)).exists():
            raise
        return set()
