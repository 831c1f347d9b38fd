"""Money that comes for orders: twice, late or out of order. It pays an order once, or has to go back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from inventory.errors import OverLimit, SoldOut
from shop.models import Order, Payment
from shop.orders import states
from shop.orders.saving import take_again

logger = logging.getLogger(__name__)

BY_CUSTOMER = "customer/"
"""Begins the reference of what no provider reports: the customer's own word. Providers' references have no slash."""


class PaymentError(Exception):
    """The payment is not what the shop expects. Nothing was changed."""


class UnknownOrder(PaymentError):
    """There is no such order, or it is still queued: the provider asks again later."""


class ReferenceReused(PaymentError):
    """The reference belongs to a payment of another order or amount."""


class WrongAmount(PaymentError):
    """The order costs something else."""

    def __init__(self, *, expected: Decimal, received: Decimal) -> None:
        super().__init__(f"The order costs {expected:.2f}, not {received:.2f}.")
        self.expected = expected
        self.received = received


@dataclass(frozen=True, slots=True)
class Received:
    """What became of a payment.

    Args:
        replayed: it was received by an earlier call, which had the same answer.
    """

    payment: Payment
    replayed: bool


def receive(reference: str, *, order: UUID, amount: Decimal) -> Received:
    """Take note of a payment, once for its reference, and mark the order as paid, or the payment as due for refund.

    Args:
        reference: the provider's; the same reference is the same payment, however often it is sent.

    Raises:
        PaymentError: nothing was changed.
    """
    with transaction.atomic(durable=True):
        try:
            found = states.locked(order)
        except Order.DoesNotExist as error:
            raise UnknownOrder(f"There is no order {order}. A queued one comes later.") from error
        before = Payment.objects.filter(reference=reference).first()
        if before is not None:
            if (before.order_id, before.amount) != (order, amount):
                raise ReferenceReused(f"Reference {reference} belongs to another payment.")
            return Received(before, replayed=True)
        if amount != found.total:
            logger.warning("Payment %s of %s for order %s, which costs %s.", reference, amount, order, found.total)
            raise WrongAmount(expected=found.total, received=amount)
        return Received(record(found, reference=reference, amount=amount), replayed=False)


def record(order: Order, *, reference: str, amount: Decimal) -> Payment:
    """Write down a payment of the whole order, and mark the order as paid if it can be, in the open transaction.

    An order that was cancelled or has expired takes its units again, and stands, if nobody has bought them since.

    Args:
        order: `states.locked`.
    """
    note, outcome = "", Payment.Outcome.REFUND_DUE
    match order.state:
        case Order.State.PENDING:
            outcome = Payment.Outcome.PAID
        case Order.State.PAID:
            note = "The order was paid already."
        case Order.State.CANCELLED | Order.State.EXPIRED:
            try:
                with transaction.atomic():
                    take_again(order)
            except (SoldOut, OverLimit) as refused:
                note = f"The order is {order.state}; {refused}"
            else:
                note, outcome = f"The order was {order.state}; its units were taken again.", Payment.Outcome.PAID
        case _:
            note = f"The order is {order.state}."
    if outcome == Payment.Outcome.PAID:
        states.change(order, Order.State.PAID)
    return Payment.objects.create(order=order, reference=reference, amount=amount, outcome=outcome, note=note[:200])


def due(some: QuerySet[Payment]) -> QuerySet[Payment]:
    """Those whose money has to go back, and has not yet."""
    return some.filter(outcome=Payment.Outcome.REFUND_DUE, refunded_at=None)


def refund(payment: int, *, by: int) -> bool:
    """Note that the money of a payment has gone back: who says so, and when.

    Args:
        by: the id of the person.

    Returns:
        False when it was not due, or somebody has said so before.
    """
    one = due(Payment.objects.filter(pk=payment))
    return bool(one.update(refunded_at=timezone.now(), refunded_by=by))
