"""Sales before they open: which may be, and what has to be copied where."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from redis import RedisError

from inventory import sold_out, stock
from inventory.errors import UnknownStrategy
from inventory.strategies import registry
from shop.models import Product, Sale, SaleItem
from shop.orders.saving import saved
from shop.sales import offers

logger = logging.getLogger(__name__)


class NotNow(Exception):
    """The sale cannot be preheated at the moment."""


class IsOver(NotNow):
    """The sale cannot be preheated any more."""


def overlaps(sale: Sale, products: Iterable[Product]) -> Iterator[str]:
    """Why a sale cannot offer the products: a sku is in one open sale at a time, or two strategies would take it."""
    others = SaleItem.objects.filter(
        product__in=list(products), sale__opens_at__lt=sale.closes_at, sale__closes_at__gt=sale.opens_at
    ).exclude(sale=sale.pk)
    for item in others.select_related("product", "sale"):
        yield f"{item.product} is in “{item.sale}” at the same time."


def preheat(sale: int, *, wait: bool = True, missed_at: datetime | None = None) -> None:
    """Copy the stock of a sale to where its strategy takes it from, or make the copy right again.

    Of two sales that have a sku, the one that opens first sells it: the other one is preheated when that is over.

    Args:
        wait: for whoever is preheating the sale at the moment.
        missed_at: when somebody found the copy missing. One that was made since will do.

    Raises:
        IsOver: it is over.
        NotNow: there is no such sale any more, another sale sells the same skus now or before it, or has sold them to
            who is still in its queue, or somebody else is preheating it.
        RedisError: Redis did not answer.
    """
    with transaction.atomic():
        # One at a time: the first removes what an earlier sale of the skus has left, and nobody does after it. Orders
        # refer to the row meanwhile, so its key is not locked.
        locked = Sale.objects.select_for_update(no_key=True, skip_locked=not wait).filter(pk=sale).first()
        now = timezone.now()
        if locked is None:
            raise NotNow(f"Sale {sale} is being preheated, or is no more.")
        if locked.closes_at <= now:
            raise IsOver(f"{locked} is over.")
        made = locked.preheated_at if locked.is_loaded else None
        # From the future it is by another clock, which says nothing.
        if made is not None and missed_at is not None and missed_at < made <= now:
            offers.forget(sale)
            return
        skus = _skus_of(locked)
        others = Sale.objects.filter(products__sku__in=skus).exclude(pk=sale)
        sooner = Q(opens_at__lt=locked.opens_at) | Q(opens_at=locked.opens_at, pk__lt=sale)
        before = others.filter(sooner, closes_at__gt=now).first()
        promised = None
        if before is None:
            promised = _copy(locked, skus, others, now)
        elif locked.opens_at > now:
            # A sku was added to it that the other one sells: it is loaded when that is over.
            Sale.objects.filter(pk=sale, preheated_at__isnull=False, unloaded_at=None).update(unloaded_at=now)
    offers.forget(sale)
    sold_out.forget()
    if before is not None:
        raise NotNow(f"“{before}” is selling the same until {before.closes_at:%H:%M:%S}.")
    if promised is not None:
        raise NotNow(f"Orders of sale {promised} for the same are queued, and have its stock until they are saved.")


def _copy(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> int | None:
    """Copy the stock of a sale, in the open transaction, and remove what others have copied of it.

    Args:
        others: sales that have some of the skus.

    Returns:
        The sale that has sold some of it to who is still in its queue: nothing was copied. None when there is none.
    """
    if promised := _promised(sale, skus, others, now):
        return min(promised)
    # All at once, in the one order that everybody keeps to: below some are written before the others.
    stock.lock(skus)
    loaded = others.filter(preheated_at__isnull=False, unloaded_at=None)
    if sale.is_loaded:  # what those that are over have left was removed the first time
        loaded = loaded.filter(closes_at__gt=now)
    theirs = SaleItem.objects.filter(sale__in=loaded, product__sku__in=skus)
    registry.unload(sorted(set(theirs.values_list("product__sku", flat=True))))
    # Those that are to come are preheated again when this one is over.
    loaded.filter(opens_at__gt=now).update(unloaded_at=now)
    # Once more: from here on nobody queues for these, since their counters are gone.
    if promised := _promised(sale, skus, others, now):
        return min(promised)
    registry.preheat(sale.strategy, skus, saved)
    Sale.objects.filter(pk=sale.pk).update(preheated_at=timezone.now(), unloaded_at=None)
    return None


def _promised(sale: Sale, skus: Sequence[str], others: QuerySet[Sale], now: datetime) -> set[int]:
    """The other sales whose orders for these skus are queued. Most strategies would sell what is only promised.

    Raises:
        RedisError: Redis did not answer, and a sale of these skus has queued orders in it lately.
    """
    try:
        return registry.promised(skus) - {sale.pk}
    except RedisError:
        queueing = [name for name in registry.NAMES if registry.get(name).queues]
        if others.filter(strategy__in=queueing, closes_at__gt=now - timedelta(days=1)).exists():
            raise
        return set()


def close(sale: int) -> None:
    """End a sale now, and remove the copies that its strategy has made.

    Raises:
        RedisError: Redis did not answer; the sale is closed all the same, and `tend` removes them later.
    """
    Sale.objects.filter(pk=sale, closes_at__gt=timezone.now()).update(closes_at=timezone.now())
    offers.forget(sale)
    _unload(Sale.objects.get(pk=sale))


def tend() -> None:
    """Preheat the sales that open soon, and remove the copies of those that are over. Celery beat calls it.

    A sale that cannot be tended now is logged, and does not keep the others from it.
    """
    now = timezone.now()
    for sale in Sale.objects.filter(closes_at__lte=now, preheated_at__isnull=False, unloaded_at=None):
        with _logged(sale):
            _unload(sale)
    soon = now + timedelta(seconds=settings.PREHEAT_LEAD)
    unloaded = Q(preheated_at=None) | Q(unloaded_at__isnull=False)
    for sale in Sale.objects.filter(unloaded, opens_at__lte=soon, closes_at__gt=now):
        with _logged(sale):
            preheat(sale.pk)


def _unload(sale: Sale) -> None:
    now = timezone.now()
    with transaction.atomic():
        # Who preheats another sale of these skus has done it when this has their rows, or waits for them.
        stock.lock(skus := _skus_of(sale))
        next_ones = Sale.objects.filter(preheated_at__isnull=False, unloaded_at=None, closes_at__gt=now)
        theirs = SaleItem.objects.filter(sale__in=next_ones.exclude(pk=sale.pk))
        others = set(theirs.values_list("product__sku", flat=True))
        registry.unload([sku for sku in skus if sku not in others])
    Sale.objects.filter(pk=sale.pk).update(unloaded_at=now)


def _skus_of(sale: Sale) -> list[str]:
    return sorted(sale.items.values_list("product__sku", flat=True))


@contextmanager
def _logged(sale: Sale) -> Iterator[None]:
    try:
        yield
    except NotNow as wait:
        logger.info("%s", wait)
    except (RedisError, DatabaseError, UnknownStrategy):
        logger.exception("Sale %s could not be tended; the next round tries again.", sale.pk)
