"""Placing, paying, cancelling and expiring orders: the only way to change one."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import uuid_utils.compat
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from redis import RedisError

from inventory import sold_out, strategies
from inventory.draft import Draft, Line
from inventory.errors import Duplicate, InventoryError, OverLimit, StockNotLoaded
from inventory.strategies import Strategy, Waiting
from inventory.together import Together
from shop import offers, payments, receipts, sales, states
from shop.models import Allowance, Order, Product
from shop.receipts import Receipt
from shop.sales import IsOver, NotNow
from shop.saving import reject, return_units, save, saved

logger = logging.getLogger(__name__)

Click = tuple[int, str]
"""A customer and a key of his."""

SHIFT = 2.0
"""Seconds for which a task saves what is queued: then it is the turn of the others, which come every few seconds."""

NEVER = datetime.min.replace(tzinfo=UTC)

_running: dict[Click, UUID] = {}
"""The drafts that are being placed in this process."""
_keys: Together[Click, bool] = Together()
USED = """
    SELECT customer_id, shop_order.key
      FROM unnest(%s::bigint[], %s::text[]) AS click (customer, key)
      JOIN shop_order ON customer_id = customer AND shop_order.key = click.key
"""


class CheckoutError(Exception):
    """The shop does not take the order. Nothing was sold."""


class UnknownSale(CheckoutError):
    """There is no such sale."""


class UnknownProduct(CheckoutError):
    """The sale does not offer the product."""

    def __init__(self, product: int) -> None:
        super().__init__(f"The sale does not offer product {product}.")
        self.product = product


class SaleNotOpen(CheckoutError):
    """The sale has not begun, or is over."""


class StillRunning(CheckoutError):
    """The same customer's order under the same key is being placed right now."""


class StillQueued(CheckoutError):
    """The order is queued: until it is saved nothing can be changed about it."""


class KeyReused(CheckoutError):
    """The customer has used the key for a different order."""


class NotBelieved(CheckoutError):
    """There is a payment provider, who says what is paid."""


class NotPayable(CheckoutError):
    """The order is not pending any more."""


class NotCancellable(CheckoutError):
    """The order is not pending any more."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The order that a customer's key stands for.

    Args:
        order: as it was saved, or will be.
        replayed: it was placed by an earlier call with the same key.
        queued: its row follows.
        place: in the queue, from 1.
    """

    order: Receipt
    replayed: bool
    queued: bool = False
    place: int | None = None


def place(*, customer: int, sale: int, quantities: Mapping[int, int], key: str) -> Placed:
    """Place an order, once for a key.

    Args:
        customer: the id of the user who buys.
        quantities: units by product id.
        key: made by the customer; the same key is the same order, however often it is sent.

    Returns:
        The order, committed, or queued where the sale's strategy does so.

    Raises:
        CheckoutError, InventoryError: nothing was sold. The same key may try again.
    """
    offer = offers.get(sale)
    try:
        if offer is None:
            raise UnknownSale(f"There is no sale {sale}.")
        draft = draft_order(offer, customer=customer, quantities=quantities, key=key)
    except (UnknownSale, UnknownProduct) as refused:
        strategy = None if offer is None else strategies.get(offer.strategy)
        return _placed_before(strategy, customer, key, body_hash_of(sale, quantities), refused)
    return place_draft(draft, offer, strategies.get(offer.strategy))


def place_draft(draft: Draft, offer: offers.Offer, strategy: Strategy) -> Placed:
    """Place a draft by a strategy. See `place`, which knows the strategy of the sale."""
    click = (draft.customer, draft.key)
    # A second click is answered early while the first is on its way in this process. In another one it waits for the
    # first at the unique key on the order, which lets one through, and is answered with that order.
    if _running.setdefault(click, draft.id) != draft.id:
        raise StillRunning("An order with this key is being placed: ask again in a moment.")
    try:
        if not offer.is_open(draft.created_at):
            raise SaleNotOpen(f"{offer.name} is open from {offer.opens_at} to {offer.closes_at}.")
        _refuse_over_limit(draft)
        if not offer.preheated:
            raise StockNotLoaded(f"The stock of {offer.name} is not loaded yet.")
        with sold_out.remembered(draft):
            placement = strategy.place(draft, save)
    except StockNotLoaded as missing:
        # An offer that this process remembers may be from before the sale was preheated at all.
        missed_at = draft.created_at if offer.preheated else NEVER
        refused = missing if _load_again(offer.sale, missed_at) else SaleNotOpen(f"{offer.name} is over.")
        return _placed_before(strategy, draft.customer, draft.key, draft.body_hash, refused)
    except (CheckoutError, InventoryError) as refused:
        return _placed_before(strategy, draft.customer, draft.key, draft.body_hash, refused)
    finally:
        del _running[click]
    queued = placement.place is not None
    order = receipts.of_draft(draft, offer.rows, queued=queued)
    return Placed(order, replayed=False, queued=queued, place=placement.place)


