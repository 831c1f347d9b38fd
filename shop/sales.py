"""Sales before they open: which may be, and what has to be copied where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import transaction
from django.utils import timezone

from inventory import strategies
from shop.models import Product, Sale, SaleItem


def overlaps(sale: Sale, products: Iterable[Product]) -> Iterator[str]:
    """Why a sale cannot offer the products: a sku is in one open sale at a time, or two strategies would take it."""
    others = SaleItem.objects.filter(
        product__in=list(products), sale__opens_at__lt=sale.closes_at, sale__closes_at__gt=sale.opens_at
    ).exclude(sale=sale.pk)
    for item in others.select_related("product", "sale"):
        yield f"{item.product} is in “{item.sale}” at the same time."


def strategy_is_fixed(sale: Sale) -> bool:
    """Whether stock may have been taken the sale's way already."""
    return sale.preheated_at is not None or sale.orders.exists()


def preheat(sale: Sale) -> None:
    """Copy the stock of a sale to where its strategy takes it from. Doing it twice is doing it once.

    Raises:
        RedisError: Redis did not answer.
    """
    skus = list(sale.items.values_list("product__sku", flat=True))
    strategy = strategies.get(sale.strategy)
    with transaction.atomic():
        # One at a time: the first removes what an earlier sale of the skus has left, and nobody does after it.
        locked = Sale.objects.select_for_update().get(pk=sale.pk)
        if locked.preheated_at is None:
            strategy.unload(skus)
        strategy.preheat(skus)
        Sale.objects.filter(pk=sale.pk, preheated_at=None).update(preheated_at=timezone.now())


def close(sale: Sale) -> None:
    """End a sale now, and remove the copies that its strategy has made.

    Raises:
        RedisError: Redis did not answer; the sale is closed all the same.
    """
    Sale.objects.filter(pk=sale.pk, closes_at__gt=timezone.now()).update(closes_at=timezone.now())
    strategies.get(sale.strategy).unload(list(sale.items.values_list("product__sku", flat=True)))
