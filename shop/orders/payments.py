"""Payments for orders. They may come twice, late or out of order; each pays its order once or is to be refunded."""

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
from shop.orders.saving import retake_units

logger = logging.getLogger(__name__)

BY_CUSTOMER = "customer/"
"""Prefix of the references of payments that a customer reports. References of a provider contain no slash."""


class PaymentError(Exception):
    """The payment is not what the shop expects. Nothing was changed."""


class UnknownOrder(PaymentError):
    """There is no such order, or it is still queued. The provider should report the payment again later."""


class ReferenceReused(PaymentError):
    """The reference belongs to a payment for another order or of another amount."""


class WrongAmount(PaymentError):
    """The amount is not the total of the order."""

    def __init__(self, *, expected: Decimal, received: Decimal) -> None:
        super().__init__(f"The order costs {expected:.2f}, not {received:.2f}.")
        self.expected = expected
        self.received = received


@dataclass(frozen=True, slots=True)
class ReceivedPayment:
    """A payment and its outcome.

    Args:
        replayed: an earlier call has received it. The answer is the same.
    """

    payment: Payment
    replayed: bool


def receive_payment(reference: str, *, order: UUID, amount: Decimal) -> ReceivedPayment:
    """Record a payment that the provider reports. Mark the order as paid, or the payment as due for refund.

    Args:
        reference: the provider's reference. Repeated calls with the same reference return the same payment.

    Raises:
        PaymentError: the payment is refused. Nothing was changed.
    """
    with transaction.atomic(durable=True):
        try:
            found = states.locked(order)
        except Order.DoesNotExist as error:
            raise UnknownOrder(f"There is no order {order}, or it is still queued.") from error
        before = Payment.objects.filter(reference=reference).first()
        if before is not None:
            if (before.order_id, before.amount) != (order, amount):
                raise ReferenceReused(f"The reference {reference} belongs to another payment.")
            return ReceivedPayment(before, replayed=True)
        if amount != found.total:
            logger.warning("Payment %s of %s was refused: order %s costs %s.", reference, amount, order, found.total)
            raise WrongAmount(expected=found.total, received=amount)
        return ReceivedPayment(record_payment(found, reference=reference, amount=amount), replayed=False)


def record_payment(order: Order, *, reference: str, amount: Decimal) -> Payment:
    """Record a payment of the whole order in the open transaction, and mark the order as paid if possible.

    If the order was cancelled or has expired, its units are taken again. If they were sold meanwhile, a refund is due.

    Args:
        order: as `states.locked` returns it.
    """
    note, outcome = "", Payment.Outcome.REFUND_DUE
    match order.state:
        case Order.State.PENDING:
            outcome = Payment.Outcome.PAID
        case Order.State.PAID:
            note = "The order is already paid."
        case Order.State.CANCELLED | Order.State.EXPIRED:
            try:
                with transaction.atomic():
                    retake_units(order)
            except (SoldOut, OverLimit) as refused:
                note = f"The order is {order.state}. {refused}"
            else:
                note, outcome = f"The order was {order.state}. Its units were taken again.", Payment.Outcome.PAID
        case _:
            note = f"The order is {order.state}."
    if outcome == Payment.Outcome.PAID:
        states.change(order, Order.State.PAID)
    return Payment.objects.create(order=order, reference=reference, amount=amount, outcome=outcome, note=note[:200])


def refunds_due(payments: QuerySet[Payment]) -> QuerySet[Payment]:
    """Return the payments that are due for refund and not refunded yet."""
    return payments.filter(outcome=Payment.Outcome.REFUND_DUE, refunded_at=None)


def mark_refunded(payment: int, *, by: int) -> bool:
    """Record that a payment was refunded, when and by whom.

    Args:
        by: id of the user who has refunded it.

    Returns:
        False when no refund was due, for example because it was recorded before.
    """
    due = refunds_due(Payment.objects.filter(pk=payment))
    return bool(due.update(refunded_at=timezone.now(), refunded_by=by))
