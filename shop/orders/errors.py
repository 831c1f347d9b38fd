"""Errors about an order, for the caller. After any of them, nothing was sold or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from inventory.errors import Refusal


class OrderError(Exception):
    """The shop refuses a request about an order."""


@dataclass(frozen=True, slots=True)
class ChangedPrice:
    """A product whose price is not the one that the customer was shown.

    Args:
        expected: the price that the customer was shown.
        price: the price now.
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
    """The customer was shown other prices than those of the sale now.

    Args:
        items: the items with another price.
    """

    def __init__(self, items: Sequence[ChangedPrice]) -> None:
        super().__init__(
            "; ".join(f"{item.sku} costs {item.price:.2f}, not {item.expected:.2f}" for item in items) + "."
        )
        self.items = items


class SaleNotOpen(OrderError):
    """The sale has not opened yet, or is closed."""


class SalePaused(Refusal):
    """An operator has paused the sale. The same request may be sent again until the sale goes on."""

    def __init__(self, sale: int) -> None:
        super().__init__(f"Sale {sale} is paused.")


class NoGuests(OrderError):
    """The customer is a guest, and the sale is for accounts alone."""

    def __init__(self, sale: str) -> None:
        super().__init__(f"{sale} is not open to guests. Nothing was sold.")


class StillRunning(OrderError):
    """This process is placing the customer's order under the same key."""


class StillQueued(OrderError):
    """The order is queued; it can be changed once it is saved."""


class KeyReused(OrderError):
    """The customer has used the idempotency key for a different order."""


class ProviderDecides(OrderError):
    """Only the payment provider can mark an order as paid."""


class NotPayable(OrderError):
    """The order is no longer pending."""


class NotReturnable(OrderError):
    """The order is not paid, or has fewer units than are to come back."""


class NotCancellable(OrderError):
    """The order is no longer pending."""
