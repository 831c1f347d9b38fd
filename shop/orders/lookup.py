"""Find an order by its id or by the customer's idempotency key, in Postgres or in the queue in Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection

from inventory.batching import Batcher
from inventory.errors import Duplicate, StockUnavailable
from inventory.requests import QueuedOrder
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from shop import clock
from shop.models import Order, Product
from shop.orders import receipts, states
from shop.orders.errors import KeyReused, OrderError, StillQueued
from shop.orders.ids import VERSION, is_of, placed_at, placed_seconds
from shop.orders.receipts import Placed, Receipt, RequestKey
from shop.sales import offers

logger = logging.getLogger(__name__)

LOST = "The shop has lost this order and delivers nothing for it. Order again: the same key may be used."

_keys: Batcher[RequestKey, bool] = Batcher()

USED_KEYS = """
    SELECT customer_id, shop_order.key
      FROM unnest(%s::bigint[], %s::text[]) AS asked (customer, key)
      JOIN shop_order ON customer_id = customer AND shop_order.key = asked.key
"""


def find_order(order: UUID, *, customer: int) -> Placed:
    """Return an order of a customer, which may be saved, queued, rejected without a row, or lost.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StillQueued: no server has the order, but it is so new that a worker may be saving it at this moment.
        StockUnavailable: the order has no row, and Redis does not answer, so the order may be queued.
    """
    if (found := _saved(pk=order, customer=customer)) is not None:
        return Placed(found, replayed=True)
    waiting = registry.queued_order(order)
    if waiting is not None and waiting.order is not None and waiting.order.customer == customer:
        return _queued(waiting)
    # Read the row again: a worker may have saved the order since the first read. If another order of the customer has
    # the same key, read that order instead.
    meanwhile = _saved(pk=(waiting and waiting.existing) or order, customer=customer)
    return Placed(meanwhile or _without_row(order, customer, waiting), replayed=True)


def order_under_key(strategy: Strategy | None, customer: int, key: str, body_hash: str, refused: Exception) -> Placed:
    """Return the order that an earlier request with the same key has placed.

    Call this when a new order is refused: the request may be a retry, which gets its order even if the product is sold
    out or the sale is over.

    Args:
        refused: why a new order is refused. This error is raised if no order has the key.

    Raises:
        KeyReused: the key belongs to a different order.
        StockUnavailable: Redis does not answer, so a queued order may have the key.
    """
    placed = None
    if _keys.submit((customer, key), which_are_used) and (found := _saved(customer=customer, key=key)):
        placed = Placed(found, replayed=True)
    elif strategy is not None and (waiting := strategy.queued_order(customer, key)) is not None:
        placed = _queued(waiting)
    elif isinstance(refused, Duplicate):  # A worker may have saved the order between the two reads above.
        with suppress(Order.DoesNotExist):
            placed = find_order(refused.existing, customer=customer)
    if placed is None:
        raise refused
    if placed.order.body_hash != body_hash:
        raise KeyReused("This key belongs to a different order of yours. Make a new key for a new order.")
    return placed


def which_are_used(keys: Sequence[RequestKey]) -> list[bool]:
    """Return for each request key whether a saved order has it.

    Every refused request needs this, so concurrent requests share one query.
    """
    with connection.cursor() as cursor:
        # Pass arrays as text, because adapting lists takes longer than the query. Keys need no escaping, because they
        # contain no quote and no backslash.
        customers, texts = zip(*keys, strict=True)
        quoted = '","'.join(texts)
        cursor.execute(USED_KEYS, [f"{{{','.join(map(str, customers))}}}", f'{{"{quoted}"}}'])
        used = set(cursor.fetchall())
    return [key in used for key in keys]


def why_never_saved(order: UUID) -> str:
    """Return why an order without a row will never get a row; empty if it may still be saved, or if this is unknown.

    Any old UUIDv7 counts as a lost order: without the customer's id, this function cannot tell whether the shop made
    the id. A worker may write the row during this call, so the caller has to look for the row once more.
    """
    try:
        waiting = registry.queued_order(order)
    except StockUnavailable:
        return ""
    if waiting is None:
        made = order.version == VERSION and not _may_be_being_saved(order)
        return f"The shop has lost order {order}." if made else ""
    if waiting.existing is not None:
        return f"Order {order} repeats order {waiting.existing}."
    return "" if waiting.order is not None else f"Order {order} was rejected: {waiting.reason}"


def lock_order(order: UUID, *, customer: int, otherwise: type[OrderError]) -> Order:
    """Lock the customer's order in the open transaction, and return it. See `states.locked`.

    Args:
        otherwise: the error to raise if the order was rejected without a row, or is lost.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StillQueued: the order is not saved yet.
        StockUnavailable: the order has no row, and Redis does not answer, so the order may be queued.
        OrderError: the error `otherwise`.
    """
    with suppress(Order.DoesNotExist):
        return states.locked(order, customer=customer)
    waiting = registry.queued_order(order)
    if waiting is not None and waiting.order is not None and waiting.order.customer == customer:
        raise StillQueued("The order is queued. Ask again when it is saved.")
    # Read again, as `find_order` does: a worker may have saved the order, or another order may have the same key.
    with suppress(Order.DoesNotExist):
        return states.locked((waiting and waiting.existing) or order, customer=customer)
    raise otherwise(f"The order is {_without_row(order, customer, waiting).state}.")


def _saved(**of: Any) -> Receipt | None:
    order = Order.objects.filter(**of).prefetch_related("items__product").first()
    return None if order is None else receipts.of_row(order)


def _queued(waiting: QueuedOrder) -> Placed:
    request = waiting.order
    assert request is not None  # noqa: S101 - for the type checker
    # A product that was deleted after the order was queued gets id 0. The worker will reject the order.
    gone = dict.fromkeys(request.skus, 0)
    ids = {**gone, **dict(Product.objects.filter(sku__in=request.skus).values_list("sku", "pk"))}
    offer = offers.get(request.sale)
    receipt = receipts.of_request(request, ids, currency=offer.currency if offer else "", queued=True)
    return Placed(receipt, replayed=True, queued=True, place=waiting.place)


def _without_row(order: UUID, customer: int, waiting: QueuedOrder | None) -> Receipt:
    """Return the receipt of an order that is neither saved nor queued.

    Args:
        waiting: what Redis still knows of the order.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StillQueued: a worker may have read the order before Redis lost it, and may still save it.
    """
    if waiting is not None and waiting.customer == customer:
        return _rejected(order, waiting)
    if waiting is None and is_of(order, customer):
        return _lost(order, customer)
    raise Order.DoesNotExist(f"There is no order {order}.")


def _rejected(order: UUID, waiting: QueuedOrder) -> Receipt:
    """Return the receipt of a rejected order that has no row.

    Such an order has no row because its sale was deleted, because it cannot be saved, or because it is lost.
    """
    return Receipt(
        order,
        waiting.sale,
        Order.State.REJECTED.value,
        waiting.reason,
        waiting.body_hash,
        items=(),
        currency="",
        created_at=placed_at(order),
        payable_from=None,
    )


def _lost(order: UUID, customer: int) -> Receipt:
    """Return the receipt of a lost order: the shop has accepted it, but a server has lost it since.

    Raises:
        StillQueued: a worker may have read the order before Redis lost it, and may still save it.
    """
    if _may_be_being_saved(order):
        raise StillQueued("The shop is looking for this order. Ask again in a moment.")
    _log_lost(order, customer)
    return _rejected(order, QueuedOrder(reason=LOST, customer=customer))


@lru_cache(maxsize=10_000)
def _log_lost(order: UUID, customer: int) -> None:
    """Log a lost order only once in each process, even if its customer looks at it many times."""
    logger.error("Order %s of customer %s is lost: neither Postgres nor Redis knows it.", order, customer)


def _may_be_being_saved(order: UUID) -> bool:
    """Return whether a worker may have read an order before Redis lost it, and may still save it."""
    # Compare seconds, not datetimes: an id from elsewhere may contain a year that Python's datetime cannot represent.
    return clock.now().timestamp() < placed_seconds(order) + settings.RECONCILE_GRACE
