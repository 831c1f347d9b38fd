"""Place an order. The API and the storefront both call `place_order`.

The path of an order: `place_order` → the sale's strategy, which takes the stock → `saving.save` → commit → receipt.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from redis import RedisError

from inventory import sold_out
from inventory.errors import Duplicate, InventoryError, OverLimit, SoldOut, StockNotLoaded, StockUnavailable
from inventory.requests import OrderRequest, Placement, RequestItem
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from shop import log_context, redis_connections
from shop.metrics.recording import counted
from shop.models import Allowance, Order
from shop.orders import receipts
from shop.orders.errors import (
    ChangedPrice,
    NoGuests,
    OrderError,
    PriceChanged,
    SaleNotOpen,
    SalePaused,
    StillRunning,
    UnknownProduct,
    UnknownSale,
    shortage_for_customer,
)
from shop.orders.ids import new_order_id
from shop.orders.lookup import order_under_key
from shop.orders.receipts import Placed, RequestKey
from shop.orders.saving import save
from shop.sales import offers
from shop.sales.offers import Offer
from shop.sales.preheat import CannotPreheat, SaleOnHold, SaleOver, preheat_sale
from shop.sold import saved
from shop.traces.tracing import traced
from shop.waiting import tickets
from shop.waiting.errors import NotAdmitted

logger = logging.getLogger(__name__)

NEVER = datetime.min.replace(tzinfo=UTC)
RUNNING = "An order with this key is being placed. Ask again in a moment."

_running: dict[RequestKey, UUID] = {}
"""The order id of each request that this process is placing now, by customer and idempotency key."""

FROM_REDIS = ("lua", "lua-queue")
"""Strategies whose first Redis command takes units. `segmented-redis` takes a lock first, which moves no units."""


@traced
@counted
def place_order(
    *,
    customer: int,
    sale: int,
    quantities: Mapping[int, int],
    key: str,
    expected_prices: Mapping[int, Decimal],
    ticket: str = "",
    guest: bool = False,
) -> Placed:
    """Place an order, once for each idempotency key.

    Args:
        customer: the id of the user who buys.
        quantities: units by product id.
        key: the customer's idempotency key; repeated calls with the same key return the same order.
        expected_prices: the unit price that the customer was shown for each product in `quantities`, by product id. If
            a price has changed, the order is refused.
        ticket: the customer's ticket from the waiting room; empty if the sale has no waiting room.
        guest: whether the customer is a guest, who may only buy if the sale allows guests.

    Returns:
        The order. It is committed, or queued if the sale's strategy queues orders.

    Raises:
        OrderError, InventoryError, NotAdmitted: nothing was sold, but after `StockUnavailable` the order may be queued.
            The customer may try the same key again, except after `KeyReused`.
        KeyError: the price of an ordered product is missing.
    """
    offer = offers.get(sale)
    if offer is not None and _changed_prices(offer, quantities, expected_prices):
        offer = offers.get_newest(sale)  # The customer may have seen a newer price than this process has cached.
    try:
        if offer is None:
            raise UnknownSale(f"There is no sale {sale}.")
        if guest and not offer.guest_checkout:
            raise NoGuests(offer.name)
        # Do not check the ticket during a pause: `place_request` raises `SalePaused` then. Otherwise a customer without
        # a ticket would get an error about the ticket, and would not learn that the sale is paused.
        if offer.waiting_room and not offer.paused:
            tickets.require(ticket, offer=offer, customer=customer)
        request = make_request(
            offer, customer=customer, quantities=quantities, key=key, expected_prices=expected_prices
        )
    except (UnknownSale, UnknownProduct, PriceChanged, NotAdmitted, NoGuests) as refused:
        if (customer, key) in _running:
            raise StillRunning(RUNNING) from refused
        strategy = None if offer is None else registry.get(offer.strategy)
        return order_under_key(strategy, customer, key, hash_of_body(sale, quantities, expected_prices), refused)
    try:
        return place_request(request, offer, registry.get(offer.strategy))
    except SoldOut as shortage:
        raise shortage_for_customer(shortage, offer.stock_shown) from shortage


def place_request(request: OrderRequest, offer: Offer, strategy: Strategy) -> Placed:
    """Place a request with the given strategy. `place_order` calls this with the strategy of the sale."""
    log_context.order.set(request.id)
    # If this process is still placing a request with the same key, refuse the repeated request early. In another
    # process, the repeated request waits for the unique constraint on the key, and then gets the saved order.
    running = (request.customer, request.key)
    if _running.setdefault(running, request.id) != request.id:
        raise StillRunning(RUNNING)
    try:
        if not offer.is_open(request.created_at):
            raise SaleNotOpen(f"{offer.name} is open from {offer.opens_at} to {offer.closes_at}.")
        if offer.paused:
            raise SalePaused(offer.sale)
        _refuse_over_limit(request)
        if not offer.preheated:
            raise StockNotLoaded(f"The stock of {offer.name} is not loaded yet.")
        if strategy.name in FROM_REDIS and redis_connections.breaker.is_open:
            # Refuse the request before Redis gets it. A request that times out may have taken units in Redis, and the
            # shop would have to return them later.
            raise StockUnavailable("Redis did not answer a moment ago.")
        with sold_out.remembered(request):
            placement = _place(request, strategy)
    except StockNotLoaded as missing:
        # If the cached offer says that the stock is not loaded, it may have been loaded since. With `NEVER`,
        # `_load_again` does nothing if the stock is loaded now.
        missed_at = request.created_at if offer.preheated else NEVER
        refused = _load_again(offer, missed_at) or missing
        return order_under_key(strategy, request.customer, request.key, request.body_hash, refused)
    except (OrderError, InventoryError) as refused:
        return order_under_key(strategy, request.customer, request.key, request.body_hash, refused)
    finally:
        del _running[running]
    queued = placement.place is not None
    order = receipts.of_request(request, offer.product_ids, currency=offer.currency, queued=queued)
    return Placed(order, replayed=False, queued=queued, place=placement.place)


def _place(request: OrderRequest, strategy: Strategy) -> Placement:
    """Place a request. If its key belongs to an order that Postgres has lost, free the key and place the request again.

    Postgres loses such an order when it is restored to an earlier moment, while Redis still has the key. If a worker
    saves the old order after all, the unique constraint in Postgres accepts only one of the two orders.
    """
    try:
        return strategy.place(request, save, saved)
    except Duplicate as duplicate:
        # Query Redis before Postgres: an order leaves the queue only after its commit, so one of the queries finds it.
        lost = (
            strategy.queues
            and registry.queued_order(duplicate.existing) is None
            and not Order.objects.filter(pk=duplicate.existing).exists()
        )
        if not (lost and registry.free_key(request, duplicate.existing)):
            raise
        logger.warning("Postgres has lost order %s. Its idempotency key places a new order.", duplicate.existing)
        return strategy.place(request, save, saved)


def make_request(
    offer: Offer,
    *,
    customer: int,
    quantities: Mapping[int, int],
    key: str,
    expected_prices: Mapping[int, Decimal],
) -> OrderRequest:
    """Return the order request of a customer, with the prices and limits of the offer.

    Raises:
        UnknownProduct: the offer does not include a product.
        PriceChanged: a price of the offer is not the expected one.
        KeyError: the price of an ordered product is missing.
    """
    for product in quantities:
        if product not in offer.products:
            raise UnknownProduct(product)
    if changed := _changed_prices(offer, quantities, expected_prices):
        raise PriceChanged(changed)
    wanted = sorted(
        ((offer.products[product], quantity) for product, quantity in quantities.items()),
        key=lambda pair: pair[0].sku,
    )
    now = offer.clock.now()
    return OrderRequest(
        id=new_order_id(customer, now),
        customer=customer,
        sale=offer.sale,
        items=tuple(RequestItem(item.sku, quantity, item.price, item.limit, item.name) for item, quantity in wanted),
        key=key,
        body_hash=hash_of_body(offer.sale, quantities, expected_prices),
        created_at=now,
    )


def hash_of_body(sale: int, quantities: Mapping[int, int], expected_prices: Mapping[int, Decimal]) -> str:
    """Return a hash of a request's content. It distinguishes a retry from a different order under the same key."""
    body = [sale, sorted(quantities.items()), sorted(expected_prices.items())]
    return hashlib.sha256(msgspec.json.encode(body)).hexdigest()