def _refuse_over_limit(draft: Draft) -> None:
    """Who wants more than anybody may have is told so, whatever is left: less is what he has to ask for.

    Raises:
        OverLimit: of the first such line.
    """
    for line in draft.lines:
        if line.limit is not None and line.quantity > line.limit:
            mine = Allowance.objects.filter(sale=draft.sale, customer=draft.customer, sku=line.sku).first()
            raise OverLimit(line.sku, limit=line.limit, taken=mine.taken if mine else 0)


def _load_again(sale: int, missed_at: datetime) -> bool:
    """Load the stock of a sale, unless somebody is doing it or has done it since: who asks again finds it there.

    Returns:
        False when the sale is over: it was closed since this process has read the offer.
    """
    try:
        sales.preheat(sale, wait=False, missed_at=missed_at)
    except IsOver:
        offers.forget(sale)
        return False
    except (RedisError, NotNow):
        pass
    return True


def draft_order(offer: offers.Offer, *, customer: int, quantities: Mapping[int, int], key: str) -> Draft:
    """What a customer wants, at the prices and limits of an offer.

    Raises:
        UnknownProduct: the offer does not have it.
    """
    for product in quantities:
        if product not in offer.products:
            raise UnknownProduct(product)
    wanted = sorted(
        ((offer.products[product], quantity) for product, quantity in quantities.items()),
        key=lambda pair: pair[0].sku,
    )
    return Draft(
        id=uuid_utils.compat.uuid7(),
        customer=customer,
        sale=offer.sale,
        lines=tuple(Line(item.sku, quantity, item.price, item.limit) for item, quantity in wanted),
        key=key,
        body_hash=body_hash_of(offer.sale, quantities),
        created_at=timezone.now(),
    )


def body_hash_of(sale: int, quantities: Mapping[int, int]) -> str:
    """What tells a retry from another order under the same key."""
    return hashlib.sha256(orjson.dumps([sale, sorted(quantities.items())])).hexdigest()


def find(order: UUID, *, customer: int) -> Placed:
    """An order of a customer, also while it is queued, or when it could not even be written that it is rejected.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StockUnavailable: it has no row, and Redis does not say whether it is queued.
    """
    if (found := _saved(pk=order, customer=customer)) is not None:
        return Placed(found, replayed=True)
    waiting = strategies.waiting(order)
    if waiting is not None and waiting.draft is not None and waiting.draft.customer == customer:
        return _queued(waiting)
    # It may have left the queue between the two looks, or another order stands for it.
    meanwhile = _saved(pk=(waiting and waiting.instead) or order, customer=customer)
    if meanwhile is None and waiting is not None and waiting.customer == customer:
        meanwhile = _rejected(order, waiting)
    if meanwhile is None:
        raise Order.DoesNotExist(f"There is no order {order}.")
    return Placed(meanwhile, replayed=True)


def _placed_before(strategy: Strategy | None, customer: int, key: str, body_hash: str, refused: Exception) -> Placed:
    """The order that has the key, whatever refuses a new one now: stock, sale or offer may have ended since.

    Raises:
        KeyReused: the key stands for another order.
        Exception: what is refused, where there is no such order.
    """
    placed = None
    if _keys.ask((customer, key), _which_are_used) and (found := _saved(customer=customer, key=key)):
        placed = Placed(found, replayed=True)
    elif strategy is not None and (waiting := strategy.waiting(customer, key)) is not None:
        placed = _queued(waiting)
    elif isinstance(refused, Duplicate):  # it has left the queue, perhaps between the two looks
        with suppress(Order.DoesNotExist):
            placed = find(refused.existing, customer=customer)
    if placed is None:
        raise refused
    if placed.order.body_hash != body_hash:
        raise KeyReused("This key belongs to a different order of yours: make a new key for a new order.")
    return placed


def _which_are_used(clicks: Sequence[Click]) -> list[bool]:
    """Which of these keys an order has. Ten thousand who come too late ask this, so they ask together."""
    with connection.cursor() as cursor:
        cursor.execute(USED, [[customer for customer, _ in clicks], [key for _, key in clicks]])
        used = set(cursor.fetchall())
    return [click in used for click in clicks]


def _saved(**of: Any) -> Receipt | None:
    order = Order.objects.filter(**of).prefetch_related("items__product").first()
    return None if order is None else receipts.of_row(order)


def _queued(waiting: Waiting) -> Placed:
    draft = waiting.draft
    assert draft is not None  # noqa: S101 - for the type checker
    # One that was deleted meanwhile is known by its sku alone, and the order will be rejected.
    gone = {sku: Product(pk=0, sku=sku, name=sku) for sku in draft.skus}
    products = {**gone, **{product.sku: product for product in Product.objects.filter(sku__in=draft.skus)}}
    return Placed(receipts.of_draft(draft, products, queued=True), replayed=True, queued=True, place=waiting.place)


