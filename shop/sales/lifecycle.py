"""The life of a sale: check overlaps, preheat before the opening, pause, resume, extend, close and unload."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from redis import RedisError

from inventory import stock
from inventory.errors import UnknownStrategy
from inventory.outages import outages
from inventory.strategies import registry
from shop import clock
from shop.models import Product, Sale, SaleItem
from shop.sales import offers
from shop.sales.preheat import CannotPreheat, preheat_sale

logger = logging.getLogger(__name__)


def overlaps(sale: Sale, products: Iterable[Product]) -> Iterator[str]:
    """Yield a sentence for each product that another sale offers at the same time, which is not allowed."""
    others = SaleItem.objects.filter(
        product__in=list(products), sale__opens_at__lt=sale.closes_at, sale__closes_at__gt=sale.opens_at
    ).exclude(sale=sale.pk)
    for item in others.select_related("product", "sale"):
        yield f"{item.product} is in “{item.sale}” at the same time."


def advance() -> None:
    """Preheat sales that open soon or are open, unload sales that are over, and complete pauses that have failed.

    Celery beat calls this every few seconds. An error in one sale is logged and does not stop the others.
    """
    # A pause keeps, in Redis, the counts of units that each customer has bought. Remove them here, after the closing.
    held = Q(paused_at__isnull=False, unloaded_at__lt=F("closes_at"))
    for sale in Sale.objects.filter(Q(unloaded_at=None) | held, closes_at__lte=Now(), preheated_at__isnull=False):
        with _errors_logged(sale):
            _unload(sale)
    for sale in Sale.objects.filter(paused_at__isnull=False, preheated_at__isnull=False, unloaded_at=None):
        with _errors_logged(sale):  # The copies are still loaded, because Redis did not answer during `pause`.
            _hold(sale.pk)
    soon = Now() + timedelta(seconds=settings.PREHEAT_LEAD)
    unloaded = Q(preheated_at=None) | Q(unloaded_at__isnull=False)
    for sale in Sale.objects.filter(unloaded, paused_at=None, opens_at__lte=soon, closes_at__gt=Now()):
        with _errors_logged(sale):
            preheat_sale(sale.pk)


def close(sale: int) -> None:
    """End a sale now, and unload its stock.

    Raises:
        RedisError: Redis does not answer. The sale is closed, and `advance` unloads its stock later.
    """
    Sale.objects.filter(pk=sale, closes_at__gt=Now()).update(closes_at=Now())
    offers.forget(sale)
    _unload(Sale.objects.get(pk=sale))


def pause(sale: int) -> None:
    """Stop taking orders of a sale. When this has returned, no new order can be saved or queued before `resume`.

    Saved orders and queued orders stay valid, and workers still save queued orders. If this call fails, a repeated call
    completes the pause.

    Raises:
        RedisError: Redis does not answer. New orders cannot be saved, but `lua-queue` may still queue some. Call again.
    """
    Sale.objects.filter(pk=sale, paused_at=None).update(paused_at=Now())
    offers.forget(sale)
    _hold(sale)


def resume(sale: int) -> None:
    """Take orders of a paused sale again, and load its stock if it was loaded before.

    Raises:
        CannotPreheat, RedisError: the sale is resumed, but its stock is not loaded. `advance`, or the first order,
            loads it later.
    """
    resumed = Sale.objects.filter(pk=sale, paused_at__isnull=False).update(paused_at=None)
    offers.forget(sale)
    if resumed and Sale.objects.filter(pk=sale, preheated_at__isnull=False, closes_at__gt=Now()).exists():
        preheat_sale(sale)


def extend(sale: int, by: timedelta, *, closes_at: datetime) -> list[str]:
    """Move the closing time of a sale, in the open transaction. A sale that is over opens again at once.

    Args:
        by: time to add to the closing time, or to the present time if the sale is over.
        closes_at: the closing time that the operator has seen. If it has changed since, the sale is not extended.

    Returns:
        The reasons why the sale was not extended; empty if it was.
    """
    locked = Sale.objects.select_for_update(no_key=True).get(pk=sale)
    if locked.closes_at != closes_at:
        return ["The closing time has changed since the page was opened. Look at it again."]
    locked.closes_at = max(closes_at, clock.now()) + by
    if problems := list(overlaps(locked, locked.products.all())):
        return problems
    Sale.objects.filter(pk=sale).update(closes_at=locked.closes_at)
    transaction.on_commit(lambda: offers.forget(sale))
    return []


def _hold(sale: int) -> None:
    """Wait until the open transactions of orders of a paused sale have ended, and remove the copies of its stock.

    A transaction takes its stock before it writes the order. So once the stock is locked here, all written orders are
    committed. Every later statement that writes an order sees that the sale is paused.
    """
    with transaction.atomic():
        # Lock the row of the sale, so that nobody resumes it or loads its stock before its copies are removed.
        paused = Sale.objects.select_for_update(no_key=True).get(pk=sale)
        if paused.paused_at is None:
            return
        skus = paused.skus
        stock.lock(skus)
        if paused.is_loaded:
            registry.get(paused.strategy).hold(skus)
        if paused.preheated_at is not None:
            Sale.objects.filter(pk=sale).update(unloaded_at=Now())


def _unload(sale: Sale) -> None:
    """Remove the loaded stock of a sale that is over, except for skus that another sale has loaded."""
    with transaction.atomic():
        # Lock the row, so that the sale cannot be extended now. It may have been extended since the caller read it.
        ended = Sale.objects.select_for_update(no_key=True).filter(pk=sale.pk).first()
        if ended is None or ended.closes_at > clock.now():
            return
        # Lock the stock. Then another sale of these skus is either loaded completely, or waits for the locks.
        skus = sale.skus
        stock.lock(skus)
        loaded = Sale.objects.filter(preheated_at__isnull=False, unloaded_at=None, closes_at__gt=Now())
        theirs = SaleItem.objects.filter(sale__in=loaded.exclude(pk=sale.pk))
        still_sold = set(theirs.values_list("product__sku", flat=True))
        registry.unload([sku for sku in skus if sku not in still_sold], [sale.strategy])
        Sale.objects.filter(pk=sale.pk).update(unloaded_at=Now())


@contextmanager
def _errors_logged(sale: Sale) -> Iterator[None]:
    work = f"Preheating or unloading sale {sale.pk}"
    try:
        yield
    except CannotPreheat as reason:
        logger.info("%s", reason)
    except (RedisError, DatabaseError, UnknownStrategy) as error:
        outages.failed(work, error)
    else:
        outages.worked(work)