def _changed_prices(offer: Offer, quantities: Mapping[int, int], expected: Mapping[int, Decimal]) -> list[ChangedPrice]:
    """Return those of the ordered products whose price is not the expected one.

    Raises:
        KeyError: the price of a product is missing. Without it, the customer could pay a price they were not shown.
    """
    return [
        ChangedPrice(product, item.sku, expected[product], item.price)
        for product in quantities
        if (item := offer.products.get(product)) is not None and item.price != expected[product]
    ]


def _refuse_over_limit(request: OrderRequest) -> None:
    """Check that no quantity in the request is above the limit per customer.

    Raises:
        OverLimit: an item exceeds its limit. The error names the first such item.
    """
    for item in request.items:
        if item.limit is not None and item.quantity > item.limit:
            mine = Allowance.objects.filter(sale=request.sale, customer=request.customer, sku=item.sku).first()
            raise OverLimit(item.sku, limit=item.limit, taken=mine.taken if mine else 0)


def _load_again(offer: Offer, missed_at: datetime) -> OrderError | InventoryError | None:
    """Load the stock of a sale. Do nothing if another process is loading it, or has loaded it since `missed_at`.

    Returns:
        An error if the sale was closed or paused after this process cached the offer; otherwise None.
    """
    try:
        preheat_sale(offer.sale, wait=False, missed_at=missed_at)
    except SaleOver:
        offers.forget(offer.sale)
        return SaleNotOpen(f"{offer.name} is over.")
    except SaleOnHold:
        offers.forget(offer.sale)
        return SalePaused(offer.sale)
    except (RedisError, CannotPreheat):
        pass
    return None
