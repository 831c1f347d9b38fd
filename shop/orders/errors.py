"""Errors for callers that place or change an order. If a call raises one of them, nothing was sold or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from inventory.errors import Refusal, SoldOut
from shop.models import Sale


class OrderError(Exception):
    """The shop refuses a request about an order."""


@dataclass(frozen=True, slots=True)
class ChangedPrice:
    """A product whose price has changed since the customer saw it.

    Args:
        expected: the price that the customer saw.
        price: the present price.
    """

    product: int
    sku: str
    expected: Decimal
    price: Decimal


class UnknownSale(OrderError):
    """There is no such sale."""


class UnknownProduct(OrderError):
    """The sale does not offer the product."""

    def __init__(self, product: int) -> None:
        super().__init__(f"The sale does not offer product {product}.")
        self.product = product


class PriceChanged(OrderError):
    """Prices of the sale have changed since the customer saw them.

    Args:
        items: the products with a changed price.
    """

    def __init__(self, items: Sequence[ChangedPrice]) -> None:
        super().__init__(
            "; ".join(f"{item.sku} costs {item.price:.2f}, not {item.expected:.2f}" for item in items) + "."
        )
        self.items = items


class FewerLeft(OrderError):
    """Some units are left, but fewer than wanted, in a sale that does not show how many."""

    def __init__(self, sku: str, *, wanted: int) -> None:
        super().__init__(f"{sku}: fewer than {wanted} are left")
        self.sku = sku
        self.wanted = wanted


def shortage_for_customer(shortage: SoldOut, stock_shown: str) -> SoldOut | FewerLeft:
    """Return the error for an order of more units than are left. It says how many are left only if the sale does.

    Otherwise an order for too many units would reveal the number of units left, although it buys nothing. If no unit is
    left, the error says so, because every sale shows that it is sold out.

    Args:
        stock_shown: a value of `Sale.StockShown`.
    """
    if stock_shown == Sale.StockShown.EXACT or not shortage.left:
        return shortage
    return FewerLeft(shortage.sku, wanted=shortage.wanted)


class SaleNotOpen(OrderError):
    """The sale has not opened yet, or is closed."""


class SalePaused(Refusal):
    """An operator has paused the sale. The client may repeat the same request until the sale is resumed."""

    def __init__(self, sale: int) -> None:
        super().__init__(f"Sale {sale} is paused.")


class NoGuests(OrderError):
    """The customer is a guest, and the sale does not allow guests."""

    def __init__(self, sale: str) -> None:
        super().__init__(f"{sale} is not open to guests. Nothing was sold.")


class StillRunning(OrderError):
    """This process is placing an order of the customer with the same idempotency key at this moment."""


class StillQueued(OrderError):
    """The order is queued, or a worker may be saving it now. It cannot be changed before it is saved."""


class KeyReused(OrderError):
    """The customer has already used the idempotency key for a different order."""


class ProviderDecides(OrderError):
    """In this shop, customers cannot mark their own orders as paid."""


class NotPayable(OrderError):
    """The order cannot be paid, because it is no longer pending."""


class NotReturnable(OrderError):
    """The order was never paid, has too few units, or units have come back since the operator opened the page."""


class NotCancellable(OrderError):
    """The order cannot be cancelled, because it is no longer pending."""