def _rejected(order: UUID, waiting: Waiting) -> Receipt:
    """What there is to tell of an order without a row: its sale is no more, or what it says cannot be written."""
    at = datetime.fromtimestamp((order.int >> 80) / 1000, UTC)
    return Receipt(
        order,
        waiting.sale,
        Order.State.REJECTED.value,
        waiting.reason,
        waiting.body_hash,
        items=(),
        created_at=at,
        payable_from=None,
    )


def save_queued(*, shift: float = math.inf) -> int:
    """Save the orders that are queued, until none is, or for so many seconds.

    Returns:
        How many were taken off the queue.
    """
    return strategies.work(lambda drafts: save(drafts, payable_from=timezone.now()), reject, saved, shift=shift)


@dataclass(frozen=True, slots=True)
class Changed:
    """An order that is paid, or cancelled.

    Args:
        before: it was so before this call, which changed nothing.
    """

    order: Order
    before: bool


def pay(order: UUID, *, customer: int) -> Changed:
    """Mark a pending order as paid, at its customer's word, where no provider says what is paid. Twice is once.

    Raises:
        NotBelieved: one does: `PAYMENT_SECRET` is set.
        Order.DoesNotExist: the customer has no such order.
        StillQueued: it is not saved yet.
        NotPayable: it was cancelled or rejected, or has expired.
    """
    if settings.PAYMENT_SECRET:
        raise NotBelieved("Here an order is paid when the payment provider says so, not when its customer does.")
    with transaction.atomic(durable=True):
        mine = _locked(order, customer=customer)
        before = mine.state == Order.State.PAID
        if mine.state == Order.State.PENDING:
            payments.record(mine, reference=f"{payments.BY_CUSTOMER}{mine.pk}", amount=mine.total)
        elif not before:
            raise NotPayable(f"The order is {mine.state}.")
    return Changed(mine, before)


def cancel(order: UUID, *, customer: int) -> Changed:
    """End a pending order, and return its units and allowance. Cancelling twice is cancelling once.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StillQueued: it is not saved yet.
        NotCancellable: it was paid or rejected, or has expired.
    """
    with transaction.atomic(durable=True):
        mine = _locked(order, customer=customer)
        before = mine.state == Order.State.CANCELLED
        if mine.state == Order.State.PENDING:
            return_units([mine.pk])
            states.change(mine, Order.State.CANCELLED)
        elif not before:
            raise NotCancellable(f"The order is {mine.state}.")
    return Changed(mine, before)


def _locked(order: UUID, *, customer: int) -> Order:
    """The customer's order, in the open transaction. See `states.locked`."""
    with suppress(Order.DoesNotExist):
        return states.locked(order, customer=customer)
    waiting = strategies.waiting(order)
    if waiting is not None and waiting.draft is not None and waiting.draft.customer == customer:
        raise StillQueued("The order is queued: ask again when it is saved.")
    # As in `find`: it may have left the queue between the two looks, or another order stands for it.
    return states.locked((waiting and waiting.instead) or order, customer=customer)


def expire_unpaid(*, batch: int = 100) -> int:
    """End pending orders whose time to pay is over, and return their units and allowances, each once.

    Args:
        batch: orders in one transaction; rows that somebody else is expiring are skipped.

    Returns:
        How many orders expired.
    """
    due = timezone.now() - timedelta(seconds=settings.ORDER_TTL)
    unpaid = Order.objects.filter(state=Order.State.PENDING, payable_from__lte=due).order_by("pk")
    total, last = 0, UUID(int=0)
    while ids := list(unpaid.filter(pk__gt=last).values_list("pk", flat=True)[:batch]):
        last = ids[-1]
        try:
            total += _expire(ids)
        except DatabaseError:
            # One order that cannot be returned must not keep the others from it.
            total += sum(_expire_if_possible(order) for order in ids)
    return total


def _expire(ids: Sequence[UUID]) -> int:
    with transaction.atomic(durable=True):
        pending = Order.objects.select_for_update(skip_locked=True).filter(pk__in=ids, state=Order.State.PENDING)
        mine = list(pending.order_by("pk").values_list("pk", flat=True))
        # The stock comes before the state: an order that is placed holds the stock, and waits for whoever has changed
        # the order of its key. The other way round the two would wait for each other.
        return_units(mine)
        Order.objects.filter(pk__in=mine, state=Order.State.PENDING).update(state=Order.State.EXPIRED)
    return len(mine)


def _expire_if_possible(order: UUID) -> int:
    try:
        return _expire([order])
    except DatabaseError:
        logger.exception("Order %s cannot be expired; its units stay sold.", order)
        return 0
