"""Changes that customers make to their own orders: cancel, and pay where the shop has no payment provider."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction

from shop.models import Order
from shop.orders import payments, states
from shop.orders.errors import NotCancellable, NotPayable, ProviderDecides
from shop.orders.lookup import lock_order
from shop.orders.saving import return_units
from shop.payments.provider import provider


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of paying or cancelling an order.

    Args:
        replayed: whether the order was already paid or cancelled, so that this call changed nothing.
    """

    order: Order
    replayed: bool


def pay_order(order: UUID, *, customer: int) -> Changed:
    """Mark a pending order as paid because its customer says that they have paid. Paying again changes nothing.

    Raises:
        ProviderDecides: the shop has a payment provider, or `PAY_WITHOUT_PROVIDER` is not set.
        Order.DoesNotExist: the customer has no such order.
        StillQueued: the order is not saved yet.
        StockUnavailable: the order has no row, and Redis does not answer, so the order may be queued.
        NotPayable: the order was cancelled, rejected or refunded, has expired, or is lost.
    """
    if provider().connected:
        raise ProviderDecides("In this shop the payment provider reports payments. Pay there.")
    if not settings.PAY_WITHOUT_PROVIDER:
        raise ProviderDecides(
            "This shop has no payment provider. Its operator connects one (PAYMENT_SECRET or "
            "PAYMENT_PROVIDER), or sets PAY_WITHOUT_PROVIDER to try it."
        )
    with transaction.atomic(durable=True):
        mine = lock_order(order, customer=customer, otherwise=NotPayable)
        replayed = mine.state == Order.State.PAID
        if mine.state == Order.State.PENDING:
            payments.record_payment(mine, reference=f"{payments.BY_CUSTOMER}{mine.pk}", amount=mine.total)
        elif not replayed:
            raise NotPayable(f"The order is {mine.state}.")
    return Changed(mine, replayed)


def cancel_order(order: UUID, *, customer: int) -> Changed:
    """Cancel a pending order, and give its units and allowance back. Cancelling again changes nothing.

    Raises:
        Order.DoesNotExist: the customer has no such order.
        StillQueued: the order is not saved yet.
        StockUnavailable: the order has no row, and Redis does not answer, so the order may be queued.
        NotCancellable: the order was paid, refunded or rejected, has expired, or is lost.
    """
    with transaction.atomic(durable=True):
        mine = lock_order(order, customer=customer, otherwise=NotCancellable)
        replayed = mine.state == Order.State.CANCELLED
        if mine.state == Order.State.PENDING:
            return_units([mine.pk])
            states.change(mine, Order.State.CANCELLED)
            states.record_endings([mine.pk], Order.State.CANCELLED, by=customer)
        elif not replayed:
            raise NotCancellable(f"The order is {mine.state}.")
    return Changed(mine, replayed)
