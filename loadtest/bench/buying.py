"""Place one order without HTTP, in this process."""

from __future__ import annotations

import uuid
from decimal import Decimal

from loadtest.preparation import PRICE
from shop.orders.place import place_order
from shop.orders.receipts import Placed


def buy_one(*, sale: int, product: int, customer: int) -> Placed:
    """Place an order of one unit in the sale of a burst.

    Raises:
        OrderError, InventoryError: nothing was sold.
    """
    return place_order(
        customer=customer,
        sale=sale,
        quantities={product: 1},
        key=uuid.uuid4().hex,
        expected_prices={product: Decimal(PRICE)},
    )
