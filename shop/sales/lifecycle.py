"""The life of a sale: which products it may offer, what happens as time passes, and how it is closed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q
from django.db.models.functions import Now
from redis import RedisError

from inventory import stock
from inventory.errors import UnknownStrategy
from inventory.outages import outages
from inventory.strategies import registry
from shop.models import Product, Sale, SaleItem
from shop.sales import offers
from shop.sales.preheat import CannotPreheat, preheat_sale

logger = logging.getLogger(__name__)


def overlaps(sale: Sale, products: Iterable[Product]) -> Iterator[str]:
    """Return why a sale cannot offer some products: a sku must not be in two sales that are open at the same time."""
    others = SaleItem.objects.filter(
        product__in=list(products), sale__opens_at__lt=sale.closes_at, sale__closes_at__gt=sale.opens_at
    ).exclude(sale=sale.pk)
    for item in others.select_related("product", "sale"):
        yield f"{item.product} is in “{item.sale}” at the same time."


def advance() -> None:
    """Preheat the sales that open soon, and unload those that are over. Celery beat calls this every few seconds.

    An error in one sale is logged and does not stop the others.
    """
    for sale in Sale.objects.filter(closes_at__lte=Now(), preheated_at__isnull=False, unloaded_at=None):
        with _errors_logged(sale):
            _unload(sale)
    soon = Now() + timedelta(seconds=settings.PREHEAT_LEAD)
    unloaded = Q(preheated_at=None) | Q(unloaded_at__isnull=False)
    for sale in Sale.objects.filter(unloaded, opens_at__lte=soon, closes_at__gt=Now()):
        with _errors_logged(sale):
            preheat_sale(sale.pk)


def close(sale: int) -> None:
    """End a sale now, and unload its stock.

    Raises:
        RedisError: Redis does not answer. The sale is closed all the same; `advance` unloads its stock later.
    """
    Sale.objects.filter(pk=sale, closes_at__gt=Now()).update(closes_at=Now())
    offers.forget(sale)
    _unload(Sale.objects.get(pk=sale))


def _unload(sale: Sale) -> None:
    """Remove what was loaded for a sale, except for skus that another sale has loaded."""
    with transaction.atomic():
        # With these rows locked, another sale of the skus is either loaded completely or waits for these locks.
        skus = sale.skus
        stock.lock(skus)
        loaded = Sale.objects.filter(preheated_at__isnull=False, unloaded_at=None, closes_at__gt=Now())
        theirs = SaleItem.objects.filter(sale__in=loaded.exclude(pk=sale.pk))
        still_sold = set(theirs.values_list("product__sku", flat=True))
        registry.unload([sku for sku in skus if sku not in still_sold])
    Sale.objects.filter(pk=sale.pk).update(unloaded_at=Now())


@contextmanager
def _errors_logged(sale: Sale) -> Iterator[None]:
    work = f"To preheat or unload sale {sale.pk}"
    try:
        yield
    except CannotPreheat as reason:
        logger.info("%s", reason)
    except (RedisError, DatabaseError, UnknownStrategy) as error:
        outages.failed(work, error)
    else:
        outages.worked(work)
